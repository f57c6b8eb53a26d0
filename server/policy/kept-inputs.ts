import type { Database, WriteAudit } from '../../db/index.ts';
import type { Doer } from '../domain/audit.ts';
import type { DecisionEvent } from '../domain/decision.ts';
import { type KeptInput, unfitting } from '../domain/kept-input.ts';
import type { ActionRequest, BundleContent } from '../domain/policy.ts';
import { CONTROL_PLANE } from '../domain/proxy-ids.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { openBundle } from './bundle.ts';
import type { Bundles } from './bundles.ts';
import { maskedRequest } from './evaluation/approver-view.ts';
import { parseMask } from './evaluation/masks.ts';
import type { Projection } from './evaluation/projection.ts';

/** The record of a decision, parsed. */
export type DecisionLine = Omit<DecisionEvent, 'event_id'> & { id: string; seq: number; received_at: string };

/** A decision with what is still kept of its request. */
export interface KeptDecision {
  record: DecisionLine;
  /** The whole request; null if it was erased or never kept. */
  input: ActionRequest | null;
  /** The part of it that the policies read; null likewise. */
  projection: Projection | null;
  /** Whether what is kept matches the record's commitment. If not, the database was altered, and both are null. */
  intact: boolean;
}

interface Retention {
  input_retention_days: number;
  projection_retention_days: number;
}

/** What people see of a request. */
export interface ShownInput {
  event_id: string;
  input: Record<string, unknown> | null;
  projection: Record<string, unknown> | null;
  /** Whether what is kept matches the record's commitment, and nothing is gone before its retention ends. */
  intact: boolean;
  /** The paths whose values were replaced; null if none were to be. */
  masks: string[] | null;
}

/** The inputs of decisions, for as long as they are kept. */
export class KeptInputs {
  readonly #db: Database;
  readonly #audit: WriteAudit;
  readonly #bundles: Bundles;
  readonly #keyFor: Parameters<typeof openBundle>[1];
  readonly #clock: Clock;
  readonly #retention: (tenantId: string) => Promise<Retention>;

  constructor(parts: {
    db: Database;
    audit: WriteAudit;
    bundles: Bundles;
    keyFor: Parameters<typeof openBundle>[1];
    clock: Clock;
    /** How long inputs are kept. */
    retention: (tenantId: string) => Promise<Retention>;
  }) {
    this.#clock = parts.clock;
    this.#retention = parts.retention;
    this.#db = parts.db;
    this.#audit = parts.audit;
    this.#bundles = parts.bundles;
    this.#keyFor = parts.keyFor;
  }

  /**
   * A decision with what is kept of its request, unmasked. No one may be shown it without an audit record: see `read`.
   * Throws NOT_FOUND, also for another tenant's decision.
   */
  async of(tenantId: string, eventId: string): Promise<KeptDecision> {
    const rows = eventId.isWellFormed() && !eventId.includes('\0') ? await this.#rows(tenantId, eventId) : [];
    const missing = () => new AppError('NOT_FOUND', 'the event does not exist');
    const row = rows[0];
    if (!row) throw missing();
    const record = JSON.parse(row.line) as DecisionLine;
    // genesis, or the record of a loss
    if (!record.decision) throw missing();
    const kept: KeptInput = {
      salt_a: row.salt_a ?? undefined,
      projection: row.projection ?? undefined,
      salt_b: row.salt_b ?? undefined,
      input: row.input ?? undefined,
    };
    if (unfitting(kept, record)) return { record, input: null, projection: null, intact: false };
    const parsed = <T>(text: string | undefined) => (text === undefined ? null : (JSON.parse(text) as T));
    return { record, input: parsed(kept.input), projection: parsed(kept.projection), intact: true };
  }

  /**
   * What is kept of a decision's request, for a person. Audited before it resolves. Unless `unmasked`, every value under a
   * `@mask` path is replaced, for every rule in the policies in force or in those of the decision: a rule that was revoked
   * or did not match also declared that the value is not for people.
   */
  async read(tenantId: string, eventId: string, how: { unmasked: boolean }, by: Doer): Promise<ShownInput> {
    const { record, input, projection, intact } = await this.of(tenantId, eventId);
    const paths = how.unmasked ? null : (await this.policiesOf(tenantId, record)).masks;
    const masks = (paths ?? []).map(parseMask);
    const lost = intact && (await this.#lost(tenantId, record, { input, projection }));
    const detail = how.unmasked ? 'without masks' : 'with masks';
    await this.given(tenantId, eventId, { masked: !how.unmasked, detail }, by);
    return {
      event_id: eventId,
      input: input && maskedRequest({ ...input }, masks),
      projection: projection && maskedRequest({ ...projection }, masks),
      intact: intact && !lost,
      masks: paths,
    };
  }

  /** Records that a person was given what is kept of a decision, in a form that `detail` describes. */
  async given(tenantId: string, eventId: string, { masked, detail }: { masked: boolean; detail: string }, by: Doer) {
    await this.#db.transaction(tenantId, (em) =>
      this.#audit(em, tenantId, {
        ...by,
        action: 'decision.input_read',
        target: { type: 'decision', id: eventId },
        severity: masked ? 'info' : 'warning',
        detail,
      }),
    );
  }

  /**
   * The policies of a decision, null if no stored bundle has the hash in the record; and the `@mask` paths that apply to
   * what is kept of it: those of these policies and of the ones in force, sorted.
   */
  async policiesOf(
    tenantId: string,
    record: DecisionLine,
  ): Promise<{ decided: BundleContent | null; masks: string[] }> {
    const stored = await this.#db.query<{ bytes: Buffer }>(
      tenantId,
      'select bytes from policy_bundle where tenant_id = $1 and hash = $2 limit 1',
      [tenantId, record.bundle_hash ?? ''],
    );
    const contentOf = ({ bytes }: { bytes: Uint8Array }) =>
      openBundle(bytes, this.#keyFor, { tenant: tenantId }).content;
    const current = contentOf(await this.#bundles.current(tenantId, null));
    const decided = stored[0] ? contentOf(stored[0]) : null;
    const statements = [current, ...(decided ? [decided] : [])].flatMap(({ policies }) => policies);
    const masks = [...new Set(statements.flatMap(({ annotations }) => annotations.mask ?? []))].sort();
    return { decided, masks };
  }

  /**
   * Whether a half is gone before its time. What the control plane decided is stored with what it commits to; a proxy may commit
   * to a request and not send it. If a retention was changed since, a shorter one may have erased it.
   */
  async #lost(
    tenantId: string,
    record: DecisionLine,
    { input, projection }: Pick<KeptDecision, 'input' | 'projection'>,
  ): Promise<boolean> {
    if (record.proxy_id !== CONTROL_PLANE) return false;
    const { input_retention_days, projection_retention_days } = await this.#retention(tenantId);
    const age = this.#clock.now() - Date.parse(record.received_at);
    const lost = (committed: string | undefined, kept: object | null, days: number) =>
      committed !== undefined && kept === null && age < days * 86_400_000;
    if (
      !lost(record.input_hash, input, input_retention_days) &&
      !lost(record.ask_commit, projection, projection_retention_days)
    ) {
      return false;
    }
    const changes = await this.#db.query(
      tenantId,
      `select 1 from audit_record where tenant_id = $1 and action = 'settings.changed' and received_at >= $2
         and line like '%_retention_days%' limit 1`,
      [tenantId, record.received_at],
    );
    return changes.length === 0;
  }

  #rows(tenantId: string, eventId: string) {
    return this.#db.query<{ line: string } & Record<keyof KeptInput, string | null>>(
      tenantId,
      `select r.line, encode(i.salt_a, 'hex') as salt_a, i.projection, encode(i.salt_b, 'hex') as salt_b, i.input
       from forensic_record r left join decision_input i on i.tenant_id = $1 and i.event_id = r.event_id
       where r.tenant_id = $1 and r.event_id = $2`,
      [tenantId, eventId],
    );
  }
}
