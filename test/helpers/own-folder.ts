import { lstatSync, mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

/**
 * A folder in the temporary directory that persists between runs, and that programs are run from. Created if missing; an error if
 * anyone else could have put something into it, since all users of a machine know its name.
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
