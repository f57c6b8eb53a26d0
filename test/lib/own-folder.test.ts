import { chmodSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, test } from 'vitest';
import { ownFolder } from '../helpers/own-folder.ts';

test('what others could have filled is not used', () => {
  const name = `svc-own-${process.pid}`;
  const folder = path.join(tmpdir(), name);
  try {
    expect(ownFolder(name)).toBe(folder);
    expect(ownFolder(name)).toBe(folder);
    chmodSync(folder, 0o777);
    expect(() => ownFolder(name)).toThrow(/other users/);
    rmSync(folder, { recursive: true });
    symlinkSync(tmpdir(), folder);
    expect(() => ownFolder(name)).toThrow(/other users/);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
