import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { changedSince, git, readReach } from './helpers/reach.ts';
import { readSeconds } from './helpers/seconds.ts';

const HELP = `Usage: npm run test:changed [-- [COMMIT] [--list]]

Runs the tests, slow ones included, that the change since COMMIT can affect.
COMMIT: default: where this branch left its upstream; without one, HEAD.
  --list   print the files, and run nothing`;

/** `npm run test:changed`. Exits with 1 where a test failed. */
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { list: { type: 'boolean' }, help: { type: 'boolean' } },
});
if (values.help) {
  console.log(HELP);
  process.exit(0);
}

const since = positionals[0] ?? leftUpstreamAt();
const tests = readReach()(changedSince(since));
const seconds = readSeconds();
const sum = tests.reduce((total, file) => total + (seconds[file] ?? 0), 0);
console.error(
  `${tests.length} test files can be affected by the change since ${since}; alone they take about ${sum} s`,
);
if (values.list) for (const file of tests) console.log(file);
else if (tests.length > 0) {
  const root = path.resolve(import.meta.dirname, '..');
  const vitest = path.join(root, 'node_modules/vitest/vitest.mjs');
  const env = { ...process.env, SVC_SLOW: '1' };
  const args = [vitest, 'run', '--config', 'test/vitest.config.ts', ...tests];
  process.exitCode = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit', env }).status ?? 1;
}

function leftUpstreamAt(): string {
  try {
    return git('merge-base', 'HEAD', '@{upstream}')[0]!;
  } catch {
    return 'HEAD';
  }
}
