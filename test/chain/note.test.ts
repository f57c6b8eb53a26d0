import { verify } from 'node:crypto';
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { openHead, openLoss, signHead, signLoss } from '../../server/chain/note.ts';
import { vectorKey } from '../vectors/chain/samples.ts';

const head = { origin: 'control.example/tnt_a/forensics', seq: 1000, hash: 'ab'.repeat(32) };
const { privateKey, publicKey } = vectorKey(1);
const note = signHead(head, privateKey, publicKey);

describe('a checkpoint note', () => {
  test('verifies with the key that signed it, for any head', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: Number.MAX_SAFE_INTEGER }),
        fc.uint8Array({ minLength: 32, maxLength: 32 }),
        (seq, bytes) => {
          const any = { ...head, seq, hash: Buffer.from(bytes).toString('hex') };
          expect(openHead(signHead(any, privateKey, publicKey), [vectorKey(2).publicKey, publicKey])).toEqual(any);
        },
      ),
      { numRuns: 50 },
    );
  });

  test('has the form of a C2SP signed note: the signature is over the text alone', () => {
    const [text, block] = note.split('\n\n');
    expect(text).toBe(`svc-chain-head/v1\n${head.origin}\n1000\n${head.hash}`);
    const [, name, data] = /^— (\S+) (\S+)\n$/.exec(block!)!;
    expect(name).toBe('control.example');
    const bytes = Buffer.from(data!, 'base64');
    expect(bytes.length).toBe(4 + 64);
    expect(verify(null, Buffer.from(`${text}\n`), publicKey, bytes.subarray(4))).toBe(true);
  });

  test('does not verify with another key', () => {
    expect(() => openHead(note, [vectorKey(2).publicKey])).toThrow('no signature of the note is by a known key');
    expect(() => openHead(note, [])).toThrow('known key');
  });

  test('of a former key counts up to the move, and says so beyond it', () => {
    const upTo = (seq: number, generation = 1) => [{ publicKey, upTo: { seq, generation } }];
    expect(openHead(note, upTo(1000))).toEqual(head);
    expect(() => openHead(note, upTo(999))).toThrow('counts up to record 999');
    // a key that is also the installation's own counts without an end
    expect(openHead(note, [...upTo(999), publicKey])).toEqual(head);
    const loss = { origin: head.origin, kept: { seq: 9, hash: head.hash }, generation: 1, agreed: 9, lost: head };
    const accepted = signLoss(loss, privateKey, publicKey);
    expect(openLoss(accepted, upTo(10)).kept.seq).toBe(9);
    expect(() => openLoss(accepted, upTo(9))).toThrow('counts up to record 9');
    // a loss that was never accepted would void whatever is signed here
    expect(() => openLoss(accepted, upTo(10, 0))).toThrow('counts up to loss 0');
    const late = signHead({ ...head, generation: 2 }, privateKey, publicKey);
    expect(openHead(late, upTo(1000, 2)).generation).toBe(2);
    expect(() => openHead(late, upTo(1000, 1))).toThrow('counts up to loss 1');
  });

  test('does not verify if any one bit is flipped', () => {
    const bytes = Buffer.from(note);
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const flipped = Buffer.from(bytes);
      flipped[bit >> 3]! ^= 1 << (bit & 7);
      expect(() => openHead(flipped.toString(), [publicKey]), `bit ${bit}`).toThrow(Error);
    }
  });

  test('verifies next to a signature by someone else', () => {
    const witness = `— witness.example ${Buffer.alloc(68, 3).toString('base64')}\n`;
    expect(openHead(note + witness, [publicKey])).toEqual(head);
  });

  test.each([
    ['nothing', ''],
    ['a text without a signature', note.split('\n\n')[0]!],
    ['an empty signature block', `${note.split('\n\n')[0]}\n\n`],
    ['another type', note.replace('svc-chain-head/v1', 'svc-chain-head/v2')],
    ['seq 0', note.replace('\n1000\n', '\n0\n')],
    ['a seq with a leading zero', note.replace('\n1000\n', '\n01000\n')],
    ['a seq beyond 2^53', note.replace('\n1000\n', '\n9999999999999999\n')],
    ['a short hash', note.replace('abab', 'ab')],
    ['a hash in capitals', note.replaceAll('ab', 'AB')],
    ['one more line of text', note.replace('\n\n', '\nmore\n\n')],
    ['text behind the signature', `${note}more`],
    ['a second empty line', note.replace('\n\n', '\n\n\n')],
    ['no final newline', note.trimEnd()],
    ['a signer with another name', note.replace('— control.example', '— other.example')],
    ['base64 in another spelling', note.replace(/=*\n$/, '\n')],
  ])('is refused with a readable reason: %s', (_, malformed) => {
    expect(malformed).not.toBe(note);
    expect(() => openHead(malformed, [publicKey])).toThrow(/the note/);
  });

  test('of the golden files still verifies', () => {
    const file = readFileSync(new URL('../vectors/chain/checkpoints.txt', import.meta.url), 'utf8');
    const [first, second] = file.split(/(?<==\n)\n/);
    expect(openHead(first!, [publicKey]).seq).toBe(3);
    expect(openHead(second!, [publicKey]).seq).toBe(7);
  });
});
