import { generateKeyPairSync } from 'node:crypto';
import { expect, test } from 'vitest';
import { CurrentError, openCurrent, type Standing, signCurrent, signerOfCurrent } from '../../server/keys/current.ts';

const { privateKey, publicKey } = generateKeyPairSync('ed25519');
const keyFor = (kid: string) => (kid === 'k1' ? publicKey : undefined);
const STANDING: Standing = { what: 'stops', tenant: 'acme', seq: 7, hash: 'sha256:ab' };
const AT = Date.parse('2026-03-01T12:00:00.000Z');
const text = signCurrent(STANDING, AT, { kid: 'k1', privateKey });

test('what is signed as current says when it was, for exactly that', () => {
  expect(openCurrent(text, keyFor, STANDING)).toBe(AT);
  expect(signerOfCurrent(text)).toBe('k1');
  for (const other of [{ what: 'bundle' }, { tenant: 'other' }, { seq: 6 }, { hash: 'sha256:ac' }] as const) {
    expect(() => openCurrent(text, keyFor, { ...STANDING, ...other })).toThrow(CurrentError);
  }
});

test('anything else is refused: no text, a text with one other character or less, an unknown key', () => {
  for (let at = 0; at < text.length; at++) {
    const changed = text.slice(0, at) + (text[at] === 'A' ? 'B' : 'A') + text.slice(at + 1);
    // the last character has bits that are not used
    if (at < text.length - 1) expect(() => openCurrent(changed, keyFor, STANDING), `${at}`).toThrow(CurrentError);
    expect(() => openCurrent(text.slice(0, at), keyFor, STANDING)).toThrow(CurrentError);
  }
  for (const wrong of [undefined, '', '..', `${text}.x`, `${text}${'x'.repeat(5000)}`]) {
    expect(() => openCurrent(wrong, keyFor, STANDING)).toThrow(CurrentError);
  }
  expect(() => openCurrent(text, () => undefined, STANDING)).toThrow(CurrentError);
  expect(() => openCurrent(text, () => generateKeyPairSync('ed25519').publicKey, STANDING)).toThrow(CurrentError);
  const other = { kid: 'k1', privateKey: generateKeyPairSync('ed25519').privateKey };
  expect(() => openCurrent(signCurrent(STANDING, AT, other), keyFor, STANDING)).toThrow(CurrentError);
});
