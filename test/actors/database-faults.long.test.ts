import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { svc } from '../cli/svc.ts';
import { noPostgres15, Postgres15 } from '../helpers/postgres15.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { until } from '../helpers/until.ts';
import { SIEGE } from '../siege/rounds.ts';

/**
 * A server on a PostgreSQL that fails: no fault of it ends the process or is answered with 500, what was acknowledged is
 * there, and the server goes on by itself afterwards.
 */
describe.skipIf(noPostgres15)('a database that fails', () => {
  /** Its limits are what is shown here. */
  const USUAL = { SVC_PATIENCE: '1' };
  let database: Postgres15;
  const env = () => ({
    DATABASE_URL: database.url,
    SVC_MASTER_KEY: MASTER_KEY,
    SVC_BASE_URL: 'http://127.0.0.1:1',
    ...USUAL,
  });
  let server: ServerProcess;
  let tenant: { tenant_id: string; api_key: string };
  let admin: { authorization: string; 'content-type': string };
  let counter = 0;
  /** Ids of the events that were acknowledged. */
  const acknowledged = new Set<string>();

  beforeAll(async () => {
    database = await Postgres15.start();
    server = new ServerProcess('faults', env());
    await server.start();
    const made = await svc(
      0,
      env(),
      ...['tenant', 'create', '--name', 'T', '--admin-email', 'a@example.com', '--json'],
    );
    tenant = made.json();
    admin = { authorization: `Bearer ${tenant.api_key}`, 'content-type': 'application/json' };
  });
  afterAll(async () => {
    await server?.dispose();
    await database?.stop();
  });

  const call = async (method: string, path: string, body?: unknown) => {
    const began = performance.now();
    const response = await fetch(server.url + path, {
      method,
      headers: admin,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, text, ms: performance.now() - began };
  };

  const ingest = async () => {
    const event_id = `e${++counter}`;
    const answer = await call('POST', '/v1/events/ingest', {
      events: [
        {
          event_id,
          event_type: 'decision.allow',
          timestamp: '2026-01-31T12:00:00.000Z',
          proxy_id: 'p',
          agent_role: 'clerk',
          agent_id: 'a',
          session_id: 's',
          tool_name: 't',
          method: 'GET',
          decision: 'allow',
          policy_id: '',
        },
      ],
    });
    if (answer.status === 202) acknowledged.add(event_id);
    return answer;
  };

  /** One request of each kind: fast path, entity reads and writes, raw reads. */
  const requests = [
    ingest,
    () => call('GET', '/v1/events?limit=5'),
    () => call('GET', '/v1/policies'),
    () => call('POST', '/v1/policies', { id: `p${++counter}`, dsl_source: 'permit(principal, action, resource);' }),
    () => call('GET', '/v1/audit?limit=1'),
    () => call('PATCH', '/v1/settings', { poll_seconds: 10 + (++counter % 50) }),
    () => call('POST', '/v1/keys', { label: 'k', scopes: ['proxy'] }),
    () => call('GET', '/v1/forensics/verify'),
    () => call('GET', '/auth/me'),
  ];

  /** Calls everything over and over until `stop`; gives the statuses and the requests that were answered wrongly. */
  function load() {
    const seen = new Map<number, number>();
    const wrong: string[] = [];
    let running = true;
    const workers = requests.map(async (request) => {
      while (running) {
        const { status, headers, text } = await request().catch((error: Error) => ({
          status: 0,
          headers: new Headers(),
          text: String(error.cause ?? error),
        }));
        seen.set(status, (seen.get(status) ?? 0) + 1);
        const fine = status < 400 || (status === 503 && Number(headers.get('retry-after')) >= 1);
        if (!fine && wrong.length < 10) wrong.push(`${status} ${text.slice(0, 300)}`);
        await delay(SIEGE ? 5 : 25);
      }
    });
    return {
      async stop() {
        running = false;
        await Promise.all(workers);
        expect(wrong).toEqual([]);
        return seen;
      },
    };
  }

  /** Waits until every kind of request is served again. */
  async function recovered(): Promise<void> {
    let statuses: number[] = [];
    await until(
      async () => {
        statuses = (await Promise.all(requests.map((request) => request()))).map(({ status }) => status);
        return statuses.every((status) => status < 300);
      },
      () => `every request is served (${statuses}): ${server.output.slice(-2000)}`,
      { everyMs: 100 },
    );
    expect(server.ended, server.output.slice(-3000)).toBe(false);
  }

  async function expectAllStored(): Promise<void> {
    const stored = await database.query<{ event_id: string }>('select event_id from forensic_record');
    const ids = new Set(stored.map(({ event_id }) => event_id));
    expect([...acknowledged].filter((id) => !ids.has(id))).toEqual([]);
    expect(JSON.parse((await call('GET', '/v1/forensics/verify')).text)).toMatchObject({ verified: true });
  }

  test('every connection is cut, again and again, under load', async () => {
    const running = load();
    for (let i = 0; i < 8; i++) {
      await delay(150);
      await database.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where datname = 'svc' and pid <> pg_backend_pid()`,
      );
    }
    await running.stop();
    await recovered();
    await expectAllStored();
  });

  test('the server is killed and comes back', async () => {
    const running = load();
    await delay(300);
    await database.kill();
    await delay(1500);
    const ready = await fetch(`${server.url}/readyz`);
    expect([ready.status, ((await ready.json()) as { reason: string }).reason]).toEqual([
      503,
      'the database does not answer',
    ]);
    // what pages a person says since when, also where everything is refused at once
    await delay(2500);
    expect(await server.metric('svc_chain_unacknowledged_seconds')).toBeGreaterThan(3.5);
    await database.restart();
    await delay(500);
    const seen = await running.stop();
    expect(seen.get(503)).toBeGreaterThan(0);
    await recovered();
    expect(await server.metric('svc_chain_unacknowledged_seconds')).toBe(0);
    await expectAllStored();
    expect((await fetch(`${server.url}/readyz`)).status).toBe(200);
  });

  test('commits that wait for a standby that is gone are answered 503 in time, and the readiness says so', async () => {
    await recovered();
    await database.query(`alter system set synchronous_standby_names = 'nobody'`);
    await database.query('select pg_reload_conf()');
    await delay(200);
    const answers = await Promise.all([
      ingest(),
      call('POST', '/v1/policies', { id: 'late', dsl_source: 'permit(principal, action, resource);' }),
      call('POST', '/v1/keys', { label: 'late', scopes: ['proxy'] }),
    ]);
    expect(answers.map(({ status, headers }) => [status, headers.has('retry-after')])).toEqual(
      answers.map(() => [503, true]),
    );
    // reads go on
    expect((await call('GET', '/v1/policies')).status).toBe(200);
    const ready = await fetch(`${server.url}/readyz`);
    expect([ready.status, ((await ready.json()) as { reason: string }).reason]).toEqual([
      503,
      'the database does not acknowledge writes',
    ]);
    await database.query('alter system reset synchronous_standby_names');
    await database.query('select pg_reload_conf()');
    await recovered();
    await expectAllStored();
    expect((await fetch(`${server.url}/readyz`)).status).toBe(200);
  });

  test('one tenant whose shard is away or whose head is locked refuses no other', async () => {
    const made = await svc(
      0,
      env(),
      ...['tenant', 'create', '--name', 'Other', '--admin-email', 'b@example.com', '--json'],
    );
    const other = made.json<{ tenant_id: string; api_key: string }>();
    const both = async () => {
      const mine = ingest();
      const own = admin;
      admin = { ...admin, authorization: `Bearer ${other.api_key}` };
      const theirs = ingest();
      admin = own;
      return [(await mine).status, (await theirs).status];
    };
    expect(await both()).toEqual([202, 202]);
    // what Citus says of a worker that does not answer, while the connection to the coordinator lives
    await database.query(
      `create function away() returns trigger language plpgsql as $$ begin
         if new.tenant_id = '${other.tenant_id}' then
           raise exception 'connection to the remote node failed' using errcode = '08006'; end if;
         return new; end $$;
       create trigger away before insert on forensic_record for each row execute function away();`,
    );
    for (let i = 0; i < 5; i++) expect(await both()).toEqual([202, 503]);
    await database.query('drop trigger away on forensic_record');
    expect(await both()).toEqual([202, 202]);

    const locker = new pg.Client(database.url);
    await locker.connect();
    await locker.query('begin');
    await locker.query('select 1 from chain_head where tenant_id = $1 for update', [other.tenant_id]);
    expect(await both()).toEqual([202, 503]);
    await locker.end();
    expect(await both()).toEqual([202, 202]);
    await expectAllStored();
  });
});
