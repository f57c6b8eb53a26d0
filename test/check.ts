import { spawnSync } from 'node:child_process';
import path from 'node:path';

/** Everything that must hold besides the tests (`npm run check`). Runs all of it and reports each result. */
const root = path.resolve(import.meta.dirname, '..');
const bin = (name: string) => path.join(root, 'node_modules/.bin', name);

const steps: [what: string, command: string, ...args: string[]][] = [
  ['types', 'npm', 'run', '--silent', 'typecheck'],
  ['lint and format', bin('biome'), 'check', '--error-on-warnings', '.'],
  ['unused files, exports and dependencies', bin('knip'), '--config', 'test/knip.json'],
  ['import ladder', bin('vitest'), 'run', '--config', 'test/vitest.config.ts', 'test/boundaries.test.ts'],
  ['OpenAPI document is fresh', process.execPath, 'server/cli.ts', 'openapi', '--check'],
  [
    'types of the client are fresh',
    path.join(root, 'sdk/client/node_modules/.bin/openapi-typescript'),
    'server/api/openapi.json',
    '--output',
    'sdk/client/src/schema.ts',
    '--check',
  ],
  // routes that only send a browser on have no answer of 2xx
  [
    'OpenAPI document is sound',
    bin('redocly'),
    'lint',
    'server/api/openapi.json',
    '--skip-rule',
    'operation-2xx-response',
  ],
  ['tables of the documentation are fresh', process.execPath, 'test/docs/generate.ts', '--check'],
  ['golden files are unchanged', process.execPath, 'test/vectors/generate.ts', '--check'],
];

let failed = 0;
for (const [what, command, ...args] of steps) {
  const { status } = spawnSync(command, args, {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' },
  });
  console.log(`${status === 0 ? 'ok    ' : 'FAILED'}  ${what}`);
  if (status !== 0) failed++;
}
process.exitCode = failed === 0 ? 0 : 1;
