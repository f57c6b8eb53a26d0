import { statSync } from 'node:fs';
import { mkdir, open, rename } from 'node:fs/promises';
import path from 'node:path';
import { StringDecoder } from 'node:string_decoder';
import { Bounded } from '../lib/bounded.ts';
import { type NoteKey, openHead } from './note.ts';
import type { ChainName } from './record.ts';

/**
 * The checkpoint files, one per chain: signed notes, each followed by an empty line. They are append-only. They are outside the
 * database, so that rewriting a chain there does not rewrite what was signed about it.
 */

/** The file of a chain's checkpoints. */
export function checkpointFile(directory: string, tenantId: string, chain: ChainName): string {
  return path.join(directory, `${encodeURIComponent(tenantId)}.${chain}.txt`);
}

/** The chain that a file with this name is about; undefined for any other file. */
export function chainOfFile(name: string): { tenantId: string; chain: ChainName } | undefined {
  const [, tenant, chain] = /^(.+)\.(forensics|audit)\.txt$/.exec(name) ?? [];
  try {
    return tenant ? { tenantId: decodeURIComponent(tenant), chain: chain as ChainName } : undefined;
  } catch {
    return undefined;
  }
}

/** When the files in a directory were last copied to another place, in seconds since 1970; 0 for never. Whoever copies them says so. */
export function copiedAt(directory: string): number {
  try {
    return statSync(path.join(directory, 'copied')).mtimeMs / 1000;
  } catch {
    return 0;
  }
}

/** Appends notes, each with its empty line, in one write and one flush. */
export async function appendNotes(file: string, text: string): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
  const handle = await open(file, 'a+', 0o600);
  try {
    const { size } = await handle.stat();
    const end = Buffer.alloc(2);
    if (size > 0) await handle.read(end, 0, 2, Math.max(0, size - 2));
    // a note truncated by a crash must neither run into the next note nor pass for a complete one
    await handle.appendFile(size > 0 && end.toString() !== '\n\n' ? ` (cut off)\n\n${text}` : text);
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** A note as it appears in a file, read but not verified: nothing in it is trusted. */
export interface FiledNote {
  note: string;
  seq: number;
  hash: string;
  generation: number;
}

/**
 * The checkpoints in a file, in order, from byte `from` up to `to`. Anything that is not a complete note (one truncated by a
 * crash) is skipped. A missing file is treated as an empty one. Memory stays constant.
 */
export async function* notesIn(file: string, from = 0, to = Number.POSITIVE_INFINITY): AsyncGenerator<FiledNote> {
  let handle: Awaited<ReturnType<typeof open>>;
  try {
    handle = await open(file, 'r');
  } catch (error) {
    if (isMissing(error)) return;
    throw error;
  }
  try {
    const decoder = new StringDecoder('utf8');
    const buffer = Buffer.alloc(64 * 1024);
    let text = '';
    for (let at = from; ; ) {
      const { bytesRead } = await handle.read(buffer, 0, Math.min(buffer.length, to - at), at);
      if (bytesRead === 0) return;
      at += bytesRead;
      text += decoder.write(buffer.subarray(0, bytesRead));
      let end = 0;
      for (const match of text.matchAll(COMPLETE_NOTE)) {
        end = match.index + match[0].length;
        const [, , seq, hash, fifth = ''] = match[0].split('\n');
        const generation = Number(/^generation (\d+)$/.exec(fifth)?.[1] ?? 0);
        yield { note: match[0].slice(0, -1), seq: Number(seq), hash: hash!, generation };
      }
      text = text.slice(end).slice(-LONGEST_NOTE);
    }
  } finally {
    await handle.close();
  }
}
const LONGEST_NOTE = 16 * 1024;
const COMPLETE_NOTE = /^svc-chain-head\/(?:(?!svc-chain-head\/)[\s\S])*?\n\n(?:— \S+ \S+\n)+\n/gm;

/** The highest note of each generation in a file. The file is read through once; later calls read only what was added. */
export class FiledHeads {
  readonly #files = new Bounded<{ size: number; inode: number; highest: Map<number, FiledNote> }>({
    entries: 20_000,
    characters: 4_000_000,
  });

  /**
   * The highest checkpoint of each generation, by its number, not by its position in the file. Throws an Error that says what is
   * wrong if one of them was not signed by one of the keys.
   */
  async highest(file: string, keys: readonly NoteKey[]) {
    const size = await statOf(file);
    let entry = this.#files.get(file);
    // shorter, or a different file: it is not the one that was read before
    if (!entry || size.size < entry.size || size.inode !== entry.inode)
      entry = { ...size, size: 0, highest: new Map() };
    if (size.size > entry.size) {
      // a note may have begun before the point up to which the file was read
      for await (const note of notesIn(file, Math.max(0, entry.size - LONGEST_NOTE))) {
        if (note.seq > (entry.highest.get(note.generation)?.seq ?? 0)) entry.highest.set(note.generation, note);
      }
      entry = { ...entry, ...size };
    }
    this.#files.set(file, entry);
    return [...entry.highest.values()].map(({ note }) => ({ ...openHead(note, keys), note }));
  }
}

/** The highest checkpoint of each generation in a chain's file, see FiledHeads. */
export async function highestInFile(directory: string, tenantId: string, chain: ChainName, keys: readonly NoteKey[]) {
  return new FiledHeads().highest(checkpointFile(directory, tenantId, chain), keys);
}

/**
 * Moves a file with content that does not open out of the way; the next checkpoint starts a new one. Resolves with its new name.
 */
export async function setAside(file: string, now: number): Promise<string> {
  const place = `${file}.${new Date(now).toISOString().replaceAll(':', '')}.set-aside`;
  await rename(file, place);
  return place;
}

async function statOf(file: string): Promise<{ size: number; inode: number }> {
  try {
    const handle = await open(file, 'r');
    try {
      const { size, ino } = await handle.stat();
      return { size, inode: ino };
    } finally {
      await handle.close();
    }
  } catch (error) {
    if (isMissing(error)) return { size: 0, inode: 0 };
    throw error;
  }
}

function isMissing(error: unknown): boolean {
  return ['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '');
}
