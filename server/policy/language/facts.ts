import { nearest } from '../../lib/nearest.ts';
import { literal, preamble, type Token } from './scan.ts';

/**
 * A fact that the enforcement point computes from an argument, and policies read by its name: `recipient in known-ibans`,
 * or `recipients any in blocked-ibans`. Arguments become tags of other entities, so none can have the effect of a fact.
 */
export interface ListFact {
  /** As written: the tag that is set where the fact is true. */
  key: string;
  path: string;
  /** Of a list of texts: one member is enough; otherwise all of them must be in the list. */
  any: boolean;
  list: string;
}

/** The name of a list has no space, so the last ` in ` ends the argument, whatever the argument is called. */
const LIST_FACT = /^(.+?)(?: (any|all))? in ([a-z0-9][a-z0-9_-]{0,63})$/s;

/** Undefined for what is not the name of a fact. */
export function readFact(key: string): ListFact | undefined {
  const [, path, quantity, list] = LIST_FACT.exec(key) ?? [];
  return path === undefined ? undefined : { key, path, any: quantity === 'any', list: list! };
}

const FORM = 'context.facts.hasTag("recipient in known-ibans")';

/**
 * What is wrong with how a statement reads facts. The name of each is written out, so that everyone sees which lists a
 * text depends on. `lists` are the names of the lists that exist; without it, any name will do.
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
      const message = `write an argument, " in " and the name of a list, such as "recipient in known-ibans", or "recipients any in blocked-ibans"`;
      faults.push({ start: place, message });
    } else if (lists && !lists.includes(fact.list)) {
      const near = nearest(fact.list, lists);
      const known = lists.length === 0 ? 'there are no lists yet' : `known lists: ${lists.slice(0, 20).join(', ')}`;
      const hint = near === undefined ? known : `did you mean "${near}"?`;
      faults.push({ start: place, message: `there is no list "${fact.list}"; ${hint}` });
    }
  }
  return faults;
}
