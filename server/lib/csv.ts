/**
 * Where a spreadsheet would start to read a formula: at the start of a cell, and within a cell after a character that separates
 * cells elsewhere, such as the semicolon in half of Europe, where the quotes of RFC 4180 do not hold the cell together. Fullwidth
 * forms of the signs count where people write Chinese or Japanese. A cell separator never counts as a blank before a sign, so no
 * text is scanned twice.
 */
const FORMULA = /(?:^|[;\|\t\r\n])[["'\s]--[\t\r\n]]*(?=[=+\-@＝＋－＠])/gv;

/** One line of CSV (RFC 4180). Text that a spreadsheet would take for a formula is prefixed with an apostrophe (CWE-1236). */
export function csvLine(cells: readonly string[]): string {
  return `${cells.map((cell) => `"${cell.replace(FORMULA, "$&'").replaceAll('"', '""')}"`).join(',')}\r\n`;
}
