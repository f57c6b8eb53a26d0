import { lstatSync, mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

/**
 * A folder in the temporary directory that stays between runs, and that programs are run from. Made if it is not there; an
 * error if anybody else could have put something in it, since all users of a machine know its name.
 */
export function ownFolder(name: string): string {
  const folder = path.join(tmpdir(), name);
  mkdirSync(folder, { recursive: true, mode: 0o755 });
  const found = lstatSync(folder);
  if (!found.isDirectory() || found.uid !== process.getuid?.() || (found.mode & 0o022) !== 0) {
    throw new Error(`${folder} is open to other users: remove it, or name another folder`);
  }
  return folder;
}
