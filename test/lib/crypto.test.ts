import { createPublicKey } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  equalSecret,
  keyFingerprint,
  keyThumbprint,
  newSigningKey,
  publicKeyOf,
  randomBase62,
  randomFew,
  SecretBox,
  sha256Tag,
  spkiDer,
  toBase62,
} from '../../server/lib/crypto.ts';

describe('the secret box', () => {
  const box = new SecretBox(Buffer.alloc(32, 7));
  const place = 'tnt_a/subscription/sub_1/secret';

  test('opens what it sealed, in the same context, for any secret and context', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.string(), (secret, anywhere) => {
        expect(Buffer.compare(box.open(box.seal(secret, anywhere), anywhere), secret)).toBe(0);
      }),
    );
  });

  test('refuses a secret that was moved to another row, column or tenant', () => {
    const sealed = box.seal('whsec_1', place);
    for (const other of [place.replace('tnt_a', 'tnt_b'), place.replace('sub_1', 'sub_2'), `${place}2`, '']) {
      expect(() => box.open(sealed, other)).toThrow('does not open');
    }
  });

  test('refuses a secret of another master key, and names the context but not the secret', () => {
    const sealed = new SecretBox(Buffer.alloc(32, 8)).seal('whsec_hidden', place);
    expect(() => box.open(sealed, place)).toThrow(`the secret at ${place} has another master key`);
    const otherHeader = Buffer.concat([Buffer.from([1]), box.keyId, sealed.subarray(9)]);
    expect(() => box.open(otherHeader, place)).toThrow('does not open');
  });

  test('refuses every sealed secret in which one bit is flipped or bytes are missing', () => {
    const sealed = box.seal('a secret of some length', place);
    for (let bit = 0; bit < sealed.length * 8; bit++) {
      const flipped = Buffer.from(sealed);
      flipped[bit >> 3]! ^= 1 << (bit & 7);
      expect(() => box.open(flipped, place)).toThrow(place);
    }
    for (let length = 0; length < sealed.length; length++) {
      expect(() => box.open(sealed.subarray(0, length), place)).toThrow(place);
    }
  });

  test('seals the same secret differently each time', () => {
    expect(box.seal('x', place).equals(box.seal('x', place))).toBe(false);
  });

  test('refuses a master key of less than 256 bits', () => {
    expect(() => new SecretBox(Buffer.alloc(31))).toThrow(RangeError);
  });
});

describe('keys and hashes', () => {
  test('the thumbprint is that of RFC 8037 Appendix A.3', () => {
    const jwk = { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' };
    const key = createPublicKey({ key: jwk, format: 'jwk' });
    expect(keyThumbprint(key)).toBe('kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k');
  });

  test('the fingerprint is computed over the DER in a PEM file', () => {
    const { privateKey, publicKey } = newSigningKey();
    const pem = publicKey.export({ type: 'spki', format: 'pem' }) as string;
    const der = Buffer.from(pem.replaceAll(/-----[A-Z ]+-----|\n/g, ''), 'base64');
    expect(spkiDer(publicKey).equals(der)).toBe(true);
    expect(keyFingerprint(publicKey)).toBe(sha256Tag(der));
    expect(keyFingerprint(publicKeyOf(privateKey))).toBe(keyFingerprint(publicKey));
  });

  test('sha256Tag has the value of FIPS 180-4 for "abc"', () => {
    expect(sha256Tag('abc')).toBe('sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
  });

  test('secrets compare as equal exactly if they are', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 8 }), fc.uint8Array({ maxLength: 8 }), (a, b) => {
        expect(equalSecret(a, b)).toBe(Buffer.compare(a, b) === 0);
      }),
    );
  });

  test('random base62 has the requested length, only its alphabet, and every character of it', () => {
    const sample = randomBase62(20_000);
    expect(sample).toMatch(/^[0-9A-Za-z]{20000}$/);
    expect(new Set(sample).size).toBe(62);
    expect(randomBase62(0)).toBe('');
  });

  test('base62 of numbers is padded and keeps their order', () => {
    expect(toBase62(61, 3)).toBe('00z');
    expect(toBase62(62, 3)).toBe('010');
    fc.assert(
      fc.property(fc.nat(0xffffffff), fc.nat(0xffffffff), (a, b) => {
        expect(toBase62(a, 6) < toBase62(b, 6)).toBe(a < b);
      }),
    );
  });
});

test('of the random bytes that are drawn in lots each is given out once', () => {
  const given = Array.from({ length: 2000 }, (_, n) => randomFew(n % 7 === 0 ? 16 : 8));
  expect(given.map(({ length }) => length)).toEqual(given.map((_, n) => (n % 7 === 0 ? 16 : 8)));
  expect(new Set(given.map((bytes) => bytes.toString('hex'))).size).toBe(given.length);
  const places = given.map(({ buffer, byteOffset }, n) => [buffer, byteOffset, given[n]!.length] as const);
  for (const [n, [buffer, offset]] of places.entries()) {
    const [before, start, length] = places[n - 1] ?? [];
    if (buffer === before) expect(offset).toBe(start! + length!);
  }
});
