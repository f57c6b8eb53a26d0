/** Members in archive order. */
export function sorted<T>(files: ReadonlyMap<string, T>): [string, T][] {
  return [...files].sort(([a], [b]) => (a < b ? -1 : 1));
}

/** The message says what is wrong with an archive. */
export class ArchiveError extends Error {}

export const TAR_BLOCK = 512;
const ZERO_BLOCK = Buffer.alloc(TAR_BLOCK);
const MAX_MEMBERS = 20_000;

/**
 * A POSIX ustar archive (IEEE Std 1003.1, pax, "ustar Interchange Format") of plain files in the order of their names:
 * mode 0644, owner and group 0 without names, time 0, closed by two zero blocks. Equal files give equal bytes. GNU tar
 * writes the same with -b1 --format=ustar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644.
 */
export function writeTar(files: ReadonlyMap<string, Uint8Array>): Buffer {
  const blocks: Uint8Array[] = [];
  for (const [name, bytes] of sorted(files)) {
    blocks.push(tarHeader(name, bytes.byteLength), bytes, Buffer.alloc(tarPadding(bytes.byteLength)));
  }
  return Buffer.concat([...blocks, Buffer.alloc(2 * TAR_BLOCK)]);
}

/** The header block of a member. Throws a RangeError for a name or size that does not fit. */
export function tarHeader(name: string, size: number): Buffer {
  if (!isPlainName(name)) throw new RangeError(`${JSON.stringify(name)} cannot be the name of a member`);
  if (size >= 8 ** 11) throw new RangeError(`${name} is too large for a ustar archive`);
  const block = Buffer.alloc(TAR_BLOCK);
  block.write(name, 0, 'latin1');
  block.write('0000644\0' + '0000000\0' + '0000000\0', 100, 'latin1');
  block.write(`${size.toString(8).padStart(11, '0')}\0${'0'.repeat(11)}\0`, 124, 'latin1');
  block.write('        ', 148, 'latin1');
  block.write('0', 156, 'latin1');
  block.write('ustar\x0000', 257, 'latin1');
  block.write('0000000\0' + '0000000\0', 329, 'latin1');
  block.write(`${checksum(block).toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return block;
}

/**
 * The members of a ustar archive of plain files. Refuses, with an ArchiveError: other kinds of members; names that are absolute,
 * climb, repeat or contain characters that a package's do not; wrong checksums; truncated or trailing data. Ignores modes, owners
 * and times: `isWrittenTar` checks those.
 */
export function readTar(archive: Uint8Array): Map<string, Uint8Array> {
  const bytes = Buffer.from(archive.buffer, archive.byteOffset, archive.byteLength);
  const files = new Map<string, Uint8Array>();
  let at = 0;
  for (;;) {
    const member = readTarHeader(bytes.subarray(at, at + TAR_BLOCK), at);
    if (!member) break;
    const { name, size } = member;
    if (files.has(name)) throw new ArchiveError(`${name} stands twice in the archive`);
    if (files.size >= MAX_MEMBERS) throw new ArchiveError(`the archive has more than ${MAX_MEMBERS} members`);
    at += TAR_BLOCK;
    if (size > bytes.length - at) throw new ArchiveError(`${name} is cut off`);
    files.set(name, bytes.subarray(at, at + size));
    at += size + tarPadding(size);
  }
  if (bytes.length !== at + 2 * TAR_BLOCK || !bytes.subarray(at + TAR_BLOCK).equals(ZERO_BLOCK)) {
    throw new ArchiveError('the archive does not end where its members end');
  }
  return files;
}

/**
 * Whether an archive is byte for byte what `writeTar` makes of its members, as `readTar` returned them: the same headers in the
 * same order, and zeros as padding. It needs no second copy of the archive.
 */
export function isWrittenTar(archive: Uint8Array, members: ReadonlyMap<string, Uint8Array>): boolean {
  const bytes = Buffer.from(archive.buffer, archive.byteOffset, archive.byteLength);
  let at = 0;
  for (const [name, { byteLength: size }] of sorted(members)) {
    const end = at + TAR_BLOCK + size;
    if (!bytes.subarray(at, at + TAR_BLOCK).equals(tarHeader(name, size))) return false;
    at = end + tarPadding(size);
    if (!bytes.subarray(end, at).equals(ZERO_BLOCK.subarray(0, at - end))) return false;
  }
  return bytes.subarray(at).equals(Buffer.alloc(2 * TAR_BLOCK));
}

/** The member whose header block begins at byte `at`; undefined at the end of the archive. Refuses as `readTar` does. */
export function readTarHeader(block: Buffer, at: number): { name: string; size: number } | undefined {
  if (block.length < TAR_BLOCK) throw new ArchiveError('the archive is cut off');
  if (block.equals(ZERO_BLOCK)) return undefined;
  if (octal(block, 148, 8) !== checksum(block)) throw new ArchiveError(`a header at byte ${at} has a wrong checksum`);
  if (block.toString('latin1', 257, 263) !== 'ustar\0') throw new ArchiveError('the archive is not in ustar format');
  const name = cString(block, 0, 100);
  if (block[156] !== 48) throw new ArchiveError(`${JSON.stringify(name)} is not a plain file`);
  if (!isPlainName(name) || block[345] !== 0) throw new ArchiveError(`${JSON.stringify(name)} is not a plain name`);
  return { name, size: octal(block, 124, 12) };
}

/** The sum of the header's bytes with its own field as spaces. */
function checksum(block: Uint8Array): number {
  let sum = 8 * 32;
  for (let i = 0; i < TAR_BLOCK; i++) if (i < 148 || i >= 156) sum += block[i]!;
  return sum;
}

function octal(block: Buffer, at: number, length: number): number {
  const [, digits] = /^([0-7]+)[ \0]+$/.exec(block.toString('latin1', at, at + length)) ?? [];
  if (!digits) throw new ArchiveError('a header has a malformed number');
  return Number.parseInt(digits, 8);
}

function cString(block: Buffer, at: number, length: number): string {
  const text = block.toString('latin1', at, at + length);
  const end = text.indexOf('\0');
  return end < 0 ? text : text.slice(0, end);
}

/** Relative; of letters, digits, dot, dash and underscore; no segment is `.` or `..`. */
function isPlainName(name: string): boolean {
  return name.length <= 100 && name.split('/').every((part) => /^[A-Za-z0-9._-]+$/.test(part) && !/^\.\.?$/.test(part));
}

/** Zeros between the end of a member's content and the next block. */
export function tarPadding(size: number): number {
  return (TAR_BLOCK - (size % TAR_BLOCK)) % TAR_BLOCK;
}
