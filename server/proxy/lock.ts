import { closeSync, openSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import type * as Sqlite from 'node:sqlite';

export interface Lock {
  close(): void;
}

/**
 * The kernel's lock on a directory, which ends with the process, however that ends; undefined if another process holds it. Node
 * has no call for it, but its SQLite does; if Node is older than that (22.13), a native module does. Both lock the file `lock`,
 * so that processes of either kind exclude each other. Throws if neither is available.
 */
export function lockDirectory(dir: string): Lock | undefined {
  const file = path.join(dir, 'lock');
  const sqlite = process.getBuiltinModule?.('node:sqlite') as typeof Sqlite | undefined;
  if (!sqlite) return nativeLock(file);
  const lock = new sqlite.DatabaseSync(file, { timeout: 0 });
  try {
    lock.exec('pragma journal_mode = memory; pragma locking_mode = exclusive; begin exclusive');
    return lock;
  } catch (error) {
    lock.close();
    if (/locked|busy/i.test((error as Error).message)) return undefined;
    throw error;
  }
}

function nativeLock(file: string): Lock | undefined {
  let native: { tryLock(fd: number): boolean };
  try {
    native = createRequire(import.meta.url)('fs-native-extensions');
  } catch (cause) {
    throw new Error('This version of Node.js cannot lock a file. Use Node.js 22.13 or later.', { cause });
  }
  const fd = openSync(file, 'a', 0o600);
  if (native.tryLock(fd)) return { close: () => closeSync(fd) };
  closeSync(fd);
  return undefined;
}
