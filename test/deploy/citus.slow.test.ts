import { execFile } from 'node:child_process';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lookingFor } from '../../db/citus.ts';
import { migrate, openDatabase } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import { Cluster, noCitus } from '../../deploy/drill/cluster.ts';
import { Fenced } from '../../server/actors/host.ts';
import type { RedisHost } from '../../server/actors/redis.ts';
import { appenderOn, eventsOf, verdictOf } from '../chain/helpers.ts';
import { svcHere } from '../cli/svc.ts';
import {
  allowed,
  BODIES,
  deploy,
  document,
  event,
  fill,
  GUARD,
  idOf,
  makeWorld,
  operations,
  queryOf,
  type World,
} from '../helpers/api.ts';
import { useUsualLimits } from '../helpers/patience.ts';
import { noPgBouncer, PgBouncer } from '../helpers/pgbouncer.ts';
import { Receiver } from '../helpers/receiver.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { type TestServer, type TestTenant, useServer } from '../helpers/server.ts';
import { listen } from '../helpers/stream.ts';
import { ROUNDS, SIEGE } from '../siege/rounds.ts';

const eventually = (work: () => Promise<unknown>) => expect.poll(work, { interval: 100 });
/** As deploy/drill/citus.ts prints it. */
type Round = Record<'longest_gap_ms' | 'others_gap_ms' | 'longest_answer_ms', number> & { fault: string };

/** A process beside each of two nodes with Citus, and a coordinator. */
const absent = noCitus() ?? noRedis ?? noPgBouncer;
if (absent !== undefined) console.warn(`SKIPPED: tests on Citus, because ${absent}`);

describe.skipIf(absent !== undefined)('Citus', () => {
  // what is asked of a node that hangs is waited for
  useUsualLimits();
  let cluster: Cluster;
  let redis: TestRedis;
  let pooler: PgBouncer;
  let migrated: Awaited<ReturnType<typeof migrate>>;
  beforeAll(async () => {
    redis = await TestRedis.start();
    const settings = { session_preload_libraries: 'auto_explain', 'auto_explain.log_min_duration': '0' };
    cluster = await Cluster.start({ nodes: 2, shards: 4, settings });
    migrated = await migrate(cluster.url);
    pooler = await PgBouncer.start(cluster.url, { connections: 10 });
  });
  afterAll(async () => {
    await pooler?.stop();
    await cluster?.stop();
    await redis?.stop();
  });
  const beside = (node: number) =>
    useServer(
      () => ({
        DATABASE_URL: cluster.url,
        DATABASE_NODE_URL: cluster.urlOf(node),
        REDIS_URL: redis.url,
        SVC_EGRESS_ALLOW: '127.0.0.1/32',
      }),
      { database: () => cluster.url },
    );
  const server = beside(1);
  const second = beside(2);
  /** Beside none of them, behind PgBouncer in transaction mode. */
  const pooled = useServer(
    () => ({
      DATABASE_URL: pooler.url(cluster.url),
      DATABASE_SESSION_URL: cluster.url,
      REDIS_URL: redis.url,
      SVC_EGRESS_ALLOW: '127.0.0.1/32',
    }),
    { database: () => cluster.url },
  );
  /** A tenant on each node. */
  const onNodes = async () => {
    const on = new Map<number, TestTenant>();
    while (on.size < 2) {
      const tenant = await server.tenant();
      on.set(await cluster.nodeOf(tenant.id), tenant);
    }
    return on;
  };
  const ingest = async (to: TestServer, tenant: TestTenant, event_id: string) => {
    const response = await fetch(`${to.url}/v1/events/ingest`, {
      method: 'POST',
      headers: { authorization: `Bearer ${tenant.admin.key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ events: [event({ event_id })] }),
    });
    return { status: response.status, again: response.headers.has('retry-after') };
  };
  const ok = { status: 202, again: false };
  const ownedBy = (one: TestServer) => (one.core.actors as RedisHost<unknown, object, object>).owned;

  /** Made before anything else is asked of the server, so that what follows has all to look at. */
  let world: World;
  beforeAll(async () => {
    world = await makeWorld(server);
  });

  test('is seen by migrate, which spreads every table of tenants, beside each other, and does nothing the second time', async () => {
    expect(migrated.citus).toMatchObject({ nodes: 2 });
    const { rows } = await server.core.db.owner.query<{ name: string; kind: string; group: number }>(
      `select c.relname as name, coalesce(t.citus_table_type, 'local') as kind, coalesce(t.colocation_id, 0) as group
       from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
       left join citus_tables t on t.table_name = c.oid
       where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace`,
    );
    const spread = rows.filter(({ kind }) => kind === 'distributed');
    const others = rows.filter((row) => !spread.includes(row)).map(({ name, kind }) => `${name} ${kind}`);
    expect(others.sort()).toEqual(['former_key reference', 'plain_callback reference', 'verified_domain reference']);
    expect(new Set(spread.map(({ group }) => group)).size).toBe(1);
    expect([...migrated.citus!.tables].sort()).toEqual(rows.map(({ name }) => name).sort());
    expect(await migrate(cluster.url)).toEqual({ ran: [], citus: { ...migrated.citus, spread: true, tables: [] } });
  });

  test('serves every reading route, and what writes', async () => {
    const { adminKey, admin, agent } = world.credential;
    await server.call(200, 'PUT /v1/policies/guard', admin, BODIES['PUT /v1/policies/{id}']);
    await server.call(200, 'POST /v1/proxies/heartbeat', adminKey, BODIES['POST /v1/proxies/heartbeat']);
    const ofSession = { events: [event({ session_id: 'session-1' })] };
    await server.call(202, 'POST /v1/events/ingest', adminKey, ofSession);
    for (const operation of operations.filter(({ method }) => method === 'GET')) {
      const { line, path, access } = operation;
      // links of mails, and the routes that send a browser on
      const { responses } = document.paths[path]!.get as unknown as { responses: object };
      if (['/auth/magic-link/verify', '/auth/invite'].includes(path) || !('200' in responses)) continue;
      const query = queryOf(path);
      const ids: Record<string, string> = path.includes('{id}')
        ? { id: idOf(world, path), delivery_id: world.delivery }
        : { proxy_id: 'proxy-1' };
      await server.call(200, fill(line, ids) + query, access.public ? undefined : allowed(world, operation));
    }
    for (const [status, line, who, body] of [
      [201, 'POST /v1/policies', adminKey, BODIES['POST /v1/policies']],
      [200, 'POST /v1/policies/guard/rollback', adminKey, { target_version: 1 }],
      [200, 'PATCH /v1/settings', adminKey, { poll_seconds: 9 }],
      [201, 'POST /v1/agent-keys', adminKey, BODIES['POST /v1/agent-keys']],
      [200, 'POST /v1/evaluate', agent, BODIES['POST /v1/evaluate']],
      [200, 'POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name: 'pay', estimated_value: 3 }],
      [202, 'POST /v1/events/ingest', adminKey, { events: [event()] }],
      [201, 'POST /v1/forensics/export', admin, { purpose: 'x' }],
    ] as const) {
      await server.call(status, line, who, body);
    }
    const { body } = await server.call(200, 'GET /v1/forensics/verify', admin);
    expect(body).toMatchObject({ verified: true, linear: true });
    // two of different nodes look at the same time
    const tenants = [...(await onNodes()).values()];
    const streams = await Promise.all(tenants.map((tenant) => listen(server, tenant.admin)));
    for (const stream of streams) await stream.until('event: hello');
    for (const tenant of tenants) expect(await ingest(server, tenant, 'hinted')).toEqual(ok);
    for (const stream of streams) await stream.until('{"topic":"events"');
    for (const stream of streams) stream.leave();
  });

  test('compares every chain of every node with what is known, also those of which only a file tells', async () => {
    const inspected = async (at: TestServer) => {
      const before = at.logged.length;
      await at.core.checkpoints.inspectAll();
      return at.logged.slice(before).filter((line) => line.includes('could not be compared'));
    };
    // what was exported is signed, in files of the process that did it
    for (const at of [server, second]) expect(await inspected(at)).toEqual([]);
  });

  // what jobs ask to find out which tenants have something to do, and the looks over all tenants at the start. A statement that names
  // tenants is none of them, but for the look for chains of which only files tell
  const ACROSS = [
    /^select (?:distinct )?(?:[a-z]\.)?tenant_id\b(?!.*\bfor (?:update|share|no key))(?!.*(?<!not )\btenant_id = any\()/,
    /^select tenant_id, chain from chain_head where tenant_id = any\(\$1\)/,
    /^select \(extract\(epoch from min\(wake_at\)/,
    /^select distinct machine_version/,
    /"proxiesSilent"/,
  ];

  test('takes every statement to one node, as its plan says, but for reads of jobs; none locks rows on two', async () => {
    const statements = [0, 1, 2].flatMap((node) => plans(cluster.log(node)));
    expect(statements.filter(({ tasks }) => tasks.length === 1 && tasks[0] === 1).length).toBeGreaterThan(300);
    const across = statements
      .filter(({ tasks, text }) => tasks.some((count) => count !== 1) && !ACROSS.some((form) => form.test(text)))
      .map(({ text }) => text);
    expect([...new Set(across)]).toEqual([]);
  });

  const svc = (code: number, ...words: string[]) =>
    svcHere(
      code,
      {
        DATABASE_URL: cluster.url,
        DATABASE_NODE_URL: cluster.urlOf(2),
        SVC_DATA_DIR: server.dataDir,
        SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex'),
      },
      ...words,
    );

  test('is named by doctor and migrate; a backup of one moment is refused', async () => {
    const { stdout: found } = await svc(0, 'doctor');
    expect(found).toMatch(/^ok +Citus +13\.\S+ with 2 nodes$/m);
    expect(found).toMatch(/^ok +Citus +DATABASE_NODE_URL leads to a node/m);
    expect(found).toMatch(/; a process holds up to 24$/m);
    const { stdout } = await svc(0, 'migrate');
    expect(stdout).toMatch(/^Citus 13\.\S+: tenants are spread over 2 nodes\nnothing to do/);
    expect((await svc(1, 'backup', join(server.dataDir, 'b'))).stderr).toContain('tenants are on several servers');
  });

  test('row-level security holds on the nodes, no matter who connects to them', async () => {
    const other = await server.tenant();
    for (const node of [1, 2]) {
      const client = new pg.Client(cluster.urlOf(node, 'svc_app'));
      await client.connect();
      try {
        await client.query('set citus.override_table_visibility to off');
        const { rows: shards } = await client.query<{ name: string }>(
          `select relname as name from pg_class where relkind = 'r' and relname ~ '^(member|forensic_record|api_key)_\\d+$'`,
        );
        expect(shards.length).toBeGreaterThan(2);
        for (const { name } of shards) {
          await client.query('reset app.tenant');
          expect((await client.query(`select from ${name}`)).rowCount, name).toBe(0);
          await client.query(`select set_config('app.tenant', $1, false)`, [other.id]);
          const { rows } = await client.query<{ tenant_id: string }>(`select distinct tenant_id from ${name}`);
          expect(rows.filter(({ tenant_id }) => tenant_id !== other.id)).toEqual([]);
        }
        await client.query('reset app.tenant');
        const member = shards.find(({ name }) => name.startsWith('member'))!;
        expect((await client.query(`update ${member.name} set roles = '{admin}'`)).rowCount).toBe(0);
      } finally {
        await client.end();
      }
    }
    // through the coordinator, a tenant that is not said is no tenant
    expect(await server.core.db.query('nobody', 'select from member where tenant_id = $1', [other.id])).toEqual([]);
  });

  test('the process beside a node writes for its tenants, whichever is asked; it hands over one that moves', async () => {
    const on = await onNodes();
    const owned = () => [ownedBy(server), ownedBy(second)] as const;
    const before = owned();
    for (const tenant of on.values()) {
      for (const to of [server, second]) expect(await ingest(to, tenant, `${to.url} first`)).toEqual(ok);
    }
    expect(owned()).toEqual([before[0] + 1, before[1] + 1]);
    for (const { id } of on.values()) {
      for (const { core } of [server, second]) {
        const [row] = await core.db.query(id, 'select tenant_id from tenant where tenant_id = $1', [id]);
        expect(row).toEqual({ tenant_id: id });
        expect(await core.db.query('nobody', 'select from tenant where tenant_id = $1', [id])).toEqual([]);
      }
    }

    const moving = on.get(1)!;
    let moved = false;
    const sent: string[] = [];
    const load = [server, second].map(async (to, n) => {
      for (let i = 0; !moved || i < 5; i++) {
        const event_id = `moving-${n}-${i}`;
        await eventually(() => ingest(to, moving, event_id)).toEqual(ok);
        sent.push(event_id);
      }
    });
    await cluster.move(moving.id, 2);
    moved = true;
    await Promise.all(load);
    expect(await cluster.nodeOf(moving.id)).toBe(2);
    // and others that were in the same shard
    await eventually(async () => ownedBy(server) <= before[0]).toBe(true);
    await eventually(() => ingest(server, moving, 'after')).toEqual(ok);
    expect(ownedBy(server)).toBeLessThanOrEqual(before[0]);
    const { rows } = await second.core.db.owner.query<{ event_id: string }>(
      `select event_id from forensic_record where tenant_id = $1 and event_id like 'moving-%'`,
      [moving.id],
    );
    expect(rows.map(({ event_id }) => event_id).sort()).toEqual(sent.sort());
    const { body } = await second.call(200, 'GET /v1/forensics/verify', moving.admin);
    expect(body).toMatchObject({ verified: true, linear: true });
  });

  test('a process that is beside no node of this database does not start', async () => {
    for (const nodeUrl of [cluster.url, cluster.urlOf(1).replace(/svc$/, 'postgres')]) {
      await expect(openDatabase(cluster.url, { nodeUrl })).rejects.toThrow('DATABASE_NODE_URL does not lead to a node');
    }
  });

  test('PgBouncer in front of the coordinator serves; one in front of the node beside a process is refused', async () => {
    for (const tenant of (await onNodes()).values()) {
      const agent = await tenant.agent('agent-1', 'clerk');
      await deploy(pooled, tenant.admin, 'guard', GUARD);
      for (const [tool_name, decision] of [
        ['read', 'allow'],
        ['pay', 'escrow'],
        ['write', 'deny'],
      ]) {
        const { body } = await pooled.call(200, 'POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name });
        expect(body).toMatchObject({ decision });
      }
      expect(await ingest(pooled, tenant, 'pooled')).toEqual(ok);
      const { body } = await pooled.call(200, 'GET /v1/forensics/verify', tenant.admin);
      expect(body).toMatchObject({ verified: true, linear: true });
      expect(await pooled.core.db.query('nobody', 'select from tenant')).toEqual([]);
      expect(await pooled.core.db.query(tenant.id, 'select from tenant')).toEqual([{}]);
    }
    const before = await PgBouncer.start(cluster.urlOf(1), { connections: 4 });
    try {
      const nodeUrl = before.url(cluster.urlOf(1));
      const refusal = 'DATABASE_NODE_URL leads to a pooler that shares connections: set it to the node itself';
      await expect(openDatabase(cluster.url, { nodeUrl })).rejects.toThrow(refusal);
      const env = { DATABASE_URL: cluster.url, DATABASE_NODE_URL: nodeUrl, SVC_MASTER_KEY: '07'.repeat(32) };
      expect((await svcHere(1, env, 'doctor')).stdout).toContain(refusal);
    } finally {
      await before.stop();
    }
  });

  test('the older of two writers of a tenant is fenced, on the server that has it and through another one', async () => {
    const { id } = (await onNodes()).get(1)!;
    for (const { core } of [server, pooled]) {
      const [older, newer] = [appenderOn(core.db), appenderOn(core.db)];
      try {
        const first = eventsOf(2);
        await older.append(id, first);
        await newer.append(id, eventsOf(2));
        await expect(older.append(id, eventsOf(3))).rejects.toThrow(Fenced);
        // its own again, and what it wrote is known
        const [again, unknown] = (await older.append(id, [first[0]!, ...eventsOf(1)])).results;
        expect([again, unknown]).toMatchObject([{ duplicate: true }, { duplicate: false }]);
        // a head that is not where its writer left it
        const [head] = await cluster.query<{ seq: string }>(
          `update chain_head set seq = seq - 1 where tenant_id = $1 and chain = 'forensics' returning seq`,
          [id],
        );
        await expect(older.append(id, eventsOf(1))).rejects.toThrow();
        const tip = 'select max(seq) as seq from forensic_record where tenant_id = $1';
        expect(await cluster.query(tip, [id])).toEqual([{ seq: String(Number(head!.seq) + 1) }]);
        await cluster.query(`update chain_head set seq = seq + 1 where tenant_id = $1 and chain = 'forensics'`, [id]);
      } finally {
        await Promise.all([older.stop(), newer.stop()]);
      }
    }
    expect(await verdictOf(pooled.core.db, id)).toMatchObject({ verified: true });
  });

  if (SIEGE) {
    const drilled = async (...flags: string[]) => {
      const args = ['deploy/drill/citus.ts', '--json', '--seconds', '1', ...flags];
      const { stdout } = await promisify(execFile)(process.execPath, args, {
        cwd: resolve(import.meta.dirname, '../..'),
      });
      const result = JSON.parse(stdout) as { ok: boolean; total: object; rounds: Round[] };
      for (const [fault, rounds] of Map.groupBy(result.rounds, (round) => round.fault.replace(/\d+/, 'N'))) {
        const gaps = (of: (round: Round) => number) => {
          const all = rounds.map(of).sort((a, b) => a - b);
          return `median ${all[all.length >> 1]} ms, most ${all.at(-1)} ms`;
        };
        console.log(
          `${flags.join(' ')}: ${fault}, ${rounds.length} times: longest gap ${gaps((round) => round.longest_gap_ms)}; ` +
            `others ${gaps((round) => round.others_gap_ms)}`,
        );
      }
      expect(result).toMatchObject({ ok: true, total: { lost: 0, doubled: 0 } });
      return result.rounds;
    };
    const kills = ['--rounds', String(ROUNDS.nodes)];

    test('many kills of every kind of node lose nothing and store nothing twice', async () => {
      expect(await drilled(...kills)).toHaveLength(ROUNDS.nodes);
    }, 3_600_000);

    test('nor do they, or nodes that hang, shards that move and rebalancing, with a process beside each node', async () => {
      const others = ['--hangs', '12', '--moves', '12', '--rebalances', '2'];
      const rounds = await drilled('--beside', ...kills, ...others);
      expect(rounds).toHaveLength(ROUNDS.nodes + 26);
      // a request is answered in time, whatever is away
      for (const round of rounds) expect(round.longest_answer_ms, round.fault).toBeLessThan(30_000);
    }, 3_600_000);
  }

  const subscribe = async (receiver: Receiver, { admin }: TestTenant, ...event_types: string[]) => {
    const types = event_types.length > 0 ? event_types : ['svc.test'];
    const body = { url: receiver.url(), secret: 'a signing secret', event_types: types };
    return (await second.call<{ id: string }>(201, 'POST /v1/subscriptions', admin, body)).body;
  };
  const tell = ({ id }: TestTenant, subscription: string, message: string) =>
    second.core.db.transaction(id, (em) =>
      addEvent(em, id, {
        ...{ type: 'svc.test', at: second.clock.now() },
        payload: { subscription_id: subscription, message, created_at: new Date().toISOString() },
      }),
    );

  test('delivers events of tenants on every node, and stores how each attempt ended', async () => {
    const receiver = await Receiver.start(204);
    for (const tenant of (await onNodes()).values()) {
      const { admin } = tenant;
      receiver.received.length = 0;
      const made = await subscribe(receiver, tenant);
      await tell(tenant, made.id, 'hello');
      const listed = async () =>
        (
          await server.call<{ deliveries: { id: string; status: string; attempts: number; http_status: number }[] }>(
            200,
            `GET /v1/subscriptions/${made.id}/deliveries`,
            admin,
          )
        ).body.deliveries;
      await eventually(listed).toMatchObject([{ status: 'delivered', attempts: 1, http_status: 204 }]);
      const [delivery] = await listed();
      await server.call(200, `POST /v1/subscriptions/${made.id}/deliveries/${delivery!.id}/redeliver`, admin, {});
      await eventually(listed).toMatchObject([{ status: 'delivered', attempts: 2, http_status: 204 }]);
      expect(receiver.received.map(({ json }) => json.message)).toEqual(['hello', 'hello']);
      const { body: shown } = await server.call<{ history: object[] }>(
        200,
        `GET /v1/subscriptions/${made.id}/deliveries/${delivery!.id}`,
        admin,
      );
      const attempt = { result: 'DELIVERED', http_status: 204, reason: null };
      expect(shown.history).toMatchObject([attempt, attempt]);
    }
    await receiver.stop();
  });

  test('while the coordinator is dead, processes beside nodes serve and work for their tenants, and say what is missing', async () => {
    const beside = new Map([
      [1, server],
      [2, second],
    ]);
    const policy = `@rate("3/h") permit(principal in AgentRole::"clerk", action, resource == Tool::"read");
      @escrow("single") @ttl("1h") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");
      @escrow("single") @ttl("1s") permit(principal in AgentRole::"clerk", action, resource == Tool::"wire");`;
    const made = [];
    for (const [node, tenant] of await onNodes()) {
      const at = beside.get(node)!;
      const agent = await tenant.agent('agent-1', 'clerk');
      const revoked = await tenant.agent('agent-2', 'clerk');
      // the last to write the tenant's audit records is the other process
      await deploy(beside.get(3 - node)!, tenant.admin, 'guard', policy);
      const evaluate = async (tool_name: string, who = agent, expected = 200) => {
        const asked = { action_type: 'tool_call', tool_name };
        return (await at.call<{ decision: string }>(expected, 'POST /v1/evaluate', who, asked)).body.decision;
      };
      // a key that is remembered
      expect(await evaluate('read', revoked)).toBe('allow');
      const receiver = await Receiver.start(204);
      await subscribe(receiver, tenant, 'escrow.expired', 'forensics.checkpoint');
      const approver = await tenant.person('approver');
      expect(await evaluate('pay')).toBe('escrow');
      const { body } = await at.call<{ holds: { id: string }[] }>(200, 'GET /v1/escrow?status=held', approver);
      const held = `/v1/escrow/${body.holds[0]!.id}`;
      const until = (await at.call<{ aside_until: string }>(200, `PUT ${held}/aside`, approver, {})).body.aside_until;
      made.push({ node, at, tenant, revoked, evaluate, receiver, read: { line: `GET ${held}`, approver, until } });
    }
    const readiness = async (at: TestServer) => {
      const answer = await fetch(`${at.url}/readyz`);
      return [answer.status, await answer.json()];
    };
    await cluster.kill(0);
    for (const { node, at, tenant, revoked, evaluate, receiver, read } of made) {
      const { body } = await at.call(200, read.line, read.approver);
      expect(body).toMatchObject({ status: 'held', aside_until: read.until });
      expect(await ingest(at, tenant, 'without a coordinator')).toEqual(ok);
      // a hold ends by its time, the chain is signed, both are told, and a letter leaves: none of it needs the coordinator
      expect(await evaluate('wire')).toBe('escrow');
      const letter = { to: 'a@example.com', subject: 'a letter', text: 'a letter', html: '' };
      await at.core.db.transactionNear(tenant.id, (em) =>
        at.core.mailQueue.queue(em, tenant.id, letter, new Date(at.clock.now() + 60_000)),
      );
      await lookingFor('here', () => at.core.checkpoints.take(tenant.id, 'forensics'));
      const told = () => new Set(receiver.received.map(({ json }) => json.event));
      await eventually(async () => told()).toEqual(new Set(['escrow.expired', 'forensics.checkpoint']));
      const letters = 'select from mail_message where tenant_id = $1';
      await eventually(() => cluster.query(letters, [tenant.id], node)).toEqual([]);
      await receiver.stop();
      for (let n = 0; n < 3; n++) expect(await evaluate('read')).toBe('allow');
      expect(await evaluate('read')).toBe('rate_limited');
      expect(await evaluate('write')).toBe('deny');
      expect(await evaluate('pay')).toBe('escrow');
      expect(await readiness(at)).toEqual([
        200,
        { status: 'degraded', reason: 'coordinator: the database does not answer' },
      ]);
      await at.call(503, 'POST /v1/agent-keys', tenant.admin, BODIES['POST /v1/agent-keys']);
      const { text: metrics } = await at.call(200, 'GET /metrics', {});
      expect(metrics).toContain('svc_citus_server_answers{server="coordinator"} 0');
      expect(metrics).toContain('svc_citus_server_answers{server="node"} 1');
      // by a process that reaches the coordinator, when it is this one alone that does not
      const revoke = 'update agent_key set revoked_at = now() where tenant_id = $1 and agent_id = $2';
      await cluster.query(revoke, [tenant.id, 'agent-2'], node);
      await evaluate('read', revoked, 401);
    }
    await cluster.revive(0);
    for (const { at, tenant, evaluate } of made) {
      await eventually(() => readiness(at)).toEqual([200, { status: 'ready' }]);
      expect(await evaluate('pay')).toBe('escrow');
      const { body } = await at.call(200, 'GET /v1/forensics/verify', tenant.admin);
      expect(body).toMatchObject({ verified: true, linear: true });
    }
  });

  test('a node that dies stops its own tenants alone, and nothing acknowledged is lost', async () => {
    const on = await onNodes();
    const send = (node: number, event_id: string) => ingest(second, on.get(node)!, event_id);
    expect([await send(1, 'before'), await send(2, 'before')]).toEqual([ok, ok]);
    const receiver = await Receiver.start(204);
    const subscription = await subscribe(receiver, on.get(2)!);
    const streams = await Promise.all([1, 2].map((node) => listen(second, on.get(node)!.admin)));
    for (const stream of streams) await stream.until('event: hello');
    await cluster.kill(1);
    expect(await send(2, 'hinted')).toEqual(ok);
    await streams[1]!.until('{"topic":"events"');
    for (const stream of streams) stream.leave();
    // what jobs look for among all tenants
    await tell(on.get(2)!, subscription.id, 'meanwhile');
    await eventually(async () => receiver.received.map(({ json }) => json.message)).toEqual(['meanwhile']);
    expect((await second.core.holds.due(1)).next).toBeGreaterThan(0);
    await receiver.stop();
    expect([await send(1, 'meanwhile'), await send(2, 'meanwhile')]).toEqual([{ status: 503, again: true }, ok]);
    expect((await svc(1, 'doctor')).stdout).toMatch(/^FAIL +Citus +127\.0\.0\.1:\d+ does not answer/m);
    await cluster.revive(1);
    await eventually(() => send(1, 'meanwhile')).toEqual(ok);
    for (const tenant of on.values()) {
      const stored = await server.core.db.owner.query<{ event_id: string }>(
        `select event_id from forensic_record where tenant_id = $1 and event_id in ('before', 'meanwhile')`,
        [tenant.id],
      );
      expect(stored.rows.map(({ event_id }) => event_id).sort()).toEqual(['before', 'meanwhile']);
      const { body } = await server.call(200, 'GET /v1/forensics/verify', tenant.admin);
      expect(body).toMatchObject({ verified: true, linear: true });
    }
  });

  test('a node that hangs keeps its own tenants waiting for some seconds and no others, and then goes on', async () => {
    const on = await onNodes();
    const [hung, other] = [on.get(1)!, on.get(2)!];
    const agent = await hung.agent('agent-1', 'clerk');
    await deploy(server, hung.admin, 'guard', GUARD);
    const receiver = await Receiver.start(204);
    const subscription = await subscribe(receiver, other);
    // the node came back a moment ago
    await eventually(() => ingest(server, hung, 'before')).toEqual(ok);
    expect(await ingest(second, other, 'before')).toEqual(ok);
    let hangs = true;
    let served = 0;
    const load = (async () => {
      for (; hangs; served++) expect(await ingest(second, other, `meanwhile-${served}`)).toEqual(ok);
    })();
    const quiet = (await onNodes()).get(2)!;
    expect(await ingest(second, quiet, 'before')).toEqual(ok);
    const streams = await Promise.all([hung, quiet].map(({ admin }) => listen(second, admin)));
    for (const stream of streams) await stream.until('event: hello');
    cluster.hang(1);
    const asked = [
      ['POST', '/v1/events/ingest', hung.admin.key, { events: [event({ event_id: 'meanwhile' })] }],
      ['POST', '/v1/evaluate', agent.key, { action_type: 'tool_call', tool_name: 'read' }],
      ['GET', '/v1/policies', hung.admin.key],
      ['GET', '/v1/escrow', hung.admin.key],
      ['PATCH', '/v1/settings', hung.admin.key, { poll_seconds: 9 }],
    ] as const;
    const refusals = Promise.all(
      asked.map(async ([method, path, key, body]) => {
        const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
        const signal = AbortSignal.timeout(30_000);
        const sent = { method, headers, signal, ...(body && { body: JSON.stringify(body) }) };
        const answer = await fetch(server.url + path, sent).catch(() => undefined);
        return [path, answer?.status, answer?.headers.has('retry-after')];
      }),
    );
    const [before, began] = [served, performance.now()];
    try {
      await tell(other, subscription.id, 'meanwhile');
      await eventually(async () => receiver.received.map(({ json }) => json.message)).toEqual(['meanwhile']);
      expect(await ingest(second, quiet, 'hinted')).toEqual(ok);
      await streams[1]!.until('{"topic":"events"');
      for (const stream of streams) stream.leave();
      expect(await refusals).toEqual(asked.map(([, path]) => [path, 503, true]));
      const seconds = Math.round((performance.now() - began) / 1000);
      console.log(`a node hung: its tenants were answered within ${seconds} s, others ${served - before} times`);
      // each of those would have waited as long
      expect(served - before).toBeGreaterThan(10);
      hangs = false;
      await load;
    } finally {
      hangs = false;
      cluster.resume(1);
    }
    await receiver.stop();
    await eventually(() => ingest(server, hung, 'meanwhile')).toEqual(ok);
    const [stored] = await cluster.query<{ times: number }>(
      `select count(*)::int as times from forensic_record where tenant_id = $1 and event_id = 'meanwhile'`,
      [hung.id],
    );
    expect(stored).toEqual({ times: 1 });
    const { body } = await server.call(200, 'GET /v1/forensics/verify', hung.admin);
    expect(body).toMatchObject({ verified: true, linear: true });
  });
});

/** The statements of a log of auto_explain, each on one line, with the number of tasks of each part that goes to nodes. */
function plans(log: string): { text: string; tasks: number[] }[] {
  return log.split(/\n(?=\d{4}-\d\d-\d\d )/).flatMap((entry) => {
    const [, plan] = / {2}plan:\n\tQuery Text: ([\s\S]*)$/.exec(entry) ?? [];
    // a part of a statement, which is shown there as well, has no text of its own
    if (plan === undefined || /^[A-Z][^\n]*\(cost=/.test(plan.trimStart())) return [];
    const tasks = [...plan.matchAll(/^\t *Task Count: (\d+)$/gm)].map(([, count]) => Number(count));
    return [{ text: plan.replace(/\s+/g, ' ').trim().slice(0, 1000), tasks }];
  });
}
