import { createHash, type KeyObject, sign, verify } from 'node:crypto';

/**
 * Checkpoints as signed notes (C2SP signed-note v1.0.0, Ed25519, signature type 0x01): text, an empty line, then
 * `— <name> <base64(key hash | signature)>`. The first line of the text names what is signed, so that a Merkle
 * checkpoint can come beside this one later.
 */
const HEAD_TYPE = 'svc-chain-head/v1';

export interface ChainHead {
  /** `<host>/<tenant>/<chain>` */
  origin: string;
  seq: number;
  /** BLAKE3 in hex of record `seq`. */
  hash: string;
}

function rawPublicKey(key: KeyObject): Buffer {
  return Buffer.from(key.export({ format: 'jwk' }).x as string, 'base64url');
}

/** The first 4 bytes of SHA-256(name | "\n" | 0x01 | public key), by which a note names its key. */
function keyHash(name: string, publicKey: KeyObject): Buffer {
  return createHash('sha256')
    .update(`${name}\n`)
    .update(Buffer.from([1]))
    .update(rawPublicKey(publicKey))
    .digest()
    .subarray(0, 4);
}

/** Signs a chain head. The name of the signer is the origin's host. */
export function signHead(head: ChainHead, privateKey: KeyObject, publicKey: KeyObject): string {
  const text = `${HEAD_TYPE}\n${head.origin}\n${head.seq}\n${head.hash}\n`;
  const name = head.origin.split('/')[0]!;
  const signature = Buffer.concat([keyHash(name, publicKey), sign(null, Buffer.from(text), privateKey)]);
  return `${text}\n— ${name} ${signature.toString('base64')}\n`;
}

/**
 * The head that a note states, when one of the keys signed it under the name of the origin's host; an Error that says
 * what is wrong otherwise. Strict: there is one spelling of a note, so that none can be changed and still open.
 */
export function openHead(note: string, keys: readonly KeyObject[]): ChainHead {
  const gap = note.indexOf('\n\n');
  if (gap < 0 || !note.endsWith('\n')) throw new Error('the note has no signature block');
  const text = note.slice(0, gap + 1);
  const lines = text.split('\n');
  const [type, origin, seq, hash] = lines;
  if (lines.length !== 5 || type !== HEAD_TYPE) throw new Error('the note is not a chain head of a known version');
  if (!origin || !/^[1-9]\d{0,15}$/.test(seq!) || !/^[0-9a-f]{64}$/.test(hash!))
    throw new Error('the note is malformed');
  if (!Number.isSafeInteger(Number(seq))) throw new Error('the note is malformed');
  const host = origin.split('/')[0];
  let signed = false;
  for (const line of note.slice(gap + 2, -1).split('\n')) {
    const [, name, data = ''] = /^— (\S+) (\S+)$/.exec(line) ?? [];
    const bytes = Buffer.from(data, 'base64');
    if (!name || bytes.toString('base64') !== data) throw new Error('a signature line of the note is malformed');
    // A note may carry signatures by others; their keys are not known here.
    for (const key of keys) {
      if (name !== host || bytes.length !== 68 || !keyHash(name, key).equals(bytes.subarray(0, 4))) continue;
      signed ||= verify(null, Buffer.from(text), key, bytes.subarray(4));
    }
  }
  if (!signed) throw new Error('no signature of the note is by a known key');
  return { origin, seq: Number(seq), hash: hash! };
}
