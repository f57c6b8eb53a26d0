import { expect, test } from 'vitest';
import { BODIES, delivered } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer();
const PERMIT = 'permit(principal in AgentRole::"support", action, resource);';

interface Standing {
  state: string;
  next: {
    event: string;
    to: string[];
    sent_by: { route?: string; role?: string; scopes?: string[]; server?: string };
    you: { allowed: boolean; code?: string; detail?: string };
  }[];
}
const event = (standing: Standing, name: string) => standing.next.find((it) => it.event === name);

test('the machines are shown with the senders of each event, as the routes define them', async () => {
  const tenant = await server.tenant();
  const { body } = await server.call<{ machines: { id: string; events: Record<string, object> }[] }>(
    200,
    'GET /v1/machines',
    await tenant.person('viewer'),
  );
  expect(body.machines.map(({ id }) => id)).toEqual(['policy', 'escrow', 'delivery']);
  expect(body.machines[0]?.events.approve).toEqual({
    route: 'POST /v1/policies/{id}/approve',
    role: 'approver',
    scopes: ['admin'],
  });
  expect(body.machines[1]?.events.vote).toEqual({ route: 'POST /v1/escrow/{id}/vote', role: 'approver' });
  expect(body.machines[1]?.events.wake).toEqual({ server: 'the timer of the hold' });
});

test('a policy shows its state and, to each caller, what they may do next and why not', async () => {
  const tenant = await server.tenant();
  const author = await tenant.person('author', 'approver');
  const viewer = await tenant.person('viewer');
  await tenant.set({ approval_required: true });
  await server.call(201, 'POST /v1/policies', author, { id: 'desk', dsl_source: PERMIT });
  const read = async (who: typeof author) =>
    (await server.call<Standing>(200, 'GET /v1/policies/desk/machine', who)).body;

  const draft = await read(author);
  expect(draft.state).toBe('draft');
  expect(event(draft, 'submit')).toMatchObject({ to: ['pending_approval'], you: { allowed: true } });
  expect(event(draft, 'approve')?.you).toMatchObject({ allowed: false, code: 'INVALID_STATUS' });
  expect(event(draft, 'reject')).toBeUndefined();
  expect(event(await read(viewer), 'submit')?.you).toMatchObject({ allowed: false, code: 'FORBIDDEN' });

  await server.call(200, 'POST /v1/policies/desk/submit', author, {});
  expect(event(await read(author), 'approve')?.you).toMatchObject({ allowed: false, code: 'SELF_APPROVAL' });
  const other = await tenant.person('approver');
  expect(event(await read(other), 'approve')?.you).toEqual({ allowed: true });
  await server.call(200, 'POST /v1/policies/desk/approve', other, { version: 1 });
  expect((await read(other)).state).toBe('deployed');
});

test('a hold shows who may vote, and ends for everyone when its time is up', async () => {
  const tenant = await server.tenant();
  const proxy = await tenant.key('proxy');
  const approver = await tenant.person('approver');
  const { body: hold } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
    agent_role: 'support',
    agent_id: 'bot-1',
    action_type: 'refund',
    action_summary: 'Refund 120 EUR',
    action_hash: `sha256:${'a'.repeat(64)}`,
    hold_type: 'single',
    ttl_seconds: 600,
  });
  const read = async (who: typeof approver) =>
    (await server.call<Standing>(200, `GET /v1/escrow/${hold.id}/machine`, who)).body;

  const held = await read(approver);
  expect(held.state).toBe('held');
  expect(event(held, 'vote')).toMatchObject({ to: ['rejected', 'released', 'held'], you: { allowed: true } });
  expect(event(held, 'cancel')?.you).toMatchObject({ allowed: false, code: 'FORBIDDEN' });
  expect(event(held, 'wake')?.you.allowed).toBe(false);
  expect(event(await read(await tenant.person('viewer')), 'vote')?.you).toMatchObject({ code: 'FORBIDDEN' });

  await server.call(200, `POST /v1/escrow/${hold.id}/vote`, approver, { decision: 'approve', reason: 'fine' });
  expect(event(await read(approver), 'cancel')).toMatchObject({ to: ['cancelled'] });
  server.clock.advance(601_000);
  expect(await read(approver)).toMatchObject({ state: 'expired', next: [] });
});

test('a delivery shows its state, and that a paused subscription resends nothing', async () => {
  const tenant = await server.tenant();
  const admin = await tenant.person('admin');
  const made = await server.call<{ id: string }>(
    201,
    'POST /v1/subscriptions',
    admin,
    BODIES['POST /v1/subscriptions'],
  );
  const { id } = made.body;
  const line = `GET /v1/subscriptions/${id}/deliveries/${await delivered(server, tenant.id, id)}/machine`;
  const paused = (await server.call<Standing>(200, line, admin)).body;
  expect(paused.state).toBe('delivered');
  expect(event(paused, 'redeliver')).toMatchObject({
    to: ['retrying'],
    sent_by: { role: 'admin' },
    you: { allowed: false, code: 'INVALID_STATUS' },
  });
  expect(event(paused, 'stop')).toBeUndefined();
  await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
  expect(event((await server.call<Standing>(200, line, admin)).body, 'redeliver')?.you).toEqual({ allowed: true });
  await server.call(403, line, await tenant.person('approver'));
});

test('what does not exist, or belongs to another tenant, is not found', async () => {
  const [one, two] = [await server.tenant(), await server.tenant()];
  await server.call(201, 'POST /v1/policies', one.admin, { id: 'desk', dsl_source: PERMIT });
  await server.call(200, 'GET /v1/policies/desk/machine', one.admin);
  await server.call(404, 'GET /v1/policies/desk/machine', two.admin);
  await server.call(404, 'GET /v1/escrow/esc_none/machine', one.admin);
});
