import { expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { untilBlocked } from '../helpers/locks.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { SIEGE } from '../siege/rounds.ts';

const server = useServer();
const MINUTE = 60_000;

interface Hold {
  id: string;
  shown_hash: string;
  aside_until?: string;
  votes: unknown[];
}
interface Listed {
  holds: Hold[];
  total: number;
  set_aside?: { count: number; next_at: string | null };
}

let n = 0;
async function hold(proxy: Credential, minutes: number, more: Record<string, unknown> = {}): Promise<string> {
  const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
    ...{ agent_role: 'clerk', agent_id: 'bot', action_type: 'tool_call', tool_name: 'pay', action_summary: 'pays' },
    ...{ action_hash: `sha256:${(++n).toString(16).padStart(64, '0')}`, hold_type: 'single' },
    ...{ ttl_seconds: minutes * 60, ...more },
  });
  return body.id;
}
const list = async (who: Credential, query = '') =>
  (await server.call<Listed>(200, `GET /v1/escrow?status=held&order=expires_at${query}`, who)).body;
const ids = async (who: Credential, query = '') => (await list(who, query)).holds.map(({ id }) => id);
const put = async (who: Credential, id: string, body: object = {}) => {
  const answer = await server.call<{ aside_until: string }>(200, `PUT /v1/escrow/${id}/aside`, who, body);
  return Date.parse(answer.body.aside_until);
};
const inMs = (ms: number) => new Date(server.clock.now() + ms).toISOString();
const near = (at: number, ms: number) => Math.abs(at - server.clock.now() - ms) < 20_000;
const rows = (tenant: TestTenant) =>
  sql<{ user_id: string; hold_id: string }>(server, 'select * from escrow_aside where tenant_id = $1', [tenant.id]);

async function world() {
  const tenant = await server.tenant();
  const [proxy, ann, bob] = [
    await tenant.key('proxy'),
    await tenant.person('approver'),
    await tenant.person('approver'),
  ];
  return { tenant, proxy, ann, bob };
}

test('a hold that a person set aside leaves their list alone, until the time that they said', async () => {
  const { tenant, proxy, ann, bob } = await world();
  const [first, second] = [await hold(proxy, 480), await hold(proxy, 490)];
  const read = (who: Credential) => server.call<Hold>(200, `GET /v1/escrow/${first}`, who);
  const before = await read(bob);
  expect(near(await put(ann, first, { until: inMs(60 * MINUTE) }), 60 * MINUTE)).toBe(true);

  expect(await ids(ann, '&aside=without')).toEqual([second]);
  expect(await ids(ann, '&aside=without&mine=needed')).toEqual([second]);
  expect(await ids(ann, '&aside=only')).toEqual([first]);
  expect(await list(ann, '&aside=only')).toMatchObject({ total: 1, set_aside: { count: 1 } });
  // it is still a hold that waits, and says so
  expect(await ids(ann)).toEqual([first, second]);
  expect((await read(ann)).body.aside_until).toBe((await list(ann)).set_aside!.next_at);
  const groups = (query: string) =>
    server.call<{ groups: { count: number }[] }>(200, `GET /v1/escrow/groups?by=agent${query}`, ann);
  expect((await groups('')).body.groups).toMatchObject([{ count: 2 }]);
  expect((await groups('&aside=without')).body.groups).toMatchObject([{ count: 1 }]);

  // nothing changed for anyone else, and not for what a vote is bound to
  expect((await read(bob)).body).toEqual(before.body);
  expect((await read(ann)).body.shown_hash).toBe(before.body.shown_hash);
  expect(await ids(bob, '&aside=without')).toEqual([first, second]);
  expect((await list(bob)).set_aside).toEqual({ count: 0, next_at: null });
  expect((await read(tenant.admin)).text).not.toContain('aside');
  expect((await list(tenant.admin)).set_aside).toBeUndefined();

  // a new time replaces the old one
  await put(ann, first, { until: inMs(10 * MINUTE) });
  server.clock.advance(11 * MINUTE);
  expect(await ids(ann, '&aside=without')).toEqual([first, second]);
  expect(await ids(ann, '&aside=only')).toEqual([]);
  await server.core.asides.forget();
  expect(await rows(tenant)).toEqual([]);
});

test('it is back as soon as somebody votes on it or reports a condition, for each who set it aside, and can be put back', async () => {
  const { tenant, proxy, ann, bob } = await world();
  const voted = await hold(proxy, 480, { hold_type: 'multi_party', required_approvals: 2 });
  const reported = await hold(proxy, 481, {
    hold_type: 'conditional',
    conditions: [{ condition_id: 'kyc' }, { condition_id: 'tax' }],
  });
  const quiet = await hold(proxy, 482);
  const carol = await tenant.person('approver');
  for (const who of [ann, bob]) for (const id of [voted, reported, quiet]) await put(who, id);
  expect(await ids(ann, '&aside=without')).toEqual([]);

  await server.call(200, `POST /v1/escrow/${voted}/vote`, carol, { decision: 'approve' });
  for (const who of [ann, bob]) expect(await ids(who, '&aside=without')).toEqual([voted]);
  await server.call(200, `POST /v1/escrow/${reported}/satisfy`, proxy, { condition_id: 'kyc', satisfied: true });
  for (const who of [ann, bob]) expect(await ids(who, '&aside=without')).toEqual([voted, reported]);
  await server.call(204, `DELETE /v1/escrow/${quiet}/aside`, ann);
  await server.call(204, `DELETE /v1/escrow/${quiet}/aside`, ann);
  expect(await ids(ann, '&aside=without')).toEqual([voted, reported, quiet]);
  expect(await ids(bob, '&aside=without')).toEqual([voted, reported]);

  // nothing is kept of a hold that ended
  await server.call(200, `POST /v1/escrow/${quiet}/cancel`, tenant.admin, { reason: 'asked twice' });
  expect(await rows(tenant)).toEqual([]);
});

test('all are back as soon as somebody becomes an approver or is none any more, and other people may vote by the settings', async () => {
  const { tenant, proxy, ann, bob } = await world();
  const carol = await tenant.person('viewer');
  const [quorum, other] = [await hold(proxy, 480), await hold(proxy, 481)];
  const changes: Record<string, () => Promise<unknown>> = {
    granted: () => server.call(200, `POST /v1/users/${carol.userId}/roles`, tenant.admin, { role: 'approver' }),
    revoked: () => server.call(200, `DELETE /v1/users/${carol.userId}/roles/approver`, tenant.admin),
    joined: () => tenant.person('admin'),
    grouped: () => tenant.set({ approver_groups: { legal: [ann.userId] } }),
    'authors barred': () => tenant.set({ policy_author_may_vote: false }),
    removed: () => server.call(204, `DELETE /v1/team/${bob.userId}`, tenant.admin),
  };
  for (const [name, change] of Object.entries(changes)) {
    for (const id of [quorum, other]) await put(ann, id);
    await change();
    expect(await rows(tenant), name).toEqual([]);
  }
  // and not when only others come, or other settings change
  await put(ann, other);
  await tenant.person('author');
  await server.call(200, `POST /v1/users/${carol.userId}/roles`, tenant.admin, { role: 'author' });
  await server.call(204, `DELETE /v1/team/${carol.userId}`, tenant.admin);
  await tenant.set({ poll_seconds: 7 });
  expect(await ids(ann, '&aside=without')).toEqual([quorum]);
});

test('an agent that tries to use it brings it back to nobody’s list', async () => {
  const { proxy, ann } = await world();
  const id = await hold(proxy, 480);
  await put(ann, id);
  const use = { agent_role: 'clerk', agent_id: 'bot', action_hash: `sha256:${n.toString(16).padStart(64, '0')}` };
  await server.call(409, `POST /v1/escrow/${id}/consume`, proxy, use);
  await server.call(403, `POST /v1/escrow/${id}/consume`, proxy, { ...use, agent_id: 'other' });
  expect(await ids(ann, '&aside=without')).toEqual([]);
});

test('it is back well before time ends or releases it, whatever was asked', async () => {
  const { proxy, ann } = await world();
  const ends = await hold(proxy, 60);
  const released = await hold(proxy, 480, { hold_type: 'time_delayed', release_after_seconds: 3600 });
  const soon = await hold(proxy, 18);
  const soonReleased = await hold(proxy, 480, { hold_type: 'time_delayed', release_after_seconds: 18 * 60 });
  for (const id of [ends, released]) {
    expect(near(await put(ann, id), 45 * MINUTE)).toBe(true);
    expect(near(await put(ann, id, { until: inMs(24 * 60 * MINUTE) }), 45 * MINUTE)).toBe(true);
    expect(near(await put(ann, id, { until: '2100-01-01' }), 45 * MINUTE)).toBe(true);
  }
  for (const id of [soon, soonReleased]) {
    const refused = await server.call(409, `PUT /v1/escrow/${id}/aside`, ann, {});
    expect(refused.body).toMatchObject({ code: 'INVALID_STATUS', detail: 'the hold ends too soon to be set aside' });
  }
  expect(await ids(ann, '&aside=without')).toEqual([soon, soonReleased]);
  server.clock.advance(46 * MINUTE);
  expect(await ids(ann, '&aside=without')).toContain(ends);
});

test('is refused for what is not waiting, is not what was read, or has a time gone by', async () => {
  const { proxy, ann, bob } = await world();
  const id = await hold(proxy, 480, { hold_type: 'multi_party', required_approvals: 3 });
  const { body: read } = await server.call<Hold>(200, `GET /v1/escrow/${id}`, ann);
  await server.call(200, `POST /v1/escrow/${id}/vote`, bob, { decision: 'approve' });
  const line = `PUT /v1/escrow/${id}/aside`;
  const changed = await server.call(409, line, ann, { shown_hash: read.shown_hash });
  expect(changed.body.code).toBe('VERSION_CHANGED');
  expect((await server.call(400, line, ann, { until: inMs(-MINUTE) })).body.code).toBe('VALIDATION_FAILED');
  await server.call(400, line, ann, { until: 'tomorrow' });
  await server.call(400, line, ann, { for: bob.userId });
  await server.call(200, `POST /v1/escrow/${id}/vote`, ann, { decision: 'reject' });
  expect((await server.call(409, line, bob, {})).body.detail).toBe('the hold is rejected');
});

test('no key, no agent and no other tenant sets a hold aside or sees that it is', async () => {
  const { tenant, proxy, ann } = await world();
  const foreign = await world();
  const id = await hold(proxy, 480);
  await put(ann, id);
  for (const method of ['PUT', 'DELETE']) {
    const line = `${method} /v1/escrow/${id}/aside`;
    const body = method === 'PUT' ? {} : undefined;
    for (const who of [tenant.admin, proxy, await tenant.agent('bot', 'clerk')]) {
      expect((await server.call(403, line, who, body)).body.code).toBe('KEY_SCOPE');
    }
    await server.call(403, line, await tenant.person(), body);
    await server.call(404, line, foreign.ann, body);
    // and not from another site with the cookie of the person
    await server.call(403, line, { cookie: ann.cookie!, headers: { origin: 'https://evil.example' } }, body);
  }
  for (const query of ['aside=only', 'aside=without']) {
    await server.call(400, `GET /v1/escrow?${query}`, tenant.admin);
    await server.call(400, `GET /v1/escrow/groups?by=agent&aside=without`, tenant.admin);
  }
  expect((await rows(tenant)).map(({ user_id }) => user_id)).toEqual([ann.userId]);
  expect(await list(foreign.ann)).toMatchObject({ holds: [], set_aside: { count: 0 } });
  // the second wall, for a statement that forgot its tenant
  const { core } = server;
  const all = 'select hold_id from escrow_aside';
  expect(await core.db.query(foreign.tenant.id, all, [])).toEqual([]);
  expect(await core.db.query(tenant.id, all, [])).toEqual([{ hold_id: id }]);
  const theirs = core.db.transaction(foreign.tenant.id, (em) =>
    em.execute(`insert into escrow_aside values (?, ?, ?, now() + interval '1 day')`, [tenant.id, ann.userId, id]),
  );
  await expect(theirs).rejects.toThrow('row-level security');
});

/** The row that says that a hold is aside, locked until the answer is called. */
async function lockedAside(tenant: TestTenant, id: string): Promise<() => Promise<unknown>> {
  const client = await server.core.db.owner.connect();
  await client.query('begin');
  await client.query('select from escrow_aside where tenant_id = $1 and hold_id = $2 for update', [tenant.id, id]);
  return () => client.query('rollback').finally(() => client.release());
}

test('neither a vote nor time ends in a deadlock with the removal of who set the hold aside', async () => {
  const { tenant, proxy, ann } = await world();
  const voted = await hold(proxy, 480, { hold_type: 'multi_party', required_approvals: 2 });
  await put(ann, voted);
  const release = await lockedAside(tenant, voted);
  const vote = server.call(200, `POST /v1/escrow/${voted}/vote`, ann, { decision: 'approve' });
  await untilBlocked(server.core.db, 1);
  const removal = server.call(204, `DELETE /v1/team/${ann.userId}`, tenant.admin);
  await untilBlocked(server.core.db, 2);
  await release();
  await Promise.all([vote, removal]);
  expect(await rows(tenant)).toEqual([]);

  // two end at once, of which an approver set the second one aside and somebody else the first one
  const [dan, eve] = [await tenant.person('approver'), await tenant.person('viewer')];
  const [first, second] = [await hold(proxy, 480), await hold(proxy, 480)];
  await put(eve, first);
  await put(dan, second);
  const free = await lockedAside(tenant, second);
  const leaving = server.call(204, `DELETE /v1/team/${dan.userId}`, tenant.admin);
  await untilBlocked(server.core.db, 1);
  server.clock.advance(481 * MINUTE);
  await untilBlocked(server.core.db, 2);
  await free();
  await leaving;
  const status = async (id: string) =>
    (await sql<{ status: string }>(server, 'select status from escrow_hold where id = $1', [id]))[0]!.status;
  for (const id of [first, second]) await expect.poll(() => status(id)).toBe('expired');
  // by one transaction: had it been given up, each would have been woken by one of its own
  const ended = 'select distinct xmin::text from escrow_hold where id = any($1)';
  expect(await sql(server, ended, [[first, second]])).toHaveLength(1);
});

test('a person has at most 500 aside, however many requests come at once, and none once removed', async () => {
  const { tenant, proxy, bob } = await world();
  const ann = await tenant.person('viewer');
  const held = await Promise.all(Array.from({ length: 6 }, () => hold(proxy, 480)));
  await sql(
    server,
    `insert into escrow_hold select made.*
     from generate_series(1, 497) n, (select * from escrow_hold where tenant_id = $1 and id = $2) h,
       jsonb_populate_record(null::escrow_hold, to_jsonb(h) || jsonb_build_object('id', h.id || n)) made`,
    [tenant.id, held[0]],
  );
  await sql(
    server,
    `insert into escrow_aside select tenant_id, $2, id, $4 from escrow_hold where tenant_id = $1 and not id = any($3)`,
    [tenant.id, ann.userId, held, new Date(server.clock.now() + 60 * MINUTE)],
  );
  const answers = await Promise.all(
    held.map((id) =>
      fetch(`${server.url}/v1/escrow/${id}/aside`, {
        method: 'PUT',
        headers: { cookie: ann.cookie!, origin: server.origin, 'content-type': 'application/json' },
        body: '{}',
      }),
    ),
  );
  expect(answers.map(({ status }) => status).sort()).toEqual([200, 200, 200, 409, 409, 409]);
  expect(await rows(tenant)).toHaveLength(500);
  // one that is aside already takes no further place, and another person has their own
  const [own] = answers.flatMap(({ status }, i) => (status === 200 ? [held[i]!] : []));
  await put(ann, own!);
  await put(bob, own!);
  await server.call(204, `DELETE /v1/team/${ann.userId}?reason=left`, tenant.admin);
  expect((await rows(tenant)).map(({ user_id }) => user_id)).toEqual([bob.userId]);
});

test('a hold that is being set aside while other people come to vote is back when both are done', async () => {
  const { tenant, proxy, ann, bob } = await world();
  const id = await hold(proxy, 480);
  // what is being stored waits to know whether it is there already
  const client = await server.core.db.connectOwner();
  await client.query('begin');
  await client.query('insert into escrow_aside values ($1, $2, $3, now())', [tenant.id, ann.userId, id]);
  const aside = put(ann, id);
  await untilBlocked(server.core.db, 1);
  const revoked = server.call(200, `DELETE /v1/users/${bob.userId}/roles/approver?reason=left`, tenant.admin);
  await untilBlocked(server.core.db, 2);
  await client.query('rollback');
  await client.end();
  await Promise.all([aside, revoked]);
  expect(await rows(tenant)).toEqual([]);
});

test('a vote at the same moment is never hidden by it', async () => {
  const { tenant, proxy, ann, bob } = await world();
  for (let round = 0; round < (SIEGE ? 10 : 4); round++) {
    const id = await hold(proxy, 480, { hold_type: 'multi_party', required_approvals: 3 });
    const { body: read } = await server.call<Hold>(200, `GET /v1/escrow/${id}`, ann);
    const request = (method: string, path: string, who: Credential, body: object) =>
      fetch(`${server.url}/v1/escrow/${id}/${path}`, {
        method,
        headers: { cookie: who.cookie!, origin: server.origin, 'content-type': 'application/json' },
        body: JSON.stringify(body),
      });
    const [aside, vote] = await Promise.all([
      request('PUT', 'aside', ann, { shown_hash: read.shown_hash }),
      request('POST', 'vote', bob, { decision: 'approve' }),
    ]);
    expect(vote.status).toBe(200);
    expect([200, 409]).toContain(aside.status);
    expect((await rows(tenant)).filter(({ hold_id }) => hold_id === id)).toEqual([]);
  }
});
