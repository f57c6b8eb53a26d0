/**
 * Whether this JSON text nests deeper than `most`. Check before parsing: a body of eight million brackets would take half a
 * gigabyte. Brackets in strings do not count.
 */
export function nestsDeeper(json: Uint8Array, most: number): boolean {
  return shapeFault(json, { depth: most, parts: Number.POSITIVE_INFINITY }) !== undefined;
}

/**
 * Whether this JSON text nests too deep, or has too many parts: values, names and brackets. Stops where it finds out. Check
 * before parsing: what comes after costs a multiple of time for each part, and this costs a look at each byte.
 */
export function shapeFault(json: Uint8Array, most: { depth: number; parts: number }): 'depth' | 'parts' | undefined {
  let depth = 0;
  let parts = 0;
  for (let i = 0; i < json.length; i++) {
    const byte = json[i];
    if (byte === 34) {
      for (i++; i < json.length && json[i] !== 34; i++) if (json[i] === 92) i++;
    } else if (byte === 91 || byte === 123) {
      if (++depth > most.depth) return 'depth';
      if (++parts > most.parts) return 'parts';
    } else if (byte === 93 || byte === 125) depth--;
    else if ((byte === 44 || byte === 58) && ++parts > most.parts) return 'parts';
  }
  return undefined;
}
