import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { fetchVersions, otherVersions } from './helpers/postgres-versions.ts';

/**
 * `npm run matrix`: tests that reach the database, on every version of PostgreSQL that the program supports but the newest,
 * on which all other runs are. Names of versions choose among them, names of files or folders among the tests.
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
const versions = otherVersions().filter(({ version }) => chosen.length === 0 || chosen.includes(String(version)));
const failed = versions.filter(({ version, bin }) => {
  console.log(`PostgreSQL ${version}`);
  const vitest = path.join(root, 'node_modules/vitest/vitest.mjs');
  const args = [vitest, 'run', '--config', 'test/vitest.config.ts', ...(files.length > 0 ? files : TESTS)];
  const env = { ...process.env, SVC_SLOW: '1', SVC_TEST_PG_BIN: bin };
  return spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit', env }).status !== 0;
});
for (const { version } of versions) {
  console.log(`${failed.some((one) => one.version === version) ? 'FAILED' : 'ok    '}  PostgreSQL ${version}`);
}
process.exitCode = versions.length > 0 && failed.length === 0 ? 0 : 1;
