import { sign } from 'node:crypto';
import { LONG_TRANSACTION } from '../../db/client.ts';
import { EvidencePackage, type EvidencePackageRow } from '../../db/entities/index.ts';
import type { Asker, Database, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import { type Checkpoints, InconsistentChain } from '../chain/checkpoint.ts';
import { RECORDS } from '../chain/loss.ts';
import { type Columns, compareAudit } from '../chain/received-rows.ts';
import { AUDIT_COLUMNS, type ChainName, idHash, ZERO_HASH } from '../chain/record.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import type { Verifications } from '../chain/verifications.ts';
import { compareDecision } from '../chain/verify.ts';
import type { Actor } from '../domain/audit.ts';
import { DERIVED_COLUMNS } from '../domain/decision.ts';
import { AppError } from '../errors.ts';
import type { FormerKey, Keyring } from '../keys/keyring.ts';
import type { Clock } from '../lib/clock.ts';
import { keyFingerprint } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import { nextTurn } from '../lib/pause.ts';
import { readTarHeader, TAR_BLOCK, tarPadding } from '../lib/tar.ts';
import { type AuditNames, ENDS, POLICY_ACTIONS } from './approvals.ts';
import {
  type ChainFault,
  type FormerKeyLimit,
  MANIFEST,
  MAX_PACKAGE_RECORDS,
  type Manifest,
  openNotes,
  type PackageParts,
  type PackedBundle,
  type PackedRecord,
  signersOf,
  writePackage,
} from './archive.ts';

interface StoredNote {
  seq: number;
  note: string;
}

/** The fields of a package's summary. */
export interface PackageSummary {
  package_id: string;
  purpose: string;
  chain: ChainName;
  from: string;
  to: string;
  /** Only for a session's package. */
  sequence_id: string | null;
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

/** Maximum number of records after a range that are packed to lead to a checkpoint; there is one every 1,000 records. */
const MAX_LEAD = 10_000;
/** The file is stored in pieces of this size, so that neither making nor serving it needs more memory. */
const CHUNK_BYTES = 256 * 1024;
/** Exports that run at a time across all tenants, at most one per tenant: each keeps a connection for as long as it takes. */
const AT_ONCE = 2;
/** How much one statement reads of the records: up to this many bytes of text, and at least one record. */
const PAGE_BYTES = 256 * 1024;
const PAGE_ROWS = 500;
/** Maximum number of audit records in a package about decisions. A part that is longer on its own is left out: no time is short enough. */
const MAX_AUDIT = 100_000;

/** Altered checkpoints that are passed over to find the one at which a part of the audit log ends. */
const MOST_ALTERED = 3;

type ExportInput = {
  purpose: string;
  /** By default, the decisions. */
  chain?: ChainName | undefined;
  from?: string | undefined;
  to?: string | undefined;
  sequence_id?: string | undefined;
};

/** Signed evidence: a range of the decision chain, with everything needed to check it without this server. */
export class Evidence {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #keyring: Keyring;
  readonly #checkpoints: Checkpoints;
  readonly #verifications: Pick<Verifications, 'verify'>;
  readonly #running = new Set<string>();
  readonly #waiting: (() => void)[] = [];
  #free = AT_ONCE;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    keyring: Keyring;
    checkpoints: Checkpoints;
    verifications: Pick<Verifications, 'verify'>;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#keyring = parts.keyring;
    this.#checkpoints = parts.checkpoints;
    this.#verifications = parts.verifications;
  }

  /**
   * Makes, signs and stores a package of every record received from `from` (included) to `to` (excluded; without them, the last
   * month), or of the records from the first to the last of a session. Everything between a session's records is in the package
   * too, or the chain could not be checked. Once it resolves, the package and its audit record are committed. TOO_MANY_RECORDS,
   * with how to split the range, over 10,000 records; RATE_LIMITED while the tenant has another export under way.
   *
   * First both chains are compared with everything known about them: all notes, heads and files. If one contradicts them, there
   * is no package: records that once were there may be missing from it, and nothing in it would show that. The chain is closed,
   * the alarm is raised, and this rejects with ChainClosed. The package has the record before its first and, unless its last is
   * the end of the chain, the one after it, and reaches on to a signed checkpoint; if there is none yet, one is signed first.
   * Nothing in it rests on a column: those of its records are compared with the texts, and the audit chain and, before a session's
   * package, the whole chain are verified, because places in them are looked up by columns. A package of records that were altered where they stand is
   * made and signed all the same, and states that it is broken: evidence of tampering is evidence.
   */
  async export(
    tenantId: string,
    input: ExportInput,
    by: { person: string; actor: Actor; requestId?: string | undefined },
  ): Promise<PackageSummary> {
    if (this.#running.has(tenantId)) throw underWay();
    this.#running.add(tenantId);
    try {
      await this.#enter();
      try {
        return await this.#export(tenantId, input, by);
      } finally {
        this.#leave();
      }
    } finally {
      this.#running.delete(tenantId);
    }
  }

  async #export(
    tenantId: string,
    input: ExportInput,
    by: { person: string; actor: Actor; requestId?: string | undefined },
  ): Promise<PackageSummary> {
    const now = new Date(this.#clock.now());
    const window = this.#span(input);
    const session = input.sequence_id;
    const { chain = 'forensics' } = input;
    const { head } = await this.#checkpoints.inspect(tenantId, chain);
    if (chain === 'forensics') await this.#checkpoints.inspect(tenantId, 'audit');
    const verified = session === undefined ? undefined : await this.#verifications.verify(tenantId, 'forensics');
    const log = chain === 'forensics' ? await this.#verifications.verify(tenantId, 'audit') : undefined;
    const { first: start, last } =
      session === undefined
        ? await this.#window(tenantId, chain, window.from, window.to, { person: by.person })
        : await this.#session(tenantId, session, head.seq);
    // what came since is no part of it: it would not go together with the head that it states
    const end = Math.min(last, head.seq);
    const { notes, altered } = await this.#notes(tenantId, chain, start, end, head.seq);
    const tied = Math.max(end, ...notes.map(({ seq }) => seq));
    let fault: ChainFault | undefined;
    if (verified && !verified.verified) {
      const why = verified.reason ?? 'no reason is known';
      const reason = `the chain does not verify, so records of the session may be missing: ${why}`;
      fault = { seq: verified.first_mismatch_seq ?? 0, reason };
    }
    if (log && !log.verified) {
      const reason = `the audit log does not verify, so parts of it may be missing: ${log.reason ?? 'no reason is known'}`;
      fault ??= { seq: log.first_mismatch_seq ?? 0, reason };
    }
    const onFault = (found: ChainFault) => {
      fault ??= found;
    };
    const before = await this.#before(tenantId, chain, start);
    const { current } = this.#keyring;
    const id = newId('pkg', now.getTime());
    return this.#db.transaction(tenantId, async (em) => {
      await em.execute(LONG_TRANSACTION);
      // across all processes
      const [lock] = await em.execute<{ free: boolean }[]>(
        'select pg_try_advisory_xact_lock(hashtextextended(?, 2)) as free',
        [`export ${tenantId}`],
      );
      if (!lock?.free) throw underWay();
      const chunks = new Chunks((place, bytes) =>
        em.execute('insert into evidence_chunk (tenant_id, package_id, place, bytes) values (?, ?, ?, ?)', [
          tenantId,
          id,
          place,
          bytes,
        ]),
      );
      const { package_hash, size, manifest } = await packed(
        writePackage(
          {
            package_id: id,
            tenant_id: tenantId,
            chain,
            purpose: input.purpose,
            span:
              session === undefined
                ? { from: window.from.toISOString(), to: window.to.toISOString() }
                : { session_id: session },
            created_at: now.toISOString(),
            exporter: by.person,
            before,
            chain_head: { ...head, at: now.toISOString() },
            records: () => this.#records(tenantId, chain, start, end, onFault),
            lead: () => this.#records(tenantId, chain, end + 1, tied, onFault),
            fault: () => fault,
            audit: chain === 'forensics' ? (names) => this.#auditParts(tenantId, names) : undefined,
            checkpoints: notes.map(({ note }) => note),
            altered_checkpoints: altered.length > 0 ? altered : undefined,
            bundles: (hashes) => this.#bundles(tenantId, hashes),
            ...this.#keys(tenantId, chain),
            sign: (data) => sign(null, data, current.privateKey),
          },
          (bytes) => chunks.write(bytes),
        ),
      );
      await chunks.end();
      const { record_count, chain_intact, from, to } = manifest;
      const summary: PackageSummary = {
        package_id: id,
        purpose: input.purpose,
        chain,
        from: from ?? window.from.toISOString(),
        to: to ?? window.to.toISOString(),
        sequence_id: session ?? null,
        first_seq: start,
        last_seq: end,
        record_count,
        chain_intact,
        package_hash,
        public_key_fingerprint: current.fingerprint,
        size,
        created_by: by.person,
        created_at: now.toISOString(),
      };
      await em.execute(
        `insert into evidence_package (tenant_id, id, purpose, chain, from_at, to_at, session_id, first_seq, last_seq,
           record_count, chain_intact, package_hash, public_key_fingerprint, size, created_by, created_at)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
        [
          tenantId,
          id,
          input.purpose,
          chain,
          new Date(summary.from),
          new Date(summary.to),
          session ?? null,
          start,
          end,
          record_count,
          chain_intact,
          package_hash,
          current.fingerprint,
          size,
          by.person,
          now,
        ],
      );
      await addEvent(em, tenantId, {
        type: 'forensics.exported',
        at: now.getTime(),
        payload: {
          package_id: id,
          purpose: input.purpose,
          record_count,
          chain_intact,
          package_hash,
          public_key_fingerprint: current.fingerprint,
          actor_id: by.person,
          created_at: summary.created_at,
        },
      });
      await this.#audit(em, tenantId, {
        actor: by.actor,
        requestId: by.requestId,
        action: 'forensics.exported',
        target: { type: 'package', id },
        reason: input.purpose,
        detail: `${record_count} records, ${start} to ${end}`,
        afterHash: package_hash,
        severity: chain_intact || record_count === 0 ? 'info' : 'critical',
      });
      return summary;
    });
  }

  async #enter(): Promise<void> {
    if (this.#free > 0) this.#free--;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  #leave(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#free++;
  }

  /** The records at these positions as stored, a page at a time; `onFault` is told of each whose columns differ from its text. */
  async *#records(
    tenantId: string,
    chain: ChainName,
    from: number,
    to: number,
    onFault?: (fault: ChainFault) => void,
  ): AsyncGenerator<PackedRecord & { line: string }> {
    const { table, id } = RECORDS[chain];
    const columns = chain === 'forensics' ? DERIVED_COLUMNS.map(({ column }) => column) : AUDIT_COLUMNS;
    for (let next = from; next <= to; ) {
      // the length of a text is known without reading it
      const rows = await this.#db.query<{ seq: number; hash: Buffer; line: string } & Columns>(
        tenantId,
        `select seq, hash, line, ${id}, (extract(epoch from received_at) * 1000)::float8 as received_at_ms, ${columns.join(', ')}
         from (select *, octet_length(line) as size, sum(octet_length(line)) over (order by seq) as total
           from ${table} where tenant_id = $1 and seq between $2 and $3 order by seq limit ${PAGE_ROWS}) page
         where total - size < ${PAGE_BYTES} order by seq`,
        [tenantId, next, to],
      );
      for (const row of rows) {
        const { seq, hash, line } = row;
        const differs = onFault && columnOf(chain, row);
        if (differs !== undefined)
          onFault?.({ seq, reason: `the stored ${differs} of record ${seq} is not that of its text` });
        yield { seq, hash: hash.toString('hex'), line };
      }
      if (rows.length === 0) return;
      next = rows.at(-1)!.seq + 1;
    }
  }

  /** The record before this position and the hash before that; undefined before record 1. */
  async #before(tenantId: string, chain: ChainName, seq: number): Promise<PackageParts['before']> {
    if (seq <= 1) return undefined;
    const found: (PackedRecord & { line: string })[] = [];
    for await (const record of this.#records(tenantId, chain, seq - 2, seq - 1)) found.push(record);
    const record = found.find((one) => one.seq === seq - 1);
    const prev_hash = found.find((one) => one.seq === seq - 2)?.hash ?? ZERO_HASH;
    return record && { prev_hash, record };
  }

  #keys(tenantId: string, chain: ChainName): Pick<PackageParts, 'keys' | 'former'> {
    const { current, all } = this.#keyring;
    const former = this.#keyring.formerOf(tenantId);
    const others = [...all.filter((key) => key.kid !== current.kid), ...former];
    return { keys: [current.publicKey, ...others.map((key) => key.publicKey)], former: limitsOf(former, chain) };
  }

  /**
   * The notes of the range and on to the first one beyond it, up to the head. If there is none, one is signed, unless the chain
   * contradicts what was signed before: then the package goes without one and is not intact. A package is not intact either if a
   * note in its range was altered; such a note is left out.
   */
  async #notes(
    tenantId: string,
    chain: ChainName,
    start: number,
    end: number,
    head: number,
  ): Promise<{ notes: StoredNote[]; altered: number[] }> {
    const { keys, former } = this.#keys(tenantId, chain);
    const isSound = soundness(tenantId, chain, signersOf(keys, former));
    const enough = Math.min(end + 1, head);
    const found = async () => {
      const stored = await this.#storedNotes(tenantId, chain, Math.max(1, start - 1), end + MAX_LEAD);
      const sound = stored.filter(isSound);
      return { stored, sound, cover: sound.find(({ seq }) => seq >= enough) };
    };
    let { stored, sound, cover } = await found();
    if (!cover) {
      await this.#sign(tenantId, chain);
      ({ stored, sound, cover } = await found());
    }
    const last = cover?.seq ?? end;
    const [notes, all] = [sound, stored].map((list) => list.filter(({ seq }) => seq <= last));
    return { notes: notes!, altered: all!.filter((note) => !notes!.includes(note)).map(({ seq }) => seq) };
  }

  #storedNotes(tenantId: string, chain: ChainName, from: number, to: number): Promise<StoredNote[]> {
    return this.#db.query<StoredNote>(
      tenantId,
      `select seq, note from chain_checkpoint where tenant_id = $1 and chain = $2 and seq between $3 and $4 order by seq`,
      [tenantId, chain, from, to],
    );
  }

  async #sign(tenantId: string, chain: ChainName): Promise<void> {
    await this.#checkpoints.take(tenantId, chain).catch((error: Error) => {
      if (!(error instanceof InconsistentChain)) throw error;
    });
  }

  /**
   * The parts of the audit chain about what records name: of a hold from its first record to its end, of a stop each record, and
   * of a version of a policy each that decided on it; and on to the next signed checkpoint. Where they are is looked up by
   * columns, which is why the whole chain is verified before.
   */
  async #auditParts(tenantId: string, names: AuditNames) {
    const found = await this.#db.query<{ first: number; last: number }>(
      tenantId,
      `select min(seq) as first, coalesce(min(seq) filter (where action = any($4)), max(seq)) as last from audit_record
       where tenant_id = $1 and target_type = 'escrow' and target_id = any($2) group by target_id
       union all
       select seq, seq from audit_record where tenant_id = $1 and target_type = 'stop' and target_id = any($3)`,
      [tenantId, [...names.holds], [...names.stops], ENDS],
    );
    const spans = found.filter(({ first, last }) => last - first < MAX_AUDIT - MAX_LEAD);
    const decided = await this.#db.query<{ seq: number; target_id: string; version: string }>(
      tenantId,
      `select seq, target_id, substring(line from '"detail":"version ([0-9]{1,9})[,"]') as version from audit_record
       where tenant_id = $1 and target_type = 'policy' and target_id = any($2) and action = any($3)`,
      [tenantId, [...names.policies.keys()], POLICY_ACTIONS],
    );
    for (const { seq, target_id, version } of decided) {
      if (names.policies.get(target_id)?.has(Number(version))) spans.push({ first: seq, last: seq });
    }
    if (spans.length === 0) return { segments: [], checkpoints: [] };
    spans.sort((a, b) => a.first - b.first);
    const lasts = [...new Set(spans.map(({ last }) => last))];
    let notes = await this.#auditNotes(tenantId, lasts);
    if (notes.size < lasts.length) {
      await this.#sign(tenantId, 'audit');
      notes = await this.#auditNotes(tenantId, lasts);
    }
    const merged: { first: number; last: number }[] = [];
    for (const { first, last } of spans) {
      const end = notes.get(last)?.seq ?? last;
      const before = merged.at(-1);
      if (before && first <= before.last + 1) before.last = Math.max(before.last, end);
      else merged.push({ first, last: end });
    }
    const count = merged.reduce((sum, { first, last }) => sum + last - first + 1, 0);
    if (count > MAX_AUDIT) throw new RangeError(`a package holds at most ${MAX_AUDIT} audit records`);
    const previous = await this.#db.query<{ seq: number; hash: Buffer }>(
      tenantId,
      'select seq, hash from audit_record where tenant_id = $1 and seq = any($2)',
      [tenantId, merged.map(({ first }) => first - 1)],
    );
    const hashes = new Map(previous.map(({ seq, hash }) => [seq, hash.toString('hex')]));
    const segments = merged.map(({ first, last }) => ({
      prev_hash: hashes.get(first - 1) ?? ZERO_HASH,
      records: () => this.#records(tenantId, 'audit', first, last),
    }));
    const ends = new Map([...notes.values()].map(({ seq, note }) => [seq, note]));
    return { segments, checkpoints: merged.flatMap(({ last }) => ends.get(last) ?? []) };
  }

  /** For each of these audit records the first checkpoint at or after it, as far as there is one. */
  async #auditNotes(tenantId: string, lasts: readonly number[]): Promise<Map<number, StoredNote>> {
    const rows = await this.#db.query<StoredNote & { last: number }>(
      tenantId,
      `select s.last, c.seq, c.note from unnest($2::bigint[]) as s (last) cross join lateral (
         select seq, note from chain_checkpoint where tenant_id = $1 and chain = 'audit' and seq between s.last and s.last + $3
         order by seq limit $4) c
       order by s.last, c.seq`,
      [tenantId, lasts, MAX_LEAD, MOST_ALTERED + 1],
    );
    const { keys, former } = this.#keys(tenantId, 'forensics');
    const signers = signersOf(keys, former, ({ audit }) => audit);
    const isSound = soundness(tenantId, 'audit', signers);
    const sound = new Map<number, boolean>();
    const notes = new Map<number, StoredNote>();
    for (const { last, seq, note } of rows) {
      if (notes.has(last)) continue;
      if (!sound.has(seq)) {
        // each takes a while
        if (sound.size % 100 === 99) await nextTurn();
        sound.set(seq, isSound({ seq, note }));
      }
      if (sound.get(seq)) notes.set(last, { seq, note });
    }
    return notes;
  }

  async #bundles(tenantId: string, hashes: ReadonlySet<string>): Promise<PackedBundle[]> {
    const rows = await this.#db.query<{ hash: string; scope_set: string; seq: number }>(
      tenantId,
      `select distinct on (hash) hash, scope_set, seq from policy_bundle where tenant_id = $1 and hash = any($2)
       order by hash, seq desc, scope_set`,
      [tenantId, [...hashes].map((hash) => `sha256:${hash}`)],
    );
    return rows.map(({ hash, scope_set, seq }) => ({
      hash,
      read: async () => {
        const [row] = await this.#db.query<{ bytes: Buffer }>(
          tenantId,
          'select bytes from policy_bundle where tenant_id = $1 and scope_set = $2 and seq = $3',
          [tenantId, scope_set, seq],
        );
        if (!row) throw new Error(`the bundle ${hash} went away while it was exported`);
        return row.bytes;
      },
    }));
  }

  /**
   * What an export of the same range would contain now, and the parts in which it can be exported if it is too large for one
   * package: at most the first 100.
   */
  async plan(tenantId: string, input: Omit<ExportInput, 'purpose'>, asker: Asker) {
    const span = this.#span(input);
    const { chain = 'forensics' } = input;
    const { first, last } =
      input.sequence_id === undefined
        ? await this.#bounds(tenantId, chain, span.from, span.to, asker)
        : await this.#sessionBounds(tenantId, input.sequence_id);
    const receivedAt = async (seq: number) =>
      (
        await this.#db.query<{ received_at: Date }>(
          tenantId,
          `select received_at from ${RECORDS[chain].table} where tenant_id = $1 and seq = $2`,
          [tenantId, seq],
        )
      )[0]?.received_at;
    const parts: { from: string; to: string; record_count: number }[] = [];
    if (last - first + 1 > MAX_PACKAGE_RECORDS) {
      const end = input.sequence_id === undefined ? span.to : new Date((await receivedAt(last))!.getTime() + 1);
      let from = input.sequence_id === undefined ? span.from : (await receivedAt(first))!;
      for (let seq = first; seq <= last && parts.length < 100; ) {
        const to = last - seq < MAX_PACKAGE_RECORDS ? end : await receivedAt(seq + MAX_PACKAGE_RECORDS);
        // if one millisecond has more records than a package holds, time cannot tell them apart
        if (!to || to <= from) break;
        const part = await this.#bounds(tenantId, chain, from, to, asker);
        parts.push({ from: from.toISOString(), to: to.toISOString(), record_count: part.last - part.first + 1 });
        seq = part.last + 1;
        from = to;
      }
    }
    return { record_count: last - first + 1, first_seq: first, last_seq: last, limit: MAX_PACKAGE_RECORDS, parts };
  }

  /** The packages, newest first. */
  async list(tenantId: string, page: { limit: number; offset: number }) {
    const [rows, total] = await this.#db
      .reader(tenantId)
      .findAndCount(EvidencePackage, {}, { orderBy: { createdAt: 'desc', id: 'desc' }, ...page });
    return { packages: rows.map(summaryOf), total };
  }

  /** One package, with the names and sizes of its files. NOT_FOUND if the tenant has no such package. */
  async get(
    tenantId: string,
    id: string,
  ): Promise<PackageSummary & { files: { name: string; size: number; sha256: string }[] }> {
    const row = await this.#db.reader(tenantId).findOne(EvidencePackage, { id });
    if (!row) throw new AppError('NOT_FOUND', 'there is no such package');
    const { bytes } = await this.open(tenantId, id);
    return { ...summaryOf(row), files: await filesOf(bytes()) };
  }

  /** The package exactly as it was signed: its hash, its size, and its bytes, which are read while they are sent. */
  async open(
    tenantId: string,
    id: string,
  ): Promise<{ package_hash: string; size: number; bytes: () => AsyncGenerator<Buffer> }> {
    const [row] = await this.#db.query<{ package_hash: string; size: number }>(
      tenantId,
      'select package_hash, size from evidence_package where tenant_id = $1 and id = $2',
      [tenantId, id],
    );
    if (!row) throw new AppError('NOT_FOUND', 'there is no such package');
    const db = this.#db;
    return {
      ...row,
      async *bytes() {
        // ends with the last byte, so that a caller that has them all does not wait for another query
        for (let [place, sent] = [0, 0]; sent < row.size; place++) {
          const [chunk] = await db.query<{ bytes: Buffer }>(
            tenantId,
            'select bytes from evidence_chunk where tenant_id = $1 and package_id = $2 and place = $3',
            [tenantId, id, place],
          );
          if (!chunk) throw new Error(`piece ${place} of the package ${id} is missing`);
          sent += chunk.bytes.length;
          yield chunk.bytes;
        }
      },
    };
  }

  /** The requested time window; by default, the last month. */
  #span(input: Omit<ExportInput, 'purpose'>): { from: Date; to: Date } {
    if (input.sequence_id !== undefined && (input.from !== undefined || input.to !== undefined)) {
      throw new AppError('VALIDATION_FAILED', undefined, {
        faults: [{ pointer: '/sequence_id', message: 'has a span of its own: give either it or `from` and `to`' }],
      });
    }
    if (input.sequence_id !== undefined && input.chain === 'audit') {
      const message = 'the audit chain has no sessions: give `from` and `to`';
      throw new AppError('VALIDATION_FAILED', undefined, { faults: [{ pointer: '/sequence_id', message }] });
    }
    const to = input.to ? new Date(input.to) : new Date(this.#clock.now());
    const from = input.from ? new Date(input.from) : monthBefore(to);
    // other years have no four-digit ISO 8601 form
    if (from >= to || from.getUTCFullYear() < 0 || to.getUTCFullYear() > 9999) {
      throw new AppError('VALIDATION_FAILED', undefined, {
        faults: [{ pointer: '/from', message: 'must be before `to`, in the years 0 to 9999' }],
      });
    }
    return { from, to };
  }

  /**
   * The seq range of a time window. received_at never decreases along a chain, so the range is exact. A range without records
   * begins after the last record that was received before `from`.
   */
  async #bounds(
    tenantId: string,
    chain: ChainName,
    from: Date,
    to: Date,
    asker: Asker,
  ): Promise<{ first: number; last: number }> {
    return this.#db.readOnly(
      tenantId,
      async (client) => {
        await client.query(PLAN);
        const end = await lastSeq(client, tenantId, chain);
        const first = await firstSince(client, tenantId, chain, end, from.toISOString());
        const next = await firstSince(client, tenantId, chain, end, to.toISOString());
        return { first, last: next - 1 };
      },
      asker,
    );
  }

  /** The same, but throws TOO_MANY_RECORDS. */
  async #window(
    tenantId: string,
    chain: ChainName,
    from: Date,
    to: Date,
    asker: Asker,
  ): Promise<{ first: number; last: number }> {
    const { first, last } = await this.#bounds(tenantId, chain, from, to, asker);
    if (last - first + 1 > MAX_PACKAGE_RECORDS) {
      const [next] = await this.#db.query<{ received_at: Date }>(
        tenantId,
        `select received_at from ${RECORDS[chain].table} where tenant_id = $1 and seq = $2`,
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

  /** Of its records up to this one. */
  async #sessionBounds(
    tenantId: string,
    sessionId: string,
    upTo: number = Number.MAX_SAFE_INTEGER,
  ): Promise<{ first: number; last: number }> {
    const [bounds] = await this.#db.query<{ first: number | null; last: number | null }>(
      tenantId,
      `select min(seq) as first, max(seq) as last from forensic_record
       where tenant_id = $1 and session_h = $2 and strpos(line, $3) > 0 and seq <= $4`,
      // as canonical JSON writes it: this is exact, and a line that is no longer JSON does not fail the statement
      [tenantId, idHash(sessionId), `"session_id":${JSON.stringify(sessionId)}`, upTo],
    );
    if (!bounds?.first || !bounds.last) throw new AppError('NOT_FOUND', 'there is no such session');
    return { first: bounds.first, last: bounds.last };
  }

  async #session(tenantId: string, sessionId: string, upTo: number): Promise<{ first: number; last: number }> {
    const bounds = await this.#sessionBounds(tenantId, sessionId, upTo);
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

function summaryOf(row: EvidencePackageRow): PackageSummary {
  return {
    package_id: row.id,
    purpose: row.purpose,
    chain: row.chain as ChainName,
    from: row.fromAt.toISOString(),
    to: row.toAt.toISOString(),
    sequence_id: row.sessionId ?? null,
    first_seq: row.firstSeq,
    last_seq: row.lastSeq,
    record_count: row.recordCount,
    chain_intact: row.chainIntact,
    package_hash: row.packageHash,
    public_key_fingerprint: row.publicKeyFingerprint,
    size: row.size,
    created_by: row.createdBy,
    created_at: row.createdAt.toISOString(),
  };
}

/** The members of a package as its manifest lists them. Reads no further than the manifest. */
async function filesOf(pieces: AsyncIterable<Buffer>): Promise<{ name: string; size: number; sha256: string }[]> {
  let bytes = Buffer.alloc(0);
  // the offset of the next header in all bytes, and how many bytes were dropped
  let at = 0;
  let dropped = 0;
  for await (const piece of pieces) {
    bytes = Buffer.concat([bytes, piece]);
    for (;;) {
      const here = at - dropped;
      if (bytes.length < here + TAR_BLOCK) break;
      const member = readTarHeader(bytes.subarray(here, here + TAR_BLOCK), at);
      if (!member) throw new Error('a package has no manifest');
      const end = here + TAR_BLOCK + member.size;
      if (member.name === MANIFEST) {
        if (bytes.length < end) break;
        const { files } = JSON.parse(bytes.toString('utf8', here + TAR_BLOCK, end)) as Pick<Manifest, 'files'>;
        return Object.entries(files).map(([name, { size, sha256 }]) => ({ name, size, sha256 }));
      }
      at += TAR_BLOCK + member.size + tarPadding(member.size);
    }
    const done = Math.min(at - dropped, bytes.length);
    bytes = bytes.subarray(done);
    dropped += done;
  }
  throw new Error('a package has no manifest');
}

function monthBefore(date: Date): Date {
  const before = new Date(date);
  before.setUTCMonth(before.getUTCMonth() - 1);
  return before;
}

/** Joins bytes into pieces of one size, each stored under its position. */
class Chunks {
  readonly #store: (place: number, bytes: Buffer) => Promise<unknown>;
  #place = 0;
  #parts: Uint8Array[] = [];
  #size = 0;

  constructor(store: (place: number, bytes: Buffer) => Promise<unknown>) {
    this.#store = store;
  }

  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      const part = bytes.subarray(at, at + CHUNK_BYTES - this.#size);
      this.#parts.push(part);
      this.#size += part.length;
      at += part.length;
      if (this.#size === CHUNK_BYTES) await this.end();
    }
  }

  async end(): Promise<void> {
    if (this.#size === 0) return;
    const whole = Buffer.concat(this.#parts);
    this.#parts = [];
    this.#size = 0;
    await this.#store(this.#place++, whole);
  }
}

function underWay(): AppError {
  return new AppError('RATE_LIMITED', 'another export is under way: one at a time for each tenant', {
    headers: { 'retry-after': '5' },
  });
}

/** A range that is too large for a package, in bytes or because of records that arrived meanwhile, is for the caller to split. */
async function packed<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof RangeError && error.message.startsWith('a package holds at most')) {
      throw new AppError('TOO_MANY_RECORDS', `${error.message}: export a shorter time`);
    }
    throw error;
  }
}

/** Whether a stored note is what a known key signed for its place. */
function soundness(tenantId: string, chain: ChainName, keys: Parameters<typeof openNotes>[1]) {
  return ({ seq, note }: StoredNote): boolean => {
    try {
      return openNotes([note], keys, { tenantId, chain })[0]!.seq === seq;
    } catch {
      return false;
    }
  };
}

/** The first column that differs from the text; undefined if none does, or if the text is none: the chain's check tells that. */
function columnOf(chain: ChainName, row: { line: string } & Columns): string | undefined {
  let record: Record<string, unknown>;
  try {
    record = JSON.parse(row.line);
  } catch {
    return undefined;
  }
  return chain === 'forensics' ? compareDecision(record, row) : compareAudit(record, row);
}

/** As stated in a package's manifest. */
function limitsOf(former: readonly FormerKey[], chain: ChainName): Record<string, FormerKeyLimit> | undefined {
  if (former.length === 0) return undefined;
  return Object.fromEntries(
    former.map(({ publicKey, upTo }) => [
      keyFingerprint(publicKey),
      { seq: upTo[chain].seq, generation: upTo[chain].generation, bundles: upTo.bundles, audit: upTo.audit },
    ]),
  );
}
