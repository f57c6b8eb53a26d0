/** The `proxy_id` of decisions that the control plane made itself. */
export const CONTROL_PLANE = 'control-plane';

/** Letters and digits that are drawn like a small Latin letter, or whose capital is drawn like its capital. */
const DRAWN: readonly (readonly [string, string])[] = [
  ['a', 'аα'],
  ['b', 'вβь'],
  ['c', 'сςⅽ'],
  ['d', 'ԁⅾ'],
  ['e', 'еεҽ'],
  ['g', 'ɡց'],
  ['h', 'һнηհ'],
  ['i', 'іιɩ'],
  ['j', 'јϳ'],
  ['k', 'кκ'],
  ['l', 'ӏⅼ1|ǀ'],
  ['m', 'мμⅿ'],
  ['n', 'νпոռ'],
  ['o', 'оοօσ0ס'],
  ['p', 'рρ'],
  ['q', 'ԛգ'],
  ['r', 'гᴦ'],
  ['s', 'ѕ'],
  ['t', 'тτ'],
  ['u', 'υսц'],
  ['v', 'ѵⅴ'],
  ['w', 'ԝω'],
  ['x', 'хχⅹ'],
  ['y', 'уγүყ'],
  ['z', 'ζ'],
];
const LATIN = new Map(DRAWN.flatMap(([latin, twins]) => [...twins].map((twin) => [twin, latin] as const)));

/** How people read the id of a proxy: two ids that read alike are taken for the same proxy. */
export function proxyIdRead(id: string): string {
  const seen = id.normalize('NFKC').replace(/[\p{Default_Ignorable_Code_Point}\p{Cc}]/gu, '');
  const letters = [...seen.trim().toLowerCase()].map((one) => LATIN.get(one) ?? one).join('');
  // a capital i and a small l are one stroke
  return letters.replace(/[\s_\p{Pd}]+/gu, '-').replaceAll('i', 'l');
}

const OWN = proxyIdRead(CONTROL_PLANE);

/** Whether people would take this for the control plane's id. No proxy may use it. */
export function isReservedProxyId(id: string): boolean {
  // nothing that follows a printable first character can remove it or turn it into another letter
  if (/^[!-~]/.test(id) && !/^c/i.test(id)) return false;
  return proxyIdRead(id) === OWN;
}
