import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { migrate } from '../../db/index.ts';
import { Cluster, noCitus } from '../../deploy/drill/cluster.ts';
import { setPatience } from '../../server/lib/patience.ts';
import { svcHere } from '../cli/svc.ts';
import { BODIES, deploy, event, GUARD } from '../helpers/api.ts';
import { ServerProcess } from '../helpers/processes.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { type Credential, type TestServer, type TestTenant, useServer } from '../helpers/server.ts';
import { SynchronousStandby } from '../helpers/synchronous-standby.ts';

const eventually = (work: () => Promise<unknown>) => expect.poll(work, { interval: 100 });

/** Each server of the cluster has a synchronous standby of its own, and the program acknowledges nothing without it. */
const absent = noCitus() ?? noRedis;
if (absent !== undefined) console.warn(`SKIPPED: standbys of Citus, because ${absent}`);

describe.skipIf(absent !== undefined)('standbys of Citus', () => {
  let cluster: Cluster;
  let redis: TestRedis;
  const standbys: SynchronousStandby[] = [];
  const env = (node?: number) => ({
    DATABASE_URL: cluster.url,
    ...(node !== undefined && { DATABASE_NODE_URL: cluster.urlOf(node) }),
    REDIS_URL: redis.url,
    SVC_DURABILITY: 'replicated',
  });
  beforeAll(async () => {
    redis = await TestRedis.start();
    cluster = await Cluster.start({ nodes: 2, shards: 4 });
    await migrate(cluster.url);
    for (const node of [0, 1, 2]) {
      await cluster.query('grant pg_read_all_stats to svc_owner', [], node);
      standbys.push(await SynchronousStandby.of(cluster, node));
    }
  });
  afterAll(async () => {
    // what waits for a standby would keep the servers from stopping
    for (const standby of standbys) await standby.stop();
    await cluster?.stop();
    await redis?.stop();
  });
  const database = () => cluster.url;
  const first = useServer(() => env(1), { database });
  const second = useServer(() => env(2), { database });
  const beyond = useServer(() => env(), { database });

  const on = new Map<number, { tenant: TestTenant; agent: Credential }>();
  beforeAll(async () => {
    while (on.size < 2) {
      const tenant = await first.tenant();
      const agent = await tenant.agent('agent-1', 'clerk');
      await deploy(first, tenant.admin, 'guard', GUARD);
      on.set(await cluster.nodeOf(tenant.id), { tenant, agent });
    }
  });

  const readiness = async (at: TestServer) => {
    const answer = await fetch(`${at.url}/readyz`);
    return [answer.status, ((await answer.json()) as { reason?: string }).reason];
  };
  const standbysOf = async (at: TestServer) => {
    const { text } = await at.call(200, 'GET /metrics', {});
    return [...text.matchAll(/^svc_database_synchronous_standby\{server="(.*)"\} (\d)$/gm)]
      .map(([, ...of]) => of)
      .sort();
  };
  const send = async (to: TestServer, path: string, { key }: Credential, body: object) => {
    const began = performance.now();
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const answer = await fetch(to.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
    // refused before anything is begun that would wait, and be given up later than this
    if (answer.status === 503) expect(performance.now() - began).toBeLessThan(30_000);
    return `${answer.status}${answer.headers.has('retry-after') ? ' again' : ''}`;
  };
  /** What the tenant of a node is answered: a record, a decision, and a change. */
  const answers = async (to: TestServer, node: number) => {
    const { tenant, agent } = on.get(node)!;
    return [
      await send(to, '/v1/events/ingest', tenant.admin, { events: [event()] }),
      await send(to, '/v1/evaluate', agent, { action_type: 'tool_call', tool_name: 'pay' }),
      await send(to, '/v1/keys', tenant.admin, BODIES['POST /v1/keys'] as object),
    ];
  };
  const all = ['202', '200', '201'];
  const refused = ['503 again', '503 again', '503 again'];
  const lack = 'none of synchronous_standby_names is streaming';
  const doctor = async (code: number) => {
    const { stdout } = await svcHere(code, { ...env(1), SVC_MASTER_KEY: '07'.repeat(32) }, 'doctor');
    return stdout.split('\n').filter((line) => /^\w+ +replicas/.test(line));
  };
  const port = (node: number) => cluster.placeOf(node).port;

  test('with all of them everything is served, and each is named', async () => {
    for (const at of [first, second, beyond]) {
      await eventually(() => readiness(at)).toEqual([200, undefined]);
      expect(await standbysOf(at)).toEqual([
        ['coordinator', '1'],
        ['node 1', '1'],
        ['node 2', '1'],
      ]);
      for (const node of [1, 2]) expect(await answers(at, node)).toEqual(all);
    }
    const there = 'ok +replicas +SVC_DURABILITY=replicated: a synchronous standby is there';
    expect(await doctor(0)).toEqual(
      [`${there}$`, `${there}, on 127.0.0.1:${port(1)}$`, `${there}, on 127.0.0.1:${port(2)}$`].map((line) =>
        expect.stringMatching(new RegExp(`^${line}`)),
      ),
    );
  });

  test('a node without its standby stops its own tenants alone, whichever process is asked', async () => {
    await standbys[1]!.kill();
    await eventually(() => readiness(first)).toEqual([503, `no synchronous standby: node 1: ${lack}`]);
    await eventually(() => readiness(beyond)).toEqual([200, `no synchronous standby: node 1: ${lack}`]);
    await eventually(() => standbysOf(second)).toContainEqual(['node 1', '0']);
    expect(await readiness(second)).toEqual([200, undefined]);
    for (const at of [second, beyond]) {
      expect(await answers(at, 1)).toEqual(refused);
      expect(await answers(at, 2)).toEqual(all);
    }
    expect(await answers(first, 1)).toEqual(refused);
    const said = await doctor(1);
    expect(said.find((line) => line.startsWith('FAIL'))).toContain(`${lack}, on 127.0.0.1:${port(1)}`);
    expect(said.filter((line) => line.startsWith('ok'))).toHaveLength(2);
    // nothing that waits for the standby may be left on the node: it would keep a connection until that is back
    const waiting = `select from pg_stat_activity where wait_event = 'SyncRep' and query ~ 'forensic_record'`;
    expect(await cluster.query(waiting, [], 1)).toEqual([]);
    await standbys[1]!.start();
    await eventually(() => readiness(first)).toEqual([200, undefined]);
    await eventually(() => answers(beyond, 1)).toEqual(all);
  });

  test('without that of the coordinator, records and decisions go on beside the nodes, and changes are refused', async () => {
    await standbys[0]!.kill();
    await eventually(() => readiness(beyond)).toEqual([503, `no synchronous standby: coordinator: ${lack}`]);
    for (const [node, at] of [
      [1, first],
      [2, second],
    ] as const) {
      await eventually(() => readiness(at)).toEqual([200, `no synchronous standby: coordinator: ${lack}`]);
      // a hold each time: others are told of it by the coordinator, as long as that is no commit that hangs
      for (let n = 0; n < 5; n++) expect(await answers(at, node)).toEqual(['202', '200', '503 again']);
    }
    const hanging = `select from pg_stat_activity where wait_event = 'SyncRep' and query ~ 'pg_notify'`;
    expect(await cluster.query(hanging)).toEqual([]);
    await standbys[0]!.start();
    for (const at of [first, second, beyond]) await eventually(() => readiness(at)).toEqual([200, undefined]);
    await eventually(() => answers(first, 1)).toEqual(all);
  });

  test('a process does not start beside a node that has none', async () => {
    await standbys[2]!.kill();
    const late = new ServerProcess('late', env(2));
    await late.spawn({ PORT: '0' });
    await late.exited();
    expect(late.exitCode).toBe(1);
    expect(late.output.trim()).toBe(`no synchronous standby: ${lack}`);
    await late.dispose();
    await standbys[2]!.start();
  });

  test('what a node does not say counts as missing', async () => {
    // Citus would do the same on all others
    const alone = 'set citus.enable_ddl_propagation = off';
    await cluster.query(`${alone}; revoke pg_read_all_stats from svc_owner`, [], 2);
    const login = 'node 2: the login cannot see the standbys: grant pg_read_all_stats to svc_owner';
    await eventually(() => readiness(beyond)).toEqual([200, `no synchronous standby: ${login}`]);
    // a process that has not asked the node since still acknowledges what its standby has
    for (const at of [first, second]) await eventually(() => standbysOf(at)).toContainEqual(['node 2', '0']);
    expect(await answers(beyond, 2)).toEqual(refused);
    await cluster.query(`${alone}; grant pg_read_all_stats to svc_owner`, [], 2);
    await eventually(() => answers(beyond, 2)).toEqual(all);
  });

  test('what every server has a copy of is changed with the standbys of all', async () => {
    const { tenant } = on.get(2)!;
    await beyond.call(201, 'POST /v1/settings/sso/domains', tenant.admin, { domain: 'a.example' });
    const remove = async () => {
      const began = performance.now();
      const headers = { authorization: `Bearer ${tenant.admin.key}`, 'content-type': 'application/json' };
      const body = JSON.stringify({ reason: 'no longer ours' });
      const url = `${beyond.url}/v1/settings/sso/domains/a.example`;
      const { status } = await fetch(url, { method: 'DELETE', headers, body });
      return [status, performance.now() - began < 30_000];
    };
    await standbys[1]!.kill();
    await eventually(() => readiness(beyond)).toEqual([200, `no synchronous standby: node 1: ${lack}`]);
    expect(await remove()).toEqual([503, true]);
    expect(await answers(beyond, 2)).toEqual(all);
    await standbys[1]!.start();
    await eventually(() => readiness(beyond)).toEqual([200, undefined]);
    expect(await remove()).toEqual([204, true]);
  });

  test('a node that does not answer counts as one without, and the doctor says so', async () => {
    await standbys[2]!.kill();
    await cluster.kill(2);
    const said = await doctor(1);
    expect(said.find((line) => line.startsWith('FAIL'))).toContain(`standbys unknown, on 127.0.0.1:${port(2)}`);
    const silent = 'node 2: it has not said for 5 s whether there is one';
    // a command that ran here has set it again
    setPatience(1);
    await eventually(() => readiness(beyond)).toEqual([200, `no synchronous standby: ${silent}`]);
    expect(await answers(beyond, 1)).toEqual(all);
    expect(await answers(beyond, 2)).toEqual(refused);
  });
});
