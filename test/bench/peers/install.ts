import { execFileSync } from 'node:child_process';
import { existsSync, lstatSync, mkdirSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { ownFolder } from '../../helpers/own-folder.ts';
import type { BenchContext, Figure } from '../lib.ts';

/** What people would use instead. Never a dependency: `npm run bench -- peers` installs them into their own folder. */
const PEERS = {
  '@microsoft/agent-governance-sdk': '4.0.0',
  bullmq: '6.7.0',
  casbin: '5.51.1',
  cerbos: '0.51.0',
  corestore: '7.12.5',
  hypercore: '11.37.1',
  /** BullMQ's driver, which users must install themselves. */
  ioredis: '6.0.0',
  'json-rules-engine': '7.3.1',
} as const;
type Peer = keyof typeof PEERS;

const FOLDER = process.env.SVC_BENCH_PEERS ?? ownFolder('svc-bench-peers');
const MODULES = path.join(FOLDER, 'node_modules');

/** The module of a peer; undefined if it is not installed. */
export function peer(name: Peer): unknown {
  if (!existsSync(path.join(MODULES, name))) return undefined;
  return createRequire(path.join(FOLDER, 'peers.cjs'))(name);
}

/** A file of the peers' packages; undefined if it is not installed. */
export function peerFile(...parts: string[]): string | undefined {
  const file = path.join(MODULES, ...parts);
  return existsSync(file) ? file : undefined;
}

export const notInstalled = (name: Peer) => `${name} is not installed, skipped (npm run bench -- peers installs it)`;

/** Installs them. None of their scripts are run. */
export async function bench({ print = () => {} }: BenchContext): Promise<Figure[]> {
  mkdirSync(FOLDER, { recursive: true });
  const packages = Object.entries(PEERS).map(([name, version]) => `${name}@${version}`);
  const quiet = ['--no-save', '--ignore-scripts', '--no-audit', '--no-fund'];
  execFileSync('npm', ['install', '--prefix', FOLDER, ...quiet, ...packages], { stdio: ['ignore', 2, 2] });
  const files = readdirSync(FOLDER, { recursive: true, withFileTypes: true }).filter((one) => one.isFile());
  const bytes = files.reduce((sum, { parentPath, name }) => sum + lstatSync(path.join(parentPath, name)).size, 0);
  print(`${packages.join(', ')}: ${Math.round(bytes / 2 ** 20)} MB in ${FOLDER}; remove it when you no longer need it`);
  return [];
}
