/**
 * Whether any object in this JSON text has two members of the same name. `value` is the result of `JSON.parse`, which keeps only
 * the last of them: it then has fewer members than the text has colons outside of strings.
 */
export function repeatsMember(json: Uint8Array, value: unknown): boolean {
  let written = 0;
  for (let i = 0; i < json.length; i++) {
    const byte = json[i];
    if (byte === 34) {
      for (i++; i < json.length && json[i] !== 34; i++) if (json[i] === 92) i++;
    } else if (byte === 58) written++;
  }
  return written !== members(value);
}

function members(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  if (Array.isArray(value)) {
    let count = 0;
    for (const item of value) count += members(item);
    return count;
  }
  const own = Object.values(value);
  let count = own.length;
  for (const member of own) count += members(member);
  return count;
}
