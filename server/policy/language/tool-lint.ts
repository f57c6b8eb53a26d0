import type { Diagnostic } from '../../domain/policy.ts';
import { nearest } from '../../lib/nearest.ts';
import { argumentsOf } from './argument-kinds.ts';
import { readHead, type TagKind } from './head.ts';
import { literal, Positions, preamble, statementTokens, tokens } from './scan.ts';
import { ProblemWords } from './words.ts';

/** The parts of the tool registry that a text is checked against. */
export interface ListedTools {
  /** The names of all tools. */
  names: readonly string[];
  /** The argument schemas of the tools that the text names, one for each server that lists it. */
  schemas: ReadonlyMap<string, readonly unknown[]>;
}

/** The tools that a text names as the resource of a statement. */
export function toolsNamed(text: string): string[] {
  return [...new Set(statementTokens(tokens(text)).flatMap((statement) => toolOf(statement) ?? []))];
}

/**
 * Warns if a text that compiles names a tool or reads an argument that no tool server lists, or reads one as the wrong
 * kind. Only statements about one tool are checked; a schema that is not plain causes no warnings.
 */
export function lintTools(text: string, { names, schemas }: ListedTools): Diagnostic[] {
  const words = new ProblemWords(text, new Positions(text), '');
  const warnings: Diagnostic[] = [];
  for (const statement of statementTokens(tokens(text))) {
    const tool = toolOf(statement);
    if (tool === undefined) continue;
    const known = schemas.get(tool);
    const place = (word: string) => {
      const token = statement.find((one) => literal(one.text) === word);
      return (token ?? statement[0]!).start;
    };
    if (!known) {
      const meant = nearest(tool, names);
      if (meant !== undefined && !names.includes(tool)) {
        const message = `no tool server lists ${quoted(tool)}: did you mean ${quoted(meant)}?`;
        warnings.push(words.own(message, place(tool)));
      }
      continue;
    }
    const all = known.map(argumentsOf);
    // a schema that cannot be read in full may have any argument
    if (all.some((one) => one === undefined)) continue;
    const of = all as Map<string, readonly TagKind[] | null>[];
    const { reads, facts } = readHead(statement);
    for (const { key, kind } of reads) {
      if (key === null || kind === null || /^context(?:$|[.[])|\[/.test(key)) continue;
      const kinds = of.map((one) => kindsAt(one, key));
      if (kinds.some((one) => one === null)) continue;
      const found = kinds.flatMap((one) => one ?? []);
      if (kind === 'key' ? found.includes('str') || found.includes('num') : found.includes(kind)) continue;
      // a fact is about a text or a list of texts
      const fact = facts.find(({ path }) => path === key);
      if (fact && (kind === 'list' || found.includes('list'))) continue;
      const meant = nearest(key, [...new Set(of.flatMap((one) => [...one.keys()]))]);
      const why =
        found.length > 0
          ? `${quoted(key)} of the tool ${quoted(tool)} is read as ${kind === 'key' ? 'the key of a fact' : kind}, and its schema says ${[...new Set(found)].join(' or ')}`
          : `the tool ${quoted(tool)} has no argument ${quoted(key)}${meant === undefined ? '' : `: did you mean ${quoted(meant)}?`}`;
      warnings.push(words.own(why, place(fact?.key ?? key)));
    }
  }
  return warnings;
}

function toolOf(statement: ReturnType<typeof tokens>): string | undefined {
  if (preamble(statement).effect === '') return undefined;
  const { resource } = readHead(statement);
  return resource.op === 'eq' && resource.entity.startsWith('Tool::')
    ? resource.entity.slice('Tool::'.length)
    : undefined;
}

/** Undefined if there are none, null if something above it is not plain. */
function kindsAt(
  known: ReadonlyMap<string, readonly TagKind[] | null>,
  key: string,
): readonly TagKind[] | null | undefined {
  for (const [path, kinds] of known) {
    if (kinds === null && (key === path || key.startsWith(`${path}.`))) return null;
  }
  return known.get(key);
}

/** Tool names are hostile: quoted, with characters other than printable ASCII escaped. */
const quoted = (text: string) =>
  JSON.stringify(text).replace(/[^\x20-\x7e]/gu, (one) => `\\u{${one.codePointAt(0)!.toString(16)}}`);
