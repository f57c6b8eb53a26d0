import type { Decision } from '../../domain/decision.ts';
import type { ActionRequest } from '../../domain/policy.ts';
import { visible } from '../../lib/visible.ts';
import type { Verdict } from '../evaluation/evaluate.ts';
import { exactDecimal } from '../evaluation/exact.ts';
import { type ChangeGroup, DIRECTIONS, type Direction, directionOf, type Matrix } from './outcome.ts';

/** Limits per group: distinct agents and tools that are counted, and event ids and tools that are listed. */
const MOST_NAMES = 10_000;
const MOST_EXAMPLES = 20;
const MOST_TOOLS = 10;
const MOST_TOOL_CHARACTERS = 80;
const MOST_CURRENCIES = 20;
const MOST_GROUPS = 200;

/** The parts of a decision that its group counts. */
export interface Subject extends Example {
  agent_id: string;
  tool_name: string;
  /** In ten-thousandths; undefined if the request states none. */
  amount: bigint | undefined;
  currency: string;
  /** It is unknown whether the request stated an amount. */
  unpriced: boolean;
  /** Keyed by path. */
  numbers: readonly (readonly [path: string, value: number])[];
}

interface Group {
  direction: Direction;
  was: ChangeGroup['was'];
  becomes: ChangeGroup['becomes'];
  simulated: boolean;
  count: number;
  agents: Set<string>;
  tools: Map<string, number>;
  money: Map<string, bigint>;
  unpriced: number;
  ranges: Map<string, { least: number; most: number }>;
  /** The newest, plus a few more. */
  examples: Example[];
}

interface Example {
  seq: number;
  event_id: string;
}

/** What was counted, as plain data. */
export interface TallyPart {
  matrix: Matrix;
  changed: number;
  groups: ReadonlyMap<string, Group>;
}

/** Counts changes, in memory that does not grow with the number of decisions. */
export class Tally {
  readonly matrix: Matrix = {};
  changed = 0;
  readonly #groups = new Map<string, Group>();

  part(): TallyPart {
    return { matrix: this.matrix, changed: this.changed, groups: this.#groups };
  }

  /** Combines several parts. */
  static of(parts: readonly TallyPart[]): Tally {
    const tally = new Tally();
    for (const { matrix, changed, groups } of parts) {
      tally.changed += changed;
      for (const [was, row] of Object.entries(matrix)) {
        for (const [becomes, count] of Object.entries(row)) tally.#count(was as Decision, becomes as Decision, count);
      }
      for (const [key, group] of groups) {
        const known = tally.#groups.get(key);
        if (known) join(known, group);
        else tally.#groups.set(key, group);
      }
    }
    return tally;
  }

  same(decision: Decision, count = 1): void {
    this.#count(decision, decision, count);
  }

  /** `subject` is called only if something changes. */
  add(was: Verdict, becomes: Verdict, subject: () => Subject, simulated = false): void {
    this.#count(was.decision, becomes.decision, 1);
    const direction = directionOf(was, becomes);
    if (!direction) return;
    this.changed++;
    const key = [direction, was.decision, was.rule_id, becomes.decision, becomes.rule_id, simulated].join('\n');
    let group = this.#groups.get(key);
    if (!group) {
      const side = ({ decision, rule_id }: Verdict) => ({ decision, rule_id });
      group = {
        ...{ direction, was: side(was), becomes: side(becomes), simulated, count: 0 },
        ...{ agents: new Set(), tools: new Map(), money: new Map(), unpriced: 0, ranges: new Map(), examples: [] },
      };
      this.#groups.set(key, group);
    }
    record(group, subject());
  }

  groups(): { groups: ChangeGroup[]; more_groups: number; money: { [D in Direction]?: Record<string, string> } } {
    const place = ({ direction }: Group) => DIRECTIONS.indexOf(direction);
    const all = [...this.#groups.values()].sort((a, b) => place(a) - place(b) || b.count - a.count);
    const money = new Map<Direction, Map<string, bigint>>();
    for (const group of all) {
      const sums = money.get(group.direction) ?? new Map<string, bigint>();
      for (const [currency, amount] of group.money) addMoney(sums, currency, amount);
      if (sums.size > 0) money.set(group.direction, sums);
    }
    return {
      groups: all.slice(0, MOST_GROUPS).map(shown),
      more_groups: Math.max(0, all.length - MOST_GROUPS),
      money: Object.fromEntries([...money].map(([direction, sums]) => [direction, moneyOf(sums)])),
    };
  }

  #count(was: Decision, becomes: Decision, count: number): void {
    if (count === 0) return;
    this.matrix[was] ??= {};
    const row = this.matrix[was];
    row[becomes] = (row[becomes] ?? 0) + count;
  }
}

function record(group: Group, subject: Subject): void {
  const { seq, event_id, agent_id, tool_name, amount, currency, unpriced, numbers } = subject;
  group.count++;
  group.examples.push({ seq, event_id });
  if (group.examples.length >= 4 * MOST_EXAMPLES) group.examples = newest(group.examples);
  if (group.agents.size < MOST_NAMES) group.agents.add(agent_id);
  addTool(group.tools, tool_name, 1);
  if (amount !== undefined) addMoney(group.money, currency, amount);
  if (unpriced) group.unpriced++;
  for (const [path, value] of numbers) widen(group.ranges, path, value);
}

const newest = (examples: readonly Example[]) => examples.toSorted((a, b) => b.seq - a.seq).slice(0, MOST_EXAMPLES);

/** Adds another part's counts of the same group. */
function join(group: Group, other: Group): void {
  group.count += other.count;
  group.unpriced += other.unpriced;
  group.examples = newest([...group.examples, ...other.examples]);
  for (const agent of other.agents) if (group.agents.size < MOST_NAMES) group.agents.add(agent);
  for (const [name, count] of other.tools) addTool(group.tools, name, count);
  for (const [currency, amount] of other.money) addMoney(group.money, currency, amount);
  for (const [path, { least, most }] of other.ranges) {
    widen(group.ranges, path, least);
    widen(group.ranges, path, most);
  }
}

function addTool(tools: Map<string, number>, name: string, count: number): void {
  const known = tools.get(name);
  if (known !== undefined || tools.size < MOST_NAMES) tools.set(name, (known ?? 0) + count);
}

function widen(ranges: Group['ranges'], path: string, value: number): void {
  const { least, most } = ranges.get(path) ?? { least: value, most: value };
  ranges.set(path, { least: Math.min(least, value), most: Math.max(most, value) });
}

function addMoney(sums: Map<string, bigint>, currency: string, amount: bigint): void {
  const key = sums.has(currency) || sums.size < MOST_CURRENCIES ? currency : OTHER;
  sums.set(key, (sums.get(key) ?? 0n) + amount);
}

function shown({ agents, tools, money, ranges, examples, count, ...group }: Group): ChangeGroup {
  return {
    ...group,
    count,
    agents: agents.size,
    tools: [...tools]
      .sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1))
      .slice(0, MOST_TOOLS)
      .map(([name, n]) => ({ name: bounded(name), count: n })),
    money: moneyOf(money),
    ranges: [...ranges].map(([path, range]) => ({ path: bounded(path), ...range })),
    examples: newest(examples).map(({ event_id }) => event_id),
  };
}

/** INVARIANT: text from agents is shown to reviewers only in short form with every character visible. */
function bounded(text: string): string {
  const seen = visible(text);
  return seen.length <= MOST_TOOL_CHARACTERS ? seen : `${seen.slice(0, MOST_TOOL_CHARACTERS).toWellFormed()}…`;
}

/** For requests that state an amount without a currency, or with one that is not a three-letter code. */
const OTHER = 'other';

/** The amount that a request states, and its currency. */
export function amountOf({ estimated_value, value_currency }: ActionRequest): Pick<Subject, 'amount' | 'currency'> {
  const exact = estimated_value === undefined ? undefined : exactDecimal(estimated_value);
  const code = value_currency?.toUpperCase() ?? '';
  const currency = /^[A-Z]{3}$/.test(code) ? code : OTHER;
  return { amount: exact === undefined ? undefined : tenThousandths(exact), currency };
}

function tenThousandths(decimal: string): bigint {
  const [, sign, whole = '', fraction = ''] = /^(-?)(\d+)\.(\d{1,4})$/.exec(decimal)!;
  const value = BigInt(whole) * 10_000n + BigInt(fraction.padEnd(4, '0'));
  return sign ? -value : value;
}

/** Exact sums as decimals with at least two digits. */
function moneyOf(sums: ReadonlyMap<string, bigint>): Record<string, string> {
  const text = (sum: bigint) => {
    const digits = String(sum < 0n ? -sum : sum).padStart(5, '0');
    const [whole, fraction] = [digits.slice(0, -4), digits.slice(-4).replace(/0{1,2}$/, '')];
    return `${sum < 0n ? '-' : ''}${whole}.${fraction}`;
  };
  return Object.fromEntries([...sums].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, sum]) => [name, text(sum)]));
}
