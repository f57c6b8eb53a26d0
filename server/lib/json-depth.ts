/**
 * Whether this JSON text nests deeper than `most`. Check before parsing: a body of eight million brackets would take half a
 * gigabyte. Brackets in strings do not count.
 */
export function nestsDeeper(json: Uint8Array, most: number): boolean {
  let depth = 0;
  for (let i = 0; i < json.length; i++) {
    const byte = json[i];
    if (byte === 34) {
      for (i++; i < json.length && json[i] !== 34; i++) if (json[i] === 92) i++;
    } else if (byte === 91 || byte === 123) {
      if (++depth > most) return true;
    } else if (byte === 93 || byte === 125) depth--;
  }
  return false;
}
