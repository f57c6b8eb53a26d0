import { expect, test } from 'vitest';
import { type Credential, useServer } from '../helpers/server.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer({}, { shared: true });

const POLICY = `
@id("small") permit(principal, action, resource == Tool::"look");
@id("large") @escrow("single") @ttl("4h") permit(principal, action, resource == Tool::"pay");
`;

interface Story {
  session_id: string;
  first_at: string;
  last_at: string;
  entries: {
    id: string;
    decision: string;
    tool_name: string;
    agent_id: string;
    escrow_id?: string;
    facts?: { stop?: string };
  }[];
  holds: {
    id: string;
    status: string;
    estimated_value: number | null;
    votes: { user_id: string; reason: string }[];
    arguments_preview?: unknown;
  }[];
  stops: { id: string; target_kind: string }[];
  related: { session_id: string; agent_id: string; trace_id: string }[];
  previous_session_id: string | null;
  next_session_id: string | null;
  next_cursor: string | null;
  has_more: boolean;
}

async function world() {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const agents = { 'bot-1': await tenant.agent('bot-1', 'clerk'), 'bot-2': await tenant.agent('bot-2', 'clerk') };
  const ask = async (
    tool_name: string,
    more: Record<string, unknown> = {},
    agent: keyof typeof agents = 'bot-1',
    traceparent?: string,
  ) => {
    const who = agents[agent];
    const { body } = await server.call<{ decision: string; event_id: string; escrow?: { id: string } }>(
      200,
      'POST /v1/evaluate',
      { ...who, headers: { ...who.headers, ...(traceparent && { traceparent }) } },
      { action_type: 'tool_call', tool_name, session_id: 's', ...more },
    );
    return body;
  };
  return { tenant, ask };
}

const story = async (who: Credential, query: string) =>
  (await server.call<Story>(200, `GET /v1/agent-sessions/story?${query}`, who)).body;

test('a session is told in its order, with the holds, the votes and the stops', async () => {
  const { tenant, ask } = await world();
  const approver = await tenant.person('approver');
  const viewer = await tenant.person('viewer');
  await ask('look');
  const pay = { arguments: { amount: 900 }, estimated_value: 900, value_currency: 'EUR' };
  const held = await ask('pay', pay);
  const { id } = held.escrow!;
  await server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision: 'approve', reason: 'as agreed' });
  expect((await ask('pay', { ...pay, resume: true })).decision).toBe('allow');
  await ask('erase');
  const { body: stop } = await server.call<{ id: string }>(201, 'POST /v1/stops', approver, {
    target_kind: 'session',
    target_id: 's',
    reason: 'enough',
  });
  await ask('look');

  const told = await story(viewer, 'session_id=s');
  expect(told.entries.map(({ decision, tool_name }) => `${decision} ${tool_name}`)).toEqual([
    'allow look',
    'escrow pay',
    'allow pay',
    'deny erase',
    'deny look',
  ]);
  expect(told.entries.map(({ escrow_id }) => escrow_id)).toEqual([undefined, id, id, undefined, undefined]);
  expect(told.entries[4]!.facts?.stop).toBe(stop.id);
  expect(told.holds).toMatchObject([
    { id, status: 'consumed', estimated_value: 900, votes: [{ user_id: approver.userId, reason: 'as agreed' }] },
  ]);
  // what was asked for is on the page of the hold, for those who look there
  expect(told.holds[0]).not.toHaveProperty('arguments_preview');
  expect(told.stops).toMatchObject([{ id: stop.id, target_kind: 'session' }]);
  expect(told).toMatchObject({ has_more: false, previous_session_id: null, next_session_id: null, related: [] });
  expect(Date.parse(told.first_at)).toBeLessThanOrEqual(Date.parse(told.last_at));

  // in parts, and by what came of it
  const part = await story(viewer, 'session_id=s&limit=2');
  expect(part).toMatchObject({ has_more: true, last_at: told.last_at });
  const rest = await story(viewer, `session_id=s&limit=3&after=${part.next_cursor}`);
  expect([...part.entries, ...rest.entries]).toEqual(told.entries);
  expect(rest.holds.map((hold) => hold.id)).toEqual([id]);
  const denied = await story(viewer, 'session_id=s&decision=deny');
  expect(denied.entries.map((one) => one.tool_name)).toEqual(['erase', 'look']);
  expect((await story(viewer, 'session_id=s&order=desc')).entries).toEqual(told.entries.toReversed());
});

test('a session of one agent has nothing of another that uses its id, and leads to those before and after', async () => {
  const { tenant, ask } = await world();
  await ask('look', { session_id: 'before' });
  await ask('look');
  await ask('erase', {}, 'bot-2');
  await ask('pay', { arguments: { amount: 1 } }, 'bot-2');
  await ask('look', { session_id: 'after' });
  await ask('look', { session_id: 'later' });

  const all = await story(tenant.admin, 'session_id=s');
  expect(all.entries.map(({ agent_id }) => agent_id)).toEqual(['bot-1', 'bot-2', 'bot-2']);
  expect(all).toMatchObject({ previous_session_id: null, next_session_id: null });
  const own = await story(tenant.admin, 'session_id=s&agent_id=bot-1');
  expect(own.entries.map(({ agent_id }) => agent_id)).toEqual(['bot-1']);
  expect(own.holds).toEqual([]);
  expect(own).toMatchObject({ previous_session_id: 'before', next_session_id: 'after' });
  expect(await story(tenant.admin, 'session_id=after&agent_id=bot-1')).toMatchObject({
    previous_session_id: 's',
    next_session_id: 'later',
  });
});

test('sessions in the same trace are named', async () => {
  const { tenant, ask } = await world();
  const trace = 'a'.repeat(32);
  await ask('look', {}, 'bot-1', `00-${trace}-${'1'.repeat(16)}-01`);
  await ask('look', { session_id: 'of-the-other' }, 'bot-2', `00-${trace}-${'2'.repeat(16)}-01`);
  await ask('look', { session_id: 'apart' }, 'bot-2');
  expect((await story(tenant.admin, 'session_id=s')).related).toEqual([
    { session_id: 'of-the-other', agent_id: 'bot-2', trace_id: trace },
  ]);
});

test('is not found where there is none, in another tenant, and for whom decisions are not to be read', async () => {
  const { tenant, ask } = await world();
  await ask('look', { session_id: '../x?"<b>\u202e' });
  const other = await server.tenant();
  const path = `GET /v1/agent-sessions/story?session_id=${encodeURIComponent('../x?"<b>\u202e')}`;
  expect((await server.call<Story>(200, path, tenant.admin)).body.entries).toHaveLength(1);
  await server.call(404, path, other.admin);
  await server.call(404, 'GET /v1/agent-sessions/story?session_id=none', tenant.admin);
  await server.call(404, `${path}&agent_id=bot-2`, tenant.admin);
  for (const scope of ['proxy', 'pipeline'] as const) await server.call(403, path, await tenant.key(scope));
  await server.call(401, path, {});
});
