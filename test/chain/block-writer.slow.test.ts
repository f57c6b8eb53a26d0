import { beforeAll, describe, expect, test } from 'vitest';
import { Blocks } from '../../server/chain/block-writer.ts';
import { BLOCK_RECORDS } from '../../server/chain/blocks.ts';
import { verifyChain } from '../../server/chain/verification.ts';
import { BLOCK_FIELDS, type DecisionEvent } from '../../server/domain/decision.ts';
import { useDatabase } from '../helpers/database.ts';
import { until } from '../helpers/until.ts';
import { sampled } from '../siege/rounds.ts';
import { appenderOn, eventsOf, newTenant, signer } from './helpers.ts';

const box = useDatabase();
const sql = (text: string, ...values: unknown[]) => box.db.owner.query(text, values);
const blocksOf = async (tenantId: string): Promise<number[]> =>
  (await sql('select block from forensic_block where tenant_id = $1 order by block', tenantId)).rows.map(
    ({ block }) => block,
  );
const summarize = (busy = false) => new Blocks({ db: box.db, busy: () => busy }).run(new AbortController().signal);
const verify = (tenantId: string) =>
  verifyChain(box.url, tenantId, 'forensics', { keys: [signer.publicKey], chunk: 3000 });

/** What was read is to be stored, and somebody else holds the head of the chain. */
const untilItWaits = () =>
  until(async () => {
    const { rows } = await sql(
      `select from pg_stat_activity
       where datname = current_database() and wait_event_type = 'Lock' and query like '%for key share'`,
    );
    return rows.length > 0;
  }, 'the summarizer waits');

async function append(tenantId: string, count: number, given: Partial<DecisionEvent> = {}): Promise<void> {
  const writer = appenderOn(box.db);
  for (let left = count; left > 0; left -= 1000) await writer.append(tenantId, eventsOf(Math.min(left, 1000), given));
  await writer.stop();
}

describe('blocks are summarized', () => {
  test('once they are complete, by any number of processes, and those of a few records never', async () => {
    const [tenantId, small] = [await newTenant(box.db), await newTenant(box.db)];
    await append(small, 3);
    // the genesis record is the first of block 0
    await append(tenantId, BLOCK_RECORDS - 2);
    await summarize();
    expect(await blocksOf(tenantId)).toEqual([]);
    const running = new Blocks({ db: box.db, busy: () => true });
    await running.run(new AbortController().signal);
    await append(tenantId, 1 + 2 * BLOCK_RECORDS);
    await Promise.all([running.run(new AbortController().signal), summarize(), summarize()]);
    await running.run(new AbortController().signal);
    expect(await blocksOf(tenantId)).toEqual([0, 1, 2]);
    expect(await blocksOf(small)).toEqual([]);
    // a chain is looked at when it has a block that is complete, and then not before the next one is
    const due = async () =>
      (await sql('select tenant_id from chain_head where unsummarized')).rows.map(({ tenant_id }) => tenant_id);
    expect(await due()).toEqual([]);
    await append(tenantId, BLOCK_RECORDS - 1);
    expect(await due()).toEqual([]);
    await append(tenantId, 1);
    expect(await due()).toEqual([tenantId]);
    await summarize();
    expect([await due(), await blocksOf(tenantId)]).toEqual([[], [0, 1, 2, 3]]);
    expect(await verify(tenantId)).toMatchObject({ verified: true, records_checked: 4 * BLOCK_RECORDS });
  });

  test('not by a process whose database was exchanged under it for one with other records', async () => {
    const tenantId = await newTenant(box.db);
    await append(tenantId, BLOCK_RECORDS);
    const held = await box.db.owner.connect();
    try {
      await held.query('begin');
      await held.query(`select from chain_head where tenant_id = $1 and chain = 'forensics' for update`, [tenantId]);
      const summarized = summarize();
      await untilItWaits();
      await held.query(`update forensic_record set hash = '\\x00' where tenant_id = $1 and seq = $2`, [
        tenantId,
        BLOCK_RECORDS,
      ]);
      await held.query('commit');
      await summarized;
      expect(await blocksOf(tenantId)).toEqual([]);
    } finally {
      held.release(true);
    }
  });
});

describe('summaries that are deleted, to be made again', () => {
  /** Begins to delete those of a tenant as accepting a loss does, has `work` run into it, and commits. */
  async function deletedMeanwhile(tenantId: string, work: () => Promise<unknown>): Promise<void> {
    const held = await box.db.owner.connect();
    try {
      await held.query('begin');
      await held.query(`select from chain_head where tenant_id = $1 and chain = 'forensics' for update`, [tenantId]);
      const working = work();
      await untilItWaits();
      await held.query('delete from forensic_block where tenant_id = $1', [tenantId]);
      await held.query(`update chain_head set unsummarized = true where tenant_id = $1 and chain = 'forensics'`, [
        tenantId,
      ]);
      await held.query('commit');
      await working;
    } finally {
      held.release(true);
    }
  }

  test.each([
    ['in the middle of a turn', 2 * BLOCK_RECORDS],
    ['when all was done but to say so', 1],
  ])('%s, leave no gap below those that follow', async (_, more) => {
    const tenantId = await newTenant(box.db);
    await append(tenantId, BLOCK_RECORDS);
    await summarize();
    await append(tenantId, more);
    await sql(`update chain_head set unsummarized = true where tenant_id = $1 and chain = 'forensics'`, tenantId);
    await deletedMeanwhile(tenantId, () => summarize());
    expect(await blocksOf(tenantId)).toEqual([]);
    await summarize();
    expect(await blocksOf(tenantId)).toEqual(more === 1 ? [0] : [0, 1, 2]);
    expect(await verify(tenantId)).toMatchObject({ verified: true });
  });

  test('are no fault to a verification, and one alone is', async () => {
    const tenantId = await newTenant(box.db);
    await append(tenantId, 2 * BLOCK_RECORDS);
    await summarize();
    const held = await box.db.owner.connect();
    try {
      // holds the verification after it asked for the newest summary, before it reads any
      await held.query('begin; lock table chain_alarm in access exclusive mode');
      const verdict = verify(tenantId);
      await until(async () => {
        const { rows } = await held.query(
          `select from pg_locks where not granted and relation = 'chain_alarm'::regclass`,
        );
        return rows.length > 0;
      }, 'the verification waits');
      await held.query('delete from forensic_block where tenant_id = $1', [tenantId]);
      await held.query('commit');
      expect(await verdict).toMatchObject({ verified: true });
    } finally {
      held.release(true);
    }
  });
});

test('a record that is missing keeps no other out of the summaries', async () => {
  const tenantId = await newTenant(box.db);
  await append(tenantId, 2 * BLOCK_RECORDS);
  await sql('delete from forensic_record where tenant_id = $1 and seq = 9', tenantId);
  await summarize();
  expect(await blocksOf(tenantId)).toEqual([0, 1]);
});

describe('verification compares summaries with the texts', () => {
  let tenantId: string;
  const flipped = (column: string) =>
    `update forensic_block set ${column} = substr(${column}, 1, 3) || translate(substr(${column}, 4, 1), '0123456789abcdefghijklmnopqrstuvwxyz', '123456789abcdefghijklmnopqrstuvwxyz0')
       || substr(${column}, 5) where tenant_id = $1 and block = 1`;
  const alterations: Record<string, [sql: string, seq: number]> = {
    ...Object.fromEntries(
      sampled(BLOCK_FIELDS, undefined, 4).map((field) => [field, [flipped(field), BLOCK_RECORDS + 1] as const]),
    ),
    seen: [
      `update forensic_block set seen = set_byte(seen, 0, 0) || '\\x00' where tenant_id = $1 and block = 1`,
      BLOCK_RECORDS + 1,
    ],
    'a summary that is missing': ['delete from forensic_block where tenant_id = $1 and block = 0', 1],
    'a summary of records that are yet to come': [
      `insert into forensic_block select tenant_id, 2, seen, ${BLOCK_FIELDS.join(', ')} from forensic_block where tenant_id = $1 and block = 1`,
      2 * BLOCK_RECORDS + 1,
    ],
    'a summary exchanged for another': [
      `update forensic_block a set tool_name = b.tool_name from forensic_block b
       where a.tenant_id = $1 and b.tenant_id = $1 and a.block = 0 and b.block = 1`,
      1,
    ],
  };

  beforeAll(async () => {
    tenantId = await newTenant(box.db);
    await append(tenantId, BLOCK_RECORDS + 500);
    // texts that cannot be read in the fast way
    await append(tenantId, BLOCK_RECORDS + 99, { policy_id: 'política "1"', rule_id: '規則' });
    await summarize();
    await sql(`create table kept_block as select * from forensic_block where tenant_id = '${tenantId}'`);
  });

  test('which agree', async () => {
    expect(await blocksOf(tenantId)).toEqual([0, 1]);
    expect(await verify(tenantId)).toMatchObject({ verified: true, linear: true });
  });

  test.each(Object.entries(alterations))('and finds an altered one: %s', async (_, [alteration, seq]) => {
    await sql(alteration, tenantId);
    try {
      expect(await verify(tenantId)).toMatchObject({
        verified: false,
        linear: true,
        first_mismatch_seq: seq,
        reason: expect.stringMatching(/^records \d+ to \d+: the summary that searches read /),
      });
    } finally {
      await sql('delete from forensic_block where tenant_id = $1', tenantId);
      await sql('insert into forensic_block select * from kept_block');
    }
  });

  // the way out that the documentation names
  test('and nothing any more when they are deleted, and made again from the texts', async () => {
    const [alteration] = alterations['a summary exchanged for another']!;
    await sql(alteration, tenantId);
    await sql('delete from forensic_block where tenant_id = $1', tenantId);
    await sql(`update chain_head set unsummarized = true where tenant_id = $1 and chain = 'forensics'`, tenantId);
    await summarize();
    const all = `tenant_id, block, encode(seen, 'hex') as seen, ${BLOCK_FIELDS.join(', ')}`;
    const rows = async (table: string) =>
      (await sql(`select ${all} from ${table} where tenant_id = $1 order by block`, tenantId)).rows;
    expect(await rows('forensic_block')).toEqual(await rows('kept_block'));
    expect(await verify(tenantId)).toMatchObject({ verified: true });
  });
});
