/**
 * A text without a byte order mark, its lines ended by LF. Checkouts and editors differ in both, and people see neither: what is
 * kept, hashed and compared must not depend on them.
 */
export function plainText(text: string): string {
  return text.replace(/^\uFEFF/, '').replace(/\r\n?/g, '\n');
}
