import { crc32 } from 'node:zlib';

/** An open event waits for its outcome. */
export const KINDS = { event: 'e', open: 'o', outcome: 'n', again: 'a' } as const;
type Kind = (typeof KINDS)[keyof typeof KINDS];
/** The most that a line contains in addition to its texts. */
export const LINE_BYTES = 32;

/**
 * A line of a segment: an event, the outcome of one (`null`: the note that it is sent without one), or an event once more. It is
 * `<crc32> <kind><number>`, then the JSON texts, each after a tab, which no JSON text contains: they are sent exactly as they are
 * here.
 */
export interface Line {
  kind: Kind;
  seq: number;
  texts: Buffer[];
}

export function lineOf(kind: Kind, seq: number, texts: string): string {
  const content = `${kind}${seq}\t${texts}`;
  return `${crc32(content).toString(16).padStart(8, '0')} ${content}\n`;
}

const [TAB, NEWLINE] = [9, 10];
const HEAD = /^([eona])(\d{1,16})$/;

/** The lines before the first incomplete one. */
export function* readLines(bytes: Buffer): Generator<{ line: Line; end: number }> {
  for (let start = 0; ; ) {
    const newline = bytes.indexOf(NEWLINE, start);
    if (newline < 0 || newline - start < 10) return;
    const content = bytes.subarray(start + 9, newline);
    if (bytes.toString('latin1', start, start + 8) !== crc32(content).toString(16).padStart(8, '0')) return;
    const texts = fieldsOf(content);
    const [, kind, seq] = HEAD.exec(texts.shift()!.toString('latin1')) ?? [];
    if (kind === undefined) return;
    start = newline + 1;
    yield { line: { kind: kind as Kind, seq: Number(seq), texts }, end: start };
  }
}

function fieldsOf(content: Buffer): Buffer[] {
  const fields: Buffer[] = [];
  for (let start = 0; ; ) {
    const tab = content.indexOf(TAB, start);
    if (tab < 0) return [...fields, content.subarray(start)];
    fields.push(content.subarray(start, tab));
    start = tab + 1;
  }
}
