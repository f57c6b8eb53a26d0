import { randomBytes } from 'node:crypto';
import { closeSync, fchmodSync, fsyncSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';

/**
 * Writes a file so that readers, and a crash, find either the old content or all of the new. The content is on disk when it
 * returns. The file gets this mode, even if it replaces another one.
 */
export function writeAtomically(file: string, content: string | Uint8Array, mode = 0o600): void {
  // a name that no one can have prepared
  const draft = `${file}.${randomBytes(6).toString('hex')}.tmp`;
  try {
    const fd = openSync(draft, 'wx', mode);
    try {
      fchmodSync(fd, mode);
      const bytes = typeof content === 'string' ? Buffer.from(content) : content;
      for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
      fsyncSync(fd);
    } finally {
      closeSync(fd);
    }
    renameSync(draft, file);
  } catch (error) {
    rmSync(draft, { force: true });
    throw error;
  }
}
