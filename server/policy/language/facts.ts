import { nearest } from '../../lib/nearest.ts';
import { isAnchored, patternFault } from './patterns.ts';
import { literal, preamble, type Token } from './scan.ts';

/**
 * A fact that the enforcement point computes from an argument, and that policies read by name:
 * `recipient in known-ibans`, or `recipients any in blocked-ibans`. Arguments become tags of other entities, so no
 * argument can act as a fact.
 */
export interface ListFact {
  /** As written: the tag that is set if the fact is true. */
  key: string;
  path: string;
  /** For a list of texts: one member is enough; otherwise all of them must be in the list. */
  any: boolean;
  list: string;
}

/** A pattern that a text has to match: `command matches ^ls( |$)`, or `recipients any matches @example\.com$`. */
export interface PatternFact extends Omit<ListFact, 'list'> {
  pattern: string;
}

export type Fact = ListFact | PatternFact;

/** A list name has no space, so the last ` in ` ends the argument, whatever the argument is called. */
const LIST_FACT = /^(.+?)(?: (any|all))? in ([a-z0-9][a-z0-9_-]{0,63})$/s;

/** The first ` matches ` ends the argument, because a pattern may contain any text. */
const PATTERN_FACT = /^(.+?)(?: (any|all))? matches (.+)$/s;

/** Undefined if it is not the name of a fact. */
export function readFact(key: string): Fact | undefined {
  const [, argument, which, pattern] = PATTERN_FACT.exec(key) ?? [];
  if (argument !== undefined) return { key, path: argument, any: which === 'any', pattern: pattern! };
  const [, path, quantity, list] = LIST_FACT.exec(key) ?? [];
  return path === undefined ? undefined : { key, path, any: quantity === 'any', list: list! };
}

const FORM = 'context.facts.hasTag("recipient in known-ibans")';

/**
 * The faults in how a statement reads facts. Each name is written out, so that everyone sees which lists a text depends
 * on. `lists` are the names of the existing lists; if absent, any name is accepted.
 */
export function factFaults(statement: Token[], lists?: readonly string[]): { start: number; message: string }[] {
  const faults: { start: number; message: string }[] = [];
  const { rest } = preamble(statement);
  for (let n = rest; n < statement.length; n++) {
    const { text, start } = statement[n]!;
    const before = statement[n - 1]?.text;
    const isIndex = before === '[' && /^(?!(?:in|if|then|else)$)[A-Za-z_\])]/.test(statement[n - 2]?.text ?? '');
    const isRead = (before === '.' && text === 'facts') || (isIndex && literal(text) === 'facts');
    if (text !== 'Facts' && !isRead && !(before === 'has' && (literal(text) ?? text) === 'facts')) continue;
    const words = statement.slice(n - 3, n + 6).map((token) => token.text);
    const [dot, context, , , call, method, open, key, close] = words;
    const isCall =
      text === 'facts' && dot !== '.' && context === 'context' && call === '.' && open === '(' && close === ')';
    const name = isCall && (method === 'hasTag' || method === 'getTag') ? literal(key) : undefined;
    if (name === undefined) {
      faults.push({ start, message: `facts are read in one form only, with the name written out: ${FORM}` });
      continue;
    }
    const { start: place } = statement[n + 4]!;
    const fact = readFact(name);
    if (!fact) {
      const message = `write an argument, " in " and the name of a list, such as "recipient in known-ibans", or "recipients any in blocked-ibans"; or an argument, " matches " and a pattern`;
      faults.push({ start: place, message });
    } else if ('pattern' in fact) {
      const message = patternFault(fact.pattern);
      if (message !== undefined) faults.push({ start: place, message });
    } else if (lists && !lists.includes(fact.list)) {
      const near = nearest(fact.list, lists);
      const known = lists.length === 0 ? 'there are no lists yet' : `known lists: ${lists.slice(0, 20).join(', ')}`;
      const hint = near === undefined ? known : `did you mean "${near}"?`;
      faults.push({ start: place, message: `there is no list "${fact.list}"; ${hint}` });
    }
  }
  return faults;
}

/** The reference lists among facts. */
export function listsOf(facts: readonly Fact[]): string[] {
  return facts.flatMap((fact) => ('list' in fact ? fact.list : []));
}

/**
 * Patterns of a permit that need not match the whole text, with their positions: whatever surrounds the match is
 * permitted along with it.
 */
export function openPatterns(statement: Token[]): { start: number; message: string }[] {
  const { effect, rest } = preamble(statement);
  if (effect !== 'permit') return [];
  return statement.slice(rest).flatMap(({ text, start }, n, words) => {
    const before = words[n - 2]?.text;
    const fact = before === 'hasTag' && words[n - 4]?.text === 'facts' ? readFact(literal(text) ?? '') : undefined;
    if (!fact || !('pattern' in fact) || isAnchored(fact.pattern)) return [];
    return [
      { start, message: 'this pattern permits whatever stands around its match: begin it with ^ and end it with $' },
    ];
  });
}
