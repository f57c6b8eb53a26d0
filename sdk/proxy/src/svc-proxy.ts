#!/usr/bin/env node
// before anything else is loaded: some modules check for these features when they load
if (!('rawJSON' in JSON)) await import('./node20.ts');
await import('../../../server/proxy/main.ts');
