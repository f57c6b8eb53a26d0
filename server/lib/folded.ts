/**
 * A name as seen by parsers that ignore case, width, invisible characters and surrounding white space: NFKC_Casefold,
 * with the Turkish i folded too.
 */
export function folded(name: string): string {
  if (/^[a-z0-9_.[\]-]*$/.test(name)) return name;
  if (/^[\x21-\x7e]*$/.test(name)) return name.toLowerCase();
  const plain = name.normalize('NFKC').toUpperCase().toLowerCase().normalize('NFKC');
  return plain.replace(/[\p{Default_Ignorable_Code_Point}\p{Cc}]|\u0307/gu, '').trim();
}
