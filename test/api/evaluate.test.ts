import canonicalize from 'canonicalize';
import { beforeAll, describe, expect, test } from 'vitest';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { actionHash, type HashedAction } from '../../server/policy/evaluation/action-hash.ts';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();

const POLICY = `
@id("read") permit(principal in AgentRole::"clerk", action, resource == Tool::"read");
@id("card") @mask("$.card.number,$.ssn") permit(principal in AgentRole::"clerk", action, resource == Tool::"card");
@id("mail") @rate("3/m") permit(principal in AgentRole::"clerk", action, resource == Tool::"mail");
@id("pay") @escrow("multi_party") @approvals("2") @ttl("1h") @reason("payments are looked at")
permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");
@id("wipe") @reason("never wiped") forbid(principal, action, resource == Tool::"wipe");
@id("first-calls") permit(principal in AgentRole::"clerk", action, resource == Tool::"few")
when { context.session.call_count < 2 };
@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("total") && context.num.getTag("total").lessThanOrEqual(decimal("250.0")) };
`;

interface Evaluation {
  decision: string;
  event_id: string;
  policy_id: string | null;
  rule_id: string | null;
  policy_version: number | null;
  bundle_hash: string;
  deny_reason?: string;
  masks?: string[];
  retry_after?: number;
  action_hash: string;
  escrow?: {
    id: string;
    status: string;
    hold_type: string;
    required_approvals: number;
    current_approvals: number;
    expires_at: string;
    status_url: string;
    page_url: string;
  };
  evaluation_us: number;
}

const evaluate = async (agent: Credential, tool_name: string, more: Record<string, unknown> = {}) =>
  (await server.call<Evaluation>(200, 'POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name, ...more }))
    .body;

let tenant: TestTenant;
let agent: Credential;
let admin: Credential;
let bundleHash: string;
beforeAll(async () => {
  tenant = await server.tenant();
  admin = await tenant.person('admin');
  agent = await tenant.agent('agent-1', 'clerk');
  await deploy(server, tenant.admin, 'desk', POLICY);
  bundleHash = (await server.call(200, 'GET /v1/policies/bundle', tenant.admin)).headers.get('x-svc-bundle-hash')!;
});

const COMMON = [
  'action_hash',
  'bundle_hash',
  'decision',
  'evaluation_us',
  'event_id',
  'policy_id',
  'policy_version',
  'rule_id',
];

describe('each decision returns 200 with the decision and its reason', () => {
  test('allow', async () => {
    const answer = await evaluate(agent, 'read');
    expect(answer).toMatchObject({
      decision: 'allow',
      policy_id: 'desk',
      rule_id: 'desk#read',
      policy_version: 1,
      bundle_hash: bundleHash,
    });
    expect(Object.keys(answer).sort()).toEqual(COMMON);
    expect(answer.evaluation_us).toBeGreaterThan(0);
  });

  test('allow_with_masking', async () => {
    const answer = await evaluate(agent, 'card');
    expect(answer).toMatchObject({
      decision: 'allow_with_masking',
      rule_id: 'desk#card',
      masks: ['$.card.number', '$.ssn'],
    });
    expect(Object.keys(answer).sort()).toEqual([...COMMON, 'masks'].sort());
  });

  test('deny, by a rule and by none', async () => {
    const answer = await evaluate(agent, 'wipe');
    expect(answer).toMatchObject({ decision: 'deny', rule_id: 'desk#wipe', deny_reason: 'never wiped' });
    expect(Object.keys(answer).sort()).toEqual([...COMMON, 'deny_reason'].sort());
    const none = await evaluate(agent, 'unheard-of');
    expect(none).toMatchObject({
      decision: 'deny',
      policy_id: null,
      rule_id: null,
      policy_version: null,
      deny_reason: 'no policy permits this action',
    });
  });

  test('escrow', async () => {
    const answer = await evaluate(agent, 'pay', {
      arguments: { to: 'a' },
      estimated_value: 12.5,
      value_currency: 'EUR',
      risk_score: 0.25,
      action_summary: 'pays a',
    });
    expect(answer).toMatchObject({
      decision: 'escrow',
      rule_id: 'desk#pay',
      escrow: { status: 'held', hold_type: 'multi_party', required_approvals: 2, current_approvals: 0 },
    });
    expect(Object.keys(answer).sort()).toEqual([...COMMON, 'escrow'].sort());
    const { id, expires_at, status_url, page_url } = answer.escrow!;
    expect(answer.escrow).toMatchObject({
      reason: 'payments are looked at',
      rule_ids: ['desk#pay'],
      missing_seats: [],
      conditions: [],
    });
    expect(status_url).toBe(`/v1/escrow/${id}`);
    expect(page_url).toBe(`${server.origin}/approvals/${id}?tenant=${tenant.id}`);
    expect(Math.abs(Date.parse(expires_at) - server.clock.now() - 3_600_000)).toBeLessThan(60_000);
    const { body } = await server.call(200, `GET ${status_url}`, agent);
    expect(body).toMatchObject({
      id,
      status: 'held',
      agent_id: 'agent-1',
      agent_role: 'clerk',
      action_type: 'tool_call',
      action_summary: 'pays a',
      action_hash: answer.action_hash,
      estimated_value: 12.5,
      value_currency: 'EUR',
      risk_score: 0.25,
      ttl_seconds: 3600,
      policy_id: 'desk',
      rule_ids: ['desk#pay'],
      reason: 'payments are looked at',
    });
  });

  test('rate_limited, for each agent by itself, until the window is over', async () => {
    const [one, two] = [await tenant.agent('mailer-1', 'clerk'), await tenant.agent('mailer-2', 'clerk')];
    const decisions = async (who: Credential, times: number) => {
      const found: string[] = [];
      for (let i = 0; i < times; i++) found.push((await evaluate(who, 'mail')).decision);
      return found;
    };
    await server.clock.stopped(async () => {
      expect(await decisions(one, 4)).toEqual(['allow', 'allow', 'allow', 'rate_limited']);
      const limited = await evaluate(one, 'mail');
      expect(limited).toMatchObject({ decision: 'rate_limited', rule_id: 'desk#mail' });
      expect(limited.retry_after).toBeGreaterThan(0);
      expect(limited.retry_after).toBeLessThanOrEqual(60);
      expect(await decisions(two, 1)).toEqual(['allow']);
      // a second key of the same agent is the same agent
      expect(await decisions(await tenant.agent('mailer-1', 'clerk'), 1)).toEqual(['rate_limited']);
      server.clock.advance(61_000);
      expect(await decisions(one, 4)).toEqual(['allow', 'allow', 'allow', 'rate_limited']);
    });
  });

  test('a rate counts exactly, however many calls are concurrent', async () => {
    const crowd = await tenant.agent('crowd', 'clerk');
    await server.clock.stopped(async () => {
      const answers = await Promise.all(Array.from({ length: 20 }, () => evaluate(crowd, 'mail')));
      expect(answers.filter(({ decision }) => decision === 'allow')).toHaveLength(3);
      expect(answers.filter(({ decision }) => decision === 'rate_limited')).toHaveLength(17);
    });
  });
});

describe('a hold', () => {
  test('is shared by identical concurrent requests, and by every repetition', async () => {
    const answers = await Promise.all(
      Array.from({ length: 30 }, () => evaluate(agent, 'pay', { arguments: { to: 'many' } })),
    );
    expect(new Set(answers.map(({ decision }) => decision))).toEqual(new Set(['escrow']));
    const ids = new Set(answers.map(({ escrow }) => escrow!.id));
    expect(ids.size).toBe(1);
    expect(new Set(answers.map(({ event_id }) => event_id)).size).toBe(30);
    const again = await evaluate(agent, 'pay', { arguments: { to: 'many' } });
    expect(ids).toContain(again.escrow!.id);
    const rows = await sql<{ n: number }>(
      server,
      'select count(*)::int as n from escrow_hold where tenant_id = $1 and action_hash = $2',
      [tenant.id, again.action_hash],
    );
    expect(rows[0]!.n).toBe(1);
    const audit = await server.call<{ records: unknown[] }>(
      200,
      `GET /v1/audit?action=escrow.created&target_id=${again.escrow!.id}`,
      admin,
    );
    expect(audit.body.records).toHaveLength(1);
  });

  test('is another for other arguments, another method or resource, and another agent', async () => {
    const base = await evaluate(agent, 'pay', { arguments: { to: 'x' } });
    const others = [
      await evaluate(agent, 'pay', { arguments: { to: 'y' } }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, method: 'POST' }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, resource: '/pay' }),
      await evaluate(await tenant.agent('agent-7', 'clerk'), 'pay', { arguments: { to: 'x' } }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, tool_server: 'prod' }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, action_type: 'payment' }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, context: { ticket: 'T-1' } }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, estimated_value: 5 }),
      await evaluate(agent, 'pay', { arguments: { to: 'x' }, estimated_value: 5, value_currency: 'EUR' }),
    ];
    expect(new Set([base, ...others].map(({ escrow }) => escrow!.id)).size).toBe(10);
    const same = await evaluate(agent, 'pay', {
      arguments: { to: 'x' },
      action_summary: 'in other words',
      session_id: 's',
    });
    expect(same.escrow!.id).toBe(base.escrow!.id);
  });

  test('that was released for one action is not consumed by another', async () => {
    const sandbox = { arguments: { to: 'z' }, tool_server: 'sandbox', estimated_value: 5, value_currency: 'EUR' };
    const { escrow } = await evaluate(agent, 'pay', sandbox);
    for (let n = 0; n < 2; n++) {
      await server.call(200, `POST /v1/escrow/${escrow!.id}/vote`, await tenant.person('approver'), {
        decision: 'approve',
        reason: 'as agreed',
      });
    }
    const repeat = (status: number, change: Record<string, unknown>) =>
      server.call(
        status,
        'POST /v1/evaluate',
        { ...agent, headers: { ...agent.headers, 'x-svc-escrow-id': escrow!.id } },
        { action_type: 'tool_call', tool_name: 'pay', ...sandbox, ...change },
      );
    for (const change of [
      { tool_server: 'prod' },
      { tool_server: undefined },
      { action_type: 'payment' },
      { context: { ticket: 'T-1' } },
      { estimated_value: 6 },
      { value_currency: 'USD' },
    ]) {
      expect((await repeat(422, change)).body.code, JSON.stringify(change)).toBe('HASH_MISMATCH');
    }
    expect((await repeat(200, {})).body).toMatchObject({ decision: 'allow', escrow: { status: 'consumed' } });
  });

  test('that has expired allows a new one', async () => {
    await server.clock.stopped(async () => {
      const old = await evaluate(agent, 'pay', { arguments: { to: 'late' } });
      server.clock.advance(3_600_000 - 5_000);
      expect((await evaluate(agent, 'pay', { arguments: { to: 'late' } })).escrow!.id).toBe(old.escrow!.id);
      server.clock.advance(10_000);
      const recent = await evaluate(agent, 'pay', { arguments: { to: 'late' } });
      expect(recent.escrow!.id).not.toBe(old.escrow!.id);
      expect((await server.call(200, `GET /v1/escrow/${old.escrow!.id}`, admin)).body.status).toBe('expired');
    });
  });

  test('past its expiry is shown as expired to everyone, whether or not a timer ran', async () => {
    const held = await evaluate(agent, 'pay', { arguments: { to: 'unseen' } });
    server.clock.advance(3_600_000 + 1000);
    for (const who of [agent, admin]) {
      expect((await server.call(200, `GET /v1/escrow/${held.escrow!.id}`, who)).body.status).toBe('expired');
    }
  });
});

describe('the record of a decision', () => {
  test('names the policy version, content, bundle and rule that decided', async () => {
    const answer = await evaluate(agent, 'card', { session_id: 'sess', method: 'GET' });
    const policy = await server.call<{ content_hash: string }>(200, 'GET /v1/policies/desk', admin);
    const { body } = await server.call(200, `GET /v1/events/${answer.event_id}`, admin);
    expect(body).toMatchObject({
      id: answer.event_id,
      event_type: 'decision.allow_with_masking',
      decision: 'allow_with_masking',
      proxy_id: 'control-plane',
      agent_id: 'agent-1',
      agent_role: 'clerk',
      session_id: 'sess',
      tool_name: 'card',
      method: 'GET',
      policy_id: 'desk',
      policy_snapshot: {
        policy_id: 'desk',
        version: 1,
        content_hash: policy.body.content_hash,
        bundle_hash: bundleHash,
      },
      rule_id: 'desk#card',
      hits: ['desk#card'],
      obligations: ['mask $.card.number', 'mask $.ssn'],
      source_ip: '127.0.0.1',
    });
    expect(body.chain).toMatchObject({ alg: 'BLAKE3', seq: expect.any(Number) });
  });

  test('commits to the request as it was evaluated and to what policies read of it, which are stored with it', async () => {
    const args = { z: 1.5, a: ['\u00e9', { b: null }], 'k"': 'x\0' };
    const answer = await evaluate(agent, 'read', { arguments: args, context: { ticket: 7 }, session_id: 's' });
    const { body } = await server.call(200, `GET /v1/events/${answer.event_id}`, admin);
    const [row] = await sql<{ salt_a: string; projection: string; salt_b: string; input: string }>(
      server,
      `select encode(salt_a, 'hex') as salt_a, projection, encode(salt_b, 'hex') as salt_b, input
       from decision_input where tenant_id = $1 and event_id = $2`,
      [tenant.id, answer.event_id],
    );
    const salted = (salt: string, text: string) =>
      sha256Tag(Buffer.concat([Buffer.from(salt, 'hex'), Buffer.from(text)]));
    expect(row!.salt_a).not.toBe(row!.salt_b);
    expect(body).toMatchObject({
      input_hash: salted(row!.salt_b, row!.input),
      ask_commit: salted(row!.salt_a, row!.projection),
      action_ref: salted(row!.salt_b, answer.action_hash as string),
      engine: expect.stringMatching(/^cedar-wasm\/\d+\.\d+\.\d+ svc-decide\/1$/),
    });
    expect(body).not.toHaveProperty('action_hash');
    expect(row!.projection).not.toContain('ticket');
    const input = JSON.parse(row!.input) as Record<string, unknown>;
    expect(canonicalize(input)).toBe(row!.input);
    expect(input).toMatchObject({ agent_id: 'agent-1', agent_role: 'clerk', arguments: args, context: { ticket: 7 } });
    const line = await sql<{ line: string }>(server, 'select line from forensic_record where event_id = $1', [
      answer.event_id,
    ]);
    expect(line[0]!.line).not.toContain('ticket');
    expect(answer.action_hash).toBe(
      actionHash({ ...input, agent_id: 'agent-1', agent_role: 'clerk' } as unknown as HashedAction),
    );
  });

  test('is one for each call, and the chain of all of them verifies', async () => {
    const count = async () =>
      (
        await sql<{ n: number }>(server, 'select count(*)::int as n from forensic_record where tenant_id = $1', [
          tenant.id,
        ])
      )[0]!.n;
    const before = await count();
    await Promise.all(
      ['read', 'card', 'wipe', 'pay', 'mail', 'none'].flatMap((tool) => [evaluate(agent, tool), evaluate(agent, tool)]),
    );
    expect(await count()).toBe(before + 12);
    expect((await server.call(200, 'GET /v1/forensics/verify', admin)).body).toMatchObject({
      verified: true,
      linear: true,
    });
  });
});

describe('who asks', () => {
  test('is determined by the key alone', async () => {
    for (const more of [
      { agent_id: 'boss' },
      { agent_role: 'chief' },
      { owner: 'x' },
      { tenant_id: 'x' },
      { now: '2026-01-01T00:00:00Z' },
      { session: { call_count: 0 } },
      { source_ip: '10.0.0.1' },
    ]) {
      await server.call(400, 'POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name: 'read', ...more });
    }
    const stranger = await tenant.agent('stranger', 'visitor');
    expect((await evaluate(stranger, 'read')).decision).toBe('deny');
    expect(
      (
        await evaluate(stranger, 'read', {
          arguments: { agent_role: 'clerk', role: 'clerk' },
          context: { agent_role: 'clerk' },
        })
      ).decision,
    ).toBe('deny');
  });

  test('need not name its tenant, and must not name another', async () => {
    const body = { action_type: 'tool_call', tool_name: 'read' };
    expect((await server.call(200, 'POST /v1/evaluate', { key: agent.key! }, body)).body.decision).toBe('allow');
    const wrong = { key: agent.key!, headers: { 'x-svc-tenant': 'default' } };
    expect((await server.call(403, 'POST /v1/evaluate', wrong, body)).body.code).toBe('FORBIDDEN');
  });
});

describe('arguments', () => {
  test('that are numbers in strings do not bypass a limit', async () => {
    for (const [total, decision] of [
      [250, 'allow'],
      ['250.0', 'allow'],
      [250.01, 'deny'],
      ['250.01', 'deny'],
      ['1e3', 'deny'],
      [' 251', 'deny'],
      ['0x1ff', 'deny'],
      [null, 'deny'],
      [[1], 'deny'],
      [{ total: 1 }, 'deny'],
    ] as const) {
      expect((await evaluate(agent, 'refund', { arguments: { total } })).decision, JSON.stringify(total)).toBe(
        decision,
      );
    }
    expect((await evaluate(agent, 'refund', { context: { total: 1 } })).decision).toBe('deny');
  });

  test('that a rule cannot read unambiguously are denied, with their path and a record', async () => {
    for (const args of [
      { total: '1e1' },
      { total: '٩' },
      { total: 50.00004 },
      { total: [1] },
      { total: null },
      { total: 1, Total: 90_000 },
    ]) {
      const answer = await evaluate(agent, 'refund', { arguments: args });
      expect(answer, JSON.stringify(args)).toMatchObject({
        decision: 'deny',
        deny_reason: 'argument_in_doubt: arguments.total',
        rule_id: 'desk#small',
      });
      const event = await server.call(200, `GET /v1/events/${answer.event_id}`, admin);
      expect(event.body).toMatchObject({ deny_reason: answer.deny_reason, rule_id: 'desk#small' });
    }
  });

  test('that name entities or extensions are plain values', async () => {
    for (const total of [
      { __entity: { type: 'Tool', id: 'read' } },
      { __extn: { fn: 'decimal', arg: '1.0' } },
      { __expr: 'true' },
    ]) {
      expect((await evaluate(agent, 'refund', { arguments: { total } })).decision).toBe('deny');
    }
  });

  test('that cannot be evaluated are denied and recorded, never allowed', async () => {
    const deep = (n: number): unknown => (n === 0 ? 1 : { a: deep(n - 1) });
    for (const [args, cause] of [
      [deep(20), 'the arguments are nested deeper than 16 levels'],
      [
        Object.fromEntries(Array.from({ length: 2001 }, (_, n) => [`k${n}`, n])),
        'the arguments have more than 2000 values',
      ],
      [{ 'a.b': 1, a: { b: 9 } }, 'two arguments have the key arguments.a.b'],
      [{ ['k'.repeat(2000)]: 1 }, 'an argument key is longer than 1024 characters'],
    ] as [Record<string, unknown>, string][]) {
      const deny_reason = `policy_error: ${cause}`;
      const answer = await evaluate(agent, 'refund', { arguments: args });
      expect(answer).toMatchObject({ decision: 'deny', deny_reason });
      const { body } = await server.call(200, `GET /v1/events/${answer.event_id}`, admin);
      expect(body).toMatchObject({ deny_reason });
      // no rule about this tool reads an argument
      expect((await evaluate(agent, 'read', { arguments: args })).decision).toBe('allow');
    }
    expect((await evaluate(agent, 'read', { action_type: 'no_such_action' })).decision).toBe('deny');
  });

  test('with too many parts are refused before they are parsed, and null is what was not given', async () => {
    const action = { action_type: 'tool_call', tool_name: 'read' };
    const rows = Array.from({ length: 100 }, () => Array.from({ length: 65 }, () => 1));
    expect((await evaluate(agent, 'read', { arguments: { rows } })).decision).toBe('allow');
    const more = { ...action, arguments: { rows: [...rows, ...rows] } };
    for (const [route, body] of [
      ['POST /v1/evaluate', more],
      ['POST /v1/evaluate/batch', { requests: [more] }],
      ['POST /v1/outcomes', { event_id: 'evt_1', outcome: 'succeeded', answer: more }],
    ] as const) {
      expect((await server.call(413, route, agent, body)).body.code).toBe('PAYLOAD_TOO_LARGE');
    }
    const optional = [
      ...[
        'tool_pin',
        'tool_server',
        'method',
        'resource',
        'arguments',
        'session_id',
        'action_summary',
        'estimated_value',
      ],
      ...['value_currency', 'risk_score', 'context', 'call_id', 'attempt', 'resume', 'apply_masks'],
    ];
    const nulls = Object.fromEntries(optional.map((name) => [name, null]));
    const [given, absent] = [await evaluate(agent, 'read', nulls), await evaluate(agent, 'read')];
    expect(given).toMatchObject({ decision: 'allow', action_hash: absent.action_hash });
    // what ran already is recorded, and permitted nothing by it
    for (const more of [{ resume: true }, { apply_masks: true }, { attempt: 'a' }]) {
      await server.call(400, 'POST /v1/evaluate', agent, { ...action, ran_at: new Date().toISOString(), ...more });
    }
    const batch = await server.call(200, 'POST /v1/evaluate/batch', agent, { requests: [{ ...action, ...nulls }] });
    expect(batch.body).toMatchObject({ results: [{ decision: 'allow', action_hash: absent.action_hash }] });
  });
});

describe('what has changed', () => {
  test('applies from the next call on: approval, a new version, revocation', async () => {
    const own = await server.tenant();
    const who = await own.agent('a', 'clerk');
    expect((await evaluate(who, 'read')).decision).toBe('deny');
    await server.call(201, 'POST /v1/policies', own.admin, {
      id: 'p',
      dsl_source: 'permit(principal, action, resource == Tool::"read");',
    });
    expect((await evaluate(who, 'read')).decision).toBe('deny');
    await server.call(200, 'POST /v1/policies/p/approve', own.admin, { version: 1 });
    expect((await evaluate(who, 'read')).decision).toBe('allow');
    await server.call(200, 'PUT /v1/policies/p', own.admin, {
      dsl_source: '@mask("$.a") permit(principal, action, resource == Tool::"read");',
    });
    expect(await evaluate(who, 'read')).toMatchObject({ decision: 'allow_with_masking', policy_version: 2 });
    await server.call(200, 'DELETE /v1/policies/p', own.admin);
    expect((await evaluate(who, 'read')).decision).toBe('deny');
  });

  test('in the action types of the tenant too', async () => {
    const own = await server.tenant();
    const who = await own.agent('a', 'clerk');
    await deploy(server, own.admin, 'p', 'permit(principal, action in Action::"read", resource);');
    expect((await evaluate(who, 'x', { action_type: 'ticket_read' })).decision).toBe('deny');
    await own.set({ action_types: { read: ['ticket_read'], write: [] } });
    expect((await evaluate(who, 'x', { action_type: 'ticket_read' })).decision).toBe('allow');
  });

  test('a session has its earlier calls, and no other session its own', async () => {
    const decisions: string[] = [];
    for (let i = 0; i < 3; i++) decisions.push((await evaluate(agent, 'few', { session_id: 'counted' })).decision);
    expect(decisions).toEqual(['allow', 'allow', 'deny']);
    expect((await evaluate(agent, 'few', { session_id: 'another' })).decision).toBe('allow');
    const own = await server.tenant();
    await deploy(server, own.admin, 'desk', POLICY);
    expect((await evaluate(await own.agent('agent-1', 'clerk'), 'few', { session_id: 'counted' })).decision).toBe(
      'allow',
    );
  });
});

// last, because it takes the table away
describe('no record, no permit', () => {
  test('when the record cannot be stored the answer is 503, and a hold that was opened for it is cancelled', async () => {
    const own = await server.tenant();
    const who = await own.agent('a', 'clerk');
    await deploy(server, own.admin, 'desk', POLICY);
    const kept = await evaluate(who, 'pay', { arguments: { to: 'kept' } });
    await sql(server, 'alter table forensic_record rename to gone');
    try {
      for (const [tool, to] of [
        ['read', ''],
        ['pay', 'lost'],
        ['pay', 'kept'],
        ['wipe', ''],
      ] as const) {
        const answer = await server.call(503, 'POST /v1/evaluate', who, {
          action_type: 'tool_call',
          tool_name: tool,
          arguments: { to },
        });
        expect(answer.body.code).toBe('UNAVAILABLE');
        expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
        expect(answer.text).not.toMatch(/forensic_record|relation|select|insert/i);
      }
    } finally {
      await sql(server, 'alter table gone rename to forensic_record');
    }
    const holds = await sql<{ id: string; status: string }>(
      server,
      'select id, status from escrow_hold where tenant_id = $1 order by created_at',
      [own.id],
    );
    // the hold that was there before stays: its own record is stored
    expect(holds.map(({ id, status }) => [id === kept.escrow!.id, status])).toEqual([
      [true, 'held'],
      [false, 'cancelled'],
    ]);
    expect((await evaluate(who, 'read')).decision).toBe('allow');
    expect((await server.call(200, 'GET /v1/forensics/verify', own.admin)).body.verified).toBe(true);
  });
});
