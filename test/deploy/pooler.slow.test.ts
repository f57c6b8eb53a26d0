import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RequestClient } from '../../db/client.ts';
import { Member } from '../../db/entities/index.ts';
import { type Database, migrate, openDatabase } from '../../db/index.ts';
import { connectSession } from '../../db/session.ts';
import { svcHere } from '../cli/svc.ts';
import { deploy, event } from '../helpers/api.ts';
import { asAdmin, cloneTemplate, useDatabase } from '../helpers/database.ts';
import { noPgBouncer, PgBouncer } from '../helpers/pgbouncer.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { type Credential, useServer } from '../helpers/server.ts';
import { SIEGE } from '../siege/rounds.ts';

const SHARES = 'the database is behind a pooler that shares connections, as PgBouncer does in transaction mode';
const REMEDY = 'set DATABASE_SESSION_URL to PostgreSQL itself, or to a pool in session mode';

describe.skipIf(noPgBouncer)('with PgBouncer in front of the database', () => {
  const box = useDatabase();
  let bouncer: PgBouncer;
  let url: string;
  beforeAll(async () => {
    // anyone who comes gets the same connection of PostgreSQL
    bouncer = await PgBouncer.start(box.url, { connections: 1 });
    url = bouncer.url(box.url);
  });
  afterAll(() => bouncer?.stop());

  /** As another client of the pool, in one statement after the other. */
  async function asOther<T>(work: (client: pg.Client) => Promise<T>): Promise<T> {
    const client = new pg.Client(url);
    client.on('error', () => undefined);
    await client.connect();
    try {
      return await work(client);
    } finally {
      await client.end();
    }
  }
  const lockCount = async () =>
    (
      await box.db.owner.query(`select 1 from pg_locks where locktype = 'advisory' and database =
      (select oid from pg_database where datname = current_database())`)
    ).rowCount;

  describe('and no address past it', () => {
    test('the server does not start and says what to set', async () => {
      const server = new ServerProcess('pooled', { DATABASE_URL: url });
      await server.spawn();
      await server.exited();
      expect(server.exitCode).toBe(1);
      expect(server.output.trim()).toBe(`${SHARES}: ${REMEDY}`);
      await server.dispose();
    });

    test('no lock is left behind, and the commands say the same', async () => {
      await expect(migrate(url)).rejects.toThrow(SHARES);
      const env = { DATABASE_URL: url, SVC_MASTER_KEY: MASTER_KEY };
      expect((await svcHere(1, env, 'migrate')).stderr).toContain(`${SHARES}: ${REMEDY}`);
      expect((await svcHere(1, env, 'tenant', 'list')).stderr).toContain(REMEDY);
      const { stdout } = await svcHere(1, env, 'doctor');
      expect(stdout).toContain(`FAIL  pooler           ${SHARES}\n${' '.repeat(22)} -> ${REMEDY}`);
      expect(stdout).not.toContain('FAIL  database');
      expect(await lockCount()).toBe(0);
    });
  });

  test('a pooler that takes its connections in turn shares them as well', async () => {
    const turning = await PgBouncer.start(box.url, { connections: 2, settings: 'server_round_robin = 1' });
    const clients = [0, 1].map(() => new pg.Client(turning.url(box.url)));
    try {
      // both of its connections are open, and idle afterwards
      for (const client of clients) await client.connect();
      for (const client of clients) await client.query('begin');
      for (const client of clients) await client.query('commit');
      await expect(connectSession(turning.url(box.url))).rejects.toThrow(SHARES);
    } finally {
      for (const client of clients) await client.end();
      await turning.stop();
    }
  });

  test('sessions that are opened together do not wait for each other, however few connections the pool has', async () => {
    const few = await PgBouncer.start(box.url, { mode: 'session', connections: 4 });
    try {
      const opened = await Promise.all([0, 1, 2].map(() => connectSession(few.url(box.url))));
      for (const client of opened) await client.end();
    } finally {
      await few.stop();
    }
  });

  test('of several poolers behind one address, any may be met: those that share are refused as sessions, the others serve', async () => {
    const poolers: PgBouncer[] = [];
    const closed: (() => void)[] = [];
    const behindOneAddress = async (mode: 'transaction' | 'session', connections: number) => {
      const ports: number[] = [];
      for (let n = 0; n < 2; n++) {
        const one = await PgBouncer.start(box.url, { mode, connections });
        poolers.push(one);
        ports.push(Number(new URL(one.url(box.url)).port));
      }
      let next = 0;
      const balancer = createServer((from) => {
        const to = connect(ports[next++ % ports.length]!, '127.0.0.1');
        for (const [one, other] of [
          [from, to],
          [to, from],
        ] as const) {
          one.on('error', () => other.destroy());
          one.on('close', () => other.destroy());
          one.pipe(other);
        }
      });
      balancer.listen(0, '127.0.0.1');
      await once(balancer, 'listening');
      closed.push(() => balancer.close());
      const address = new URL(box.url);
      address.host = `127.0.0.1:${(balancer.address() as AddressInfo).port}`;
      return address.href;
    };
    try {
      const requests = await behindOneAddress('transaction', 1);
      await expect(connectSession(requests)).rejects.toThrow(SHARES);
      const sessionUrl = await behindOneAddress('session', 20);
      const db = await openDatabase(requests, { sessionUrl, poolSize: 4 });
      try {
        await db.owner.query(`insert into tenant values ('many', 'many', '{}', now())`);
        const told: string[] = [];
        db.notices.on('settings', ({ tenantId }) => told.push(tenantId));
        const change = () => db.transaction('many', async (_, notify) => notify('settings'));
        await Promise.all(Array.from({ length: 8 }, change));
        expect(told.filter((id) => id === 'many').length).toBeGreaterThanOrEqual(8);
        const seen = await Promise.all(
          Array.from({ length: 8 }, () => db.query<{ id: string }>('many', 'select tenant_id as id from tenant')),
        );
        expect(seen).toEqual(Array.from({ length: 8 }, () => [{ id: 'many' }]));
      } finally {
        await db.close();
      }
    } finally {
      for (const close of closed) close();
      for (const one of poolers) await one.stop();
    }
  });

  test('an address that leads past it to another database is refused', async () => {
    const other = await cloneTemplate('pooled_other');
    try {
      const different = 'DATABASE_URL and DATABASE_SESSION_URL lead to different databases';
      await expect(openDatabase(url, { sessionUrl: other })).rejects.toThrow(different);
      const env = { DATABASE_URL: url, DATABASE_SESSION_URL: other, SVC_MASTER_KEY: MASTER_KEY };
      expect((await svcHere(1, env, 'doctor')).stdout).toMatch(new RegExp(`^FAIL +pooler +${different}$`, 'm'));
    } finally {
      await asAdmin('drop database pooled_other with (force)');
    }
  });

  test('the doctor knows the pooler, and a pool in session mode is as good as PostgreSQL itself', async () => {
    const sessions = await PgBouncer.start(box.url, { mode: 'session' });
    try {
      const sessionUrl = sessions.url(box.url);
      const env = { DATABASE_URL: url, DATABASE_SESSION_URL: sessionUrl, SVC_MASTER_KEY: MASTER_KEY };
      const { stdout } = await svcHere(1, env, 'doctor');
      expect(stdout).toMatch(
        /^ok +pooler +DATABASE_SESSION_URL leads to sessions of the same database; DATABASE_URL shares/m,
      );
      expect(stdout).toMatch(/^ok +connections .*; a process holds up to 12 past the pooler$/m);
      await migrate(sessionUrl);
      const db = await openDatabase(url, { sessionUrl, poolSize: 2 });
      try {
        const heard = new Promise((resolve) =>
          db.notices.on('settings', ({ tenantId }) => tenantId === 'x' && resolve(1)),
        );
        // answered by the listener behind the pool in session mode, within the two seconds that one waits for it
        await box.db.transaction('x', (_, notify) => notify('settings'));
        await heard;
      } finally {
        await db.close();
      }
    } finally {
      await sessions.stop();
    }
  });

  describe('whose one connection all clients share', () => {
    let db: Database;
    beforeAll(async () => {
      db = await openDatabase(url, { sessionUrl: box.url, poolSize: 4 });
      for (const id of ['a', 'b']) {
        await db.owner.query('insert into tenant values ($1, $1, $2, $3)', [id, '{}', new Date()]);
        await db.transaction(id, async (em) => {
          const more = { email: `${id}@x.test`, name: id, roles: ['admin'], createdAt: new Date() };
          em.create(Member, { tenantId: id, id: `u_${id}`, ...more });
        });
      }
    });
    afterAll(() => db?.close());

    const LEFT = `select current_user as role, current_setting('app.tenant', true) as tenant,
      current_setting('lock_timeout') as lock, current_setting('statement_timeout') as statement, pg_backend_pid() as pid`;
    const membersOf = async (tenantId: string) => ({
      entities: (await db.reader(tenantId).find(Member, {}, { filters: false })).map(({ id }) => id),
      rows: (await db.query<{ id: string }>(tenantId, 'select id from member')).map(({ id }) => id),
    });
    const own = (tenantId: string) => ({ entities: [`u_${tenantId}`], rows: [`u_${tenantId}`] });

    test.each([
      ['a transaction', () => db.transaction('a', (em) => em.find(Member, {}))],
      ['a read', () => db.readOnly('a', (client) => client.query('select 1'))],
      ['an entity manager', () => db.reader('a').find(Member, {})],
      ['one that failed', () => db.transaction('a', (em) => em.execute('select 1/0')).catch(() => undefined)],
      [
        'one that was given up',
        () => db.transaction('a', () => Promise.reject(new Error('no'))).catch(() => undefined),
      ],
    ])('%s leaves neither role nor tenant behind', async (_, work) => {
      const before = await asOther(async (client) => (await client.query(LEFT)).rows[0]);
      await work();
      const after = await asOther(async (client) => (await client.query(LEFT)).rows[0]);
      // the same connection of PostgreSQL
      expect(after.pid).toBe(before.pid);
      expect(after).toMatchObject({ role: 'svc_owner', lock: '0', statement: '0' });
      // set once, it is empty and no longer absent
      expect(after.tenant ?? '').toBe('');
    });

    test('nor does a process that dies within one', async () => {
      const dying = new RequestClient(url);
      await dying.connect();
      await dying.query('begin');
      await dying.query(`select set_config('app.tenant', 'a', true)`);
      dying.cut();
      const [row] = (await asOther((client) => client.query(LEFT))).rows;
      expect(row).toMatchObject({ role: 'svc_owner' });
      expect(row.tenant ?? '').toBe('');
      expect(await membersOf('b')).toEqual(own('b'));
    });

    test.each([
      `set role svc_app; set app.tenant = 'b'`,
      `set app.tenant = 'b'; set row_security = off`,
      `begin; select set_config('app.tenant', 'b', false), set_config('role', 'svc_owner', false); commit`,
      `prepare set_tenant as select set_config('app.tenant', 'b', true)`,
      `create temp table member (tenant_id text, id text); insert into member values ('a', 'u_evil')`,
    ])('what another client leaves there changes nothing for a request: %s', async (left) => {
      try {
        await asOther((client) => client.query(left));
        const [a, b, none] = await Promise.allSettled([membersOf('a'), membersOf('b'), membersOf('c')]);
        // an error is as good as one's own rows: nobody sees those of others
        for (const [seen, rows] of [
          [a, own('a')],
          [b, own('b')],
          [none, { entities: [], rows: [] }],
        ] as const) {
          if (seen.status === 'fulfilled') expect(seen.value).toEqual(rows);
          else expect(String(seen.reason)).toMatch(/row-level security|permission denied/);
        }
      } finally {
        await asOther((client) => client.query('discard all'));
      }
    });

    test('a statement of a request outside of a transaction is never sent', async () => {
      const client = new RequestClient(url);
      await client.connect();
      try {
        expect(() => client.query('select id from member')).toThrow('outside of a transaction');
        await client.query('begin');
        const { rows } = (await client.query('select current_user as role')) as pg.QueryResult;
        expect(rows).toEqual([{ role: 'svc_app' }]);
        await client.query('commit');
        expect(() => client.query('select id from member')).toThrow('outside of a transaction');
      } finally {
        await client.end();
      }
    });

    test('many requests of tenants and jobs at once each see their own', async () => {
      const works = Array.from({ length: 80 }, async (_, n) => {
        const tenantId = n % 3 === 0 ? 'a' : 'b';
        if (n % 7 === 0) {
          const { rows } = await db.owner.query<{ role: string; n: number }>(
            'select current_user as role, count(*)::int as n from member',
          );
          expect(rows).toEqual([{ role: 'svc_owner', n: 2 }]);
        } else expect(await membersOf(tenantId)).toEqual(own(tenantId));
      });
      await Promise.all(works);
    });
  });
});

describe.skipIf(noPgBouncer)('a server behind PgBouncer with three connections', () => {
  const server = noPgBouncer ? undefined! : useServer({}, { pooled: true });

  test('serves what it serves without, to more tenants at once than it has connections', async () => {
    const POLICY = `
@id("read") permit(principal, action, resource == Tool::"read");
@id("pay") @escrow("single") @ttl("1h") permit(principal, action, resource == Tool::"pay");
@id("wipe") forbid(principal, action, resource == Tool::"wipe");`;
    const flow = async () => {
      const tenant = await server.tenant();
      const [admin, approver] = await Promise.all([tenant.person('admin'), tenant.person('approver')]);
      const agent = await tenant.agent('bot', 'clerk');
      await deploy(server, tenant.admin, 'desk', POLICY);
      const ask = async (tool_name: string, more = {}) =>
        (
          await server.call<{ decision: string; escrow?: { id: string } }>(200, 'POST /v1/evaluate', agent, {
            action_type: 'tool_call',
            tool_name,
            ...more,
          })
        ).body;
      expect((await ask('wipe')).decision).toBe('deny');
      const reads = await Promise.all(Array.from({ length: 20 }, () => ask('read')));
      expect(reads.every(({ decision }) => decision === 'allow')).toBe(true);
      const { escrow } = await ask('pay');
      const vote = { decision: 'approve', reason: 'as agreed' };
      await server.call(200, `POST /v1/escrow/${escrow!.id}/vote`, approver, vote);
      expect((await ask('pay', { resume: true })).decision).toBe('allow');
      const proxy: Credential = await tenant.key('proxy');
      const events = Array.from({ length: 50 }, () => event());
      await server.call(202, 'POST /v1/events/ingest', proxy, { events });
      // answered when every process has heard of it
      await server.call(200, 'PATCH /v1/settings', admin, { poll_seconds: 7, reason: 'sooner' });
      const list = await server.call<{ events: unknown[] }>(200, 'GET /v1/events?limit=200', tenant.admin);
      expect(list.body.events).toHaveLength(1 + 20 + 2 + 50);
      for (const what of ['forensics', 'audit']) {
        const { body } = await server.call<{ verified: boolean }>(200, `GET /v1/${what}/verify`, tenant.admin);
        expect(body.verified).toBe(true);
      }
      await server.call(201, 'POST /v1/forensics/export', admin, { purpose: 'look' });
    };
    const flows = await Promise.allSettled(Array.from({ length: SIEGE ? 8 : 4 }, flow));
    expect(server.logged.filter((line) => line.includes('"level":50'))).toEqual([]);
    expect(flows.filter(({ status }) => status === 'rejected')).toEqual([]);
  });
});
