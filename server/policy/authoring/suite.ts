import { isAlias, isCollection, isMap, isNode, isScalar, isSeq, LineCounter, type Node, parseDocument } from 'yaml';
import { z } from 'zod';
import { ReportedName } from '../../domain/agent-names.ts';
import { DECISIONS } from '../../domain/decision.ts';
import { HOLD_KIND_NAMES } from '../../domain/hold-kinds.ts';
import type { ActionRequest, Diagnostic } from '../../domain/policy.ts';
import { FACT_LIMITS } from '../../domain/session-facts.ts';
import { firstHidden } from '../../lib/visible.ts';
import { text, toolPin } from '../../rpc/fields.ts';
import { ARGUMENT_LIMITS } from '../evaluation/exact.ts';

/** Limits of a test suite. `tests` counts the rows of tables. `depth`: that of the arguments, plus what encloses them. */
export const SUITE_LIMITS = { bytes: 256 * 1024, tests: 500, depth: ARGUMENT_LIMITS.depth + 8, faults: 100 } as const;

const time = z.iso.datetime({ offset: true });
const FactName = text(FACT_LIMITS.key * 4);
const FactText = z.string().max(FACT_LIMITS.text);
/** What enforcement points would know about the session, by the names under which policies read it. */
const SessionIn = z.strictObject({
  call_count: z.int().min(0).optional().describe('the calls of the session before this one'),
  started: time.optional(),
  lowest_trust: z.int().min(0).max(100).optional().describe('the least trust of the servers that have answered'),
  facts: z
    .record(FactName, z.union([FactText, z.number(), z.boolean(), z.array(FactText).max(FACT_LIMITS.items)]))
    .optional()
    .describe('such as {"order_status[order_id]": "pending"}'),
  called: z.array(FactName).max(FACT_LIMITS.ofSession).optional().describe('such as ["read_customer"]'),
});

/** The request of a trial, as a caller would send it; the time of the decision is the present. */
export const TrialRequest = z.strictObject({
  agent_id: ReportedName,
  agent_role: ReportedName,
  action_type: text(64),
  tool_name: text(200),
  tool_pin: toolPin.optional(),
  tool_server: text(200).optional(),
  method: text(32).optional(),
  resource: text(2000).optional(),
  arguments: z.record(z.string(), z.unknown()).optional(),
  session_id: text(200).optional(),
  estimated_value: z.number().min(0).max(1e14).optional(),
  value_currency: text(10).optional(),
  risk_score: z.number().min(0).max(1).optional().describe('1 when absent'),
  context: z.record(z.string(), z.unknown()).optional(),
  session: SessionIn.optional().describe('what enforcement points would know of the session'),
});

/** Also the members that the decision point adds to a request. */
const PartialRequest = TrialRequest.extend({
  tool_pin: toolPin.nullable(),
  now: time,
  source_ip: text(64),
  owner: text(200),
}).partial();
type PartialRequest = z.infer<typeof PartialRequest>;

const RuleId = text(200);
/** What a test expects; an absent member may be anything. */
export const Expectation = z.strictObject({
  decision: z.enum(DECISIONS),
  rule: RuleId.optional(),
  rules: z.array(RuleId).max(500).optional(),
  masks: z.array(text(500)).max(500).optional(),
  hold: z
    .strictObject({
      kind: z.enum(HOLD_KIND_NAMES).optional(),
      approvals: z.int().min(0).max(1000).optional(),
      ttl_seconds: z.int().min(0).optional(),
    })
    .optional(),
  reason: text(5000).optional(),
});
export type Expectation = z.infer<typeof Expectation>;

const State = z.strictObject({
  exceeded: z.array(RuleId).max(500).default([]),
  covered: z.array(RuleId).max(500).default([]),
});

const visibleName = text(200).refine((name) => !/[\t\n\r]/.test(name) && !firstHidden(name), {
  error: 'must not have line breaks or invisible characters',
});
const Suite = z.strictObject({
  format: z.literal('svc-tests/1').optional(),
  scope: z.enum(['live', 'policy']).default('live'),
  defaults: PartialRequest.default({}),
  tests: z.array(
    z.strictObject({
      name: visibleName,
      request: PartialRequest.default({}),
      state: State.default({ exceeded: [], covered: [] }),
      expect: Expectation,
      table: z.array(PartialRequest).min(1).optional(),
      from: text(100).optional(),
    }),
  ),
});

/** One test of a suite, or one row of its table. */
export interface TestCase {
  name: string;
  /** The row of its table, counted from 1. */
  row?: number;
  request: ActionRequest;
  /** Rules over their limit, and rules covered by a released hold. */
  state: { exceeded: readonly string[]; covered: readonly string[] };
  expect: Expectation;
  line: number;
  column: number;
}

export interface ReadSuite {
  errors: Diagnostic[];
  /** `policy`: the policy is tested by itself, without the other live policies. */
  scope: 'live' | 'policy';
  /** Empty if there are errors. */
  cases: TestCase[];
}

/** Replacements for messages in which the YAML library names its own functions. */
const IN_OUR_WORDS: Partial<Record<string, string>> = {
  MULTIPLE_DOCS: 'only one document is accepted',
  NON_STRING_KEY: 'a name must be a text',
  RESOURCE_EXHAUSTION: 'nested too deeply',
};

/** What a test may omit. The time is fixed: the result of a test never depends on when it runs. */
export const STANDARD = { agent_id: 'test-agent', now: '2026-01-01T00:00:00Z' } as const;

/**
 * Reads a test suite (`svc-tests/1`), which is YAML 1.2 or JSON. One reader handles both, and it accepts only what all
 * readers of the two read in the same way: no anchors, aliases, tags, directives or merge keys; no duplicate members; and
 * no unquoted value that another YAML version reads as another type (`yes`, `012`, `1_000`, an empty value).
 *
 * Pure, and never throws: each fault has a position. A suite without tests is valid.
 */
export function readSuite(source: string): ReadSuite {
  const failed = (...errors: Diagnostic[]): ReadSuite => ({ errors, scope: 'live', cases: [] });
  if (source.length > SUITE_LIMITS.bytes || Buffer.byteLength(source) > SUITE_LIMITS.bytes) {
    return failed({ line: 1, column: 1, message: 'the tests are larger than 256 KiB' });
  }
  const lines = new LineCounter();
  const at = (offset: number, message: string): Diagnostic => {
    const { line, col } = lines.linePos(offset);
    return { line: Math.max(1, line), column: Math.max(1, col), message };
  };
  const document = parseDocument(source, {
    version: '1.2',
    schema: 'core',
    strict: true,
    stringKeys: true,
    // checked in linear time below; here it would take quadratic time
    uniqueKeys: false,
    merge: false,
    resolveKnownTags: false,
    prettyErrors: false,
    logLevel: 'error',
    lineCounter: lines,
  });
  const surrogate = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.exec(source);
  if (surrogate) return failed(at(surrogate.index, 'the text has a lone surrogate, which is not a valid character'));
  const hidden = firstHidden(source);
  if (hidden)
    return failed(at(hidden.at, `an invisible character; in double quotes, write \\u${hidden.hex.padStart(4, '0')}`));
  const [broken] = document.errors;
  if (broken) return failed(at(broken.pos[0], IN_OUR_WORDS[broken.code] ?? broken.message));
  const { directives } = document;
  if (directives && (directives.yaml.explicit || Object.keys(directives.tags).length > 1)) {
    return failed({ line: 1, column: 1, message: 'directives are not accepted' });
  }

  const faults: Diagnostic[] = [];
  const value = plain(document.contents, (node, message) => {
    if (faults.length < SUITE_LIMITS.faults) faults.push(at(node?.range?.[0] ?? 0, message));
  });
  if (faults.length > 0) return failed(...faults);

  const read = Suite.safeParse(value);
  const place = (path: readonly PropertyKey[]) => offsetOf(document.contents, path);
  if (!read.success) {
    const found = read.error.issues.flatMap((issue) =>
      issue.code === 'unrecognized_keys'
        ? issue.keys.map((key) => at(place([...issue.path, key]), `${quoted(key)} is not known here`))
        : [at(place(issue.path), [issue.path.map(String).join('.'), issue.message].filter(Boolean).join(': '))],
    );
    return failed(...found.slice(0, SUITE_LIMITS.faults));
  }

  const { scope, defaults, tests } = read.data;
  const cases: TestCase[] = [];
  const names = new Map<string, number>();
  for (const [n, { name, request, state, expect, table }] of tests.entries()) {
    const before = names.get(name);
    if (before !== undefined) {
      faults.push(at(place(['tests', n, 'name']), `test ${before + 1} is also named ${quoted(name)}`));
    }
    names.set(name, n);
    for (const [row, change] of (table ?? [{}]).entries()) {
      const path = table ? ['tests', n, 'table', row] : ['tests', n];
      const { errors, request: whole } = merged(defaults, request, change);
      faults.push(...errors.map((message) => at(place(path), message)));
      if (!whole) continue;
      const { line, column } = at(place(path), '');
      cases.push({ name, ...(table && { row: row + 1 }), request: whole, state, expect, line, column });
      if (cases.length <= SUITE_LIMITS.tests) continue;
      return failed(at(place(path), `more than ${SUITE_LIMITS.tests} tests; each row of a table counts as one`));
    }
  }
  if (faults.length > 0) return failed(...faults.slice(0, SUITE_LIMITS.faults));
  return { errors: [], scope, cases };
}

/** The request of a case: each member of a later part replaces the whole member of an earlier one. */
function merged(...parts: PartialRequest[]): { errors: string[]; request?: ActionRequest } {
  const all: PartialRequest = Object.assign({}, STANDARD, ...parts);
  const { agent_id = STANDARD.agent_id, agent_role, action_type, tool_name, now = STANDARD.now } = all;
  if (agent_role !== undefined && action_type !== undefined && tool_name !== undefined) {
    return { errors: [], request: { ...all, agent_id, agent_role, action_type, tool_name, now } };
  }
  const missing = Object.entries({ agent_role, action_type, tool_name }).filter(([, value]) => value === undefined);
  return { errors: [`the request has no ${missing.map(([name]) => name).join(', ')}, and the defaults have none`] };
}

type Refuse = (node: Node | null | undefined, message: string) => void;

/** The value of a node as JSON. */
function plain(node: Node | null | undefined, refuse: Refuse, depth = 0): unknown {
  if (!node) return null;
  if (depth > SUITE_LIMITS.depth) return refuse(node, `nested deeper than ${SUITE_LIMITS.depth} levels`);
  if (isAlias(node)) return refuse(node, 'aliases are not accepted');
  if ('anchor' in node && node.anchor !== undefined) return refuse(node, 'anchors are not accepted');
  if (node.tag !== undefined) return refuse(node, 'tags are not accepted');
  if (isSeq(node)) return node.items.map((item) => plain(item as Node | null, refuse, depth + 1));
  if (isMap(node)) return members(node.items, refuse, depth);
  return isScalar(node) ? scalar(node, refuse) : refuse(node, 'not a value');
}

function members(pairs: readonly { key: unknown; value: unknown }[], refuse: Refuse, depth: number): unknown {
  const found: Record<string, unknown> = {};
  for (const { key, value } of pairs) {
    const node = isNode(key) ? key : null;
    const name = plain(node, refuse, depth + 1);
    if (typeof name !== 'string') {
      refuse(node, 'a name must be a text');
      continue;
    }
    if (name === '<<') refuse(node, 'merge keys are not accepted');
    if (Object.hasOwn(found, name)) refuse(node, `${quoted(name)} occurs twice`);
    // treat `__proto__` like any other member
    Object.defineProperty(found, name, {
      value: plain(value as Node | null, refuse, depth + 1),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  return found;
}

/** An unquoted text that YAML 1.1 reads as a boolean, a number or null. */
const IN_DOUBT =
  /^(?:y|n|yes|no|on|off|[-+]?0b[01_]+|[-+]?0x[\da-f_]+|[-+]?\d[\d_]*(?:\.[\d_]*)?(?:e[-+]?\d+)?|[-+]?\d+(?::[0-5]?\d)+(?:\.\d*)?|)$/i;
const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/;

function scalar(
  node: { value: unknown; type?: string | undefined; source?: string | undefined } & Node,
  refuse: Refuse,
) {
  const { value } = node;
  const source = node.source ?? '';
  if (typeof value === 'string') {
    if (node.type === 'PLAIN' && IN_DOUBT.test(value)) return refuse(node, `${quoted(value)} must be in quotes`);
    if (!value.isWellFormed()) return refuse(node, 'the text has a lone surrogate, which is not a valid character');
    return value;
  }
  if (typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value)) {
    return refuse(node, 'an integer beyond 2^53: a decision point refuses it, because readers round it differently');
  }
  if (typeof value === 'number' && JSON_NUMBER.test(source) && Number.isFinite(value)) return value;
  if ((value === true || value === false || value === null) && source === String(value)) return value;
  const message = source === '' ? 'a value is missing' : `${quoted(source)} must be written as in JSON, or in quotes`;
  return refuse(node, message);
}

/** Where the node at this path begins; for a missing member, where the node that should have it begins. */
function offsetOf(root: Node | null, path: readonly PropertyKey[]): number {
  let [node, found] = [root, root?.range?.[0] ?? 0];
  for (const part of path) {
    if (!isCollection(node)) break;
    const pair = isMap(node) && node.items.find(({ key }) => isScalar(key) && key.value === part);
    const next = pair ? pair.value : isSeq(node) ? node.items[Number(part)] : undefined;
    // a member begins at its name
    const begins = pair && isNode(pair.key) ? pair.key : next;
    if (!isNode(begins)) break;
    found = begins.range?.[0] ?? found;
    if (!isNode(next)) break;
    node = next;
  }
  return found;
}

/** Short enough for a message. */
function quoted(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 80).toWellFormed()}…` : text);
}
