#!/usr/bin/env node
// before anything else is loaded: some modules look for what is there when they are
if (!('rawJSON' in JSON)) await import('./node20.ts');
await import('../../../server/proxy/main.ts');
