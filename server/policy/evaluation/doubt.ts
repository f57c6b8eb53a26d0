import type { Head, TagKind } from '../language/head.ts';
import { ARGUMENT_LIMITS, type Arguments, folded, type MappedRequest } from './request.ts';

/** A path of the arguments with the kinds that it may be of: an empty list where nothing that is there can be told. */
export interface Want {
  path: string;
  kinds: readonly TagKind[];
  /** How programs that ignore case, width and invisible characters compare the path. */
  folded: string;
  /** What the path goes through: '' and `items` and `items[0]` for `items[0].sku`. */
  above: readonly { path: string; folded: string; holds: 'elements' | 'members' | 'either' }[];
}

/** What some statements read of a request, with the first of them that reads it so. */
export interface ReadsOf<Rule> {
  wants: readonly (Want & { rule: Rule })[];
  /** The kinds under which they read keys that they compute, and the texts that such a key may be. */
  computed: readonly { rule: Rule; kinds: readonly TagKind[]; texts: readonly string[] | null }[];
  amount?: Rule;
  /** Characters of all their `like` patterns. */
  patterns: number;
}

export interface Doubt<Rule> {
  /** As a rule writes it, so nothing of it is the agent's: `arguments.refund.total`, `context.ticket`. */
  path: string;
  rule?: Rule | undefined;
}

/** A text against a pattern takes a step for each character of the one and of the other; about 60 ms at most. */
const MOST_STEPS = 2 ** 26;

/** What a set of statements reads; within one of them, a path that is read as two kinds may be of either. */
export function readsOf<Rule>(statements: readonly { rule: Rule; head: Head }[]): ReadsOf<Rule> {
  const wants = new Map<string, Want & { rule: Rule }>();
  const computed: { rule: Rule; kinds: readonly TagKind[]; texts: readonly string[] | null }[] = [];
  for (const { rule, head } of statements) {
    for (const [key, reads] of Map.groupBy(head.reads, ({ key }) => key)) {
      const kinds = kindsOf(reads.map(({ kind }) => kind));
      if (key === null) computed.push({ rule, kinds, texts: head.texts });
      else {
        const name = `${kinds.join()} ${key}`;
        if (!wants.has(name)) wants.set(name, { ...wantOf(key, kinds), rule });
      }
    }
  }
  const amount = statements.find(({ head: { attributes } }) => attributes?.includes('amount') ?? true);
  return {
    wants: [...wants.values()],
    computed,
    ...(amount && { amount: amount.rule }),
    patterns: statements.reduce((sum, { head }) => sum + head.patterns, 0),
  };
}

/** None where one of them is not told: whatever is there may then be of another. */
function kindsOf(kinds: (TagKind | null)[]): TagKind[] {
  return kinds.includes(null) ? [] : [...new Set(kinds as TagKind[])].sort();
}

export function wantOf(path: string, kinds: readonly TagKind[]): Want {
  return { path, kinds, folded: folded(path), above: above(path) };
}

function above(path: string): Want['above'] {
  const found: Want['above'][number][] = [];
  // the facts of the caller are under a name of their own
  const first = isFact(path) ? 1 : 0;
  for (let n = first; n < path.length && n <= ARGUMENT_LIMITS.keyLength; n++) {
    if (n > 0 && path[n] !== '.' && path[n] !== '[') continue;
    const rest = path.slice(n);
    const holds = path[n] === '[' ? 'elements' : /^\.?length$/.test(rest) ? 'either' : 'members';
    const before = path.slice(0, n);
    found.push({ path: before, folded: folded(before), holds });
  }
  return found;
}

/**
 * The first thing that the statements cannot be sure of; undefined for none. What is read is absent or exactly of the
 * kind that it is read as: programs differ in how they take all else, and a limit must hold whatever the tool makes of
 * its arguments.
 */
export function firstDoubt<Rule>(reads: ReadsOf<Rule>, request: MappedRequest): Doubt<Rule> | undefined {
  const { args } = request;
  if (reads.amount && request.inexactValue) return { path: 'estimated_value', rule: reads.amount };
  if (reads.wants.length > 0) {
    const want = reads.wants.find((one) => inDoubt(args, one));
    if (want) return { path: shownPath(want.path), rule: want.rule };
  }
  for (const { rule, kinds, texts } of reads.computed) {
    // which path it is comes from the agent, and is not told
    if (!isSure(request, kinds, texts)) return { path: 'arguments', rule };
  }
  return tooLong(reads, request);
}

/** The keys that the statements read in this request. */
export function keysRead({ wants, computed }: ReadsOf<unknown>, request: MappedRequest): ReadonlySet<string> {
  const keys = new Set(wants.map(({ path }) => path));
  for (const { texts } of computed) for (const key of computable(request, texts)) keys.add(key);
  return keys;
}

/** The language cannot put texts together, so a key that a statement computes is written in it or told by the request. */
function computable({ args, texts: told }: MappedRequest, texts: readonly string[] | null): string[] {
  return texts === null ? [...args.values.keys()] : [...texts, ...told.values(), ...args.str.values()];
}

function isSure(request: MappedRequest, kinds: readonly TagKind[], texts: readonly string[] | null): boolean {
  const { args } = request;
  if (texts === null) return args.values.size === 0;
  const keys = new Set(computable(request, texts).filter((key) => key.length <= ARGUMENT_LIMITS.keyLength));
  return [...keys].every((key) => isAbsentOrOf(args, key, kinds) && !isElsewhere(args, key, folded(key)));
}

function tooLong<Rule>(reads: ReadsOf<Rule>, request: MappedRequest): Doubt<Rule> | undefined {
  if (reads.patterns * ARGUMENT_LIMITS.text <= MOST_STEPS) return undefined;
  const most = MOST_STEPS / reads.patterns;
  for (const [name, text] of request.texts) if (text.length > most) return { path: name };
  const long = reads.wants.find(({ path }) => (request.args.str.get(path)?.length ?? 0) > most);
  if (long) return { path: shownPath(long.path), rule: long.rule };
  const computed = reads.computed.length > 0 && [...request.args.str.values()].some((text) => text.length > most);
  return computed ? { path: 'arguments' } : undefined;
}

/** Is there something at the path, or on the way to it, that a program may take otherwise than the rule does? */
export function inDoubt(args: Arguments, want: Want): boolean {
  if (!isAbsentOrOf(args, want.path, want.kinds) || isElsewhere(args, want.path, want.folded)) return true;
  return want.above.some(({ path, folded, holds }) => {
    if (path !== '' && isRespelled(args, path, folded)) return true;
    const value = path === '' ? args.root : args.values.get(path);
    if (value === undefined || value === null) return false;
    // a text that holds JSON, an object whose members are numbered like a list: some program takes it apart
    return typeof value !== 'object' || (holds !== 'either' && Array.isArray(value) !== (holds === 'elements'));
  });
}

function isAbsentOrOf(args: Arguments, path: string, kinds: readonly TagKind[]): boolean {
  if (!args.values.has(path)) return true;
  const text = args.str.get(path);
  // also where it may be a text: what looks like a number must not pass the rule's limit as one
  if (kinds.includes('num') && text !== undefined && !args.num.has(path) && NUMBER_LIKE.test(text)) return false;
  const items = text === undefined ? (args.list.get(path) ?? []) : [text];
  return kinds.some((kind) => args[kind].has(path)) && items.every((one) => one.length <= ARGUMENT_LIMITS.text);
}

const NUMBER_LIKE = /\p{N}|∞|^\P{L}*(?:inf|infinity|nan)\P{L}*$/iu;

/** Does a program that ignores case, width and invisible characters find something there that goes by another key? */
function isRespelled({ values, respelled }: Arguments, path: string, folded: string): boolean {
  if (folded !== path && values.has(folded)) return true;
  return respelled.get(folded)?.some((key) => key !== path) ?? false;
}

/** The same, of programs also that take names such as `refund[total]` apart. */
function isElsewhere(args: Arguments, path: string, folded: string): boolean {
  return args.aliases.has(folded) || isRespelled(args, path, folded);
}

/** A path comes from a rule, and is as long as it likes. */
const MOST_SHOWN = 200;

export function shownPath(path: string): string {
  const whole =
    isFact(path) || path.startsWith('arguments.context')
      ? path
      : `arguments${/^(?:$|\[)/.test(path) ? '' : '.'}${path}`;
  return whole.length > MOST_SHOWN ? `${whole.slice(0, MOST_SHOWN).toWellFormed()}…` : whole;
}

function isFact(path: string): boolean {
  return /^context(?:$|[.[])/.test(path);
}
