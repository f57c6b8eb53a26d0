import { randomBytes } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type Config, parseMasterKey } from '../config.ts';

/**
 * The configured master key, or else the one in the data directory, which is created on first use and readable only by
 * its owner. Anyone who has the database and this key has every secret in it.
 */
export function masterKey(config: Pick<Config, 'masterKey' | 'dataDir'>): Buffer {
  if (config.masterKey) return config.masterKey;
  const file = path.join(config.dataDir, 'master.key');
  mkdirSync(config.dataDir, { recursive: true });
  if (!existsSync(file)) {
    writeFileSync(file, `${randomBytes(32).toString('hex')}\n`, { mode: 0o600, flag: 'wx' });
    chmodSync(file, 0o600);
  }
  return parseMasterKey(readFileSync(file, 'utf8').trim(), file);
}
