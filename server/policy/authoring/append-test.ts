import { Document, isCollection, isMap, isPair, isScalar, isSeq, type Node, parseDocument, visit } from 'yaml';
import { firstHidden } from '../../lib/visible.ts';

/**
 * A test suite with one more test at its end. The existing text is unchanged to the character: comments, order and
 * spelling stay. A JSON suite stays JSON. The suite must be valid, or blank, in which case a new one is started.
 */
export function appendTest(source: string, test: Readonly<Record<string, unknown>>): string {
  if (source.trim() === '') return `format: svc-tests/1\ntests:\n${item(test, '  ')}`;
  const contents = parseDocument(source, { version: '1.2', schema: 'core', uniqueKeys: false }).contents;
  const tests = isMap(contents)
    ? contents.items.find(({ key }) => isScalar(key) && key.value === 'tests')?.value
    : undefined;
  if (!isMap(contents) || !isSeq(tests) || !tests.range) throw new RangeError('not a test suite');
  const line = source.includes('\r\n') ? '\r\n' : '\n';
  const put = (from: number, to: number, text: string) =>
    source.slice(0, from) + text.replaceAll('\n', line) + source.slice(to);
  const [from, to] = tests.range;
  const last = tests.items.at(-1) as Node | undefined;
  if (!tests.flow) {
    const at = last!.range![2];
    const before = source[at - 1] === '\n' ? '' : '\n';
    const spaced = tests.items.some((one, n) => n > 0 && /\n[ \t\r]*\n/.test(gapBefore(source, one as Node)));
    return put(at, at, `${before}${spaced ? '\n' : ''}${item(test, ' '.repeat(columnOf(source, from)))}`);
  }
  if (last) return put(last.range![1], last.range![1], `,\n${json(test, `${indentAt(source, from)}  `)}`);
  if (contents.flow) {
    const indent = indentAt(source, from);
    return put(from, to, `[\n${json(test, `${indent}  `)}\n${indent}]`);
  }
  // what follows the empty list, such as a comment, moves behind the test
  return put(from, to, `\n${item(test, '  ').trimEnd()}`);
}

/** The text between a test and the one before it. */
const gapBefore = (source: string, { range }: Node) => /[\s-]*$/.exec(source.slice(0, range![0]))![0];
const columnOf = (source: string, at: number) => at - (source.lastIndexOf('\n', at - 1) + 1);
const indentAt = (source: string, at: number) => /^[ \t]*/.exec(source.slice(source.lastIndexOf('\n', at - 1) + 1))![0];

/** Longer values are split into several lines. */
const LINE = 100;

/** An entry of a list in block style. */
function item(test: Readonly<Record<string, unknown>>, indent: string): string {
  const document = new Document([test]);
  const { contents } = document;
  visit(document, {
    Pair: (_, { key }) => quoteInDoubt(key),
    Scalar: (_, scalar) => quoteInDoubt(scalar),
    Collection: (_, node, path) => {
      const inside = path.some((one) => isPair(one));
      if (inside && JSON.stringify(node).length <= LINE) node.flow = true;
    },
  });
  if (isCollection(contents)) contents.flow = false;
  const text = document.toString({ lineWidth: 0, doubleQuotedMinMultiLineLength: Number.MAX_SAFE_INTEGER });
  return escaped(text).replace(/^(?=.)/gm, indent);
}

/** Quotes texts that some reader would take for another type, or that contain invisible characters. */
function quoteInDoubt(node: unknown): void {
  if (!isScalar(node) || typeof node.value !== 'string') return;
  if (!PLAIN.test(node.value) || /^(?:y|n|yes|no|on|off|true|false|null)$/i.test(node.value))
    node.type = 'QUOTE_DOUBLE';
}
const PLAIN = /^[A-Za-z](?:[\w.#/ -]*[\w.#/-])?$/;

const json = (test: object, indent: string) => escaped(JSON.stringify(test, null, 2)).replace(/^(?=.)/gm, indent);

/** Escapes invisible characters, which can only occur in double quotes here. */
function escaped(text: string): string {
  let rest = text;
  let done = '';
  for (let found = firstHidden(rest); found; found = firstHidden(rest)) {
    const character = String.fromCodePoint(rest.codePointAt(found.at)!);
    done += rest.slice(0, found.at);
    for (const unit of character.split('')) done += `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
    rest = rest.slice(found.at + character.length);
  }
  return done + rest;
}
