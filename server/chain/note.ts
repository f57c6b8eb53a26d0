import { createHash, type KeyObject, sign, verify } from 'node:crypto';

/**
 * What is signed about a chain, as signed notes (C2SP signed-note v1.0.0, Ed25519, signature type 0x01): text, an empty line,
 * then `— <name> <base64(key hash | signature)>`. The first line of the text names what is signed, so that a Merkle checkpoint
 * can be added alongside these later.
 */
const HEAD_TYPE = 'svc-chain-head/v1';
const LOSS_TYPE = 'svc-chain-loss/v1';

/** A checkpoint: record `seq` of the chain has this hash. */
export interface ChainHead {
  /** `<host>/<tenant>/<chain>` */
  origin: string;
  seq: number;
  /** BLAKE3 in hex of record `seq`. */
  hash: string;
  /** How many losses of the chain an operator had accepted by then, see ChainLoss. Absent before the first. */
  generation?: number;
}

/**
 * An operator's acceptance of a loss: the chain continues after record `kept`, although what was known about it says otherwise.
 * Statements of an earlier generation about records after `agreed` are no longer expected to hold. All other statements stay
 * binding, including those of this generation.
 */
export interface ChainLoss {
  origin: string;
  /** The last record that was there; the next one holds this note. */
  kept: { seq: number; hash: string };
  /** The generation that begins here: 1 for the first loss of a chain. */
  generation: number;
  /** Up to this record the chain agreed with everything known about it. At most `kept.seq`. */
  agreed: number;
  /** The highest record that is known to have been there. */
  lost: { seq: number; hash: string };
}

/** The limit up to which a former key counts: the last record, and the number of losses accepted by then. */
export interface NoteLimit {
  readonly seq: number;
  readonly generation: number;
}

/**
 * A key whose signature counts. A key of an installation that the tenant came from counts up to the move.
 *
 * INVARIANT: such a key's holder can state nothing about what came after the move, and can void nothing. A later loss would
 * supersede what is signed here, so the key counts only up to the generation that arrived, which is the generation of everything
 * signed here.
 */
export type NoteKey = KeyObject | { readonly publicKey: KeyObject; readonly upTo: NoteLimit };
const UNLIMITED: NoteLimit = { seq: Number.POSITIVE_INFINITY, generation: Number.POSITIVE_INFINITY };

function rawPublicKey(key: KeyObject): Buffer {
  return Buffer.from(key.export({ format: 'jwk' }).x as string, 'base64url');
}

/** The first 4 bytes of SHA-256(name | "\n" | 0x01 | public key), by which a note identifies its key. */
function keyHash(name: string, publicKey: KeyObject): Buffer {
  return createHash('sha256')
    .update(`${name}\n`)
    .update(Buffer.from([1]))
    .update(rawPublicKey(publicKey))
    .digest()
    .subarray(0, 4);
}

/** Signs a chain head. The signer's name is the origin's host. */
export function signHead(head: ChainHead, privateKey: KeyObject, publicKey: KeyObject): string {
  const generation = head.generation ? [`generation ${head.generation}`] : [];
  return signNote([HEAD_TYPE, head.origin, String(head.seq), head.hash, ...generation], privateKey, publicKey);
}

/**
 * The head that a note states, if one of the keys signed it under the name of the origin's host; otherwise throws an Error that
 * says what is wrong. Strict: a note has only one spelling, so that no altered note can still open.
 */
export function openHead(note: string, keys: readonly NoteKey[]): ChainHead {
  const { lines, upTo } = openNote(note, keys);
  const [type, origin, seq, hash, generation] = lines;
  if (type !== HEAD_TYPE) throw new Error('the note is not a chain head of a known version');
  if (lines.length > 5 || !HASH.test(hash ?? '')) throw new Error('the note is malformed');
  const head = { origin: origin!, seq: whole(seq), hash: hash! };
  const losses = generation === undefined ? 0 : whole(/^generation (\d+)$/.exec(generation)?.[1]);
  assertWithin(upTo, head.seq, losses);
  return losses === 0 ? head : { ...head, generation: losses };
}

/** Signs the acceptance of a loss. */
export function signLoss(loss: ChainLoss, privateKey: KeyObject, publicKey: KeyObject): string {
  const { origin, kept, generation, agreed, lost } = loss;
  const lines = [LOSS_TYPE, origin, `kept ${kept.seq} ${kept.hash}`, `generation ${generation}`];
  return signNote([...lines, `agreed ${agreed}`, `lost ${lost.seq} ${lost.hash}`], privateKey, publicKey);
}

/** The loss that a note accepts. Opens the note as `openHead` does. */
export function openLoss(note: string, keys: readonly NoteKey[]): ChainLoss {
  const { lines, upTo } = openNote(note, keys);
  const [type, origin, kept = '', generation = '', agreed = '', lost = '', ...more] = lines;
  if (type !== LOSS_TYPE) throw new Error('the note is not an accepted loss of a known version');
  const place = (line: string, word: string) => {
    const [, seq, hash = ''] = /^(?:kept|lost) (\d+) ([0-9a-f]{64})$/.exec(line.startsWith(word) ? line : '') ?? [];
    return { seq: whole(seq), hash };
  };
  if (more.length > 0) throw new Error('the note is malformed');
  const last = place(kept, 'kept');
  const losses = whole(/^generation (\d+)$/.exec(generation)?.[1]);
  // the note is in the next record
  assertWithin(upTo, last.seq + 1, losses);
  return {
    origin: origin!,
    kept: last,
    generation: losses,
    agreed: agreed === 'agreed 0' ? 0 : whole(/^agreed (\d+)$/.exec(agreed)?.[1]),
    lost: place(lost, 'lost'),
  };
}

const HASH = /^[0-9a-f]{64}$/;

/** A positive integer that JavaScript represents exactly, in its only spelling. */
function whole(text: string | undefined): number {
  if (text && /^[1-9]\d{0,15}$/.test(text) && Number.isSafeInteger(Number(text))) return Number(text);
  throw new Error('the note is malformed');
}

function signNote(lines: readonly string[], privateKey: KeyObject, publicKey: KeyObject): string {
  const text = `${lines.join('\n')}\n`;
  const name = lines[1]!.split('/')[0]!;
  const signature = Buffer.concat([keyHash(name, publicKey), sign(null, Buffer.from(text), privateKey)]);
  return `${text}\n— ${name} ${signature.toString('base64')}\n`;
}

function assertWithin(upTo: NoteLimit, seq: number, generation: number): void {
  if (seq > upTo.seq) throw new Error(`the key of the note counts up to record ${upTo.seq}`);
  if (generation > upTo.generation) throw new Error(`the key of the note counts up to loss ${upTo.generation}`);
}

/** The lines of a note's text, the second of which is the origin, and the limit up to which its signature counts. */
function openNote(note: string, keys: readonly NoteKey[]): { lines: string[]; upTo: NoteLimit } {
  const gap = note.indexOf('\n\n');
  if (gap < 0 || !note.endsWith('\n')) throw new Error('the note has no signature block');
  const text = note.slice(0, gap + 1);
  const lines = text.slice(0, -1).split('\n');
  const origin = lines[1];
  if (!origin || lines.length < 4) throw new Error('the note is malformed');
  const host = origin.split('/')[0];
  let upTo: NoteLimit | undefined;
  for (const line of note.slice(gap + 2, -1).split('\n')) {
    const [, name, data = ''] = /^— (\S+) (\S+)$/.exec(line) ?? [];
    const bytes = Buffer.from(data, 'base64');
    if (!name || bytes.toString('base64') !== data) throw new Error('a signature line of the note is malformed');
    // A note may carry signatures by others; their keys are not known here.
    for (const each of keys) {
      const { publicKey: key, upTo: most } = 'upTo' in each ? each : { publicKey: each, upTo: UNLIMITED };
      if (name !== host || bytes.length !== 68 || !keyHash(name, key).equals(bytes.subarray(0, 4))) continue;
      if (most.seq > (upTo?.seq ?? 0) && verify(null, Buffer.from(text), key, bytes.subarray(4))) upTo = most;
    }
  }
  if (!upTo) throw new Error('no signature of the note is by a known key');
  return { lines, upTo };
}
