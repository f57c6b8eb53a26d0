import { randomBytes } from 'node:crypto';
import { rename, writeFile } from 'node:fs/promises';
import type pg from 'pg';
import { inTransaction, LONG_TRANSACTION } from '../../db/client.ts';
import type { Database } from '../../db/index.ts';
import { addEventBy } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { DERIVED_COLUMNS } from '../domain/decision.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { addAudit, type Execute } from './audit.ts';
import type { Checkpoints, Signer } from './checkpoint.ts';
import { checkpointFile, notesIn, setAside } from './checkpoint-file.ts';
import { chainOrigin, isOriginOf, isSuperseded, lossId, RECORDS } from './loss.ts';
import { openHead, signLoss } from './note.ts';
import { auditColumns, type ChainName, chainHash, derivedColumn, genesisLine, lossLine, ZERO_HASH } from './record.ts';
import type { KeysOf, Knowledge, Standing } from './standing.ts';
import type { ChainPosition } from './verify.ts';

/** What was accepted. */
export interface LossAccepted {
  tenant_id: string;
  chain: ChainName;
  /** The contradiction that was found. */
  contradiction: string;
  /** The last record present, after which the chain continues. */
  kept_seq: number;
  /** The highest record known to have existed. */
  lost_seq: number;
  /** The record that states it. */
  record: { seq: number; id: string; hash: string };
  note: string;
}

export interface AcceptLossParts {
  db: Pick<Database, 'owner'>;
  clock: Clock;
  checkpoints: Checkpoints;
  host: string;
  directory: string | undefined;
  signer: () => Signer & { fingerprint: string };
  keys: KeysOf;
}

/**
 * Accepts that a chain lacks what is known about it: writes a signed record of the gap into the chain (and into the audit chain),
 * removes the checkpoints that the chain contradicts from the database, and reopens the chain. All in one transaction; the next
 * checkpoint makes it known in the file too. Nothing is repaired: what is lost stays lost, and every verification still finds
 * fault with a chain whose records do not follow from each other.
 *
 * CONFLICT when the chain agrees with everything known, or while the audit chain itself is closed.
 */
export async function acceptLoss(
  parts: AcceptLossParts,
  tenantId: string,
  chain: ChainName,
  reason: string,
  by: Doer,
): Promise<LossAccepted> {
  const within = await inTransaction(parts.db.owner, async (client) => {
    // every checkpoint of the chain is opened and compared
    await client.query(LONG_TRANSACTION);
    return acceptLossWithin(client, parts, tenantId, chain, reason, by);
  });
  await within.publish();
  return within.accepted;
}

/** A loss that is accepted when the caller's transaction commits. */
export interface LossWithin {
  accepted: LossAccepted;
  /** Call it after the commit. Publishes the new head, to the checkpoint file as well. */
  publish(): Promise<void>;
}

/**
 * The same within the caller's transaction, on a connection of the owner. The chain is open from the commit on, whether or not
 * `publish` is reached.
 */
export async function acceptLossWithin(
  client: pg.ClientBase,
  parts: Omit<AcceptLossParts, 'db'>,
  tenantId: string,
  chain: ChainName,
  reason: string,
  by: Doer,
): Promise<LossWithin> {
  const { checkpoints, directory } = parts;
  const { comparison } = checkpoints;
  const audit = await comparison.knowledge(tenantId, 'audit');
  const knowledge = chain === 'audit' ? audit : await comparison.knowledge(tenantId, chain);
  const place = [tenantId, chain, Buffer.from(ZERO_HASH, 'hex')];
  await client.query(
    'insert into chain_head (tenant_id, chain, seq, hash, fence) values ($1, $2, 0, $3, 0) on conflict do nothing',
    place,
  );
  await client.query('select from chain_head where tenant_id = $1 and chain = $2 for update', place.slice(0, 2));
  const standing = await comparison.standing(client, tenantId, chain, knowledge);
  if (!standing.contradiction && standing.unreadable === undefined) {
    throw new AppError('CONFLICT', `the ${chain} chain agrees with everything that is known about it`);
  }
  if (chain !== 'audit' && (await comparison.standing(client, tenantId, 'audit', audit)).contradiction) {
    throw new AppError(
      'CONFLICT',
      'the audit chain is closed too: accept its loss first, so that this can be recorded',
    );
  }
  const accepted = await record(client, parts, tenantId, chain, { reason, by, standing, knowledge });
  return {
    accepted,
    publish: async () => {
      if (directory !== undefined && knowledge.unreadable !== undefined) await keepReadable(parts, tenantId, chain);
      await checkpoints.take(tenantId, chain);
      await checkpoints.flushed();
    },
  };
}

async function record(
  client: pg.ClientBase,
  parts: Omit<AcceptLossParts, 'db'>,
  tenantId: string,
  chain: ChainName,
  found: { reason: string; by: Doer; standing: Standing; knowledge: Knowledge },
): Promise<LossAccepted> {
  const { reason, by, standing } = found;
  const { table, id: idColumn } = RECORDS[chain];
  const { privateKey, publicKey, fingerprint } = parts.signer();
  const now = parts.clock.now();
  const insert = async (to: { seq: number; hash: Buffer; id: string; line: string; at: Date }) => {
    const members = JSON.parse(to.line) as Record<string, unknown>;
    const derived =
      chain === 'forensics'
        ? Object.fromEntries(DERIVED_COLUMNS.map((column) => [column.column, derivedColumn(members, column)]))
        : auditColumns(members);
    const row = { tenant_id: tenantId, seq: to.seq, received_at: to.at, hash: to.hash, line: to.line, ...derived };
    const names = [...Object.keys(row), idColumn];
    const places = names.map((_, n) => `$${n + 1}`);
    await client.query(`insert into ${table} (${names.join(', ')}) values (${places.join(', ')})`, [
      ...Object.values(row),
      to.id,
    ]);
  };
  const { rows } = await client.query<{ seq: number; hash: Buffer; received_at: Date }>(
    `select seq, hash, received_at from ${table} where tenant_id = $1 order by seq desc limit 1`,
    [tenantId],
  );
  // time never goes backwards within a chain
  const at = new Date(Math.max(now, rows[0]?.received_at.getTime() ?? 0));
  let last = rows[0] && { seq: rows[0].seq, hash: rows[0].hash };
  if (!last) {
    const line = genesisLine(tenantId, chain, at.toISOString(), fingerprint);
    last = { seq: 1, hash: chainHash(Buffer.from(ZERO_HASH, 'hex'), line) };
    await insert({ ...last, id: `genesis_${chain}`, line, at });
  }
  const kept = { seq: last.seq, hash: last.hash.toString('hex') };
  const agreed = Math.min(await agreedUpTo(client, parts, tenantId, chain, standing), kept.seq);
  const generation = Math.max(standing.generation, standing.knownGeneration) + 1;
  const { known: lost = kept, reason: contradiction = standing.unreadable! } = standing.contradiction ?? {};
  const note = signLoss(
    {
      origin: chainOrigin(parts.host, tenantId, chain),
      kept,
      generation,
      agreed,
      // a head row that was reset to zero names no record
      lost: lost.seq > 0 ? { seq: lost.seq, hash: lost.hash } : kept,
    },
    privateKey,
    publicKey,
  );
  const id = lossId(chain, generation, randomBytes(4).toString('hex'));
  const entry = {
    ...by,
    action: 'chain.loss_accepted' as const,
    target: { type: 'chain', id: chain },
    severity: 'critical' as const,
    reason,
    detail: `${contradiction}; the chain continues after record ${kept.seq}`,
    note,
  };
  const execute: Execute = async (sql, values) => (await client.query(sql, values)).rows as never;
  const how = { now: at.getTime(), fingerprint: () => fingerprint };
  await client.query('delete from chain_alarm where tenant_id = $1 and chain = $2', [tenantId, chain]);
  // locks out a writer that still holds the old head
  await client.query(
    'update chain_head set seq = $3, hash = $4, fence = fence + 1, unsigned = true where tenant_id = $1 and chain = $2',
    [tenantId, chain, kept.seq, last.hash],
  );
  let to: ChainPosition;
  if (chain === 'audit') to = (await addAudit(execute, tenantId, entry, { ...how, id })).to;
  else {
    // a lost decision's input proves nothing without its record, and would be in the way when the decision is sent again
    await client.query(
      `delete from decision_input i where i.tenant_id = $1 and not exists (
         select from forensic_record r where r.tenant_id = $1 and r.event_id = i.event_id)`,
      [tenantId],
    );
    // the summaries may describe records other than the current ones and would hide these; new ones are made from the texts
    await client.query('delete from forensic_block where tenant_id = $1', [tenantId]);
    const seq = kept.seq + 1;
    const line = lossLine(tenantId, { seq, id, at: at.toISOString(), note, reason });
    const hash = chainHash(last.hash, line);
    await insert({ seq, hash, id, line, at });
    await client.query(
      `update chain_head set seq = $3, hash = $4, unsigned = true, unsummarized = true
       where tenant_id = $1 and chain = $2`,
      [tenantId, chain, seq, hash],
    );
    to = { seq, hash: hash.toString('hex') };
    await addAudit(execute, tenantId, entry, how);
  }
  await dropCheckpoints(client, parts, tenantId, chain, agreed);
  await addEventBy(client, tenantId, {
    type: 'forensics.loss_accepted',
    at: now,
    payload: {
      chain,
      kept_seq: kept.seq,
      lost_seq: lost.seq,
      record_seq: to.seq,
      reason,
      note,
      created_at: new Date(now).toISOString(),
    },
  });
  return {
    tenant_id: tenantId,
    chain,
    contradiction,
    kept_seq: kept.seq,
    lost_seq: lost.seq,
    record: { seq: to.seq, id, hash: to.hash },
    note,
  };
}

/** The last record up to which the chain agrees with every single checkpoint, including those in the file. */
async function agreedUpTo(
  client: pg.ClientBase,
  parts: Omit<AcceptLossParts, 'db'>,
  tenantId: string,
  chain: ChainName,
  standing: Standing,
): Promise<number> {
  let agreed = standing.contradiction?.agreed ?? standing.last;
  const compare = async (notes: readonly string[]) => {
    const heads = notes.flatMap((note) => {
      try {
        const head = openHead(note, parts.keys(tenantId, chain));
        const counts = isOriginOf(head.origin, tenantId, chain) && !isSuperseded(standing.losses, head);
        return counts ? [head] : [];
      } catch {
        return [];
      }
    });
    const { rows } = await client.query<{ seq: number; hash: Buffer }>(
      `select seq, hash from ${RECORDS[chain].table} where tenant_id = $1 and seq = any($2)`,
      [tenantId, heads.map(({ seq }) => seq)],
    );
    const hashes = new Map(rows.map((row) => [row.seq, row.hash.toString('hex')]));
    for (const { seq, hash } of heads) if (hashes.get(seq) !== hash) agreed = Math.min(agreed, seq - 1);
  };
  const { rows } = await client.query<{ note: string }>(
    'select note from chain_checkpoint where tenant_id = $1 and chain = $2',
    [tenantId, chain],
  );
  await compare(rows.map(({ note }) => note));
  if (parts.directory !== undefined) {
    const some: string[] = [];
    for await (const { note } of notesIn(checkpointFile(parts.directory, tenantId, chain))) {
      if (some.push(note) === 1000) await compare(some.splice(0));
    }
    await compare(some);
  }
  return agreed;
}

/**
 * Deletes the checkpoints that are no longer expected, and those without a valid signature: their seqs are needed for new ones.
 */
async function dropCheckpoints(
  client: pg.ClientBase,
  parts: Omit<AcceptLossParts, 'db'>,
  tenantId: string,
  chain: ChainName,
  agreed: number,
): Promise<void> {
  const { rows } = await client.query<{ seq: number; note: string }>(
    'select seq, note from chain_checkpoint where tenant_id = $1 and chain = $2',
    [tenantId, chain],
  );
  const gone = rows.filter(({ seq, note }) => {
    if (seq > agreed) return true;
    try {
      const head = openHead(note, parts.keys(tenantId, chain));
      return head.seq !== seq || !isOriginOf(head.origin, tenantId, chain);
    } catch {
      return true;
    }
  });
  await client.query('delete from chain_checkpoint where tenant_id = $1 and chain = $2 and seq = any($3)', [
    tenantId,
    chain,
    gone.map(({ seq }) => seq),
  ]);
}

/** Sets aside a file that contains something not signed by any key, and puts the rest of its contents in its place. */
async function keepReadable(parts: Omit<AcceptLossParts, 'db'>, tenantId: string, chain: ChainName): Promise<void> {
  const file = checkpointFile(parts.directory!, tenantId, chain);
  const kept: string[] = [];
  for await (const { note } of notesIn(file)) {
    try {
      if (isOriginOf(openHead(note, parts.keys(tenantId, chain)).origin, tenantId, chain)) kept.push(`${note}\n`);
    } catch {
      // this note is why the file is set aside
    }
  }
  const partial = `${file}.partial`;
  await writeFile(partial, kept.join(''), { mode: 0o600, flush: true });
  await setAside(file, parts.clock.now());
  await rename(partial, file);
}
