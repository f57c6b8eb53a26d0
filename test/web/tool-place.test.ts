import { expect, test } from 'vitest';
import { placeOf } from '../../web/pages/tools/place.ts';

test('a place in the definition of a tool is told as a member, the names of arguments, and the rest', () => {
  const told = (at: string) => {
    const place = placeOf(at);
    return place && [place.member, place.names.join('.'), place.rest.join('/')];
  };
  expect(told('/description')).toEqual(['the description', '', '']);
  expect(told('/inputSchema')).toEqual(['the arguments', '', '']);
  expect(told('/inputSchema/properties/order/description')).toEqual(['the arguments', 'order', 'description']);
  expect(told('/inputSchema/properties/a~1b/properties/c~0/enum/2')).toEqual(['the arguments', 'a/b.c~', 'enum/2']);
  // an argument may be called so
  expect(told('/inputSchema/properties/properties/properties/x')).toEqual(['the arguments', 'properties.x', '']);
  expect(told('/inputSchema/properties')).toEqual(['the arguments', '', 'properties']);
  expect(told('/annotations/readOnlyHint')).toEqual(['what it says of its risk', '', 'readOnlyHint']);
});

test('what is no member of a definition has no such words', () => {
  for (const at of ['', '/', '/constructor', '/x/y', 'description']) expect(placeOf(at), at).toBeUndefined();
});
