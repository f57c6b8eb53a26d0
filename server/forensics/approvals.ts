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

/** A part of the audit chain: the stored hash before its first record, and its records as stored. */
export interface PackedSegment {
  prev_hash: string;
  records: readonly { hash: string; line: string }[];
}

export function auditRows(segments: readonly PackedSegment[]): string {
  return segments
    .map(({ prev_hash, records }) => `${prev_hash}\n${records.map(({ hash, line }) => `${hash} ${line}\n`).join('')}`)
    .join('');
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
  lines: readonly AuditLine[];
}

/** Checks audit.txt. */
export class AuditCheck {
  readonly #tenantId: string;
  readonly #heads: readonly ChainPosition[];

  constructor(tenantId: string, heads: readonly ChainPosition[]) {
    this.#tenantId = tenantId;
    this.#heads = heads;
  }

  read(text: Uint8Array): AuditFound {
    const lines: AuditLine[] = [];
    let count = 0;
    let reason: string | undefined;
    let part: { start: string; rows: { seq: number; hash: string; line: string }[] } | undefined;
    const end = () => {
      if (!part) return;
      const { rows } = part;
      const [first, last] = [rows[0], rows.at(-1)];
      if (!first || !last) {
        reason ??= 'a part of the audit log has no record';
        return;
      }
      const start = { seq: first.seq - 1, hash: part.start };
      const within = this.#heads.filter(({ seq }) => seq >= first.seq && seq <= last.seq);
      const verifier = new ChainVerifier({
        ...{ tenantId: this.#tenantId, chain: 'audit', strict: true, start, checkpoints: within },
      });
      for (const { seq, hash, line } of rows) verifier.add({ seq, hash: Buffer.from(hash, 'hex'), line });
      const verdict = verifier.finish();
      const signed = within.some(({ seq, hash }) => seq === last.seq && hash === last.hash);
      if (!verdict.verified) reason ??= `the audit log: ${verdict.reason}`;
      else if (!signed) reason ??= `no signed checkpoint states record ${last.seq} of the audit log`;
    };
    for (const row of Buffer.from(text).toString('utf8').split('\n').slice(0, -1)) {
      if (/^[0-9a-f]{64}$/.test(row)) {
        end();
        part = { start: row, rows: [] };
        continue;
      }
      count++;
      if (!part || !/^[0-9a-f]{64} /.test(row)) {
        reason ??= 'audit.txt is malformed';
        continue;
      }
      const line = row.slice(65);
      const read = auditLine(line);
      part.rows.push({ seq: read.seq, hash: row.slice(0, 64), line });
      lines.push(read);
    }
    end();
    return { count, lines, ...(reason !== undefined && { reason }) };
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
 * was opened were met before it was released and used. A hold that time releases needs no approval. Which groups the approvers
 * were in is not in the lines: for a quorum this shows the number of people, and that the control plane recorded the release.
 */
export function approvalsOf({ executed }: AuditNames, lines: readonly AuditLine[]): HoldApproval[] {
  const byHold = new Map<string, number[]>();
  for (const { hold, seq } of executed) byHold.set(hold, [...(byHold.get(hold) ?? []), seq]);
  return [...byHold].map(([hold, records]) => {
    const own = lines.filter(({ target_type, target_id }) => target_type === 'escrow' && target_id === hold);
    const at = (action: string) => own.findIndex((line) => line.action === `escrow.${action}`);
    const [created, released, consumed] = [at('created'), at('released'), at('consumed')];
    const before = own.slice(0, released < 0 ? own.length : released);
    const votes = new Map<string, HoldApproval['approved_by'][number]>();
    const reports = new Map<string, HoldApproval['conditions'][number]>();
    for (const line of before) {
      const { action, actor_id, actor, at, reason, detail, before_hash: shown_hash } = line;
      if (action === 'escrow.vote_cast' && detail === 'approve') {
        votes.set(actor_id, { actor, at, shown_hash, ...(reason !== '' && { reason }) });
      }
      const report = action === 'escrow.condition_reported' && /^(.*) is (met|not met)$/s.exec(detail);
      if (report) {
        const [, condition, how] = report as unknown as [string, string, string];
        if (how === 'met') reports.set(condition, { condition, by: actor, at });
        else reports.delete(condition);
      }
    }
    const terms = created < 0 ? '' : own[created]!.detail;
    const [, type, approvals, conditions = '0'] = TERMS.exec(terms) ?? [];
    const met = (type === 'time_delayed' || votes.size >= Number(approvals)) && reports.size >= Number(conditions);
    const fault =
      created < 0
        ? 'its opening is not in the package'
        : released < created
          ? 'its release is not in the package'
          : !met
            ? `it was released with ${votes.size} approvals and ${reports.size} conditions met, and its terms are ${terms}`
            : consumed < released
              ? 'its use is not in the package'
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

/** As the line of a hold's opening states its terms: its type, the approvals, and the conditions if it has some. */
const TERMS = /^(\w+), (\d{1,6}) approvals?(?:, (\d{1,6}) conditions?)?(?:, |$)/;

/** The lines that say how a version of a policy came into force: who approved it, rolled back to it, or broke the glass. */
export function policyLines({ policies }: AuditNames, lines: readonly AuditLine[]): AuditLine[] {
  return lines.filter(
    ({ target_type, target_id, action, detail }) =>
      target_type === 'policy' &&
      POLICY_ACTIONS.includes(action) &&
      policies.get(target_id)?.has(Number(/^version (\d{1,9})(?=,|$)/.exec(detail)?.[1])),
  );
}

/** What decides on a version of a policy. */
export const POLICY_ACTIONS: readonly string[] = [
  'policy.submitted',
  'policy.approved',
  'policy.rejected',
  'policy.rolled_back',
  'policy.break_glass',
  'policy.review_closed',
];
