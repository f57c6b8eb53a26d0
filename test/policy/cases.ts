import type { ActionRequest } from '../../server/domain/policy.ts';
import type { SessionState } from '../../server/domain/session-facts.ts';
import type { Attributes } from '../../server/policy/evaluation/registry.ts';

/**
 * Random conditions and requests, from a seed: every operator and type of the policy language, with values that are equal
 * often, near limits, absent, or of the wrong type.
 */
export class Cases {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** mulberry32: 0 to 1. */
  random(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  int(below: number): number {
    return Math.floor(this.random() * below);
  }

  pick<T>(all: readonly T[]): T {
    return all[this.int(all.length)]!;
  }

  chance(of: number): boolean {
    return this.random() < of;
  }

  maybe<T>(make: () => T): T | undefined {
    return this.chance(0.6) ? make() : undefined;
  }

  statement(): string {
    const clause = () => `${this.pick(['when', 'when', 'unless'])} { ${this.expression('bool', 1 + this.int(4))} }`;
    const clauses = Array.from({ length: this.pick([1, 1, 1, 2, 3]) }, clause);
    return `permit(principal, action, resource) ${clauses.join(this.pick([' ', '\n// } when {\n']))};`;
  }

  expression(type: Type, depth: number): string {
    // now and then of another type, which is an error where it is evaluated
    const wanted = this.chance(0.01) ? this.pick(TYPES) : type;
    const of = wanted.startsWith('set ') ? undefined : EXPRESSIONS[wanted as Scalar];
    if (!of) return this.#set(wanted.slice('set '.length) as Scalar, depth);
    const [leaves, branches] = of;
    return depth <= 0 || this.chance(0.15) ? this.pick(leaves)(this) : this.pick(branches)(this, depth - 1);
  }

  #set(of: Scalar, depth: number): string {
    if (of === 'string' && this.chance(0.6)) {
      const read = this.pick([
        safely('principal has labels', 'principal.labels', '["a"]'),
        safely('resource has labels', 'resource.labels', '["a"]'),
        safeTag('list', '["a"]'),
        safeTag('session.list', '["a"]'),
      ]);
      return read(this);
    }
    const items = Array.from({ length: this.chance(0.03) ? 0 : 1 + this.int(3) }, () => this.expression(of, depth - 1));
    return `[${items.join(', ')}]`;
  }

  /** The name of a tag: now and then a computed one. */
  key(): string {
    return this.chance(0.03) ? this.expression('string', 1) : written(this, this.pick(KEYS));
  }

  request(): { request: ActionRequest; attributes: Attributes; facts: ReadonlySet<string> } {
    const text = () => this.pick(TEXTS);
    const value = (depth: number): unknown => {
      switch (this.int(depth > 0 ? 8 : 5)) {
        case 0:
        case 1:
          return text();
        case 2:
          return this.pick(NUMBERS);
        case 3:
          return this.pick(DECIMALS);
        case 4:
          return this.chance(0.8) ? this.chance(0.5) : null;
        case 5:
        case 6:
          return Array.from({ length: this.int(4) }, () => (this.chance(0.8) ? text() : value(depth - 1)));
        default:
          return record(depth - 1);
      }
    };
    const record = (depth: number) =>
      Object.fromEntries(Array.from({ length: this.int(5) }, () => [this.pick(KEYS), value(depth)]));
    const fact = () =>
      this.pick<() => string | number | boolean | string[]>([
        text,
        () => this.pick(NUMBERS),
        () => this.pick(DECIMALS),
        () => this.chance(0.5),
        () => Array.from({ length: this.int(3) }, text),
        () => this.pick(TIMES),
      ])();
    const session = (): SessionState => ({
      call_count: this.pick([0, 1, 5, 100, Number.MAX_SAFE_INTEGER]),
      started: this.pick(TIMES),
      lowest_trust: this.pick([0, 1, 50, 100]),
      facts: Object.fromEntries(Array.from({ length: this.int(5) }, () => [this.pick(KEYS), fact()])),
      called: Array.from({ length: this.int(3) }, () => this.pick(KEYS)),
    });
    const request: ActionRequest = {
      agent_id: this.pick(IDS),
      agent_role: this.pick(IDS),
      action_type: this.pick(['tool_call', 'payment', 'db_query', 'file_read']),
      tool_name: this.pick(IDS),
      tool_server: this.maybe(() => this.pick(IDS)),
      method: this.maybe(() => this.pick(['get', 'POST', ...TEXTS])),
      resource: this.maybe(() => this.pick(['https://Example.com:8080/a/../b?q', '/a/b', 'x*y', 'a b', ...TEXTS])),
      session_id: this.maybe(text),
      owner: this.maybe(text),
      estimated_value: this.maybe(() => this.pick(NUMBERS)),
      value_currency: this.maybe(() => this.pick(['EUR', 'usd', ...TEXTS])),
      risk_score: this.maybe(() => this.pick([0, 0.1, 0.5, 0.50001, 1])),
      source_ip: this.maybe(() => this.pick(ADDRESSES)),
      arguments: record(2),
      context: this.maybe(() => record(1)),
      session: this.maybe(session),
      now: this.pick(TIMES),
    };
    const labels = () => Array.from({ length: 1 + this.int(2) }, text);
    return {
      request,
      attributes: {
        ...(this.chance(0.5) && { agent_labels: labels() }),
        ...(this.chance(0.5) && { tool_labels: labels() }),
        ...(this.chance(0.5) && { trust: this.int(101) }),
      },
      facts: new Set(Array.from({ length: this.int(3) }, () => this.pick(KEYS))),
    };
  }
}

const SCALARS = ['bool', 'long', 'string', 'decimal', 'datetime', 'duration', 'ip'] as const;
const ENTITY_TYPES = ['Agent', 'AgentRole', 'Tool', 'ToolServer', 'Action'] as const;
type Scalar = (typeof SCALARS)[number] | (typeof ENTITY_TYPES)[number];
type Type = Scalar | `set ${Scalar}`;
const PLAIN = [...SCALARS, ...ENTITY_TYPES] as const;
const TYPES: readonly Type[] = [...PLAIN, 'set string', 'set long', 'set decimal', 'set Action'];

const IDS = ['a', 'b', 'ü😀', 'q"\\x', 'A::b', ' '];
const TEXTS = [
  '',
  'a',
  'b',
  'ab',
  'aab',
  'aa',
  'aba',
  'abab',
  'a*b',
  '*',
  '😀',
  '\u{1f601}x',
  'é',
  'e\u0301',
  '5',
  '5.0',
  '-1.25',
  '\\',
  '"',
  '\n',
  '\0',
  'GET',
  'constructor',
  '__proto__',
];
const KEYS = [
  'a',
  'b',
  'k',
  'items',
  'items.length',
  'a.b',
  'ü',
  '__proto__',
  'toString',
  '',
  'context.k',
  'arguments.context',
];
const NUMBERS = [0, -0, 1, -1, 5, 250, 250.01, 0.0001, -0.0001, 1e-5, 99999.9999, 900_719_925_474, 922_337_203_685_477];
const DECIMALS = [
  '0.0',
  '-0.0',
  '5.0',
  '250.01',
  '-1.25',
  '922337203685477.5807',
  '-922337203685477.5807',
  '900719925474.0991',
  '900719925474.0993',
  '0.0001',
];
const TIMES = [
  '1970-01-01T00:00:00Z',
  '2026-01-02T10:00:00.000Z',
  '2026-01-02T10:00:00.001Z',
  '2026-01-02T23:59:59.999Z',
  '2024-02-29T12:30:00+02:00',
  '0000-01-01T00:00:00Z',
  '9999-12-31T23:59:59Z',
  '1969-12-31T23:59:59.999Z',
  '9999-12-31T23:59:59-14:00',
  '0000-01-01T00:00:00+14:00',
];
const ADDRESSES = [
  '127.0.0.1',
  '10.0.0.1',
  '10.255.255.255',
  '::1',
  '::ffff:10.0.0.1',
  'fe80::1%eth0',
  '2001:DB8::1',
  '224.0.0.1',
  'ff02::1',
  '0.0.0.0',
  '::',
];
const RANGES = [
  '10.0.0.0/8',
  '10.0.0.1',
  '10.0.0.1/32',
  '0.0.0.0/0',
  '127.0.0.0/8',
  '127.0.0.0/7',
  '::/0',
  '::1',
  '2001:db8::/32',
  '2001:0DB8:0:0::1/64',
  '224.0.0.0/4',
  '224.0.0.0/3',
  'ff00::/8',
  '1::',
  '::1:2',
];
const LONGS = [
  '0',
  '1',
  '(-1)',
  '5',
  '100',
  '9007199254740991',
  '(-9007199254740991)',
  '9007199254740992',
  '9223372036854775807',
  '(-9223372036854775808)',
  '1024',
  '1025',
  '3037000499',
  '3037000500',
  '4503599627370496',
];
const DATETIMES = [
  '1970-01-01',
  '2026-01-02',
  '2024-02-29',
  '0000-01-01',
  '9999-12-31',
  '2026-01-02T10:00:00Z',
  '2026-01-02T10:00:00.001Z',
  '2026-01-02T10:00:00+0530',
  '2026-01-02T10:00:00.999-2359',
  '1969-12-31T23:59:59.999Z',
];
const DURATIONS = [
  '0ms',
  '1ms',
  '-1ms',
  '1s',
  '1m',
  '1h',
  '1d',
  '-1d',
  '1d2h3m4s5ms',
  '-1d2h3m4s5ms',
  '36500d',
  '9223372036854775807ms',
  '-9223372036854775808ms',
  '106751991167d',
];

/** A string literal; now and then with escapes where none are needed. */
function written(cases: Cases, text: string): string {
  const escaped = [...text].map((one) => {
    const code = one.codePointAt(0)!;
    if (one === '"' || one === '\\') return `\\${one}`;
    return code < 32 || cases.chance(0.05) ? `\\u{${code.toString(16)}}` : one;
  });
  return `"${escaped.join('')}"`;
}

/** Texts that overlap themselves and each other. */
const ALIKE = ['a', 'b', 'ab', 'aa', 'aba'];

function pattern(cases: Cases): string {
  if (cases.chance(0.3)) {
    const [one, other] = [cases.pick(ALIKE), cases.pick(ALIKE)];
    return cases.pick([`"*${one}*${other}*"`, `"${one}*${one}*"`, `"*${one}*${one}"`, `"${one}*${one}"`]);
  }
  const parts = Array.from({ length: 1 + cases.int(6) }, () =>
    cases.chance(0.5)
      ? '*'
      : written(cases, cases.pick(cases.chance(0.5) ? ALIKE : TEXTS))
          .slice(1, -1)
          .replaceAll('*', '\\*'),
  );
  return `"${parts.join('')}"`;
}

type Leaf = (cases: Cases) => string;
type Branch = (cases: Cases, depth: number) => string;

/** An attribute or a tag that may not be there: mostly asked for first, so that conditions come to what stands behind. */
const safely =
  (has: string, read: string, otherwise: string): Leaf =>
  (cases) =>
    cases.chance(0.1) ? read : `(if ${has} then ${read} else ${otherwise})`;
const safeTag =
  (of: string, otherwise: string): Leaf =>
  (cases) => {
    const key = cases.key();
    const receiver = `context.${of}`;
    return safely(`${receiver}.hasTag(${key})`, `${receiver}.getTag(${key})`, otherwise)(cases);
  };

const leaf =
  (texts: readonly string[]): Leaf =>
  (cases) =>
    cases.pick(texts);
const entity =
  (type: string): Leaf =>
  (cases) =>
    `${type}::${written(cases, cases.pick(IDS))}`;
const call =
  (name: string, texts: readonly string[]): Leaf =>
  (cases) =>
    `${name}("${cases.pick(texts)}")`;
const tag =
  (of: string, name: 'hasTag' | 'getTag'): Leaf =>
  (cases) =>
    `context.${of}.${name}(${cases.key()})`;
/** Guarded, so that conditions come to what stands behind. */
const guarded =
  (of: string, test: (read: string, cases: Cases, depth: number) => string): Branch =>
  (cases, depth) => {
    const key = cases.key();
    return `(context.${of}.hasTag(${key}) && ${test(`context.${of}.getTag(${key})`, cases, depth)})`;
  };
const choice =
  (type: Type): Branch =>
  (cases, depth) =>
    `(if ${cases.expression('bool', depth)} then ${cases.expression(type, depth)} else ${cases.expression(type, depth)})`;
const both =
  (type: Type, operators: readonly string[]): Branch =>
  (cases, depth) =>
    `(${cases.expression(type, depth)} ${cases.pick(operators)} ${cases.expression(type, depth)})`;
const method =
  (type: Type, name: string, other?: Type): Branch =>
  (cases, depth) =>
    `${cases.expression(type, depth)}.${name}(${other ? cases.expression(other, depth) : ''})`;

const within: Branch = (cases, depth) => {
  const [one, group] = cases.pick([
    ['Agent', 'AgentRole'],
    ['Agent', 'Agent'],
    ['Tool', 'ToolServer'],
    ['Action', 'Action'],
    ['Tool', 'AgentRole'],
  ] as const);
  const groups = cases.chance(0.5) ? cases.expression(group, depth) : cases.expression(`set ${group}`, depth);
  return `(${cases.expression(one, depth)} in ${groups})`;
};

const HAS = [
  'context has method',
  'context has "host"',
  'context has path',
  'context has source_ip',
  'context has amount',
  'context has currency',
  'context has risk_score',
  'context has session.id',
  'context has nothing',
  'principal has owner',
  'principal has labels',
  'resource has labels',
  'resource has server',
  'resource has server.trust',
  'principal has id',
  'Agent::"a" has owner',
  'ToolServer::"a" has trust',
];
const KINDS = [
  'str',
  'num',
  'bool',
  'list',
  'facts',
  'session.called',
  'session.str',
  'session.num',
  'session.bool',
  'session.list',
  'session.time',
];

const ofContext = (otherwise: string) => (name: string) => safely(`context has ${name}`, `context.${name}`, otherwise);
const ofServer = safely('resource has server', 'resource.server', 'ToolServer::"a"');

const EXPRESSIONS: Readonly<Record<Scalar, readonly [readonly Leaf[], readonly Branch[]]>> = {
  bool: [
    [
      leaf(['true', 'false']),
      leaf(HAS.map((text) => `(${text})`)),
      ...KINDS.map((kind) => tag(kind, 'hasTag')),
      safeTag('bool', 'false'),
      safeTag('facts', 'false'),
      safeTag('session.bool', 'false'),
    ],
    [
      both('bool', ['&&', '||']),
      both('bool', ['&&', '||']),
      both('bool', ['&&', '||', '==', '!=']),
      (cases, depth) => `(!${cases.expression('bool', depth)})`,
      choice('bool'),
      both('long', ['==', '!=', '<', '<=', '>', '>=']),
      both('datetime', ['==', '!=', '<', '<=', '>', '>=']),
      both('duration', ['==', '!=', '<', '<=', '>', '>=']),
      (cases, depth) => both(cases.pick(TYPES), ['==', '!='])(cases, depth),
      (cases, depth) => both(cases.pick(ENTITY_TYPES), ['==', '!='])(cases, depth),
      ...['lessThan', 'lessThanOrEqual', 'greaterThan', 'greaterThanOrEqual'].map((name) =>
        method('decimal', name, 'decimal'),
      ),
      ...['isIpv4', 'isIpv6', 'isLoopback', 'isMulticast'].map((name) => method('ip', name)),
      method('ip', 'isInRange', 'ip'),
      (cases, depth) => `(${cases.expression('string', depth)} like ${pattern(cases)})`,
      within,
      within,
      (cases, depth) => `(${cases.expression(cases.pick(ENTITY_TYPES), depth)} is ${cases.pick(ENTITY_TYPES)})`,
      (cases, depth) => `(principal is Agent in ${cases.expression('AgentRole', depth)})`,
      (cases, depth) => {
        const of = cases.pick(PLAIN);
        return `${cases.expression(`set ${of}`, depth)}.contains(${cases.expression(of, depth)})`;
      },
      (cases, depth) => {
        const of = cases.pick(['string', 'string', 'long', 'decimal', 'Action'] as const);
        const name = cases.pick(['containsAll', 'containsAny']);
        return `${cases.expression(`set ${of}`, depth)}.${name}(${cases.expression(`set ${of}`, depth)})`;
      },
      method('set string', 'isEmpty'),
      guarded('num', (read, cases, depth) => `${read}.lessThan(${cases.expression('decimal', depth)})`),
      guarded('str', (read, cases) => `${read} like ${pattern(cases)}`),
      guarded('str', (read, cases, depth) => `${read} == ${cases.expression('string', depth)}`),
      guarded('list', (read, cases, depth) => `${read}.contains(${cases.expression('string', depth)})`),
      guarded('session.num', (read, cases, depth) => `${read}.greaterThan(${cases.expression('decimal', depth)})`),
      guarded('session.time', (read, cases, depth) => `${read} < ${cases.expression('datetime', depth)}`),
      (cases, depth) => `(context has amount && context.amount.greaterThan(${cases.expression('decimal', depth)}))`,
      (cases, depth) => `(context has source_ip && context.source_ip.isInRange(${cases.expression('ip', depth)}))`,
      () => '({a: 1, b: context}.a == 1)',
      () => '(context == context)',
      (cases, depth) => {
        const test = cases.expression('bool', depth);
        return `(if ${test} then context else context).risk_score.lessThan(decimal("0.5"))`;
      },
      (cases, depth) => `(if ${cases.expression('bool', depth)} then context.num else context.num).hasTag("k")`,
    ],
  ],
  long: [
    [
      leaf(LONGS),
      leaf(['context.session.call_count', 'context.session.lowest_trust']),
      safely('resource has server.trust', 'resource.server.trust', '50'),
    ],
    [
      both('long', ['+', '-', '*']),
      both('long', ['+', '-', '*']),
      (cases, depth) => `(-${cases.expression('long', depth)})`,
      choice('long'),
      ...['toMilliseconds', 'toSeconds', 'toMinutes', 'toHours', 'toDays'].map((name) => method('duration', name)),
    ],
  ],
  string: [
    [
      (cases) => written(cases, cases.pick(TEXTS)),
      ...['method', 'host', 'path', 'currency'].map(ofContext('"a"')),
      leaf(['context.session.id']),
      safely('principal has owner', 'principal.owner', '"a"'),
      safeTag('str', '"a"'),
      safeTag('session.str', '"a"'),
    ],
    [
      choice('string'),
      (cases) => written(cases, cases.pick(TEXTS)),
      safeTag('str', '"a"'),
      leaf(['context.path', 'context["method"]']),
      ...['method', 'path'].map(ofContext('"ab"')),
    ],
  ],
  decimal: [
    [
      call('decimal', DECIMALS),
      leaf(['context.risk_score']),
      ofContext('decimal("5.0")')('amount'),
      safeTag('num', 'decimal("5.0")'),
      safeTag('session.num', 'decimal("5.0")'),
    ],
    [choice('decimal'), call('decimal', DECIMALS), safeTag('num', 'decimal("5.0")')],
  ],
  datetime: [
    [
      call('datetime', DATETIMES),
      leaf(['context.now', 'context.session.started']),
      safeTag('session.time', 'context.now'),
    ],
    [choice('datetime'), method('datetime', 'toDate'), method('datetime', 'offset', 'duration'), leaf(['context.now'])],
  ],
  duration: [
    [call('duration', DURATIONS)],
    [
      choice('duration'),
      method('datetime', 'toTime'),
      method('datetime', 'durationSince', 'datetime'),
      call('duration', DURATIONS),
    ],
  ],
  ip: [
    [call('ip', RANGES), ofContext('ip("10.0.0.1")')('source_ip')],
    [choice('ip'), call('ip', RANGES), ofContext('ip("::1")')('source_ip')],
  ],
  Agent: [
    [leaf(['principal']), entity('Agent')],
    [choice('Agent'), leaf(['principal'])],
  ],
  AgentRole: [[entity('AgentRole')], [choice('AgentRole'), entity('AgentRole')]],
  Tool: [
    [leaf(['resource']), entity('Tool')],
    [choice('Tool'), leaf(['resource'])],
  ],
  ToolServer: [
    [ofServer, entity('ToolServer')],
    [choice('ToolServer'), ofServer],
  ],
  Action: [
    [leaf(['action', 'Action::"read"', 'Action::"write"', 'Action::"payment"'])],
    [choice('Action'), leaf(['action', 'Action::"tool_call"'])],
  ],
};
