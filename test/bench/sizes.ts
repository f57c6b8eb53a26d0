import { randomBytes } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import pg from 'pg';
import { CopyRows, Pipeline } from '../../server/chain/copy.ts';
import { decisionLine, idHash } from '../../server/chain/record.ts';
import { addRecord, COPY_RECORDS, session } from '../../server/chain/transaction.ts';
import type { DecisionEvent } from '../../server/domain/decision.ts';
import { type BenchContext, type Figure, figure, median, pick, ratios, wireEvent } from './lib.ts';

/** Records per round in each table. */
const ROUND = 50_000;
const GROUP = 1000;
/** Tenants whose records are mixed, as in a group of the writer. */
const TENANTS = 30;
const PARTITIONS = 16;

type Table = 'plain' | 'parted';
const NAMES: Record<Table, string> = { plain: 'forensic_record', parted: 'forensic_record_parted' };

/**
 * What a stored decision takes on disk and in the database's log, compared with the same table with hash partitions by tenant:
 * rows written in turn by the writer's COPY, then a vacuum, and pages as the role of requests.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  const records = pick(ctx, 100_000, 1_000_000, 10_000_000);
  const client = new pg.Client(ctx.url);
  await client.connect();
  const ask = async <R extends pg.QueryResultRow>(text: string) => (await client.query<R>(text)).rows;
  await client.query(`create table ${NAMES.parted} (like forensic_record including all) partition by hash (tenant_id);
    alter table ${NAMES.parted} enable row level security;
    create policy tenant_isolation on ${NAMES.parted} to svc_app using (tenant_id = nullif(current_setting('app.tenant', true), ''));
    grant select on ${NAMES.parted} to svc_app;`);
  for (let n = 0; n < PARTITIONS; n++) {
    await client.query(
      `create table ${NAMES.parted}_${n} partition of ${NAMES.parted} for values with (modulus ${PARTITIONS}, remainder ${n})`,
    );
  }
  const rates: Record<Table, number[]> = { plain: [], parted: [] };
  const logged: Record<Table, number> = { plain: 0, parted: 0 };
  const seqs: Record<Table, number[]> = { plain: Array(TENANTS).fill(0), parted: Array(TENANTS).fill(0) };
  const lsn = async () => (await ask<{ at: string }>('select pg_current_wal_lsn()::text as at'))[0]!.at;
  for (let done = 0; done < records; done += ROUND) {
    for (const table of done % (2 * ROUND) === 0 ? (['plain', 'parted'] as const) : (['parted', 'plain'] as const)) {
      const before = await lsn();
      rates[table].push(await write(ctx.url, table, done, seqs[table]));
      const [row] = await ask<{ bytes: string }>(`select pg_current_wal_lsn() - '${before}' as bytes`);
      logged[table] += Number(row!.bytes);
    }
    if ((done / ROUND) % 20 === 19) {
      const last = (table: Table) => median(rates[table].slice(-20)).toFixed(0);
      print(`${(done + ROUND).toLocaleString('en')} records: plain ${last('plain')}/s, partitions ${last('parted')}/s`);
    }
  }
  const figures: Figure[] = [
    figure('COPY into one table', rates.plain, 'records/s'),
    figure(`COPY into ${PARTITIONS} partitions`, rates.parted, 'records/s'),
    figure('partitions / one table', ratios(rates.parted, rates.plain), 'ratio'),
    figure(
      'the same, last tenth',
      ratios(rates.parted, rates.plain).slice(-Math.ceil(rates.plain.length / 10)),
      'ratio',
    ),
    figure('WAL', logged.plain / records, 'bytes/record'),
    figure('WAL, partitions', logged.parted / records, 'bytes/record'),
  ];
  const size = (of: string) => `(select sum(${of}(relid)) from pg_partition_tree('X'))`;
  for (const table of ['plain', 'parted'] as const) {
    const [sizes] = await ask<{ heap: string; all: string }>(
      table === 'plain'
        ? `select pg_relation_size('${NAMES.plain}') as heap, pg_total_relation_size('${NAMES.plain}') as all`
        : `select ${size('pg_relation_size')} as heap, ${size('pg_total_relation_size')} as all`.replaceAll(
            'X',
            NAMES.parted,
          ),
    );
    const name = table === 'plain' ? '' : ', partitions';
    figures.push(figure(`rows${name}`, Number(sizes!.heap) / records, 'bytes/record'));
    figures.push(figure(`rows with indexes${name}`, Number(sizes!.all) / records, 'bytes/record'));
  }
  for (const { name, bytes } of await ask<{ name: string; bytes: string }>(
    `select indexrelid::regclass::text as name, pg_relation_size(indexrelid) as bytes from pg_index
     where indrelid = '${NAMES.plain}'::regclass order by 1`,
  )) {
    figures.push(figure(`index ${name}`, Number(bytes) / records, 'bytes/record'));
  }
  for (const table of ['plain', 'parted'] as const) {
    const began = performance.now();
    await client.query(`vacuum (freeze, analyze) ${NAMES[table]}`);
    const name = table === 'plain' ? 'one table' : 'partitions';
    figures.push(figure(`vacuum, ${name}`, (performance.now() - began) / 1000, 's'));
  }
  figures.push(...(await reads(client, records)));
  await client.end();
  return figures;
}

/** Records arrive in batches, each of one tenant. */
const BATCH = 25;
const tenantOf = (i: number) => (Math.floor(i / BATCH) * 7919) % TENANTS;

/** One round of groups, each committed and flushed, two in flight. Resolves with the database's records per second. */
async function write(url: string, table: Table, first: number, seqs: number[]): Promise<number> {
  // prepared in advance, so that only the database is measured
  const copies: Buffer[] = [];
  for (let from = first; from < first + ROUND; from += GROUP) {
    const rows = new CopyRows(2 ** 20);
    for (let i = from; i < from + GROUP; i++) {
      const tenant = tenantOf(i);
      const tenantId = `sizes_${tenant}`;
      const seq = ++seqs[tenant]!;
      const id = `evt_${String(i).padStart(12, '0')}`;
      const event = { ...wireEvent(i, undefined), event_id: id };
      const at = Date.UTC(2026, 0, 1) + i;
      const line = decisionLine(tenantId, seq, new Date(at).toISOString(), event as unknown as DecisionEvent);
      addRecord(rows, { tenantId, seq, at, hash: randomBytes(32), id, line }, event as unknown as DecisionEvent);
    }
    copies.push(Buffer.from(rows.message()));
  }
  const client = new pg.Client(url);
  await client.connect();
  await client.query(session(false));
  const pipeline = new Pipeline(client, { timeoutMs: 60_000, onLost: () => undefined });
  const sql = `begin; ${COPY_RECORDS.replace('copy forensic_record', `copy ${NAMES[table]}`)}; commit`;
  const began = performance.now();
  let last: Promise<void> = Promise.resolve();
  for (const copy of copies) {
    const before = last;
    last = pipeline.run(sql, [copy]);
    await before;
  }
  await last;
  const seconds = (performance.now() - began) / 1000;
  await pipeline.end();
  return ROUND / seconds;
}

/** Milliseconds of one statement as the role of requests, planned each time as in the program, in turn. */
async function reads(client: pg.Client, records: number): Promise<Figure[]> {
  const figures: Figure[] = [];
  const statements: Record<string, (table: string, n: number) => [string, unknown[]]> = {
    'a decision by its id': (table, n) => [
      `select line from ${table} where tenant_id = $1 and event_id = $2`,
      [`sizes_${tenantOf((n * 31) % records)}`, `evt_${String((n * 31) % records).padStart(12, '0')}`],
    ],
    'a page of an agent': (table, n) => [
      `select line from ${table} where tenant_id = $1 and agent_h = $2 order by seq desc limit 100`,
      [`sizes_${n % TENANTS}`, idHash(`agt_01j9z8q4m2n7x${n % 500}`)],
    ],
    'the newest page': (table, n) => [
      `select line from ${table} where tenant_id = $1 order by seq desc limit 100`,
      [`sizes_${n % TENANTS}`],
    ],
  };
  for (const [what, statement] of Object.entries(statements)) {
    const times: Record<Table, number[]> = { plain: [], parted: [] };
    for (let n = 0; n < 400; n++) {
      for (const table of ['plain', 'parted'] as const) {
        const [text, values] = statement(NAMES[table], n);
        await client.query(
          `begin; set local role svc_app; set local app.tenant = ${pg.escapeLiteral(values[0] as string)}`,
        );
        const began = performance.now();
        await client.query(text, values);
        times[table].push(performance.now() - began);
        await client.query('commit');
      }
    }
    figures.push(figure(`${what}, one table`, median(times.plain), 'ms'));
    figures.push(figure(`${what}, partitions`, median(times.parted), 'ms'));
  }
  return figures;
}
