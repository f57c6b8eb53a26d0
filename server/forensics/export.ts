import { sign } from 'node:crypto';
import { EvidencePackage } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Actor, WriteAudit } from '../auth/audit.ts';
import type { Checkpoints } from '../chain/checkpoint.ts';
import { idHash, ZERO_HASH } from '../chain/record.ts';
import { AppError } from '../errors.ts';
import type { Keyring } from '../keys/keyring.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { buildPackage, MAX_PACKAGE_RECORDS } from './archive.ts';

/** What a package's summary shows. */
export interface PackageSummary {
  package_id: string;
  purpose: string;
  from: string;
  to: string;
  first_seq: number;
  last_seq: number;
  record_count: number;
  chain_intact: boolean;
  package_hash: string;
  public_key_fingerprint: string;
  size: number;
  created_by: string;
  created_at: string;
}

interface StoredRecord {
  seq: number;
  hash: Buffer;
  line: string;
}

/** Signed evidence: a range of the decision chain with what it takes to check it without this server. */
export class Evidence {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #keyring: Keyring;
  readonly #checkpoints: Checkpoints;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    keyring: Keyring;
    checkpoints: Checkpoints;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#keyring = parts.keyring;
    this.#checkpoints = parts.checkpoints;
  }

  /**
   * Makes, signs and stores a package of every record received from `from` (included) to `to` (excluded; the last month
   * without them), or of the records from the first to the last of a session. What lies between a session's records
   * is in the package too, or the chain could not be checked. When it resolves, the package and its audit record are
   * committed. TOO_MANY_RECORDS, saying how to split, over 10,000 records.
   *
   * A package of a broken chain is made and signed all the same, and says so: evidence of tampering is evidence.
   */
  async export(
    tenantId: string,
    input: { purpose: string; from?: string | undefined; to?: string | undefined; sequence_id?: string | undefined },
    by: { person: string; actor: Actor; requestId?: string | undefined },
  ): Promise<PackageSummary> {
    const now = new Date(this.#clock.now());
    const { from, to } = this.#span(input);
    // a fresh checkpoint, so that one covers the range even when it ends at the head
    await this.#checkpoints.take(tenantId, 'forensics');
    const { first, last } =
      input.sequence_id === undefined
        ? await this.#window(tenantId, from, to)
        : await this.#session(tenantId, input.sequence_id);
    const records = await this.#db.query<StoredRecord>(
      tenantId,
      'select seq, hash, line from forensic_record where tenant_id = $1 and seq between $2 and $3 order by seq',
      [tenantId, first, last],
    );
    const before = await this.#db.query<{ hash: Buffer }>(
      tenantId,
      'select hash from forensic_record where tenant_id = $1 and seq = $2',
      [tenantId, first - 1],
    );
    const notes = await this.#db.query<{ note: string }>(
      tenantId,
      `select note from chain_checkpoint where tenant_id = $1 and chain = 'forensics' and seq between $2 and $3
       order by seq`,
      [tenantId, first, last],
    );
    const hashes = new Set<string>();
    for (const { line } of records) {
      const hash = (JSON.parse(line) as { bundle_hash?: string }).bundle_hash;
      if (hash) hashes.add(hash);
    }
    const bundles = await this.#db.query<{ hash: string; bytes: Buffer }>(
      tenantId,
      `select distinct on (hash) hash, bytes from policy_bundle where tenant_id = $1 and hash = any($2)
       order by hash, seq desc`,
      [tenantId, [...hashes]],
    );
    const { current, all } = this.#keyring;
    const id = newId('pkg', now.getTime());
    const { bytes, package_hash, manifest } = buildPackage({
      package_id: id,
      tenant_id: tenantId,
      purpose: input.purpose,
      from: from.toISOString(),
      to: to.toISOString(),
      created_at: now.toISOString(),
      exporter: by.person,
      prev_hash_before_first: before[0]?.hash.toString('hex') ?? ZERO_HASH,
      records: records.map(({ seq, hash, line }) => ({ seq, hash: hash.toString('hex'), line })),
      checkpoints: notes.map(({ note }) => note),
      bundles,
      keys: [current.publicKey, ...all.filter((key) => key.kid !== current.kid).map((key) => key.publicKey)],
      sign: (data) => sign(null, data, current.privateKey),
    });
    const summary: PackageSummary = {
      package_id: id,
      purpose: input.purpose,
      from: from.toISOString(),
      to: to.toISOString(),
      first_seq: first,
      last_seq: last,
      record_count: records.length,
      chain_intact: manifest.chain_intact,
      package_hash,
      public_key_fingerprint: current.fingerprint,
      size: bytes.length,
      created_by: by.person,
      created_at: now.toISOString(),
    };
    await this.#db.transaction(tenantId, async (em) => {
      await em.execute(
        `insert into evidence_package (tenant_id, id, purpose, from_at, to_at, first_seq, last_seq, record_count,
           chain_intact, package_hash, public_key_fingerprint, size, created_by, created_at, bytes)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
        [
          tenantId,
          id,
          input.purpose,
          from,
          to,
          first,
          last,
          records.length,
          manifest.chain_intact,
          package_hash,
          current.fingerprint,
          bytes.length,
          by.person,
          now,
          bytes,
        ],
      );
      const { package_id, purpose, record_count, chain_intact, public_key_fingerprint, created_at } = summary;
      await addEvent(em, tenantId, {
        type: 'forensics.exported',
        at: now.getTime(),
        payload: {
          package_id,
          purpose,
          record_count,
          chain_intact,
          package_hash,
          public_key_fingerprint,
          actor_id: by.person,
          created_at,
        },
      });
      await this.#audit(em, tenantId, {
        actor: by.actor,
        requestId: by.requestId,
        action: 'forensics.exported',
        target: { type: 'package', id },
        reason: input.purpose,
        detail: `${records.length} records, ${first} to ${last}`,
        afterHash: package_hash,
        severity: manifest.chain_intact ? 'info' : 'critical',
      });
    });
    return summary;
  }

  /**
   * What an export of the same range would hold by now, and in which parts it can be exported when it is too large for
   * one package: at most the first 100.
   */
  async plan(
    tenantId: string,
    input: { from?: string | undefined; to?: string | undefined; sequence_id?: string | undefined },
  ) {
    const span = this.#span(input);
    const { first, last } =
      input.sequence_id === undefined
        ? await this.#bounds(tenantId, span.from, span.to)
        : await this.#sessionBounds(tenantId, input.sequence_id);
    const receivedAt = async (seq: number) =>
      (
        await this.#db.query<{ received_at: Date }>(
          tenantId,
          'select received_at from forensic_record where tenant_id = $1 and seq = $2',
          [tenantId, seq],
        )
      )[0]?.received_at;
    const parts: { from: string; to: string; record_count: number }[] = [];
    if (last - first + 1 > MAX_PACKAGE_RECORDS) {
      const end = input.sequence_id === undefined ? span.to : new Date((await receivedAt(last))!.getTime() + 1);
      let from = input.sequence_id === undefined ? span.from : (await receivedAt(first))!;
      for (let seq = first; seq <= last && parts.length < 100; ) {
        const to = last - seq < MAX_PACKAGE_RECORDS ? end : await receivedAt(seq + MAX_PACKAGE_RECORDS);
        // more records of one millisecond than a package holds cannot be told apart by time
        if (!to || to <= from) break;
        const part = await this.#bounds(tenantId, from, to);
        parts.push({ from: from.toISOString(), to: to.toISOString(), record_count: part.last - part.first + 1 });
        seq = part.last + 1;
        from = to;
      }
    }
    return { record_count: last - first + 1, first_seq: first, last_seq: last, limit: MAX_PACKAGE_RECORDS, parts };
  }

  /** The packages, the newest first. */
  async list(tenantId: string, page: { limit: number; offset: number }) {
    const [rows, total] = await this.#db
      .reader(tenantId)
      .findAndCount(EvidencePackage, {}, { orderBy: { createdAt: 'desc', id: 'desc' }, ...page });
    const packages = rows.map(
      (row): PackageSummary => ({
        package_id: row.id,
        purpose: row.purpose,
        from: row.fromAt.toISOString(),
        to: row.toAt.toISOString(),
        first_seq: row.firstSeq,
        last_seq: row.lastSeq,
        record_count: row.recordCount,
        chain_intact: row.chainIntact,
        package_hash: row.packageHash,
        public_key_fingerprint: row.publicKeyFingerprint,
        size: row.size,
        created_by: row.createdBy,
        created_at: row.createdAt.toISOString(),
      }),
    );
    return { packages, total };
  }

  /** The package exactly as it was signed. */
  async bytes(tenantId: string, id: string): Promise<{ bytes: Buffer; package_hash: string }> {
    const rows = await this.#db.query<{ bytes: Buffer; package_hash: string }>(
      tenantId,
      'select bytes, package_hash from evidence_package where tenant_id = $1 and id = $2',
      [tenantId, id],
    );
    if (!rows[0]) throw new AppError('NOT_FOUND', 'there is no such package');
    return rows[0];
  }

  /** The time window that is asked for: without one the last month. */
  #span(input: { from?: string | undefined; to?: string | undefined }): { from: Date; to: Date } {
    const to = input.to ? new Date(input.to) : new Date(this.#clock.now());
    const from = input.from ? new Date(input.from) : monthBefore(to);
    // before the year 0 there is no ISO 8601 form of four digits
    if (from >= to || from.getUTCFullYear() < 0) {
      throw new AppError('VALIDATION_FAILED', undefined, {
        faults: [{ pointer: '/from', message: 'must be before `to`, in the years 0 to 9999' }],
      });
    }
    return { from, to };
  }

  /** The seq range of a time window, 1 to 0 for none. received_at never falls along a chain, so the range is exact. */
  async #bounds(tenantId: string, from: Date, to: Date): Promise<{ first: number; last: number }> {
    const [bounds] = await this.#db.query<{ first: number | null; last: number | null }>(
      tenantId,
      `select min(seq) as first, max(seq) as last from forensic_record
       where tenant_id = $1 and received_at >= $2 and received_at < $3`,
      [tenantId, from, to],
    );
    return { first: bounds?.first ?? 1, last: bounds?.last ?? 0 };
  }

  /** The same, or TOO_MANY_RECORDS. */
  async #window(tenantId: string, from: Date, to: Date): Promise<{ first: number; last: number }> {
    const { first, last } = await this.#bounds(tenantId, from, to);
    if (last - first + 1 > MAX_PACKAGE_RECORDS) {
      const [next] = await this.#db.query<{ received_at: Date }>(
        tenantId,
        'select received_at from forensic_record where tenant_id = $1 and seq = $2',
        [tenantId, first + MAX_PACKAGE_RECORDS],
      );
      throw new AppError(
        'TOO_MANY_RECORDS',
        `the range holds ${last - first + 1} records and a package at most ${MAX_PACKAGE_RECORDS}: ` +
          `export it in parts, the first one with "to": "${next?.received_at.toISOString()}"`,
      );
    }
    return { first, last };
  }

  async #sessionBounds(tenantId: string, sessionId: string): Promise<{ first: number; last: number }> {
    const [bounds] = await this.#db.query<{ first: number | null; last: number | null }>(
      tenantId,
      `select min(seq) as first, max(seq) as last from forensic_record
       where tenant_id = $1 and session_h = $2 and line::json->>'session_id' = $3`,
      [tenantId, idHash(sessionId), sessionId],
    );
    if (!bounds?.first || !bounds.last) throw new AppError('NOT_FOUND', 'there is no such session');
    return { first: bounds.first, last: bounds.last };
  }

  async #session(tenantId: string, sessionId: string): Promise<{ first: number; last: number }> {
    const bounds = await this.#sessionBounds(tenantId, sessionId);
    const count = bounds.last - bounds.first + 1;
    if (count > MAX_PACKAGE_RECORDS) {
      throw new AppError(
        'TOO_MANY_RECORDS',
        `from the session's first to its last record there are ${count}: export it in parts with "from" and "to"`,
      );
    }
    return bounds;
  }
}

function monthBefore(date: Date): Date {
  const before = new Date(date);
  before.setUTCMonth(before.getUTCMonth() - 1);
  return before;
}
