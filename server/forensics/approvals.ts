import { type ChainPosition, ChainVerifier } from '../chain/verify.ts';

/**
 * Who approved: the lines of the audit chain that tell what became of the holds, policies and stops that the records of a
 * package name.
 *
 * audit.txt consists of parts of that chain. A part begins with a line that holds only a hash, that of the record before it, and
 * its records follow, each as `<hash> <line>`, up to one whose hash was signed. A part reaches from the first to the last line
 * about a hold, with everything in between: no vote can be left out of it.
 */

/** What records of decisions name. */
export interface AuditNames {
  /** Ids. */
  holds: ReadonlySet<string>;
  stops: ReadonlySet<string>;
  /** Ids, and of each the versions. */
  policies: ReadonlyMap<string, ReadonlySet<number>>;
  /** The permits that a released hold gave. */
  executed: readonly { seq: number; hold: string }[];
}

/** Collects what records name. */
export class NamedBy {
  readonly #holds = new Set<string>();
  readonly #stops = new Set<string>();
  readonly #policies = new Map<string, Set<number>>();
  readonly #executed: { seq: number; hold: string }[] = [];

  add(seq: number, record: Readonly<Record<string, unknown>>): void {
    const { escrow_id: hold, decision, policy_id: policy, policy_version: version, facts } = record;
    if (isId(hold)) {
      this.#holds.add(hold);
      if (decision === 'allow' || decision === 'allow_with_masking') this.#executed.push({ seq, hold });
    }
    if (isId(policy) && typeof version === 'number') {
      const versions = this.#policies.get(policy) ?? new Set();
      this.#policies.set(policy, versions.add(version));
    }
    const stop = typeof facts === 'object' && facts !== null && (facts as { stop?: unknown }).stop;
    if (isId(stop)) this.#stops.add(stop);
  }

  get names(): AuditNames {
    return { holds: this.#holds, stops: this.#stops, policies: this.#policies, executed: this.#executed };
  }
}

const isId = (value: unknown): value is string => typeof value === 'string' && value !== '';

/** A part of the audit chain: the stored hash before its first record, and its records as stored, each time it is called. */
export interface PackedSegment {
  prev_hash: string;
  records: () => AsyncIterable<{ hash: string; line: string | Uint8Array }>;
}

/** The members of an audit record that are read here; texts, or absent. */
export interface AuditLine {
  seq: number;
  action: string;
  actor_id: string;
  /** The address of mail, or the id. */
  actor: string;
  target_type: string;
  target_id: string;
  detail: string;
  reason: string;
  /** Of a vote: the hash of the hold as it was shown to the voter. */
  before_hash: string;
  at: string;
}

export interface AuditFound {
  count: number;
  /** Why the parts are not parts of the tenant's audit chain as it was signed; undefined if they are. */
  reason?: string;
}

/** Checks audit.txt row by row; `take` is called with each of its records. */
export class AuditCheck {
  readonly #tenantId: string;
  readonly #heads: ReadonlyMap<number, ChainPosition[]>;
  readonly #take: ((line: AuditLine) => void) | undefined;
  #part: { start: string; verifier: ChainVerifier | undefined; last: number; signed: boolean } | undefined;
  #count = 0;
  #reason: string | undefined;

  constructor(tenantId: string, heads: readonly ChainPosition[], take?: (line: AuditLine) => void) {
    this.#tenantId = tenantId;
    this.#heads = Map.groupBy(heads, ({ seq }) => seq);
    this.#take = take;
  }

  add(row: string): void {
    if (/^[0-9a-f]{64}$/.test(row)) {
      this.#end();
      this.#part = { start: row, verifier: undefined, last: 0, signed: false };
      return;
    }
    this.#count++;
    const part = this.#part;
    if (!part || !/^[0-9a-f]{64} /.test(row)) {
      this.#reason ??= 'audit.txt is malformed';
      return;
    }
    const [hash, line] = [row.slice(0, 64), row.slice(65)];
    const read = auditLine(line);
    const { seq } = read;
    const start = { seq: seq - 1, hash: part.start };
    part.verifier ??= new ChainVerifier({ tenantId: this.#tenantId, chain: 'audit', strict: true, start });
    part.verifier.add({ seq, hash: Buffer.from(hash, 'hex'), line });
    const heads = this.#heads.get(seq) ?? [];
    const agrees = heads.every((head) => head.hash === hash);
    if (!agrees) this.#reason ??= `the audit log: a checkpoint states another hash of record ${seq}`;
    part.last = seq;
    part.signed = heads.length > 0 && agrees;
    this.#take?.(read);
  }

  finish(): AuditFound {
    this.#end();
    return { count: this.#count, ...(this.#reason !== undefined && { reason: this.#reason }) };
  }

  #end(): void {
    if (!this.#part) return;
    const { verifier, last, signed } = this.#part;
    const verdict = verifier?.finish();
    if (!verdict) this.#reason ??= 'a part of the audit log has no record';
    else if (!verdict.verified) this.#reason ??= `the audit log: ${verdict.reason}`;
    else if (!signed) this.#reason ??= `no signed checkpoint states record ${last} of the audit log`;
  }
}

function auditLine(line: string): AuditLine {
  let record: Record<string, unknown> = {};
  try {
    record = (JSON.parse(line) ?? {}) as Record<string, unknown>;
  } catch {
    // the check of the chain reports it
  }
  const said = (name: string) => (typeof record[name] === 'string' ? (record[name] as string) : '');
  return {
    seq: Number.isSafeInteger(record.seq) ? (record.seq as number) : 0,
    action: said('action'),
    actor_id: said('actor_id'),
    actor: said('actor_email') || said('actor_id'),
    target_type: said('target_type'),
    target_id: said('target_id'),
    detail: said('detail'),
    reason: said('reason'),
    before_hash: said('before_hash'),
    at: said('received_at'),
  };
}

/** How an executed hold came to be released, by the lines of the audit chain. */
export interface HoldApproval {
  hold: string;
  /** The records of the package that it permitted. */
  records: number[];
  approved_by: { actor: string; at: string; shown_hash: string; reason?: string }[];
  conditions: { condition: string; by: string; at: string }[];
  /** In words, such as `multi_party, 2 approvals`. */
  terms: string;
  /** Why the package does not show that its terms were met before it was used; undefined if it does. */
  fault?: string;
}

/**
 * For each hold that permitted a record: who approved it, by the last vote or report of each, and whether the terms with which it
 * was opened were met before it was released and used, once. A hold that time releases needs no approval, but its delay. Which groups the
 * approvers were in is not in the lines: for a quorum this shows the number of people, and that the control plane recorded the
 * release. check.sh reads the lines in the same way.
 */
export function approvalsOf({ executed }: AuditNames, lines: readonly AuditLine[]): HoldApproval[] {
  const byHold = new Map<string, { records: number[]; own: AuditLine[] }>();
  for (const { hold, seq } of executed) {
    const known = byHold.get(hold);
    if (known) known.records.push(seq);
    else byHold.set(hold, { records: [seq], own: [] });
  }
  for (const line of lines) if (line.target_type === 'escrow') byHold.get(line.target_id)?.own.push(line);
  return [...byHold].map(([hold, { records, own }]) => {
    const votes = new Map<string, HoldApproval['approved_by'][number]>();
    const reports = new Map<string, HoldApproval['conditions'][number]>();
    let state: 'unopened' | 'open' | 'released' | 'used' | 'ended' = 'unopened';
    let terms = '';
    let [openedAt, releasedAt] = ['', ''];
    for (const { action, actor_id, actor, at, reason, detail, before_hash: shown_hash } of own) {
      if (action === 'escrow.created' && state === 'unopened') {
        terms = detail;
        openedAt = at;
        state = 'open';
      } else if (action === 'escrow.vote_cast' && state === 'open' && detail === 'approve') {
        votes.set(actor_id, { actor, at, shown_hash, ...(reason !== '' && { reason }) });
      } else if (action === 'escrow.condition_reported' && state === 'open') {
        const [, condition = '', how] = /^(.*) is (met|not met)$/s.exec(detail) ?? [];
        if (how === 'met') reports.set(condition, { condition, by: actor, at });
        else reports.delete(condition);
      } else if (action === 'escrow.released' && state === 'open') {
        releasedAt = at;
        state = 'released';
      } else if (action === 'escrow.consumed' && state === 'released') state = 'used';
      else if (ENDS.includes(action) && (state === 'open' || state === 'released')) state = 'ended';
    }
    const [, type, approvals, conditions = '0', delay] = TERMS.exec(terms) ?? [];
    const waited = (Date.parse(releasedAt) - Date.parse(openedAt)) / 1000 + CLOCKS_APART;
    const byTime = type === 'time_delayed' && (approvals === '0' || votes.size < Number(approvals));
    const met =
      (byTime ? waited >= Number(delay) : votes.size >= Number(approvals)) && reports.size >= Number(conditions);
    const fault =
      state === 'unopened'
        ? 'its opening is not in the package'
        : state === 'ended'
          ? 'it ended without being used'
          : state === 'open'
            ? 'its release is not in the package'
            : !met
              ? `it was released at ${releasedAt} with ${votes.size} approvals and ${reports.size} conditions met, and its terms are ${terms}`
              : state === 'released'
                ? 'its use is not in the package'
                : records.length > 1
                  ? `it was used once, and ${records.length} records say that it permitted them`
                  : undefined;
    const approved_by = [...votes.values()];
    return {
      hold,
      records,
      approved_by,
      conditions: [...reports.values()],
      terms,
      ...(fault !== undefined && { fault }),
    };
  });
}

/** What ends a hold. What comes after is no part of how it came to be used, such as refused attempts to use it again. */
export const ENDS: readonly string[] = ['escrow.consumed', 'escrow.rejected', 'escrow.expired', 'escrow.cancelled'];

/** As the line of a hold's opening states its terms: its type, the approvals, the conditions if it has some, and the delay. */
const TERMS = /^(\w+), (\d{1,6}) approvals?(?:, (\d{1,6}) conditions?)?(?:, after (\d{1,9}) seconds)?(?:, |$)/;

/** Seconds by which a delay may look shorter, because the clocks of the database and of the processes differ. */
const CLOCKS_APART = 300;

/** The lines that say how a version of a policy came into force: who wrote it, approved it, rolled back to it, or broke the glass. */
export function policyLines({ policies }: AuditNames, lines: readonly AuditLine[]): AuditLine[] {
  return lines.filter(
    ({ target_type, target_id, action, detail }) =>
      target_type === 'policy' &&
      POLICY_ACTIONS.includes(action) &&
      policies.get(target_id)?.has(Number(/^version (\d{1,9})(?=,|$)/.exec(detail)?.[1])),
  );
}

/** What makes a version of a policy, which may put it into force, and what decides on it. */
export const POLICY_ACTIONS: readonly string[] = [
  'policy.created',
  'policy.updated',
  'policy.submitted',
  'policy.approved',
  'policy.rejected',
  'policy.rolled_back',
  'policy.break_glass',
  'policy.review_closed',
];
