import fc from 'fast-check';
import { expect, test } from 'vitest';
import { csvLine } from '../../server/lib/csv.ts';

/** The cells of one line as a spreadsheet reads it whose separator is this one. */
function cellsOf(line: string, separator: string): string[] {
  const cells: string[] = [];
  let cell = '';
  let quoted = false;
  let started = false;
  for (let at = 0; at < line.length; at++) {
    const one = line[at]!;
    if (quoted) {
      if (one !== '"') cell += one;
      else if (line[at + 1] === '"') cell += line[++at];
      else quoted = false;
    } else if (one === '"' && !started) quoted = true;
    else if (one === separator || one === '\n') {
      cells.push(cell);
      cell = '';
      started = false;
      continue;
    } else cell += one;
    started = true;
  }
  return cells;
}

const hostile = fc
  .array(fc.constantFrom('=', '+', '-', '@', '＝', ';', ',', '\t', '\r', '\n', '|', '"', "'", ' ', 'a', '1', 'cmd'), {
    maxLength: 8,
  })
  .map((parts) => parts.join(''));

test('no cell is a formula, with whatever separator the line is read', () => {
  fc.assert(
    fc.property(fc.array(hostile, { minLength: 1, maxLength: 4 }), (cells) => {
      const line = csvLine(cells);
      for (const separator of [',', ';', '\t', '|']) {
        for (const cell of cellsOf(line, separator)) expect(cell, line).not.toMatch(/^["\s]*[=+\-@＝＋－＠]/);
      }
    }),
    { numRuns: 3000 },
  );
});

test('what is no formula stays as it is, in as many cells', () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.string().filter((text) => !/[=+\-@＝＋－＠\n]/.test(text)),
        { minLength: 1 },
      ),
      (cells) => {
        expect(cellsOf(csvLine(cells), ',')).toEqual([...cells.slice(0, -1), `${cells.at(-1)}\r`]);
      },
    ),
  );
  expect(csvLine(['=1+1', 'a-b', '-5', 'x;@y'])).toBe(`"'=1+1","a-b","'-5","x;'@y"\r\n`);
});

test('a cell of line ends alone is read once', () => {
  const text = `x${'\n'.repeat(300_000)}x`;
  expect(csvLine([text])).toBe(`"${text}"\r\n`);
});
