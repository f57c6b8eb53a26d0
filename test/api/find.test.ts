import { expect, test } from 'vitest';
import { event } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer();

interface Found {
  found: { kind: string; id: string; detail: string }[];
}
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';

test('finds what has a name or an id, only the tenant’s own, and people only for admins', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  for (const one of [tenant, other]) {
    await enforce(
      server,
      one,
      'Refunds',
      '@id("large-refund") @escrow("single") permit(principal, action, resource == Tool::"refund");',
    );
    await one.member({ email: 'rita.funder@example.test', name: 'Rita Funder', roles: ['viewer'] });
  }
  const agent = await tenant.agent('refund-bot', 'clerk');
  const held = await server.call<{ event_id: string; escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
    ...{ action_type: 'payment', tool_name: 'refund', session_id: 'case-7', arguments: {} },
  });
  await server.call(202, 'POST /v1/events/ingest', tenant.admin, { events: [event({ trace_id: TRACE })] });
  const [viewer, admin] = [await tenant.person('viewer'), await tenant.person('admin')];
  const find = async (q: string, by = viewer) =>
    (await server.call<Found>(200, `GET /v1/find?q=${encodeURIComponent(q)}`, by)).body.found.map(
      ({ kind, id, detail }) => `${kind} ${id}${detail && ` (${detail})`}`,
    );
  const { id: hold } = held.body.escrow;
  const named = [
    'policy Refunds (deployed)',
    'rule Refunds#large-refund',
    `hold ${hold} (held: refund)`,
    'agent refund-bot',
  ];
  expect(await find('REFUND')).toEqual(named);
  expect(await find('Refunds#large')).toEqual(['rule Refunds#large-refund']);
  // a part of a name is no pattern
  for (const q of ['%', '_efund', 're.und', "'", '\\']) expect(await find(q), q).toEqual([]);
  expect(await find('funder')).toEqual([]);
  expect(await find('funder', admin)).toEqual(['person rita.funder@example.test (Rita Funder)']);

  const { event_id } = held.body;
  const detail = await server.call<{ chain: { seq: number; hash: string } }>(200, `GET /v1/events/${event_id}`, viewer);
  const { seq, hash } = detail.body.chain;
  const decision = `decision ${event_id} (#${seq})`;
  for (const q of [event_id, hash, hash.toUpperCase(), `#${seq}`, ` ${event_id} `])
    expect(await find(q), q).toEqual([decision]);
  expect(await find(hold)).toEqual([`hold ${hold} (held)`]);
  const { body } = await server.call<Found>(200, `GET /v1/find?q=${hold}`, viewer);
  expect(body.found).toMatchObject([{ agent_id: 'refund-bot', created_at: expect.stringMatching(/^2\d{3}-.*Z$/) }]);
  expect(await find('case-7')).toEqual(['session case-7']);
  expect(await find('case-*')).toEqual([]);
  // an agent that has only decisions, as with tokens and proxies, and before what is only about it
  expect(await find('GENT-1')).toEqual(['agent agent-1']);
  expect(await find('agent-1', await other.person('viewer'))).toEqual([]);
  // what has exactly this name comes first
  expect(await find('Refund-bot')).toEqual(['agent refund-bot', `hold ${hold} (held: refund)`]);
  // a session that is named so is found by its name, and no other with it
  await server.call(202, 'POST /v1/events/ingest', tenant.admin, { events: [event({ session_id: 'case-*' })] });
  expect(await find('case-*')).toEqual(['session case-*']);
  expect(await find(TRACE)).toEqual([`trace ${TRACE}`]);
  const log = await server.call<{ records: { id: string; action: string }[] }>(200, 'GET /v1/audit?limit=1', viewer);
  const { id: audited, action } = log.body.records[0]!;
  expect(await find(audited)).toEqual([`audit ${audited} (${action})`]);
  // the first record is no decision
  expect(await find('#1')).toEqual([]);

  const stranger = await other.person('viewer');
  for (const q of [event_id, hash, hold, 'case-7', TRACE, audited]) expect(await find(q, stranger), q).toEqual([]);
  expect(await find('refund', stranger)).toEqual(named.slice(0, 2));
});

test('at most five of each kind, and nothing that cannot be a name', async () => {
  const tenant = await server.tenant();
  for (let n = 0; n < 7; n++) await tenant.agent(`same-${n}`, 'clerk');
  const viewer = await tenant.person('viewer');
  const { body } = await server.call<Found>(200, 'GET /v1/find?q=same', viewer);
  expect(body.found.map(({ id }) => id)).toEqual([0, 1, 2, 3, 4].map((n) => `same-${n}`));
  for (const q of ['', '%00', 'x'.repeat(201)]) await server.call(400, `GET /v1/find?q=${q}`, viewer);
});

/** A read in bounds that waits for its turn, or whose turn has come: then the database works on it. */
interface Read {
  readonly person: string | undefined;
  begun: boolean;
}

/** The reads in bounds that are not over, in the order in which they were asked for. */
async function withReads<T>(work: (reads: ReadonlySet<Read>) => Promise<T>): Promise<T> {
  const { db } = server.core;
  const { readOnly, readEntities } = db;
  const reads = new Set<Read>();
  const during = async <R>(person: string | undefined, run: (read: Read) => Promise<R>): Promise<R> => {
    const read: Read = { person, begun: false };
    reads.add(read);
    return run(read).finally(() => reads.delete(read));
  };
  const begin = <A, R>(read: Read, run: (argument: A) => Promise<R>) => {
    return (argument: A) => {
      read.begun = true;
      return run(argument);
    };
  };
  const watched: Pick<typeof db, 'readOnly' | 'readEntities'> = {
    readOnly: (tenantId, run, asker) => during(asker?.person, (read) => readOnly(tenantId, begin(read, run), asker)),
    readEntities: (tenantId, asker, run) =>
      during(asker.person, (read) => readEntities(tenantId, asker, begin(read, run))),
  };
  Object.assign(db, watched);
  try {
    return await work(reads);
  } finally {
    Object.assign(db, { readOnly, readEntities });
  }
}

test('a viewer’s searches wait for one another, and neither a colleague, another tenant nor decisions wait for them', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const agent = await tenant.agent('busy-bot', 'clerk');
  const [viewer, colleague] = [await tenant.person('viewer'), await tenant.person('viewer')];
  const stranger = await other.person('viewer');
  const refund = { action_type: 'payment', tool_name: 'refund', session_id: 'case-8', arguments: {} };
  await server.call(200, 'POST /v1/evaluate', agent, refund);
  const lock = await server.core.db.owner.connect();
  try {
    // every search of this tenant stands still here, as one that reads very much would
    await lock.query('begin');
    await lock.query('lock table policy_revision in access exclusive mode');
    const refused: unknown[] = [];
    const search = async () => {
      const answer = await fetch(`${server.url}/v1/find?q=busy`, { headers: { cookie: viewer.cookie! } });
      const body = (await answer.json()) as object;
      if (answer.status !== 200) refused.push({ ...body, status: answer.status });
      return answer.status;
    };
    const searches = Array.from({ length: 40 }, search);
    await until(() => refused.length === 40 - 10, 'all are refused but those that have a place');
    for (const one of refused) expect(one).toMatchObject({ status: 503, code: 'UNAVAILABLE', detail: TOO_MANY });
    for (const one of [colleague, stranger]) {
      await server.call(200, 'GET /v1/events', one);
      await server.call(200, 'GET /v1/audit?limit=1', one);
    }
    const { body } = await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', agent, refund);
    await server.call(200, `GET /v1/events/${body.event_id}`, viewer);
    await lock.query('rollback');
    expect((await Promise.all(searches)).filter((status) => status === 200)).toHaveLength(10);
  } finally {
    lock.release(true);
  }
});

test('many people of one tenant who look at the same news at once are all answered', async () => {
  const tenant = await server.tenant();
  // one after the other: each takes a lock of the tenant
  const people: Credential[] = [];
  for (let n = 0; n < 40; n++) people.push(await tenant.person('viewer'));
  const lock = await server.core.db.owner.connect();
  try {
    await lock.query('begin');
    await lock.query('lock table policy_revision in access exclusive mode');
    await withReads(async (reads) => {
      const looks = people.map(async ({ cookie }) => {
        const { status } = await fetch(`${server.url}/v1/find?q=busy`, { headers: { cookie: cookie! } });
        return status;
      });
      await until(() => new Set([...reads].map(({ person }) => person)).size === people.length, 'all wait');
      await lock.query('rollback');
      expect(await Promise.all(looks)).toEqual(people.map(() => 200));
    });
  } finally {
    lock.release(true);
  }
});

test.each([
  ['GET /v1/find?q=busy', 'policy_revision'],
  ['GET /v1/policies?q=busy', 'policy_revision'],
  ['GET /v1/escrow', 'escrow_hold'],
  ['GET /v1/escrow/groups?by=agent', 'escrow_hold'],
  ['GET /v1/escrow/summary', 'escrow_hold'],
  ['GET /v1/agents', 'forensic_record'],
  ['GET /v1/users', 'member'],
])(
  'what a page asked for that was left keeps no place from the next page of the same person: %s',
  async (route, table) => {
    const { cookie } = await (await server.tenant()).person('admin');
    const left = new AbortController();
    const look = async (signal: AbortSignal | null = null) => {
      const { status } = await fetch(`${server.url}${route.slice(4)}`, { headers: { cookie: cookie! }, signal });
      return status;
    };
    // so that nothing about the person is asked anew while the table is locked
    expect(await look()).toBe(200);
    const lock = await server.core.db.owner.connect();
    try {
      await lock.query('begin');
      await lock.query(`lock table ${table} in access exclusive mode`);
      await withReads(async (reads) => {
        const looks = Array.from({ length: 10 }, () => look(left.signal).catch(() => 'left'));
        const reading = () => [...reads].filter(({ begun }) => begun);
        await until(() => reads.size === 10 && reading().length === 2, 'all places are taken, and two are read');
        expect(await look()).toBe(503);
        const began = reading();
        left.abort();
        expect(await Promise.all(looks)).toEqual(looks.map(() => 'left'));
        await until(() => reads.size === 2, 'the places of those who left are free');
        const next = look();
        await until(() => reads.size === 3, 'the next page has one of them');
        expect(
          began.filter((one) => reads.has(one)),
          'and not for the end of what they began',
        ).toHaveLength(2);
        expect(server.logged.filter((line) => line.includes('the caller has left'))).toEqual([]);
        await lock.query('rollback');
        expect(await next).toBe(200);
      });
    } finally {
      lock.release(true);
    }
  },
);

test('every route that reads in bounds has the turns of its person alone, and says that it may be asked for too much', async () => {
  const tenant = await server.tenant();
  const admin = await tenant.person('admin');
  const { promise: gate, resolve: open } = Promise.withResolvers<void>();
  const { db } = server.core;
  type Operation = { responses: Record<string, { $ref?: string }> };
  const { body: api } = await server.call<{ paths: Record<string, Record<string, Operation>> }>(
    200,
    'GET /openapi.json',
    undefined,
  );
  const routes = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
  );
  const declared = routes.filter(({ operation }) => operation.responses['422']?.$ref?.includes('TOO_BROAD'));
  const turns = Array.from({ length: 10 }, () => [
    db.readOnly(tenant.id, () => gate, { person: admin.userId }),
    db.readEntities(tenant.id, { person: admin.userId }, () => gate),
  ]).flat();
  const refused: string[] = [];
  const ask = async (method: string, path: string, body?: object) => {
    const over = new AbortController();
    const answer = await fetch(server.url + path.replaceAll(/\{\w+\}/g, 'x') + (ASKED[path] ?? ''), {
      method,
      headers: { cookie: admin.cookie!, origin: server.origin, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
      signal: over.signal,
    });
    if (answer.status === 503 && (await answer.text()).includes(TOO_MANY)) refused.push(`${method} ${path}`);
    over.abort();
  };
  try {
    // the pages of the documentation and of the dashboard are none of the tenant's
    for (const { path, method } of routes) if (method === 'get' && path.startsWith('/v1/')) await ask('get', path);
    await ask('post', '/v1/forensics/export', { purpose: 'audit' });
    await ask('put', '/v1/agents/{agent_id}/labels', { labels: [] });
  } finally {
    open();
    await Promise.all(turns);
  }
  expect(refused.sort()).toEqual(declared.map(({ method, path }) => `${method} ${path}`).sort());
});
/** What some routes have to be asked for before they read. */
const ASKED: Readonly<Record<string, string>> = {
  '/v1/find': '?q=x',
  '/v1/policies': '?q=x',
  '/v1/escrow/groups': '?by=agent',
  '/v1/escrow/rejectable': '?ids=x',
  '/v1/events/groups': '?by=tool_name',
  '/v1/agent-sessions/story': '?session_id=x',
};
const TOO_MANY = 'too many reads of this tenant are under way';

test('decisions are counted in whatever years are named, and by the time of an offset', async () => {
  const viewer = await (await server.tenant()).person('viewer');
  const count = (status: 200 | 400, q: string) =>
    server.call(status, `GET /v1/events/counts?${q.replaceAll('+', '%2B')}`, viewer);
  await count(200, 'since=0000-01-01');
  await count(200, 'since=0000-01-01T00:00:00+14:00&buckets=1');
  await count(200, 'until=9999-12-31T23:59:59-12:00');
  await count(200, 'since=2026-01-01T10:00:00Z&until=2026-01-01T09:30:00-05:00');
  await count(400, 'since=2026-01-01T10:00:00Z&until=2026-01-01T10:30:00+05:00');
});
