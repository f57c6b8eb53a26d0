import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Database, migrate, openDatabase } from '../../db/index.ts';
import { Cluster } from '../../deploy/drill/cluster.ts';
import { setPatience } from '../../server/lib/patience.ts';
import { event } from '../helpers/api.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { noPostgres15 } from '../helpers/postgres15.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { SynchronousStandby } from '../helpers/synchronous-standby.ts';

/** What the program leaves on a server whose synchronous standby is away, and what it takes for one that is there. */
describe.skipIf(noPostgres15)('without the synchronous standby', () => {
  let cluster: Cluster;
  let standby: SynchronousStandby;
  let db: Database;
  beforeAll(async () => {
    // a busy machine gets from one step to the next within these limits, which are waited for here
    setPatience(3);
    cluster = await Cluster.plain();
    await migrate(cluster.url);
    await cluster.query('grant pg_read_all_stats to svc_owner');
    standby = await SynchronousStandby.of(cluster, 0);
    db = await openDatabase(cluster.url, { replicated: true });
  });
  afterAll(async () => {
    await standby?.stop();
    await db?.close();
    await cluster?.stop();
    setPatience(PATIENCE);
  });
  const server = useServer(() => ({ DATABASE_URL: cluster.url, SVC_DURABILITY: 'replicated' }), {
    database: () => cluster.url,
  });
  let tenant: TestTenant;

  const eventually = (work: () => unknown) => expect.poll(work, { interval: 100 });
  const authorization = (of = tenant) => ({ authorization: `Bearer ${of.admin.key}` });
  const ingestOf = async (of: TestTenant) => {
    const headers = { ...authorization(of), 'content-type': 'application/json' };
    const body = JSON.stringify({ events: [event()] });
    return (await fetch(`${server.url}/v1/events/ingest`, { method: 'POST', headers, body })).status;
  };
  const ingest = () => ingestOf(tenant);
  const read = async () => (await fetch(`${server.url}/v1/events?limit=5`, { headers: authorization() })).status;
  /** A commit of this session waits for nobody. */
  const alone = (text: string) => cluster.query(`set synchronous_commit = local; ${text}`);
  /** Gives jobs something to write for the tenant: heads to settle, blocks to summarize, events to fan out. */
  const leaveWork = () =>
    alone(`update chain_head set unsigned = true, unsummarized = chain = 'forensics' where tenant_id = '${tenant.id}';
      update event_outbox set fanned_out_at = null`);
  /** Resolves when no job has anything to write to the tenant's chains. */
  const settled = async ({ id }: TestTenant) => {
    const left = 'select from chain_head where tenant_id = $1 and (unsigned or unsummarized)';
    await eventually(() => cluster.query(left, [id])).toEqual([]);
  };
  /** Whether the server knows of a standby. Unlike its readiness, which tries a write, this says so at once. */
  const standbys = async () =>
    /^svc_database_synchronous_standby ([01])$/m.exec(await (await fetch(`${server.url}/metrics`)).text())?.[1];
  /** Resolves to the time at which the server knows that there is none. */
  const known = async () => {
    await eventually(standbys).toBe('0');
    const since = new Date(Date.now());
    expect((await fetch(`${server.url}/readyz`)).status).toBe(503);
    return since;
  };
  /** Whether the commit of a group of records waits for the standby. */
  const groupWaits = async () => {
    const rows = await cluster.query(
      `select from pg_stat_activity
       where datname = 'svc' and wait_event = 'SyncRep' and query like '%copy forensic_record%'`,
    );
    return rows.length > 0;
  };
  /** What began before that time stays until it is back, but nothing else comes to wait. */
  const staysAsItIs = async (since: Date) => {
    for (let n = 0; n < 11; n++) {
      await delay(1000);
      expect(await waiting(since)).toEqual([]);
      expect(await read()).toBe(200);
    }
  };
  /** Statements of transactions that wait for the standby, or for one of them, and began after that time. */
  const waiting = async (since: Date) => {
    const rows = await cluster.query<{ query: string }>(
      `select query from pg_stat_activity where datname = 'svc' and backend_type = 'client backend'
         and (wait_event = 'SyncRep' or wait_event_type = 'Lock') and xact_start > $1`,
      [since],
    );
    return rows.map(({ query }) => query);
  };

  test('jobs with work to do leave no more backends that wait for one that is gone, and reads go on', async () => {
    tenant = await server.tenant();
    expect(await ingest()).toBe(202);
    await leaveWork();
    await standby.kill();
    const since = await known();
    await eventually(() => db.replication!.missing).toBe('none of synchronous_standby_names is streaming');
    expect(await ingest()).toBe(503);
    // each of those jobs runs at least once in ten seconds
    await staysAsItIs(since);
    await standby.start();
    await eventually(ingest).toBe(202);
    // what was left is done
    await eventually(() => cluster.query('select from chain_head where unsummarized')).toEqual([]);
    await eventually(() => cluster.query('select from event_outbox where fanned_out_at is null')).toEqual([]);
  });

  test('one that keeps its connection and confirms nothing counts as missing, before many wait for it', async () => {
    // nothing but its records locks this one's chain
    const other = await server.tenant();
    expect(await ingestOf(other)).toBe(202);
    await settled(other);
    await leaveWork();
    standby.pause();
    // a commit that waits, whatever the jobs do
    const stuck = cluster.query('create table stuck ()');
    try {
      // the absence is known some 8 s after that commit began to wait, and the chain's writer gives its transaction up after 15 s,
      // and its connection with it
      await delay(1000);
      let answered = false;
      const began = ingestOf(other).finally(() => {
        answered = true;
      });
      await eventually(groupWaits).toBe(true);
      expect(await standbys()).toBe('1');
      const since = await known();
      expect(answered).toBe(false);
      await eventually(() => db.replication!.missing).toBe('commits wait for one that does not confirm them');
      expect(await waiting(new Date(0))).not.toEqual([]);
      expect(await ingest()).toBe(503);
      await staysAsItIs(since);
      expect(await began).toBe(503);
    } finally {
      standby.resume();
    }
    await stuck;
    await eventually(() => db.replication!.missing).toBe(undefined);
    await eventually(() => waiting(new Date(0))).toEqual([]);
    await eventually(ingest).toBe(202);
  });

  test('a login whose new sessions would not wait for it is seen, and changes wait whatever the login says', async () => {
    await alone(`alter role svc_owner set synchronous_commit = local`);
    const later = await openDatabase(cluster.url);
    try {
      await eventually(() => db.replication!.missing).toBe('synchronous_commit is local');
      const asked = await later.transaction('t', (em) => em.execute<object[]>('show synchronous_commit'));
      expect(asked).toEqual([{ synchronous_commit: 'on' }]);
    } finally {
      await later.close();
      await alone('alter role svc_owner reset synchronous_commit');
    }
    await eventually(() => db.replication!.missing).toBe(undefined);
  });

  test('a server that is not heard counts as one without', async () => {
    setPatience(1);
    const before = performance.now();
    await cluster.kill(0);
    await eventually(() => db.replication!.missing).toBe('it has not said for 5 s whether there is one');
    expect(performance.now() - before).toBeGreaterThan(3000);
    expect(() => db.replication!.assert('t')).toThrow('no synchronous standby: it has not said for 5 s');
  });
});
