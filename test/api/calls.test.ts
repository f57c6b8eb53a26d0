import { beforeAll, describe, expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

/** What an agent names with a call_id is one call: held once, consumed once, counted once, and answered the same. */

const server = useServer();

const POLICY = `
@id("read") @rate("3/m") permit(principal in AgentRole::"clerk", action, resource == Tool::"read");
@id("card") @mask("$.card.number,$..ssn") permit(principal in AgentRole::"clerk", action, resource == Tool::"card");
@id("all") @mask("$") permit(principal in AgentRole::"clerk", action, resource == Tool::"secret");
@id("pay") @escrow("single") @ttl("1h") @rate("5/m") @reason("payments are looked at")
permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");
@id("buy") @escrow("single") @ttl("1h") @budget("100 EUR/d")
permit(principal in AgentRole::"clerk", action, resource == Tool::"buy");
@id("wipe") @reason("never wiped") forbid(principal, action, resource == Tool::"wipe");
@id("first-calls") permit(principal in AgentRole::"clerk", action, resource == Tool::"few")
when { context.session.call_count < 2 };
`;

interface Evaluation {
  decision: string;
  event_id: string;
  deny_reason?: string;
  masks?: string[];
  arguments?: unknown;
  escrow?: { id: string; status: string; current_approvals: number };
}
interface Problem {
  code: string;
  detail?: string;
}

let tenant: TestTenant;
let agent: Credential;
let approver: Credential;
let counter = 0;
beforeAll(async () => {
  tenant = await server.tenant();
  await deploy(server, tenant.admin, 'desk', POLICY);
  approver = await tenant.person('approver');
});

/** Each test has an agent of its own, so that none takes of another's limits. */
const newAgent = () => tenant.agent(`agent-${++counter}`, 'clerk');

const ask = async (tool_name: string, more: Record<string, unknown> = {}, who = agent) =>
  (await server.call<Evaluation>(200, 'POST /v1/evaluate', who, { action_type: 'tool_call', tool_name, ...more })).body;
const refused = async (status: number, tool_name: string, more: Record<string, unknown> = {}, who = agent) =>
  (await server.call<Problem>(status, 'POST /v1/evaluate', who, { action_type: 'tool_call', tool_name, ...more })).body;
const vote = (id: string, decision: 'approve' | 'reject' = 'approve') =>
  server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision, reason: 'between us' });
const pay = (amount: number, call_id?: string, more: Record<string, unknown> = {}) => ({
  arguments: { amount },
  call_id,
  ...more,
});
const records = (agentId: string) =>
  sql<{ id: string; decision: string; escrow_id: string | null }>(
    server,
    `select event_id as id, line::json->>'decision' as decision, line::json->>'escrow_id' as escrow_id
     from forensic_record where tenant_id = $1 and line::json->>'agent_id' = $2 order by seq`,
    [tenant.id, agentId],
  );
const holdsOf = (agentId: string) =>
  sql<{ id: string; status: string }>(
    server,
    'select id, status from escrow_hold where tenant_id = $1 and agent_id = $2 order by created_at, id',
    [tenant.id, agentId],
  );
const calls = (agentId: string) =>
  sql<{ call_id: string; consumed: boolean; hold_id: string | null }>(
    server,
    'select call_id, consumed, hold_id from agent_call where tenant_id = $1 and agent_id = $2',
    [tenant.id, agentId],
  );
/** No record can be stored while it works. */
async function unrecorded<T>(work: () => Promise<T>): Promise<T> {
  await sql(server, 'alter table forensic_record add constraint full_disk check (false) not valid');
  try {
    return await work();
  } finally {
    await sql(server, 'alter table forensic_record drop constraint full_disk');
  }
}
/** The chain takes records in, and stores them only afterwards. */
async function slowly<T>(work: () => Promise<T>): Promise<T> {
  const client = await server.core.db.connectOwner();
  try {
    await client.query('begin');
    await client.query('lock table forensic_record in share mode');
    return await work();
  } finally {
    await client.end();
  }
}
/** As if the process that decides the agent's calls were gone. */
const abandon = (agentId: string) =>
  sql(server, `update agent_call set busy_until = clock_timestamp() - interval '1 second' where agent_id = $1`, [
    agentId,
  ]);

describe('a call', () => {
  let id: string;
  beforeAll(async () => {
    agent = await newAgent();
    id = `agent-${counter}`;
  });

  test('waits, is released, goes on once, and is answered the same ever after', async () => {
    const first = await ask('pay', pay(1, 'c1'));
    expect(first).toMatchObject({ decision: 'escrow', escrow: { status: 'held' } });
    // while it waits nothing new is decided, whether or not it asks to go on
    expect(await ask('pay', pay(1, 'c1'))).toEqual(first);
    expect(await ask('pay', pay(1, 'c1', { resume: true }))).toEqual(first);
    expect(await records(id)).toHaveLength(1);

    await vote(first.escrow!.id);
    const released = await ask('pay', pay(1, 'c1'));
    expect(released).toMatchObject({ decision: 'escrow', event_id: first.event_id, escrow: { status: 'released' } });

    const allowed = await ask('pay', pay(1, 'c1', { resume: true }));
    expect(allowed).toMatchObject({ decision: 'allow', escrow: { id: first.escrow!.id, status: 'consumed' } });
    // the answer was lost
    for (const resume of [true, false, undefined]) {
      expect(await ask('pay', pay(1, 'c1', { resume }))).toEqual(allowed);
    }
    expect(await records(id)).toEqual([
      { id: first.event_id, decision: 'escrow', escrow_id: first.escrow!.id },
      { id: allowed.event_id, decision: 'allow', escrow_id: first.escrow!.id },
    ]);
    const consumed = await server.call<{ records: { detail: string }[] }>(
      200,
      `GET /v1/audit?target_id=${first.escrow!.id}&action=escrow.consumed`,
      tenant.admin,
    );
    expect(consumed.body.records.map(({ detail }) => detail)).toEqual([`for decision ${allowed.event_id}`]);
    const refusals = await server.call<{ records: unknown[] }>(
      200,
      `GET /v1/audit?target_id=${first.escrow!.id}&action=escrow.use_refused`,
      tenant.admin,
    );
    expect(refusals.body.records).toEqual([]);
  });

  test('is not another action, and nobody else’s', async () => {
    const allowed = await ask('card', { call_id: 'c2', arguments: { card: { number: '1' } } });
    for (const other of [
      { arguments: { card: { number: '2' } } },
      { arguments: undefined },
      { arguments: { card: { number: '1' } }, session_id: 's' },
      { arguments: { card: { number: '1' } }, risk_score: 0 },
      { arguments: { card: { number: '1' } }, context: { ticket: 1 } },
      { arguments: { card: { number: '1' } }, tool_server: 'prod' },
    ]) {
      expect((await refused(409, 'card', { call_id: 'c2', ...other })).code, JSON.stringify(other)).toBe('CONFLICT');
    }
    expect((await refused(409, 'read', { call_id: 'c2', arguments: { card: { number: '1' } } })).code).toBe('CONFLICT');
    // words for people are not the action
    const again = { call_id: 'c2', arguments: { card: { number: '1' } }, action_summary: 'in other words' };
    expect(await ask('card', again)).toEqual(allowed);
    // the same agent in another role, and another agent
    const role = await tenant.agent(id, 'manager');
    expect((await refused(409, 'card', again, role)).code).toBe('CONFLICT');
    const other = await newAgent();
    expect((await ask('card', again, other)).event_id).not.toBe(allowed.event_id);
    // a second key of the agent is the same agent
    expect(await ask('card', again, await tenant.agent(id, 'clerk'))).toEqual(allowed);
    const elsewhere = await server.tenant();
    await deploy(server, elsewhere.admin, 'desk', POLICY);
    expect((await ask('card', again, await elsewhere.agent(id, 'clerk'))).event_id).not.toBe(allowed.event_id);
  });

  test('is permitted to one attempt, and to no other that is given the same id', async () => {
    const one = await ask('card', { call_id: 'c5', attempt: 'a' });
    expect(await ask('card', { call_id: 'c5', attempt: 'a' })).toEqual(one);
    expect((await refused(409, 'card', { call_id: 'c5', attempt: 'b' })).code).toBe('CONFLICT');
    // a hold is for all attempts until one of them uses it
    const held = await ask('pay', pay(2, 'c6', { attempt: 'a', resume: true }));
    expect(await ask('pay', pay(2, 'c6', { attempt: 'b', resume: true }))).toEqual(held);
    await vote(held.escrow!.id);
    const answers = await Promise.all(
      ['a', 'b', 'c'].map(async (attempt) => {
        const response = await fetch(`${server.url}/v1/evaluate`, {
          method: 'POST',
          headers: { authorization: `Bearer ${agent.key}`, 'content-type': 'application/json' },
          body: JSON.stringify({
            action_type: 'tool_call',
            tool_name: 'pay',
            ...pay(2, 'c6', { attempt, resume: true }),
          }),
        });
        const { decision, code } = (await response.json()) as { decision?: string; code?: string };
        return decision ?? code;
      }),
    );
    expect(answers.sort()).toEqual(['CONFLICT', 'CONFLICT', 'allow']);
  });

  test('that was denied by a rule stays denied', async () => {
    const denied = await ask('wipe', { call_id: 'c3' });
    expect(denied).toMatchObject({ decision: 'deny', deny_reason: 'never wiped' });
    expect(await ask('wipe', { call_id: 'c3', resume: true })).toEqual(denied);
  });

  test('has an id of printable characters, and does not go with the id of a hold', async () => {
    for (const call_id of ['', 'a b', 'x'.repeat(201), 'a\u202eb', 'ä', 7, '\u0000']) {
      expect((await refused(400, 'read', { call_id })).code).toBe('VALIDATION_FAILED');
    }
    const named = { ...agent, headers: { 'x-svc-escrow-id': 'esc_1' } };
    expect((await refused(400, 'read', { call_id: 'c4' }, named)).code).toBe('VALIDATION_FAILED');
    expect((await refused(400, 'read', { resume: true }, named)).code).toBe('VALIDATION_FAILED');
    expect((await calls(id)).map(({ call_id }) => call_id)).not.toContain('c4');
  });
});

test('a call is decided once, however many ask at the same time, before and after its release', async () => {
  agent = await newAgent();
  const together = async (more: Record<string, unknown>) => {
    const answers = await Promise.all(Array.from({ length: 12 }, () => ask('pay', pay(7, 'many', more))));
    for (const answer of answers) expect(answer).toEqual(answers[0]);
    return answers[0]!;
  };
  const held = await together({});
  await vote(held.escrow!.id);
  const allowed = await together({ resume: true });
  expect(allowed.decision).toBe('allow');
  expect((await records(`agent-${counter}`)).map(({ decision }) => decision)).toEqual(['escrow', 'allow']);
  // one call of five a minute was counted
  const plain = await Promise.all(Array.from({ length: 5 }, (_, n) => ask('pay', pay(100 + n))));
  expect(plain.map(({ decision }) => decision).sort()).toEqual([...Array(4).fill('escrow'), 'rate_limited']);
});

test('of two calls of the same action one uses a release, and the other is held again', async () => {
  agent = await newAgent();
  const [one, two] = [await ask('pay', pay(3, 'one')), await ask('pay', pay(3, 'two'))];
  expect(two.escrow!.id).toBe(one.escrow!.id);
  await vote(one.escrow!.id);
  const answers = await Promise.all(['one', 'two'].map((call) => ask('pay', pay(3, call, { resume: true }))));
  expect(answers.map(({ decision }) => decision).sort()).toEqual(['allow', 'escrow']);
  const waiting = answers.find(({ decision }) => decision === 'escrow')!;
  expect(waiting.escrow).toMatchObject({ status: 'held' });
  expect(waiting.escrow!.id).not.toBe(one.escrow!.id);
  await vote(waiting.escrow!.id);
  for (const call of ['one', 'two']) {
    expect((await ask('pay', pay(3, call, { resume: true }))).decision).toBe('allow');
  }
  expect((await holdsOf(`agent-${counter}`)).map(({ status }) => status)).toEqual(['consumed', 'consumed']);
});

test.each([
  ['rejected', 'the hold was rejected', (id: string) => vote(id, 'reject')],
  [
    'cancelled',
    'the hold was cancelled',
    (id: string) => server.call(200, `POST /v1/escrow/${id}/cancel`, tenant.admin, { reason: 'between us' }),
  ],
  ['expired', 'the hold has expired', async () => server.clock.advance(3_601_000)],
] as const)('a call whose hold was %s is denied, and says why and no more', async (_, deny_reason, end) => {
  agent = await newAgent();
  const held = await ask('pay', pay(1, 'ended'));
  await end(held.escrow!.id);
  const denied = await ask('pay', pay(1, 'ended'));
  expect(denied).toMatchObject({ decision: 'deny', deny_reason });
  expect(JSON.stringify(denied)).not.toContain('between us');
  expect(await ask('pay', pay(1, 'ended', { resume: true }))).toEqual(denied);
  expect(await records(`agent-${counter}`)).toMatchObject([
    { decision: 'escrow', escrow_id: held.escrow!.id },
    { id: denied.event_id, decision: 'deny', escrow_id: held.escrow!.id },
  ]);
  // another call of the same action is a new one
  expect((await ask('pay', pay(1, 'next'))).decision).toBe('escrow');
});

describe('when something fails in between', () => {
  test('a hold that was consumed for a call without a record is used by that call, and by no other', async () => {
    agent = await newAgent();
    const id = `agent-${counter}`;
    const held = await ask('pay', pay(1, 'lost'));
    await vote(held.escrow!.id);
    await unrecorded(() => refused(503, 'pay', pay(1, 'lost', { resume: true })));
    expect(await holdsOf(id)).toEqual([{ id: held.escrow!.id, status: 'consumed' }]);
    expect(await calls(id)).toEqual([{ call_id: 'lost', consumed: true, hold_id: held.escrow!.id }]);
    const other = await ask('pay', pay(1, 'another', { resume: true }));
    expect(other).toMatchObject({ decision: 'escrow', escrow: { status: 'held' } });
    const allowed = await ask('pay', pay(1, 'lost', { resume: true }));
    expect(allowed).toMatchObject({ decision: 'allow', escrow: { id: held.escrow!.id } });
    expect(await ask('pay', pay(1, 'lost', { resume: true }))).toEqual(allowed);
    expect((await records(id)).filter(({ decision }) => decision === 'allow')).toHaveLength(1);
  });

  test('one that is not permitted any more is denied, and what was consumed for it helps nobody', async () => {
    agent = await newAgent();
    const held = await ask('pay', pay(1, 'lost'));
    await vote(held.escrow!.id);
    await unrecorded(() => refused(503, 'pay', pay(1, 'lost', { resume: true })));
    await deploy(server, tenant.admin, 'never', 'forbid(principal, action, resource == Tool::"pay");');
    expect((await ask('pay', pay(1, 'lost', { resume: true }))).decision).toBe('deny');
    await server.call(200, 'DELETE /v1/policies/never', tenant.admin, { reason: 'over' });
    expect((await ask('pay', pay(1, 'lost', { resume: true }))).decision).toBe('deny');
  });

  test('a hold without a record is withdrawn, and the call is held again', async () => {
    agent = await newAgent();
    await unrecorded(() => refused(503, 'pay', pay(1, 'lost')));
    const held = await ask('pay', pay(1, 'lost'));
    expect(held).toMatchObject({ decision: 'escrow', escrow: { status: 'held' } });
    expect((await holdsOf(`agent-${counter}`)).map(({ status }) => status)).toEqual(['cancelled', 'held']);
  });

  test('while a call is decided, the same call waits for its answer', async () => {
    agent = await newAgent();
    const id = `agent-${counter}`;
    const answers = await slowly(async () => {
      const first = ask('read', { call_id: 'busy' });
      await until(
        async () =>
          (await sql(server, `select 1 from agent_call where agent_id = $1 and answers <> '[]'`, [id])).length === 1,
        'it was decided',
      );
      const others = [ask('read', { call_id: 'busy' }), ask('read', { call_id: 'busy', resume: true })];
      return { all: [first, ...others] };
    });
    const [first, ...others] = await Promise.all(answers.all);
    for (const other of others) expect(other).toEqual(first);
    expect(await records(id)).toHaveLength(1);
    expect((await ask('read')).decision).toBe('allow');
    expect((await ask('read')).decision).toBe('allow');
    expect((await ask('read')).decision).toBe('rate_limited');
  });

  test('of a call that a slow process decides and another one takes over there is one record', async () => {
    agent = await newAgent();
    const id = `agent-${counter}`;
    const post = () =>
      fetch(`${server.url}/v1/evaluate`, {
        method: 'POST',
        headers: { authorization: `Bearer ${agent.key}`, 'content-type': 'application/json' },
        body: JSON.stringify({ action_type: 'tool_call', tool_name: 'card', call_id: 'slow' }),
      }).then(({ status }) => status);
    const answers = async () =>
      (
        await sql<{ count: number }>(
          server,
          'select jsonb_array_length(answers) as count from agent_call where agent_id = $1',
          [id],
        )
      )[0]?.count;
    const both = await slowly(async () => {
      const slow = post();
      await until(async () => (await answers()) === 1, 'one has decided');
      await abandon(id);
      const next = post();
      await until(async () => (await answers()) === 2, 'another one has decided');
      return { all: [slow, next] };
    });
    expect((await Promise.all(both.all)).sort()).toEqual([200, 503]);
    expect(await records(id)).toHaveLength(1);
    // whichever of the two the record is of, that is the answer
    expect((await ask('card', { call_id: 'slow' })).event_id).toBe((await records(id))[0]!.id);
    expect(await records(id)).toHaveLength(1);
  });

  test('a record that another process wrote under the same id is not mistaken for this answer', async () => {
    agent = await newAgent();
    const id = `agent-${counter}`;
    await ask('card', { call_id: 'strange' });
    await sql(
      server,
      `update agent_call set answers = jsonb_set(answers, '{0,input_hash}', '"sha256:other"') where agent_id = $1`,
      [id],
    );
    await abandon(id);
    expect((await refused(409, 'card', { call_id: 'strange' })).code).toBe('INVALID_STATUS');
    expect(await records(id)).toHaveLength(1);
  });
});

describe('what a call took of limits', () => {
  test('stays taken where another process took the call over and permitted it', async () => {
    agent = await newAgent();
    const id = `agent-${counter}`;
    expect((await ask('read')).decision).toBe('allow');
    const post = () =>
      fetch(`${server.url}/v1/evaluate`, {
        method: 'POST',
        headers: { authorization: `Bearer ${agent.key}`, 'content-type': 'application/json' },
        body: JSON.stringify({ action_type: 'tool_call', tool_name: 'read', call_id: 'slow' }),
      }).then(({ status }) => status);
    const counting = await server.core.db.connectOwner();
    const holders = async () =>
      (await sql<{ holder: string }>(server, 'select holder from agent_call where agent_id = $1', [id])).map(
        ({ holder }) => holder,
      );
    try {
      // both stand still where they count the call
      await counting.query('begin');
      await counting.query('select from limit_counter where tenant_id = $1 for update', [tenant.id]);
      const slow = post();
      await until(async () => (await holders()).length === 1, 'one has claimed the call');
      const [first] = await holders();
      await abandon(id);
      const next = post();
      await until(async () => (await holders())[0] !== first, 'another one has taken it over');
      await counting.query('commit');
      expect(await Promise.all([slow, next])).toEqual([503, 200]);
    } finally {
      await counting.end();
    }
    expect((await ask('read')).decision).toBe('allow');
    expect((await ask('read')).decision).toBe('rate_limited');
  });

  test('is not given back by an attempt to use a hold that has ended', async () => {
    agent = await newAgent();
    const held = [];
    for (let n = 1; n <= 5; n++) held.push(await ask('pay', { arguments: { n } }));
    expect((await ask('pay', { arguments: { n: 6 } })).decision).toBe('rate_limited');
    const old = held[0]!.escrow!.id;
    await vote(old, 'reject');
    const body = { action_type: 'tool_call', tool_name: 'pay', arguments: { n: 1 } };
    const naming = { ...agent, headers: { 'x-svc-escrow-id': old } };
    expect((await server.call<Problem>(409, 'POST /v1/evaluate', naming, body)).body.code).toBe('INVALID_STATUS');
    expect((await ask('pay', { arguments: { n: 6 } })).decision).toBe('rate_limited');
  });
});

describe('a stop', () => {
  const stop = async (mode: 'deny' | 'freeze', target_id: string) =>
    (
      await server.call<{ id: string }>(201, 'POST /v1/stops', tenant.admin, {
        ...{ target_kind: 'agent', target_id, mode, reason: 'it misbehaves' },
      })
    ).body.id;
  const lift = (id: string) =>
    tenant.person('admin').then((who) => server.call(200, `POST /v1/stops/${id}/lift`, who, { reason: 'over' }));

  test.each(['deny', 'freeze'] as const)(
    '(%s) reaches a call that was permitted before, until it is lifted',
    async (mode) => {
      agent = await newAgent();
      const allowed = await ask('card', { call_id: 'before' });
      const id = await stop(mode, `agent-${counter}`);
      expect(await ask('card', { call_id: 'before' })).toMatchObject({
        decision: 'deny',
        deny_reason: 'stopped: it misbehaves',
      });
      await lift(id);
      expect(await ask('card', { call_id: 'before' })).toEqual(allowed);
    },
  );

  test('keeps a release from being used, and leaves it', async () => {
    agent = await newAgent();
    const held = await ask('pay', pay(1, 'held'));
    await vote(held.escrow!.id);
    const id = await stop('deny', `agent-${counter}`);
    expect((await ask('pay', pay(1, 'held', { resume: true }))).decision).toBe('deny');
    await lift(id);
    expect((await ask('pay', pay(1, 'held', { resume: true }))).decision).toBe('allow');
  });

  test('that freezes holds a call once, and its release goes on', async () => {
    agent = await newAgent();
    const id = await stop('freeze', `agent-${counter}`);
    const held = await ask('card', { call_id: 'frozen' });
    expect(held.decision).toBe('escrow');
    await vote(held.escrow!.id);
    const allowed = await ask('card', { call_id: 'frozen', resume: true });
    expect(allowed.decision).toBe('allow_with_masking');
    expect(await ask('card', { call_id: 'frozen' })).toEqual(allowed);
    await lift(id);
    expect(await ask('card', { call_id: 'frozen' })).toEqual(allowed);
  });
});

test('a call waits for the new hold where the policies now hold it for more', async () => {
  const own = await server.tenant();
  await deploy(server, own.admin, 'desk', POLICY);
  const who = await own.agent('a', 'clerk');
  const first = await ask('pay', pay(1, 'changed'), who);
  const person = await own.person('approver');
  const approve = (id: string) =>
    server.call(200, `POST /v1/escrow/${id}/vote`, person, { decision: 'approve', reason: '' });
  await approve(first.escrow!.id);
  await deploy(
    server,
    own.admin,
    'more',
    '@id("m") @escrow("single") @ttl("1h") permit(principal, action, resource == Tool::"pay");',
  );
  const changed = await server.call<Problem>(409, 'POST /v1/evaluate', who, {
    ...{ action_type: 'tool_call', tool_name: 'pay' },
    ...pay(1, 'changed', { resume: true }),
  });
  expect(changed.body.code).toBe('POLICY_CHANGED');
  const next = changed.headers.get('x-svc-escrow-id')!;
  expect(await ask('pay', pay(1, 'changed', { resume: true }), who)).toMatchObject({
    decision: 'escrow',
    escrow: { id: next, status: 'held' },
  });
  await approve(next);
  expect((await ask('pay', pay(1, 'changed', { resume: true }), who)).decision).toBe('allow');
});

test('what a call is limited by is asked again', async () => {
  agent = await newAgent();
  for (let n = 0; n < 3; n++) await ask('read');
  const limited = await ask('read', { call_id: 'later' });
  expect(limited.decision).toBe('rate_limited');
  server.clock.advance(61_000);
  const allowed = await ask('read', { call_id: 'later' });
  expect(allowed.decision).toBe('allow');
  expect(await ask('read', { call_id: 'later' })).toEqual(allowed);
});

test('the arguments of what is permitted come with the masks applied, where that is asked for', async () => {
  agent = await newAgent();
  const args = { card: { number: '4111 1111', name: 'A' }, people: [{ ssn: '1' }, { ssn: ['2'] }] };
  const masked = {
    card: { number: '[masked]', name: 'A' },
    people: [{ ssn: '[masked]' }, { ssn: '[masked]' }],
  };
  expect((await ask('card', { arguments: args, apply_masks: true })).arguments).toEqual(masked);
  // as approvers see them: a request may stand whole in the arguments
  const request = { url: 'https://shop.test', body: args };
  expect((await ask('card', { arguments: request, apply_masks: true })).arguments).toEqual({
    ...request,
    body: masked,
  });
  expect(await ask('card', { arguments: args })).not.toHaveProperty('arguments');
  expect((await ask('read', { arguments: args, apply_masks: true })).arguments).toEqual(args);
  expect((await ask('secret', { arguments: args, apply_masks: true })).arguments).toBe('[masked]');
  expect(await ask('wipe', { arguments: args, apply_masks: true })).not.toHaveProperty('arguments');
  // whether it is asked for belongs to no call, and the arguments are kept with none
  const first = await ask('card', { arguments: args, call_id: 'm' });
  expect(await ask('card', { arguments: args, call_id: 'm', apply_masks: true })).toEqual({
    ...first,
    arguments: masked,
  });
  const rows = await sql<{ answers: object }>(server, 'select answers from agent_call where agent_id = $1', [
    `agent-${counter}`,
  ]);
  expect(JSON.stringify(rows)).not.toMatch(/\b4111\b/);
});

describe('waiting for a hold', () => {
  const wait = (who: Credential, id: string, query: string) =>
    server.call<{ status: string; votes?: unknown }>(200, `GET /v1/escrow/${id}?${query}`, who);

  test('ends with the change of its status, for the agent too, which is told no more than else', async () => {
    agent = await newAgent();
    const { escrow } = await ask('pay', pay(1));
    const waiting = [wait(agent, escrow!.id, 'wait=30'), wait(tenant.admin, escrow!.id, 'wait=30&status=held')];
    await vote(escrow!.id);
    for (const answer of await Promise.all(waiting)) expect(answer.body.status).toBe('released');
    const seen = await waiting[0]!;
    expect(seen.text).not.toContain('between us');
    expect(seen.body).not.toHaveProperty('votes');
    // it has left that status already
    expect((await wait(agent, escrow!.id, 'wait=60&status=held')).body.status).toBe('released');
  });

  test('ends after its time with the hold as it is', async () => {
    agent = await newAgent();
    const { escrow } = await ask('pay', pay(1));
    expect((await wait(agent, escrow!.id, 'wait=1')).body.status).toBe('held');
    for (const query of ['wait=61', 'wait=-1', 'wait=1.5', 'wait=x', 'wait=1&wait=2', 'status=done']) {
      await server.call(400, `GET /v1/escrow/${escrow!.id}?${query}`, agent);
    }
  });

  test('is for the agent’s own holds alone, and for as long as its key is valid', async () => {
    agent = await newAgent();
    const { escrow } = await ask('pay', pay(1));
    await server.call(404, `GET /v1/escrow/${escrow!.id}?wait=30`, await newAgent());
    await server.call(404, 'GET /v1/escrow/esc_none?wait=30', agent);
    const { body: key } = await server.call<{ id: string; key: string }>(201, 'POST /v1/agent-keys', tenant.admin, {
      agent_id: `agent-${counter - 1}`,
      agent_role: 'clerk',
    });
    const waiting = server.call(401, `GET /v1/escrow/${escrow!.id}?wait=30`, { key: key.key });
    await server.call(204, `DELETE /v1/agent-keys/${key.id}`, tenant.admin);
    await vote(escrow!.id);
    await waiting;
  });

  test('takes a bounded number of connections of one key', async () => {
    agent = await newAgent();
    const { escrow } = await ask('pay', pay(1));
    const waiting = Array.from({ length: 100 }, () => wait(agent, escrow!.id, 'wait=60'));
    await until(() => server.core.holdWaiters.waiting === 100, 'all wait');
    const more = await server.call<Problem>(429, `GET /v1/escrow/${escrow!.id}?wait=60`, agent);
    expect([more.body.code, more.headers.get('retry-after')]).toEqual(['RATE_LIMITED', '5']);
    // others wait all the same
    const other = wait(tenant.admin, escrow!.id, 'wait=60');
    await vote(escrow!.id);
    for (const { body } of await Promise.all([...waiting, other])) expect(body.status).toBe('released');
    expect((await wait(agent, escrow!.id, 'wait=60&status=held')).body.status).toBe('released');
  });

  test('ends when the caller goes away', async () => {
    agent = await newAgent();
    const { escrow } = await ask('pay', pay(1));
    const leaving = new AbortController();
    const { pathname, origin } = new URL(`/v1/escrow/${escrow!.id}`, server.url);
    const left = fetch(`${origin}${pathname}?wait=60`, {
      headers: { authorization: `Bearer ${agent.key}` },
      signal: leaving.signal,
    }).catch(() => 'left');
    await until(() => server.core.holdWaiters.waiting === 1, 'it waits');
    leaving.abort();
    expect(await left).toBe('left');
    await until(() => server.core.holdWaiters.waiting === 0, 'nobody waits');
  });
});

describe('a batch', () => {
  const batch = async (requests: unknown[], who = agent) =>
    (
      await server.call<{ results: (Evaluation & { error?: Problem & { errors?: { pointer: string }[] } })[] }>(
        200,
        'POST /v1/evaluate/batch',
        who,
        { requests },
      )
    ).body.results;
  const request = (tool_name: string, more: Record<string, unknown> = {}) => ({
    action_type: 'tool_call',
    tool_name,
    ...more,
  });

  test('answers each request by itself, in its order', async () => {
    agent = await newAgent();
    const results = await batch([
      request('card', { arguments: { card: { number: '1' } }, apply_masks: true }),
      request('pay', pay(1)),
      { action_type: 'tool_call' },
      request('card', { surprise: 1 }),
      'nonsense',
      null,
      request('wipe'),
      request('card', { arguments: { n: 1e21 } }),
      request('pay', pay(1)),
      request('unheard-of'),
    ]);
    expect(results.map(({ decision, error }) => decision ?? error!.code)).toEqual([
      'allow_with_masking',
      'escrow',
      ...Array(4).fill('VALIDATION_FAILED'),
      'deny',
      'VALIDATION_FAILED',
      'escrow',
      'deny',
    ]);
    expect(results[0]!.arguments).toEqual({ card: { number: '[masked]' } });
    expect(results[2]!.error).toMatchObject({ status: 400, errors: [{ pointer: '/requests/2/tool_name' }] });
    expect(results[8]!.escrow!.id).toBe(results[1]!.escrow!.id);
    expect(await records(`agent-${counter}`)).toHaveLength(5);
  });

  test('counts in its order: limits, sessions and calls are those of requests one after the other', async () => {
    agent = await newAgent();
    const reads = await batch(Array.from({ length: 5 }, () => request('read')));
    expect(reads.map(({ decision }) => decision)).toEqual([
      ...Array(3).fill('allow'),
      ...Array(2).fill('rate_limited'),
    ]);
    const few = await batch([
      ...Array.from({ length: 3 }, () => request('few', { session_id: 's' })),
      request('few', { session_id: 't' }),
    ]);
    expect(few.map(({ decision }) => decision)).toEqual(['allow', 'allow', 'deny', 'allow']);
    const same = await batch(Array.from({ length: 4 }, () => request('card', { call_id: 'same' })));
    expect(new Set(same.map(({ event_id }) => event_id)).size).toBe(1);
    const before = await records(`agent-${counter}`);
    expect(before).toHaveLength(5 + 4 + 1);
    expect(before.slice(0, 3).map(({ id }) => id)).toEqual(reads.slice(0, 3).map(({ event_id }) => event_id));
  });

  test('goes on with what was released, and a change of policies is the problem of one request', async () => {
    agent = await newAgent();
    const [one, two] = await batch([request('pay', pay(1, 'b1')), request('pay', pay(2, 'b2'))]);
    await vote(one!.escrow!.id);
    const next = await batch([
      request('pay', pay(1, 'b1', { resume: true })),
      request('pay', pay(2, 'b2', { resume: true })),
      request('pay', pay(3, 'b1', { resume: true })),
    ]);
    expect(next.map(({ decision, error }) => decision ?? error!.code)).toEqual(['allow', 'escrow', 'CONFLICT']);
    expect(next[1]!.escrow!.id).toBe(two!.escrow!.id);
  });

  test('says of each that it could not be recorded', async () => {
    agent = await newAgent();
    const results = await unrecorded(() => batch([request('card'), request('pay', pay(1)), request('wipe')]));
    expect(results.map(({ error }) => error?.code)).toEqual(Array(3).fill('UNAVAILABLE'));
    expect(JSON.stringify(results)).not.toMatch(/forensic_record|relation|select|insert/i);
    expect((await holdsOf(`agent-${counter}`)).map(({ status }) => status)).toEqual(['cancelled']);
  });

  test('has 1 to 50 requests', async () => {
    agent = await newAgent();
    await server.call(400, 'POST /v1/evaluate/batch', agent, { requests: [] });
    await server.call(400, 'POST /v1/evaluate/batch', agent, { requests: Array(51).fill(request('card')) });
    await server.call(400, 'POST /v1/evaluate/batch', agent, { requests: { 0: request('card') } });
    const results = await batch(Array.from({ length: 50 }, (_, n) => request('card', { arguments: { n } })));
    expect(new Set(results.map(({ decision }) => decision))).toEqual(new Set(['allow_with_masking']));
    expect(await records(`agent-${counter}`)).toHaveLength(50);
  });
});

// last, because the sessions of people end meanwhile
test('a budget is spent once by a call, however often it goes on', async () => {
  agent = await newAgent();
  const buy = (call_id: string, more: Record<string, unknown> = {}) =>
    ask('buy', { call_id, arguments: { call_id }, estimated_value: 60, value_currency: 'EUR', ...more });
  const held = [await buy('one'), await buy('two')];
  for (const { escrow } of held) await vote(escrow!.id);
  await unrecorded(() =>
    refused(503, 'buy', {
      ...{ call_id: 'one', arguments: { call_id: 'one' }, estimated_value: 60, value_currency: 'EUR', resume: true },
    }),
  );
  for (let n = 0; n < 3; n++) expect((await buy('one', { resume: true })).decision).toBe('allow');
  expect((await buy('two', { resume: true })).decision).toBe('rate_limited');
  expect((await holdsOf(`agent-${counter}`)).map(({ status }) => status)).toEqual(['consumed', 'released']);
  server.clock.advance(24 * 3_600_000);
  expect((await buy('two', { resume: true })).decision).toBe('deny');
});

test('calls are forgotten a day after their answer, and a week after the end of their hold', async () => {
  agent = await newAgent();
  const id = `agent-${counter}`;
  const day = 24 * 3_600_000;
  const names = async () => {
    await server.core.calls.forget();
    return (await calls(id)).map(({ call_id }) => call_id).sort();
  };
  const plain = await ask('card', { call_id: 'plain' });
  const held = await ask('pay', pay(1, 'held'));
  server.clock.advance(day - 60_000);
  expect(await names()).toEqual(['held', 'plain']);
  expect(await ask('card', { call_id: 'plain' })).toEqual(plain);
  server.clock.advance(120_000);
  // also before the job has run
  expect((await ask('card', { call_id: 'plain' })).event_id).not.toBe(plain.event_id);
  expect((await ask('pay', pay(1, 'held'))).decision).toBe('deny');
  server.clock.advance(6 * day);
  expect(await names()).toEqual(['held']);
  server.clock.advance(day + 3_600_000);
  expect(await names()).toEqual([]);
  expect((await ask('pay', pay(1, 'held'))).escrow!.id).not.toBe(held.escrow!.id);
});
