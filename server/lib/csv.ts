/**
 * Where a spreadsheet would begin to read a formula: at the start of a cell, and within one behind what separates cells
 * elsewhere, such as the semicolon of half of Europe, where the quotes of RFC 4180 do not hold the cell together. Wide forms of
 * the signs count where people write Chinese or Japanese. What separates cells is no blank in front of a sign: no text is read twice.
 */
const FORMULA = /(?:^|[;\|\t\r\n])[["'\s]--[\t\r\n]]*(?=[=+\-@＝＋－＠])/gv;

/** One line of CSV (RFC 4180). What a spreadsheet would take for a formula is preceded by an apostrophe (CWE-1236). */
export function csvLine(cells: readonly string[]): string {
  return `${cells.map((cell) => `"${cell.replace(FORMULA, "$&'").replaceAll('"', '""')}"`).join(',')}\r\n`;
}
