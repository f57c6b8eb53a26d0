/** The values of a text: one in each line, without the spaces around it; empty lines and repeated values are left out. */
export function readValues(text: string): string[] {
  const lines = text.replace(/^\ufeff/, '').split(/\r\n|[\r\n]/);
  return [...new Set(lines.map((line) => line.trim()).filter((line) => line !== ''))];
}
