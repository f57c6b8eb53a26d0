import type { BundleContent, BundleStatement } from '../../domain/policy.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import type { Fact } from '../language/facts.ts';
import { compilePattern, type Pattern } from '../language/patterns.ts';
import { actionEntities, narrowed, schemaFor } from '../language/schema.ts';
import { keysRead, type RequestReads, readsOf } from './ambiguity.ts';
import { type Asking, type Rule, Rules } from './cedar/oracle.ts';
import { limitReads } from './limits.ts';
import { Narrowing } from './projection.ts';
import type { MappedRequest, Reads } from './request.ts';
import type { SessionReads, SessionRules } from './session.ts';

/** A statement of an engine. */
export interface Indexed extends Rule {
  statement: BundleStatement;
  guardrail: boolean;
}

/** The statements whose scope can match one combination of agent, role, action, tool and server. */
export interface Slice {
  reads: RequestReads<BundleStatement>;
  narrowing: Narrowing;
  /** The context attributes that its statements read; null means all. */
  attributes: ReadonlySet<string> | null;
  facts: readonly Fact[];
  /** Its compiled patterns. */
  patterns: ReadonlyMap<string, Pattern>;
  session: SessionReads;
  sessionNames: NonNullable<Reads['session']>;
  /** Undefined if no statement is left. Its context type declares only what the statements read. */
  rules: Rules<Indexed> | undefined;
  /** See PolicyEngine.ready. */
  ready: boolean;
}

export function sliceOf(fitting: Indexed[], schema: string, asking: Asking, sessions: SessionRules): Slice {
  const permits = fitting.some(({ statement }) => statement.effect === 'permit');
  const statements = permits ? fitting : fitting.filter(({ guardrail }) => !guardrail);
  const reads = readsOf(
    statements.map(({ statement, head }) => ({
      ...{ rule: statement, head },
      nullable: statement.annotations.null !== undefined,
    })),
  );
  const attributes = union(statements.map(({ head }) => head.attributes));
  const narrow = attributes && narrowed(schema, attributes);
  const facts = [...new Map(statements.flatMap(({ head }) => head.facts.map((fact) => [fact.key, fact]))).values()];
  const heads = statements.map(({ head }) => head);
  const session = {
    facts: [...new Map(heads.flatMap((head) => head.sessionFacts.map((one) => [one.tag, one]))).values()],
    calls: [...new Map(heads.flatMap((head) => head.calls.map((one) => [one.tag, one]))).values()],
    sources: sessions.sourcesFor(statements),
  };
  const sessionNames = {
    facts: new Set(session.facts.map(({ tag }) => tag)),
    calls: new Set(session.calls.map(({ tag }) => tag)),
  };
  const patterns = new Map(
    facts.flatMap((fact) => ('pattern' in fact ? [[fact.pattern, compilePattern(fact.pattern)] as const] : [])),
  );
  const read = { reads, facts, patterns, session, sessionNames, attributes: narrow === undefined ? null : attributes };
  const counted = limitReads(statements.map(({ statement }) => statement.annotations));
  const narrowing = new Narrowing(
    read.attributes && new Set([...read.attributes, ...counted.attributes]),
    { ...reads, paths: [...reads.paths, ...counted.paths] },
    sessionNames,
  );
  const rules = statements.length > 0 ? new Rules(statements, narrow || schema, asking) : undefined;
  return { rules, ...read, narrowing, ready: false };
}

/** What a slice reads of a request; the keys are computed only if Cedar is asked. */
export class SliceReads implements Reads {
  readonly attributes: ReadonlySet<string> | null;
  readonly facts: ReadonlySet<string>;
  readonly session: NonNullable<Reads['session']>;
  readonly #reads: RequestReads<BundleStatement>;
  readonly #request: MappedRequest;

  constructor(slice: Slice, request: MappedRequest, facts: ReadonlySet<string>) {
    this.attributes = slice.attributes;
    this.facts = facts;
    this.session = slice.sessionNames;
    this.#reads = slice.reads;
    this.#request = request;
  }

  get keys(): ReadonlySet<string> {
    return keysRead(this.#reads, this.#request);
  }
}

/** The union of the lists; null (all attributes) if any of them is null. */
function union(lists: (readonly string[] | null)[]): ReadonlySet<string> | null {
  return lists.includes(null) ? null : new Set(lists.flatMap((list) => list ?? []));
}

/** Whether conditions are compiled for this schema. */
export function isOwnSchema({ schema, action_entities }: BundleContent): boolean {
  const custom = (group: string) =>
    Object.keys(action_entities).filter((action) => action_entities[action]!.includes(group));
  const all = { read: custom('read'), write: custom('write') };
  try {
    return schema === schemaFor(all) && canonicalJson(actionEntities(all)) === canonicalJson(action_entities);
  } catch (error) {
    if (error instanceof RangeError) return false;
    throw error;
  }
}
