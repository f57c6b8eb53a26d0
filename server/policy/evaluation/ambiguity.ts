import { folded } from '../../lib/folded.ts';
import type { Head, ReadKind } from '../language/head.ts';
import { ATTRIBUTES_OF, DOUBTED, type Doubted } from '../language/resource.ts';
import { ARGUMENT_LIMITS, keyText } from './exact.ts';
import type { Arguments, MappedRequest } from './request.ts';

/** A path in the arguments and the kinds it is read as. With no kinds, any value at the path is ambiguous. */
export interface PathRead {
  path: string;
  kinds: readonly ReadKind[];
  /** The path as compared by programs that ignore case, width and invisible characters. */
  folded: string;
  /** Whether a null counts as absent, as the rule says. */
  nullable?: boolean;
  /** The containers on the way to the path: '', `items` and `items[0]` for `items[0].sku`. */
  parents: readonly { path: string; folded: string; holds: 'elements' | 'members' | 'either' }[];
}

/** The parts of a request that a set of statements reads, each with the first statement that reads it. */
export interface RequestReads<Rule> {
  paths: readonly (PathRead & { rule: Rule })[];
  /** Reads under computed keys: their kinds, and the literals that such a key can equal. */
  computed: readonly { rule: Rule; kinds: readonly ReadKind[]; texts: readonly string[] | null }[];
  /** The members beside the arguments that they read, where those can be in doubt. */
  members: readonly { member: Doubted; rule: Rule }[];
  /** Total length of the `like` patterns in characters. */
  patterns: number;
}

export interface Ambiguity<Rule> {
  /** As the rule spells it, never as the agent does: `arguments.refund.total`, `context.ticket`. */
  path: string;
  rule?: Rule | undefined;
}

/** Matching a pattern takes (characters of the text) × (characters of the pattern) steps; this many take about 60 ms. */
export const MAX_MATCH_STEPS = 2 ** 26;

/** Collects what a set of statements reads. A path that one statement reads as two kinds may be of either. */
export function readsOf<Rule>(
  statements: readonly { rule: Rule; head: Head; nullable?: boolean }[],
): RequestReads<Rule> {
  const paths = new Map<string, PathRead & { rule: Rule }>();
  const computed: { rule: Rule; kinds: readonly ReadKind[]; texts: readonly string[] | null }[] = [];
  for (const { rule, head, nullable = false } of statements) {
    for (const [key, reads] of Map.groupBy(head.reads, ({ key }) => key)) {
      const kinds = kindsOf(reads.map(({ kind }) => kind));
      if (key === null) computed.push({ rule, kinds, texts: head.texts });
      else {
        const name = `${nullable} ${kinds.join()} ${key}`;
        if (!paths.has(name)) paths.set(name, { ...pathRead(key, kinds), nullable, rule });
      }
    }
  }
  const members = DOUBTED.flatMap((member) => {
    const read = (names: readonly string[]) => ATTRIBUTES_OF[member].some((name) => names.includes(name));
    const reader = statements.find(({ head: { attributes } }) => !attributes || read(attributes));
    return reader ? [{ member, rule: reader.rule }] : [];
  });
  return {
    paths: [...paths.values()],
    computed,
    members,
    patterns: statements.reduce((sum, { head }) => sum + head.patterns, 0),
  };
}

/** Empty if one of the kinds is unknown, because then no value is certain to fit. */
function kindsOf(kinds: (ReadKind | null)[]): ReadKind[] {
  return kinds.includes(null) ? [] : [...new Set(kinds as ReadKind[])].sort();
}

export function pathRead(path: string, kinds: readonly ReadKind[]): PathRead {
  return { path, kinds, folded: folded(path), parents: parentsOf(path) };
}

function parentsOf(path: string): PathRead['parents'] {
  const found: PathRead['parents'][number][] = [];
  // the caller's own facts live under `context`, outside the arguments
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
 * The first value that the tool might interpret differently from the statements; undefined if there is none. A value
 * passes only if it is absent or of exactly the kind it is read as: programs disagree about everything else, and a limit
 * must hold however the tool parses its arguments. `nullable`: the paths whose null the tool takes as absent,
 * besides those of the rules.
 */
export function firstAmbiguity<Rule>(
  reads: RequestReads<Rule>,
  request: MappedRequest,
  nullable: readonly string[] = [],
): Ambiguity<Rule> | undefined {
  const doubted = reads.members.find(({ member }) => request.isInDoubt(member));
  if (doubted) return { path: doubted.member, rule: doubted.rule };
  if (reads.paths.length > 0) {
    const { args } = request;
    const read = reads.paths.find((one) =>
      isAmbiguous(args, nullable.includes(one.path) ? { ...one, nullable: true } : one),
    );
    if (read) return { path: displayPath(read.path), rule: read.rule };
  }
  for (const { rule, kinds, texts } of reads.computed) {
    // the agent chose the path, so it is not repeated
    if (!computedKeysAreSafe(request, kinds, texts)) return { path: 'arguments', rule };
  }
  return overlongText(reads, request);
}

/** The argument keys that the statements read in this request. */
export function keysRead({ paths, computed }: RequestReads<unknown>, request: MappedRequest): ReadonlySet<string> {
  const keys = new Set(paths.map(({ path }) => path));
  for (const { texts } of computed) for (const key of computable(request, texts)) keys.add(key);
  return keys;
}

/** Cedar cannot concatenate strings, so a computed key is either a literal of the statement or a text of the request. */
function computable({ args, texts: sent }: MappedRequest, texts: readonly string[] | null): string[] {
  return texts === null ? [...args.values.keys()] : [...texts, ...sent.values(), ...args.str.values()];
}

function computedKeysAreSafe(
  request: MappedRequest,
  kinds: readonly ReadKind[],
  texts: readonly string[] | null,
): boolean {
  const { args } = request;
  if (texts === null) return args.values.size === 0;
  const keys = new Set(computable(request, texts).filter((key) => key.length <= ARGUMENT_LIMITS.keyLength));
  const characters = keys.values().reduce((sum, key) => sum + key.length, 0);
  if (characters * ARGUMENT_LIMITS.wide > ARGUMENT_LIMITS.steps) return false;
  return [...keys].every((key) => isAbsentOrOf(args, key, kinds) && !hasOtherSpelling(args, key, folded(key)));
}

function overlongText<Rule>(reads: RequestReads<Rule>, request: MappedRequest): Ambiguity<Rule> | undefined {
  if (reads.patterns * ARGUMENT_LIMITS.text <= MAX_MATCH_STEPS) return undefined;
  const most = MAX_MATCH_STEPS / reads.patterns;
  for (const [name, text] of request.texts) if (text.length > most) return { path: name };
  const long = reads.paths.find(({ path }) => (request.args.str.get(path)?.length ?? 0) > most);
  if (long) return { path: displayPath(long.path), rule: long.rule };
  const computed = reads.computed.length > 0 && [...request.args.str.values()].some((text) => text.length > most);
  return computed ? { path: 'arguments' } : undefined;
}

/** Whether a program could find something at this path, or on the way to it, other than what the rule reads there. */
export function isAmbiguous(args: Arguments, read: PathRead): boolean {
  const isNull = read.nullable === true && args.values.get(read.path) === null;
  if (!(isNull || isAbsentOrOf(args, read.path, read.kinds)) || hasOtherSpelling(args, read.path, read.folded))
    return true;
  return read.parents.some(({ path, folded, holds }) => {
    if (path !== '' && isRespelled(args, path, folded)) return true;
    const value = path === '' ? args.root : args.values.get(path);
    if (value === undefined || value === null) return false;
    // a text that contains JSON, or an object with numbered members: some programs unpack these
    return typeof value !== 'object' || (holds !== 'either' && Array.isArray(value) !== (holds === 'elements'));
  });
}

function isAbsentOrOf(args: Arguments, path: string, kinds: readonly ReadKind[]): boolean {
  if (!args.values.has(path)) return true;
  const text = args.str.get(path);
  // even where a text is allowed: a text that looks like a number must not slip past a numeric limit
  if (kinds.includes('num') && text !== undefined && !args.num.has(path) && NUMBER_LIKE.test(text)) return false;
  const items = text === undefined ? (args.list.get(path) ?? []) : [text];
  const isOf = (kind: ReadKind) =>
    kind === 'key' ? keyText(args.values.get(path)) !== undefined : args[kind].has(path);
  return kinds.some(isOf) && items.every((one) => one.length <= ARGUMENT_LIMITS.text);
}

const NUMBER_LIKE = /\p{N}|∞|^\P{L}*(?:inf|infinity|nan)\P{L}*$/iu;

/** Whether a program that ignores case, width and invisible characters would also read another key as this path. */
function isRespelled({ values, respelled }: Arguments, path: string, folded: string): boolean {
  if (folded !== path && values.has(folded)) return true;
  return respelled.get(folded)?.some((key) => key !== path) ?? false;
}

/** Like `isRespelled`, and also counts programs that expand names such as `refund[total]` into paths. */
function hasOtherSpelling(args: Arguments, path: string, folded: string): boolean {
  return args.aliases.has(folded) || isRespelled(args, path, folded);
}

/** Shortened for display: rules do not limit the length of a path. */
const MAX_DISPLAYED = 200;

export function displayPath(path: string): string {
  const whole =
    isFact(path) || path.startsWith('arguments.context')
      ? path
      : `arguments${/^(?:$|\[)/.test(path) ? '' : '.'}${path}`;
  return whole.length > MAX_DISPLAYED ? `${whole.slice(0, MAX_DISPLAYED).toWellFormed()}…` : whole;
}

function isFact(path: string): boolean {
  return /^context(?:$|[.[])/.test(path);
}
