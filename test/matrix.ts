import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { compilingVersion, fetchVersions, otherVersions } from './helpers/postgres-versions.ts';

/**
 * `npm run matrix`: tests that reach the database, on every version of PostgreSQL that the program supports but the newest,
 * on which all other runs are, and on one that compiles expensive statements (LLVM), as those of Linux distributions do. Names of
 * versions choose among them, names of files or folders among the tests.
 *
 * Exits with 1 where a test failed.
 */
const TESTS = [
  'test/entities.test.ts',
  'test/tenant-isolation.test.ts',
  'test/chain',
  'test/decisions',
  'test/escrow',
  'test/jobs',
  'test/keys',
  'test/stops',
];

const root = path.resolve(import.meta.dirname, '..');
const { positionals } = parseArgs({ allowPositionals: true });
const chosen = positionals.filter((word) => /^\d+$/.test(word));
const files = positionals.filter((word) => !chosen.includes(word));

fetchVersions();
const labeled = [
  ...otherVersions().map((one) => ({ ...one, label: `PostgreSQL ${one.version}` })),
  ...compilingVersion().map((one) => ({ ...one, label: `PostgreSQL ${one.version} with LLVM` })),
];
const versions = labeled.filter(({ version }) => chosen.length === 0 || chosen.includes(String(version)));
const failed = versions.filter(({ label, bin }) => {
  console.log(label);
  const vitest = path.join(root, 'node_modules/vitest/vitest.mjs');
  const args = [vitest, 'run', '--config', 'test/vitest.config.ts', ...(files.length > 0 ? files : TESTS)];
  const env = { ...process.env, SVC_SLOW: '1', SVC_TEST_PG_BIN: bin };
  return spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit', env }).status !== 0;
});
for (const one of versions) console.log(`${failed.includes(one) ? 'FAILED' : 'ok    '}  ${one.label}`);
process.exitCode = versions.length > 0 && failed.length === 0 ? 0 : 1;
