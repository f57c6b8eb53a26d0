import { type CallOutcome, FACT_LIMITS, type FactDeclaration } from '../../domain/session-facts.ts';
import { nearest } from '../../lib/nearest.ts';
import { literal, preamble, type Token } from './scan.ts';

/** The kinds of facts, as a policy reads them: `context.session.str`, and so on. */
export const FACT_KINDS = ['str', 'num', 'bool', 'list', 'time'] as const;
export type FactKind = (typeof FACT_KINDS)[number];

/** A fact that is read: its name, and the source of its key: an argument of the call, or another fact. */
export interface FactPath {
  name: string;
  of: string | FactPath | null;
}

/** A read of a fact; `tag` as written in the policy. */
export interface FactRead {
  tag: string;
  path: FactPath;
}

/** A question about earlier calls; `tag` as written. */
export interface CallRead {
  tag: string;
  tool: string;
  server: string | null;
  outcome: CallOutcome;
  /** Whether the agent's own reports count too. */
  reported: boolean;
}

const NAME = '[a-z][a-z0-9_]{0,63}';
const DECLARATION = new RegExp(
  `^(${NAME})(?:\\[(\\S+)\\])?\\s*=\\s*(\\S+)\\s+from\\s+(\\S+)(?:\\s+of\\s+(\\S+))?(?:\\s+for\\s+([1-9]\\d{0,4})([smh]))?(\\s+reported)?$`,
);
const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600 };
/** A place in an answer: `answer`, then members and elements, with at most one wildcard for all elements (or members). */
const ANSWER = /^answer(?:\.[\w-]{1,64}|\.\*|\[\d{1,4}\]|\[\*\])*$/;
/** An argument, as named in `context.str`. */
const ARGUMENT = /^[A-Za-z_][\w-]{0,63}(?:\.[\w-]{1,64}|\[\d{1,4}\])*$/;
const MOST_STEPS = 16;

/** The declarations of an `@fact`; undefined if one of them is malformed. */
export function parseDeclarations(text: string): FactDeclaration[] | undefined {
  const found: FactDeclaration[] = [];
  for (const part of text.split(';')) {
    const [, name, key = null, value, tool, server = null, count, unit, reported] = DECLARATION.exec(part.trim()) ?? [];
    if (name === undefined || value === undefined || tool === undefined) return undefined;
    const seconds = count === undefined ? FACT_LIMITS.standard : Number(count) * UNIT_SECONDS[unit!]!;
    const one = { name, key, value, tool, server, seconds, reported: reported !== undefined };
    if (!isDeclaration(one)) return undefined;
    found.push(one);
  }
  return found.length <= FACT_LIMITS.declarations ? found : undefined;
}

/** Whether `parseDeclarations` could have produced this declaration. */
export function isDeclaration(value: unknown): value is FactDeclaration {
  if (typeof value !== 'object' || value === null || Object.keys(value).length !== 7) return false;
  const { name, key, value: kept, tool, server, seconds, reported } = value as Record<string, unknown>;
  return (
    typeof name === 'string' &&
    new RegExp(`^${NAME}$`).test(name) &&
    (key === null || isPlace(key)) &&
    isPlace(kept) &&
    isWord(tool) &&
    (server === null || isWord(server)) &&
    Number.isSafeInteger(seconds) &&
    (seconds as number) > 0 &&
    (seconds as number) <= FACT_LIMITS.most &&
    typeof reported === 'boolean' &&
    fitsWildcards(key as string | null, kept as string)
  );
}

const isWord = (value: unknown): value is string => typeof value === 'string' && /^[^\s;]{1,200}$/.test(value);

function isPlace(value: unknown): value is string {
  if (typeof value !== 'string') return false;
  return (isOfAnswer(value) ? ANSWER : ARGUMENT).test(value) && steps(value).length <= MOST_STEPS;
}

/** Whether the place is in the answer. All others are arguments of the call. */
export function isOfAnswer(place: string): boolean {
  return /^answer(?:$|[.[])/.test(place);
}

/** The steps of a place in an answer, after `answer`. */
export function steps(place: string): string[] {
  return [...place.matchAll(/\.([\w*-]+)|\[(\d+|\*)\]/g)].map(([, member, element]) => member ?? element!);
}

/** The key may use one wildcard for all elements; the value is then from the same element, or from none. */
function fitsWildcards(key: string | null, value: string): boolean {
  const [ofKey, ofValue] = [key?.split('*') ?? [''], value.split('*')];
  if (ofKey.length > 2 || ofValue.length > 2) return false;
  return ofValue.length === 1 || (ofKey.length === 2 && ofKey[0] === ofValue[0]);
}

const READ = new RegExp(`^(${NAME})(?:\\[(.+)\\])?$`, 's');
const MOST_NESTING = 3;

/** Undefined if it is not the name of a fact. A part in brackets is again a fact, or an argument. */
export function readFactPath(tag: string, depth = 0): FactPath | undefined {
  const [, name, inner] = READ.exec(tag) ?? [];
  if (name === undefined || depth > MOST_NESTING) return undefined;
  if (inner === undefined) return { name, of: null };
  if (!/\[(?!\d)/.test(inner)) return inner.length <= 512 ? { name, of: inner } : undefined;
  const of = readFactPath(inner, depth + 1);
  return of && { name, of };
}

/** The argument that the key of a fact comes from, if it has one. */
export function argumentOf({ of }: FactPath): string | undefined {
  return typeof of === 'string' ? of : of ? argumentOf(of) : undefined;
}

/** Every name in a path, outermost first. */
export function namesIn({ name, of }: FactPath): string[] {
  return [name, ...(of !== null && typeof of === 'object' ? namesIn(of) : [])];
}

/** `read_customer`, `pay of bank failed`, `lookup reported`. Undefined if it is not a question about a call. */
export function readCall(tag: string): CallRead | undefined {
  const [, tool, server = null, outcome = 'succeeded', reported] =
    /^(\S{1,200})(?: of (\S{1,200}))?(?: (failed|denied))?( reported)?$/.exec(tag) ?? [];
  if (tool === undefined) return undefined;
  return { tag, tool, server, outcome: outcome as CallOutcome, reported: reported !== undefined };
}

const FORM = 'context.session.str.hasTag("order_status[order_id]")';
const PLAIN = ['id', 'call_count', 'started', 'lowest_trust'];
const TYPES = ['StrFacts', 'NumFacts', 'BoolFacts', 'ListFacts', 'TimeFacts', 'Calls'];

/**
 * The faults in how a statement reads its session. Names are written out, so that everyone sees what a text depends on,
 * and each is declared in the policy (`declared`): a typo would be a fact that never exists.
 */
export function sessionFaults(statement: Token[], declared: readonly string[]): { start: number; message: string }[] {
  const faults: { start: number; message: string }[] = [];
  const { rest } = preamble(statement);
  for (let n = rest; n < statement.length; n++) {
    const { text, start } = statement[n]!;
    const before = statement[n - 1]?.text;
    const inForm = {
      start,
      message: `facts of a session are read in one form only, with the name written out: ${FORM}`,
    };
    if (TYPES.includes(text)) {
      faults.push(inForm);
      continue;
    }
    if (before === '[' && literal(text) === 'session' && /^[A-Za-z_\])]/.test(statement[n - 2]?.text ?? '')) {
      if (!/^(?:in|if|then|else)$/.test(statement[n - 2]!.text)) faults.push(inForm);
      continue;
    }
    if (before !== '.' || text !== 'session') continue;
    const words = statement.slice(n - 3, n + 8).map((token) => token.text);
    const [outer, context, , , dot, what = '', call, method, open, key, close] = words;
    if (dot === '.' && PLAIN.includes(what)) continue;
    const isCall =
      outer !== '.' && context === 'context' && dot === '.' && call === '.' && open === '(' && close === ')';
    const known = what === 'called' || (FACT_KINDS as readonly string[]).includes(what);
    const name = isCall && known && (method === 'hasTag' || method === 'getTag') ? literal(key) : undefined;
    if (name === undefined) {
      faults.push(inForm);
      continue;
    }
    const { start: place } = statement[n + 6]!;
    if (what === 'called') {
      if (readCall(name)) continue;
      const message = `write the name of a tool, such as "read_customer", "read_customer of crm", "pay failed" or "pay denied"`;
      faults.push({ start: place, message });
      continue;
    }
    const path = readFactPath(name);
    if (!path) {
      const message = 'write the name of a fact and an argument in brackets, such as "order_status[order_id]"';
      faults.push({ start: place, message });
      continue;
    }
    for (const one of namesIn(path).filter((name) => !declared.includes(name))) {
      const near = nearest(one, declared);
      const known =
        declared.length === 0
          ? `declare it with @fact("${one}[…] = answer.… from …")`
          : `declared facts: ${declared.slice(0, 20).join(', ')}`;
      const hint = near === undefined ? known : `did you mean "${near}"?`;
      faults.push({ start: place, message: `no @fact of this policy declares "${one}"; ${hint}` });
    }
  }
  return faults;
}
