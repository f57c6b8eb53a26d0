import fc from 'fast-check';
import { expect, test } from 'vitest';
import { CONTROL_PLANE, isReservedProxyId, proxyIdRead } from '../../server/domain/proxy-ids.ts';

/** As people read it: without what is not seen, and with every dash and space for a hyphen. */
function read(id: string): string {
  const seen = id.normalize('NFKC').replace(/[\p{Default_Ignorable_Code_Point}\p{Cc}]/gu, '');
  return seen
    .trim()
    .toLowerCase()
    .replace(/[1|i]/g, 'l')
    .replaceAll('0', 'o')
    .replace(/[\s_\p{Pd}]+/gu, '-');
}

const MARKS = ['\u0300', '\u0327', '\u200b', '\u00ad', '\0', '\u2013', '\u3000', 'ﬁ', 'ℂ', 'Ｃ', 'ſ', '\ud800'];
const part = fc.oneof(
  fc.constantFrom(...MARKS, ...'control-plane', ...'CONTROL_PLANE ', 'control-plane', 'plane'),
  fc.string({ unit: 'binary', maxLength: 2 }),
);

test('every id is reserved that reads as the control plane’s, and no other', () => {
  fc.assert(
    fc.property(fc.array(part, { maxLength: 4 }), fc.array(part, { maxLength: 3 }), fc.boolean(), (a, b, whole) => {
      const id = `${a.join('')}${whole ? CONTROL_PLANE : ''}${b.join('')}`;
      expect(isReservedProxyId(id)).toBe(read(id) === CONTROL_PLANE);
    }),
    { numRuns: 5000, seed: 3 },
  );
  for (const id of ['Control Plane', '\u200bcontrol-plane', 'ＣＯＮＴＲＯＬ＿ＰＬＡＮＥ', 'control–plane\0']) {
    expect(isReservedProxyId(id), id).toBe(true);
  }
});

test('so is one with letters of other alphabets that look the same, in capitals and not', () => {
  const same = { c: 'сСϲ', o: 'оОοΟ0', n: 'Ν', t: 'тТΤ', r: 'г', l: 'ӏӀ1IΙІ', p: 'рРρΡ', a: 'аАαΑ', e: 'еЕΕ' };
  for (const [letter, twins] of Object.entries(same)) {
    for (const twin of twins) expect(isReservedProxyId(CONTROL_PLANE.replace(letter, twin)), twin).toBe(true);
  }
  expect(isReservedProxyId('соntrоl-рlаnе')).toBe(true);
  for (const id of ['control-plan', 'kontrol-plane', 'contról-plane', 'контроль', 'control-plane-2', 'proxy-1']) {
    expect(isReservedProxyId(id), id).toBe(false);
  }
  expect(proxyIdRead('рroxу-1')).toBe(proxyIdRead('proxy-l'));
  expect(proxyIdRead('proxy-1')).not.toBe(proxyIdRead('proxy-2'));
});
