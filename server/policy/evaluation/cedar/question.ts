import type { SessionState } from '../../../domain/session-facts.ts';
import type { TagKind } from '../../language/head.ts';
import type { FactKind } from '../../language/session-facts.ts';
import { exactDecimal, instant, isFactValue } from '../exact.ts';
import type { Arguments } from '../request.ts';
import { ASK, datetime, decimal, type Ip, ip, type Value } from './values.ts';

/** A request after its checks: the input for Cedar's entities and context. */
export interface RequestValues {
  agent: { id: string; role: string; owner?: string | undefined; labels?: readonly string[] | undefined };
  action: { type: string; groups: readonly string[] };
  tool: { id: string; server?: string | undefined; labels?: readonly string[] | undefined; trust?: number | undefined };
  context: ContextValues;
  session: {
    id: string;
    call_count: number;
    /** In the form of `now`. */
    started: string;
    lowest_trust: number;
    known: SessionState | undefined;
  };
  args: Arguments;
}

/** Decimals, addresses and times are texts in Cedar's format. */
export interface ContextValues {
  method?: string;
  host?: string;
  path?: string;
  source_ip?: string;
  amount?: string;
  currency?: string;
  risk_score: string;
  now: string;
}

/** The form of every time between the years 0 and 9999. */
const ISO = '2026-01-02T10:00:00.000Z';
const ISO_LENGTH = ISO.length;

export type TagsOf = TagKind | 'facts' | 'called' | `session ${FactKind}`;

/**
 * One request as compiled conditions read it. Each value is computed once, when it is first read.
 *
 * INVARIANT: it gives the values that Cedar would see in the same request; a value that cannot be read exactly throws
 * ASK.
 */
export class Question {
  readonly values: RequestValues;
  readonly #facts: ReadonlySet<string>;
  #decimals: Map<string, number | bigint> | undefined;
  #lists: Map<string, ReadonlySet<string>> | undefined;
  /** Lists of the session, kept separate from the agent's. */
  #known: Map<string, ReadonlySet<string>> | undefined;
  #called: ReadonlySet<string> | undefined;
  #times: Map<string, number> | undefined;
  #amount: number | bigint | undefined;
  #risk: number | bigint | undefined;
  #address: Ip | undefined;

  /** `facts`: the names of the facts that are true. */
  constructor(values: RequestValues, facts: ReadonlySet<string>) {
    this.values = values;
    this.#facts = facts;
  }

  /**
   * Whether Cedar reads each value behind these attributes (null: all) as it is read here. Cedar rejects a whole request
   * for one value that it cannot read, such as a time beyond the year 9999.
   */
  reads(attributes: ReadonlySet<string> | null): boolean {
    const { context, session } = this.values;
    const isTime = (text: string) => text.length === ISO_LENGTH;
    if ((attributes?.has('now') ?? true) && !isTime(context.now)) return false;
    if (context.source_ip !== undefined && (attributes?.has('source_ip') ?? true) && !ip(context.source_ip))
      return false;
    if (attributes?.has('session') === false) return true;
    if (!isTime(session.started)) return false;
    const facts = session.known?.facts;
    return !facts || Object.values(facts).every((value) => typeof value !== 'string' || isTime(instant(value) ?? ISO));
  }

  get amount(): number | bigint {
    this.#amount ??= this.#decimal(this.values.context.amount);
    return this.#amount;
  }

  get risk(): number | bigint {
    this.#risk ??= this.#decimal(this.values.context.risk_score);
    return this.#risk;
  }

  get address(): Ip {
    this.#address ??= ip(this.values.context.source_ip ?? '');
    return this.#address ?? ask();
  }

  get now(): number {
    return this.#time(this.values.context.now);
  }

  get started(): number {
    return this.#time(this.values.session.started);
  }

  hasTag(of: TagsOf, key: string): boolean {
    switch (of) {
      case 'str':
      case 'num':
      case 'bool':
      case 'list':
        return this.values.args[of].has(key);
      case 'facts':
        return this.#facts.has(key);
      case 'called':
        this.#called ??= new Set(this.values.session.known?.called);
        return this.#called.has(key);
      default:
        return this.#fact(of, key) !== undefined;
    }
  }

  /** Throws ASK for a missing tag: that is an error. */
  getTag(of: TagsOf, key: string): Value {
    switch (of) {
      case 'str':
        return this.values.args.str.get(key) ?? ask();
      case 'num':
        return this.#number(key);
      case 'bool':
        return this.values.args.bool.get(key) ?? ask();
      case 'list':
        this.#lists ??= new Map();
        return this.#list(this.#lists, key, this.values.args.list.get(key));
      case 'facts':
      case 'called':
        return this.hasTag(of, key) || ask();
      default:
        return this.#fact(of, key) ?? ask();
    }
  }

  #number(key: string): number | bigint {
    const known = this.#decimals?.get(key);
    if (known !== undefined) return known;
    const made = this.#decimal(this.values.args.num.get(key));
    this.#decimals ??= new Map();
    this.#decimals.set(key, made);
    return made;
  }

  #list(made: Map<string, ReadonlySet<string>>, key: string, items: readonly string[] | undefined) {
    const known = made.get(key);
    if (known) return known;
    const list = items ? new Set(items) : ask();
    made.set(key, list);
    return list;
  }

  /** A fact of the session, if it is known and can be read as this kind. */
  #fact(of: `session ${FactKind}`, key: string): Value | undefined {
    const facts = this.values.session.known?.facts;
    const value = facts && Object.hasOwn(facts, key) ? facts[key] : undefined;
    if (value === undefined || !isFactValue(value)) return undefined;
    switch (of) {
      case 'session str':
        return typeof value === 'string' ? value.toWellFormed() : undefined;
      case 'session bool':
        return typeof value === 'boolean' ? value : undefined;
      case 'session list':
        if (!Array.isArray(value)) return undefined;
        this.#known ??= new Map();
        return this.#list(
          this.#known,
          key,
          value.map((item) => item.toWellFormed()),
        );
      case 'session num': {
        const exact = typeof value === 'string' || typeof value === 'number' ? exactDecimal(value) : undefined;
        return exact === undefined ? undefined : this.#decimal(exact);
      }
      case 'session time': {
        const at = typeof value === 'string' ? instant(value) : undefined;
        return at === undefined ? undefined : this.#time(at);
      }
    }
  }

  #decimal(text: string | undefined): number | bigint {
    return (text === undefined ? undefined : decimal(text)) ?? ask();
  }

  #time(text: string): number {
    let known = this.#times?.get(text);
    if (known !== undefined) return known;
    known = datetime(text) ?? ask();
    this.#times ??= new Map();
    this.#times.set(text, known);
    return known;
  }
}

export function ask(): never {
  throw ASK;
}
