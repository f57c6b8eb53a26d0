import type { PolicyJson } from '@cedar-policy/cedar-wasm/nodejs';
import { Bounded, detached } from '../../../lib/bounded.ts';
import type { CedarHost } from '../../language/host.ts';
import { operatorsIn, preamble, type Token, tokens } from '../../language/scan.ts';
import { type Condition, compileConditions } from './compile.ts';

type Clauses = PolicyJson['conditions'];

/** How many clauses are parsed together. Each call has a fixed cost of about 20 statements. */
const MOST = { operators: 200, clauses: 64 } as const;

/** Compiled conditions by the text of their clauses, shared by all tenants: a text has one meaning. */
const known = new Bounded<Condition | null>({ entries: 20_000, characters: 16_000_000 });

/**
 * The compiled conditions of each statement; undefined if one is outside the compiled subset. Cedar parses the texts.
 *
 * Many clauses are parsed in one call, one after the other in a single statement: a clause parses the same wherever it
 * is. If Cedar finds a different number of clauses than it was given, each statement is parsed alone.
 */
export function conditionsOf(host: () => CedarHost, statements: readonly string[]): (Condition | undefined)[] {
  const read = statements.map(clausesOf);
  const missing = new Map(read.filter(({ text }) => !known.has(text)).map((one) => [one.text, one]));
  const made = new Map<string, Condition | null>();
  for (const batch of batches([...missing.values()])) {
    for (const [n, clauses] of parsed(host, batch).entries()) {
      const condition = (clauses && compileConditions(clauses)) ?? null;
      made.set(batch[n]!.text, condition);
      known.set(detached(batch[n]!.text), condition);
    }
  }
  return read.map(({ text }) => made.get(text) ?? known.get(text) ?? undefined);
}

interface Read {
  /** The clauses without the scope before them, as written. */
  text: string;
  clauses: number;
  operators: number;
}

function clausesOf(statement: string): Read {
  const words = tokens(statement);
  const from = scopeEnd(words) + 1;
  const body = words.slice(from, -1);
  const text = statement.slice(body[0]?.start, body.at(-1)?.end);
  let depth = 0;
  let clauses = 0;
  for (const { text: word } of body) {
    if (word === '(' || word === '[' || word === '{') depth++;
    else if (word === ')' || word === ']' || word === '}') depth--;
    else if (depth === 0 && (word === 'when' || word === 'unless')) clauses++;
  }
  return { text: body.length === 0 ? '' : text, clauses, operators: operatorsIn(body) };
}

/** The index of the bracket that closes the scope. */
function scopeEnd(words: readonly Token[]): number {
  let depth = 0;
  for (let n = preamble([...words]).rest; n < words.length; n++) {
    const { text } = words[n]!;
    if (text === '(' || text === '[' || text === '{') depth++;
    if ((text === ')' || text === ']' || text === '}') && --depth === 0) return n;
  }
  return words.length;
}

function batches(all: readonly Read[]): Read[][] {
  const found: Read[][] = [];
  let room = { operators: 0, clauses: 0 };
  for (const one of all) {
    if (found.length === 0 || one.operators > room.operators || one.clauses > room.clauses) {
      found.push([]);
      room = { ...MOST };
    }
    found.at(-1)!.push(one);
    room.operators -= one.operators;
    room.clauses -= one.clauses;
  }
  return found;
}

/** Undefined for a statement that does not parse. */
function parsed(host: () => CedarHost, batch: readonly Read[]): (Clauses | undefined)[] {
  const clauses = batch.reduce((sum, one) => sum + one.clauses, 0);
  if (clauses === 0 && batch.every(({ text }) => text === '')) return batch.map(() => []);
  // the text of one may end in a comment
  const answer = host().call(
    'policyToJson',
    `permit(principal, action, resource)\n${batch.map(({ text }) => text).join('\n')};`,
  );
  if (answer.type !== 'success' || answer.json.conditions.length !== clauses) {
    return batch.length === 1 ? [undefined] : batch.flatMap((one) => parsed(host, [one]));
  }
  let end = 0;
  return batch.map((one) => {
    end += one.clauses;
    return answer.json.conditions.slice(end - one.clauses, end);
  });
}
