/** The values in a text: one per line, without surrounding spaces; empty lines and repeated values are dropped. */
export function readValues(text: string): string[] {
  const lines = text.replace(/^\ufeff/, '').split(/\r\n|[\r\n]/);
  return [...new Set(lines.map((line) => line.trim()).filter((line) => line !== ''))];
}
