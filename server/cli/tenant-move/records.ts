import pg from 'pg';
import { RECORDS } from '../../chain/loss.ts';
import type { ChainName } from '../../chain/record.ts';
import { type ChainPosition, ChainVerifier } from '../../chain/verify.ts';
import { copyParts } from '../backup.ts';
import { copyTarget, listTables } from '../backup-format.ts';
import { CommandError } from '../command.ts';
import { copyIn } from '../copy-in.ts';
import type { Side } from './side.ts';
import type { Tables } from './tables.ts';

/* What is copied while requests go on: records, and the stored inputs of requests. */

/** Records copied by one statement. */
const STEP = 50_000;
const READ_BACK = 5000;
const PAGE_OF_INPUTS = 5000;

/** Copies the records of one chain, hashing again what the target has stored. */
export class Copy {
  readonly #source: Side;
  readonly #target: Side;
  readonly #tenantId: string;
  readonly #chain: ChainName;
  readonly #verifier: ChainVerifier;
  #read = 0;

  constructor(source: Side, target: Side, tenantId: string, chain: ChainName) {
    this.#source = source;
    this.#target = target;
    this.#tenantId = tenantId;
    this.#chain = chain;
    this.#verifier = new ChainVerifier({ tenantId, chain });
  }

  /** Copies what the target lacks up to a given record, each step in a transaction of its own. */
  async upTo(last: number): Promise<void> {
    const { table } = RECORDS[this.#chain];
    const tenant = pg.escapeLiteral(this.#tenantId);
    const described = (await listTables(this.#source.client)).find(({ name }) => name === table)!;
    const { rows } = await this.#target.client.query<{ last: number | null }>(
      `select max(seq) as last from ${table} where tenant_id = $1`,
      [this.#tenantId],
    );
    for (let from = rows[0]!.last ?? 0; from < last; from += STEP) {
      const to = Math.min(from + STEP, last);
      const parts = copyParts(
        this.#source.client,
        `copy (select ${described.columns.join(', ')} from ${table}
           where tenant_id = ${tenant} and seq > ${from} and seq <= ${to} order by seq) to stdout (format binary)`,
      );
      await copyOwn(this.#target, this.#tenantId, described, parts);
    }
    while (this.#read < last) {
      const { rows: stored } = await this.#target.client.query<{ seq: number; hash: Buffer; line: string }>(
        `select seq, hash, line from ${table} where tenant_id = $1 and seq > $2 order by seq limit ${READ_BACK}`,
        [this.#tenantId, this.#read],
      );
      if (stored.length === 0) break;
      for (const row of stored) this.#verifier.add(row);
      this.#read = stored.at(-1)!.seq;
    }
  }

  /** Copies up to the last record at this moment. Resolves to how many records that were. */
  async upToLast(): Promise<number> {
    const { rows } = await this.#source.client.query<{ last: number | null }>(
      `select max(seq) as last from ${RECORDS[this.#chain].table} where tenant_id = $1`,
      [this.#tenantId],
    );
    const before = this.#read;
    await this.upTo(rows[0]!.last ?? 0);
    return this.#read - before;
  }

  /** Throws unless the target has stored the whole chain up to this head. */
  finish(head: ChainPosition | undefined): void {
    if (!head) return;
    const { verified, reason } = this.#verifier.finish({ head });
    if (!verified) throw new CommandError(`the ${this.#chain} chain at the target does not verify: ${reason}`);
  }
}

/**
 * Makes the target's stored inputs equal to the source's: page by page in id order, copying only pages that differ. What was
 * erased at the source meanwhile is erased at the target, too.
 */
export async function copyInputs(source: Side, target: Side, tenantId: string): Promise<void> {
  const tenant = pg.escapeLiteral(tenantId);
  const described = (await listTables(source.client)).find(({ name }) => name === 'decision_input')!;
  for (let after = ''; ; ) {
    const { rows: there } = await source.client.query<InputsPage>(inputsPage(`limit ${PAGE_OF_INPUTS}`), [
      tenantId,
      after,
    ]);
    const { last, digest } = there[0]!;
    // nothing may be left at the target beyond the last one
    const upTo = last === null ? 'true' : `event_id <= ${pg.escapeLiteral(last)}`;
    const { rows: here } = await target.client.query<InputsPage>(inputsPage('', upTo), [tenantId, after]);
    if (here[0]!.digest !== digest) {
      await target.client.query(`delete from decision_input where tenant_id = $1 and event_id > $2 and ${upTo}`, [
        tenantId,
        after,
      ]);
      const parts = copyParts(
        source.client,
        `copy (select ${described.columns.join(', ')} from decision_input where tenant_id = ${tenant}
           and event_id > ${pg.escapeLiteral(after)} and ${upTo}) to stdout (format binary)`,
      );
      await copyOwn(target, tenantId, described, parts);
    }
    if (last === null) return;
    after = last;
  }
}

interface InputsPage {
  /** null if there is no row. */
  last: string | null;
  digest: string | null;
}

/** A new salt is drawn for each text, and erased with it: two rows with the same salts are the same. */
const inputsPage = (limit: string, upTo = 'true') =>
  `select max(event_id) as last, encode(sha256(convert_to(string_agg(event_id || ' ' || coalesce(encode(salt_a, 'hex'), '')
     || ' ' || coalesce(encode(salt_b, 'hex'), ''), ',' order by event_id), 'UTF8')), 'hex') as digest
   from (select event_id, salt_a, salt_b from decision_input
     where tenant_id = $1 and event_id > $2 and ${upTo} order by event_id ${limit}) p`;

/**
 * Stores rows that another database sent, all or none, and only those of this tenant: whatever that database sends, no other
 * tenant here gets a row.
 */
async function copyOwn(
  { client }: Side,
  tenantId: string,
  { name, columns }: Tables[number],
  parts: AsyncIterable<Buffer>,
): Promise<void> {
  const names = columns.map((column) => pg.escapeIdentifier(column)).join(', ');
  await client.query('begin');
  try {
    await client.query(`create temporary table arriving (like ${name}) on commit drop`);
    const sent = await copyIn(
      client,
      `copy ${copyTarget({ name: 'arriving', columns })} from stdin (format binary)`,
      parts,
    );
    const { rowCount } = await client.query(
      `insert into ${name} (${names}) select ${names} from arriving where tenant_id = $1`,
      [tenantId],
    );
    if (rowCount !== sent) throw new CommandError(`the source sent rows of another tenant (${name})`);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback').catch(() => undefined);
    throw error;
  }
}
