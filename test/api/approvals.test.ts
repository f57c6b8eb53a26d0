import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { deploy, event } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
const AGENT = { agent_role: 'clerk', agent_id: 'agent-1' };
const ACTION = {
  action_type: 'payment',
  tool_server: 'bank',
  tool_name: 'pay',
  method: 'POST',
  resource: '/payments',
  arguments: { amount: 12, to: 'ACME' },
  context: { ticket: 'T1' },
  estimated_value: 12,
  value_currency: 'EUR',
};
const HASH = `sha256:${'a'.repeat(64)}`;
const PAY = '@escrow("single") permit(principal, action, resource == Tool::"pay");';

interface Hold {
  id: string;
  status: string;
  reason?: string;
  rules: { id: string; hash: string }[];
  rule_ids: string[];
  notify_targets: string[];
  barred_voters?: string[];
  votes?: { shown_hash: string }[];
  arguments_preview: unknown;
  context_preview: unknown;
  cut: string[];
  [name: string]: unknown;
}
interface Evaluation {
  decision: string;
  code: string;
  action_hash: string;
  bundle_hash: string;
  escrow?: { id: string };
}
const evaluate = (status: number, agent: Credential, escrowId?: string, more: Record<string, unknown> = {}) =>
  server.call<Evaluation>(
    status,
    'POST /v1/evaluate',
    { ...agent, headers: { ...agent.headers, ...(escrowId && { 'x-svc-escrow-id': escrowId }) } },
    { ...ACTION, ...more },
  );
const read = async (who: Credential, id: string) => (await server.call<Hold>(200, `GET /v1/escrow/${id}`, who)).body;
const vote = (status: number, who: Credential, id: string, decision = 'approve') =>
  server.call(status, `POST /v1/escrow/${id}/vote`, who, { decision, reason: 'r' });
const update = (tenant: TestTenant, id: string, dsl_source: string) =>
  server.call(200, `PUT /v1/policies/${id}`, tenant.admin, { dsl_source });
const open = (status: number, proxy: Credential, more: Record<string, unknown>) =>
  server.call<Hold & { code: string; errors?: { pointer: string }[] }>(status, 'POST /v1/escrow', proxy, {
    ...AGENT,
    action_type: 'payment',
    action_summary: 'reads the FAQ',
    action_hash: HASH,
    hold_type: 'single',
    ttl_seconds: 600,
    ...more,
  });
const refusals = async (tenant: TestTenant, id: string) => {
  const { body } = await server.call<{ records: { action: string; detail: string; actor: { id: string } }[] }>(
    200,
    `GET /v1/audit?target_id=${id}&action=escrow.use_refused&limit=200`,
    tenant.admin,
  );
  return body.records.map(({ detail }) => detail).reverse();
};

async function setUp(source = PAY) {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'bills', source);
  return {
    tenant,
    approver: await tenant.person('approver'),
    agent: await tenant.agent('agent-1', 'clerk'),
    proxy: await tenant.key('proxy'),
  };
}
async function released(source = PAY) {
  const all = await setUp(source);
  const { body } = await evaluate(200, all.agent);
  await vote(200, all.approver, body.escrow!.id);
  return { ...all, id: body.escrow!.id, bundle_hash: body.bundle_hash, action_hash: body.action_hash };
}

describe('an approval covers the text that was approved', () => {
  test('a rule that was tightened under the same name requires approval again', async () => {
    const named = PAY.replace('@escrow', '@id("pay") @escrow');
    const { tenant, agent, id } = await released(named);
    await update(tenant, 'bills', named.replace('@escrow("single")', '@escrow("multi_party") @approvals("3")'));
    const refused = await evaluate(409, agent, id);
    expect(refused.body.code).toBe('POLICY_CHANGED');
    const next = await read(tenant.admin, refused.headers.get('x-svc-escrow-id')!);
    expect(next).toMatchObject({ hold_type: 'multi_party', required_approvals: 3, rule_ids: ['bills#pay'] });
    expect((await read(tenant.admin, id)).status).toBe('released');
  });

  test('another unnamed statement that took the place of the approved one is not mistaken for it', async () => {
    const trivial =
      '@escrow("time_delayed") @delay("1s") @ttl("1h") permit(principal, action, resource == Tool::"log");';
    const { tenant, agent, approver } = await setUp(trivial);
    const log = { ...ACTION, tool_name: 'log' };
    const delayed = (await evaluate(200, agent, undefined, log)).body.escrow!.id;
    server.clock.advance(2000);
    expect(await read(tenant.admin, delayed)).toMatchObject({ status: 'released', rule_ids: ['bills#0'] });
    // now it is the payment that stands at place 0, and the log is held by the same statement at place 1
    const both = `${PAY.replace('resource == Tool::"pay"', 'resource')}\n${trivial}`;
    await update(tenant, 'bills', both);
    const refused = await evaluate(409, agent, delayed, log);
    expect(refused.body.code).toBe('POLICY_CHANGED');
    const next = await read(tenant.admin, refused.headers.get('x-svc-escrow-id')!);
    expect(next).toMatchObject({ hold_type: 'single', rule_ids: ['bills#0', 'bills#1'] });

    // a statement that only moved is still the one that was approved
    await update(tenant, 'bills', PAY);
    const payment = (await evaluate(200, agent)).body.escrow!.id;
    await vote(200, approver, payment);
    await update(tenant, 'bills', `${trivial}\n${PAY}`);
    expect((await evaluate(200, agent, payment)).body.decision).toBe('allow');
  });
});

describe('a hold that a proxy opens', () => {
  const TERMS =
    '@escrow("multi_party") @quorum("finance:1,legal:1") @approvals("3") @ttl("1h") @execute_within("5m") @reason("money leaves") @notify("https://hooks.example.invalid/rule") permit(principal, action, resource == Tool::"pay");';

  test('requires as much as the rules that it names, or more', async () => {
    const { proxy, agent } = await setUp(TERMS);
    const { bundle_hash } = (await evaluate(200, agent)).body;
    const quorum = [
      { group: 'finance', count: 1 },
      { group: 'legal', count: 1 },
    ];
    const terms = {
      hold_type: 'multi_party',
      required_approvals: 3,
      quorum,
      ttl_seconds: 600,
      execute_within_seconds: 60,
    };
    const named = { rule_ids: ['bills#0'], bundle_hash, ...terms };
    for (const [less, pointer] of [
      [{ hold_type: 'single' }, '/hold_type'],
      [{ hold_type: 'conditional', conditions: [{ condition_id: 'x' }] }, '/hold_type'],
      [{ hold_type: 'time_delayed', release_after_seconds: 1 }, '/hold_type'],
      [{ required_approvals: 2 }, '/required_approvals'],
      [{ quorum: [{ group: 'finance', count: 2 }] }, '/quorum'],
      [{ ttl_seconds: 3601 }, '/ttl_seconds'],
      [{ execute_within_seconds: 301 }, '/execute_within_seconds'],
      [{ execute_within_seconds: undefined }, '/execute_within_seconds'],
      [{ rule_ids: ['bills#0', 'bills#1'] }, '/rule_ids/1'],
      [{ rule_ids: ['other#0'] }, '/rule_ids/0'],
      [{ bundle_hash: undefined }, '/bundle_hash'],
      [{ bundle_hash: HASH }, '/bundle_hash'],
      [{ policy_id: 'other' }, '/policy_id'],
    ] as const) {
      const { body } = await open(422, proxy, { ...named, ...less });
      expect(body.code, pointer).toBe('TERMS_REFUSED');
      expect(body.errors!.map((one) => one.pointer)).toContain(pointer);
    }
    const made = (await open(201, proxy, { ...named, required_approvals: 5, notify_targets: [] })).body;
    expect(made).toMatchObject({
      reason: 'money leaves',
      notify_targets: ['https://hooks.example.invalid/rule'],
      policy_id: 'bills',
    });

    // another tenant's bundle is none of this one's
    const foreign = await setUp(TERMS);
    await open(422, foreign.proxy, { ...named, bundle_hash: (await evaluate(200, agent)).body.bundle_hash });
  });

  test('a delay cannot be replaced by an approval before its time, nor by a made-up condition', async () => {
    const { proxy, agent } = await setUp(
      '@escrow("time_delayed") @delay("10m") @ttl("1h") permit(principal, action, resource == Tool::"pay");',
    );
    const { bundle_hash } = (await evaluate(200, agent)).body;
    const named = { rule_ids: ['bills#0'], bundle_hash, hold_type: 'time_delayed', release_after_seconds: 600 };
    for (const less of [
      { release_after_seconds: 599 },
      { required_approvals: 1 },
      { quorum: [{ group: 'own', count: 1 }] },
      { hold_type: 'conditional', release_after_seconds: undefined, conditions: [{ condition_id: 'own' }] },
      // good until it expires, which is in an hour at most
      { ttl_seconds: 3000, execute_within_seconds: 601 },
    ]) {
      expect((await open(422, proxy, { ...named, ttl_seconds: 3600, ...less })).body.code).toBe('TERMS_REFUSED');
    }
    await open(201, proxy, { ...named, ttl_seconds: 3000, execute_within_seconds: 600 });
    await open(201, proxy, { ...named, hold_type: 'single', release_after_seconds: undefined });
  });

  test('an older bundle counts until the end of its signature; its rules do not cover newer texts', async () => {
    const { tenant, proxy, agent, approver } = await setUp();
    const { bundle_hash, action_hash } = (await evaluate(200, agent)).body;
    await update(tenant, 'bills', PAY.replace('@escrow("single")', '@escrow("single") @severity("high")'));
    const { arguments: arguments_preview, context: context_preview, ...rest } = ACTION;
    const named = { ...rest, arguments_preview, context_preview, action_hash, rule_ids: ['bills#0'], bundle_hash };
    const old = (await open(201, proxy, named)).body;
    await vote(200, approver, old.id);
    expect((await evaluate(409, agent, old.id)).body.code).toBe('POLICY_CHANGED');
    server.clock.advance(31 * 24 * 3600_000);
    expect((await open(422, proxy, named)).body.code).toBe('TERMS_REFUSED');
  });

  test('satisfies an evaluation only with rules, and only where its approvers saw that very action', async () => {
    const { proxy, agent, approver } = await setUp();
    const { bundle_hash, action_hash } = (await evaluate(200, agent)).body;
    const { arguments: arguments_preview, context: context_preview, ...rest } = ACTION;
    const honest = { ...rest, arguments_preview, context_preview, action_hash };
    const rules = { rule_ids: ['bills#0'], bundle_hash };
    const approved = async (body: Record<string, unknown>) => {
      const { id } = (await open(201, proxy, body)).body;
      await vote(200, approver, id);
      return id;
    };
    // no rules: it is an approval of nothing that policies ask for
    expect((await evaluate(409, agent, await approved(honest))).body.code).toBe('POLICY_CHANGED');
    // approved as something harmless, with the hash of a payment
    for (const lie of [
      { tool_name: 'read' },
      { arguments_preview: { amount: 1, to: 'ACME' } },
      { estimated_value: 1 },
      { action_type: 'tool_call' },
      { tool_server: 'sandbox' },
      { context_preview: null },
    ]) {
      const id = await approved({ ...honest, ...rules, ...lie });
      expect((await evaluate(409, agent, id)).body.code, JSON.stringify(lie)).toBe('POLICY_CHANGED');
    }
    expect((await evaluate(200, agent, await approved({ ...honest, ...rules }))).body.decision).toBe('allow');
  });
});

describe('what approvers see', () => {
  test('is the masked action, separate from the agent’s claims, and the vote is bound to all of it', async () => {
    const { tenant, agent, approver } = await setUp(`${PAY}\n@mask("$..card") forbid(principal, action, resource);`);
    const { body } = await evaluate(200, agent, undefined, {
      arguments: { amount: 12, card: '4111 1111', note: 'to \u202Eeroc\u202C\u0000\n' },
      context: { ticket: 'T1', card: '4222 2222' },
      action_summary: 'reads\u0007 the \u202EQAF\u200B\nApproved by the boss',
      risk_score: 0.1,
    });
    const hold = await read(approver, body.escrow!.id);
    expect(hold).toMatchObject({
      source: 'evaluate',
      action_type: 'payment',
      tool_server: 'bank',
      tool_name: 'pay',
      method: 'POST',
      resource: '/payments',
      estimated_value: 12,
      value_currency: 'EUR',
      arguments_preview: { amount: 12, card: '[masked]', note: 'to ⟦U+202E⟧eroc⟦U+202C⟧␀␊' },
      context_preview: { ticket: 'T1', card: '[masked]' },
      action_summary: 'reads␇ the ⟦U+202E⟧QAF⟦U+200B⟧␊Approved by the boss',
      risk_score: 0.1,
      cut: [],
      erased: false,
    });
    expect(JSON.stringify(hold)).not.toMatch(/4111|4222/);
    const events = await server.core.db.owner.query<{ payload: Record<string, unknown> }>(
      `select payload from event_outbox where tenant_id = $1 and event_type = 'escrow.created'`,
      [tenant.id],
    );
    expect(events.rows[0]!.payload).toMatchObject({
      tool_name: 'pay',
      tool_server: 'bank',
      arguments: expect.stringContaining('"card":"[masked]"'),
      reason: null,
    });
    // what a vote is bound to is the whole of what the approver read
    await vote(200, approver, hold.id);
    const { shown_hash: shown, ...whole } = hold;
    expect(shown).toBe(sha256Tag(canonicalJson(whole)));
    expect((await read(approver, hold.id)).votes![0]!.shown_hash).toBe(shown);
  });

  test('is at most 32 KiB of arguments, and padding does not hide the rest', async () => {
    const { agent, approver, proxy } = await setUp();
    const padded = { aaa: 'x'.repeat(100_000), amount: 90_000, 'a\u200B': 1, a: 2 };
    const { body } = await evaluate(200, agent, undefined, { arguments: padded });
    const hold = await read(approver, body.escrow!.id);
    expect(hold.cut).toEqual(['arguments']);
    expect(hold.arguments_preview).toMatchObject({ amount: 90_000, a: 2, 'a⟦U+200B⟧': 1 });
    expect(Buffer.byteLength(JSON.stringify(hold.arguments_preview))).toBeLessThanOrEqual(32 * 1024);
    const many = Array.from({ length: 20_000 }, (_, n) => n);
    const sent = (await open(201, proxy, { arguments_preview: many, context_preview: { many } })).body;
    expect(sent.cut).toEqual(['arguments', 'context']);
    expect(Buffer.byteLength(JSON.stringify([sent.arguments_preview, sent.context_preview]))).toBeLessThan(66_000);
    expect(sent).toMatchObject({ source: 'proxy', estimated_value: null, value_currency: null, risk_score: null });
  });

  test('names that are the same when shortened do not stop the server, and stay distinct', async () => {
    const { proxy } = await setUp();
    const name = 'x'.repeat(64);
    const many = Object.fromEntries(Array.from({ length: 12_000 }, (_, n) => [name + String(n).padStart(5, '0'), n]));
    const began = performance.now();
    const { body } = await open(201, proxy, { arguments_preview: many });
    // a fraction of a second; comparing each name with all others takes minutes
    expect(performance.now() - began).toBeLessThan(30_000);
    expect(body.cut).toEqual(['arguments']);
    const few = Object.fromEntries(Array.from({ length: 100 }, (_, n) => [`${'x'.repeat(512)}${n + 100}`, n]));
    const hold = (await open(201, proxy, { arguments_preview: few })).body;
    expect(Object.values(hold.arguments_preview as object).toSorted((a, b) => a - b)).toEqual(Object.values(few));
  });

  test('what a proxy and an author write is shown with its hidden characters', async () => {
    const { tenant, proxy } = await setUp();
    await deploy(
      server,
      tenant.admin,
      'hidden',
      '@reason("pay \\u{202E}001 euros") @escrow("single") permit(principal, action, resource == Tool::"hidden");',
    );
    const agent = await tenant.agent('agent-1', 'clerk');
    const { body } = await evaluate(200, agent, undefined, { tool_name: 'hidden' });
    expect(await read(tenant.admin, body.escrow!.id)).toMatchObject({ reason: 'pay ⟦U+202E⟧001 euros' });
    const conditions = [{ condition_id: 'kyc', description: 'ok\u2066\n' }];
    const hold = (await open(201, proxy, { hold_type: 'conditional', conditions })).body;
    expect(hold).toMatchObject({ conditions: [{ description: 'ok⟦U+2066⟧␊' }] });
    const report = { condition_id: 'kyc', satisfied: false, evidence: '\u202Eko' };
    await server.call(200, `POST /v1/escrow/${hold.id}/satisfy`, proxy, report);
    expect(await read(tenant.admin, hold.id)).toMatchObject({ conditions: [{ evidence: '⟦U+202E⟧ko' }] });
  });

  test('a page of holds is bounded in bytes, and the following pages have the rest', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const text = 'é'.repeat(15_000);
    const made: string[] = [];
    for (let n = 0; n < 45; n++) {
      made.push((await open(201, proxy, { arguments_preview: { text }, context_preview: { text } })).body.id);
    }
    for (const order of ['created_at', 'expires_at']) {
      const seen: string[] = [];
      for (let after = ''; ; ) {
        const page = await server.call<{ holds: Hold[]; total: number; next_cursor: string | null }>(
          200,
          `GET /v1/escrow?limit=200&order=${order}${after && `&after=${after}`}`,
          tenant.admin,
        );
        expect(Buffer.byteLength(page.text)).toBeLessThan(2.2 * 1024 * 1024);
        expect(page.body.total).toBe(45);
        seen.push(...page.body.holds.map(({ id }) => id));
        if (page.body.next_cursor === null) break;
        after = page.body.next_cursor;
      }
      expect(seen.toSorted()).toEqual(made.toSorted());
      expect(new Set(seen).size).toBe(45);
    }
  });
});

describe('people involved with the keys do not vote', () => {
  test('owners and creators of any key of the agent, even a revoked one, and of the key that opened the hold', async () => {
    const { tenant, agent, approver } = await setUp();
    const maker = await tenant.person('admin', 'approver');
    const owner = await tenant.person('approver');
    const late = await tenant.person('admin', 'approver');
    // naming another person as the owner takes nobody out
    const made = await server.call<{ id: string }>(201, 'POST /v1/agent-keys', maker, {
      ...AGENT,
      owner_id: owner.userId,
    });
    // made with a key, which was made by a person
    const through = await tenant.person('admin', 'approver');
    const key = await server.call<{ key: string }>(201, 'POST /v1/keys', through, { label: 'k', scopes: ['admin'] });
    const second = await server.call<{ id: string }>(
      201,
      'POST /v1/agent-keys',
      { key: key.body.key },
      {
        ...{ ...AGENT, agent_role: 'reader' },
        owner_id: owner.userId,
      },
    );
    await server.call(204, `DELETE /v1/agent-keys/${made.body.id}`, maker);
    await server.call(204, `DELETE /v1/agent-keys/${second.body.id}`, maker);

    const first = (await evaluate(200, agent)).body.escrow!.id;
    const hold = await read(tenant.admin, first);
    expect(hold.barred_voters).toEqual(expect.arrayContaining([maker.userId, owner.userId, through.userId].sort()));
    expect(await read(agent, first)).not.toHaveProperty('barred_voters');
    for (const person of [maker, owner, through]) {
      await vote(403, person, first);
      await vote(403, person, first, 'reject');
    }
    // a person who makes a key for the agent while the hold is open is out too
    await server.call(201, 'POST /v1/agent-keys', late, { ...AGENT, owner_id: owner.userId });
    await vote(403, late, first);
    await vote(200, approver, first);

    // a proxy's key stands for who made it, whatever its scopes
    const proxyMaker = await tenant.person('admin', 'approver');
    const proxy = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', proxyMaker, {
      label: 'p',
      scopes: ['proxy'],
    });
    const opened = (await open(201, { key: proxy.body.key }, { agent_id: 'unknown' })).body;
    expect(opened.barred_voters).toEqual([proxyMaker.userId]);
    await server.call(204, `DELETE /v1/keys/${proxy.body.id}`, proxyMaker);
    await vote(403, proxyMaker, opened.id);
    await vote(200, approver, opened.id);
  });
});

describe('a refused use of an approval', () => {
  test('leaves an audit record at evaluate and at consume, at a decreasing rate', async () => {
    const { tenant, agent, proxy, id, action_hash } = await released();
    const other = await tenant.agent('agent-2', 'clerk');
    const consume = (status: number, more: Record<string, unknown> = {}) =>
      server.call(status, `POST /v1/escrow/${id}/consume`, proxy, { ...AGENT, action_hash, ...more });
    await evaluate(403, other, id);
    await evaluate(422, agent, id, { arguments: { amount: 13 } });
    await consume(403, { agent_id: 'agent-2' });
    await consume(422, { action_hash: HASH });
    await consume(200);
    await consume(409);
    await evaluate(409, agent, id);
    const once = [
      'AGENT_MISMATCH',
      'HASH_MISMATCH',
      'AGENT_MISMATCH',
      'HASH_MISMATCH',
      'ALREADY_CONSUMED',
      'ALREADY_CONSUMED',
    ];
    expect(await refusals(tenant, id)).toEqual(once.map((code) => `${code}, attempt 1`));
    for (let n = 0; n < 20; n++) await evaluate(409, agent, id);
    expect((await refusals(tenant, id)).slice(6)).toEqual([2, 4, 8, 16].map((n) => `ALREADY_CONSUMED, attempt ${n}`));

    const late = await released();
    server.clock.advance(25 * 3600_000);
    await evaluate(410, late.agent, late.id);
    expect(await refusals(late.tenant, late.id)).toEqual(['ESCROW_EXPIRED, attempt 1']);
    // another tenant's hold has no record anywhere
    await evaluate(404, agent, late.id);
    expect(await refusals(late.tenant, late.id)).toHaveLength(1);
  });
});

describe('what a proxy may claim', () => {
  test('excludes the name of the control plane and holds of other agents; its key is in the record', async () => {
    const { tenant, proxy, id } = await released();
    const foreign = await released();
    const bad: [Record<string, unknown>, string][] = [
      [{ proxy_id: 'control-plane' }, 'proxy_id'],
      [{ proxy_id: ' Control\u200B_Plane' }, 'proxy_id'],
      [{ escrow_id: id, agent_id: 'agent-2' }, 'escrow_id'],
      [{ escrow_id: id, agent_role: 'boss' }, 'escrow_id'],
      [{ escrow_id: id, tool_name: 'wire' }, 'escrow_id'],
      [{ escrow_id: id, tool_name: ACTION.tool_name, tool_server: 'other' }, 'escrow_id'],
      [{ escrow_id: foreign.id }, 'escrow_id'],
      [{ escrow_id: 'esc_nothing' }, 'escrow_id'],
    ];
    const good = event({ ...AGENT, escrow_id: id, tool_name: ACTION.tool_name });
    for (const route of ['POST /v1/events/ingest', 'POST /v1/forensics/records']) {
      const list = route.endsWith('ingest') ? 'events' : 'records';
      const { body } = await server.call<{ rejected: { index: number; code: string; detail: string }[] }>(
        202,
        route,
        proxy,
        {
          [list]: [...bad.map(([more]) => event({ ...AGENT, ...more })), good],
        },
      );
      expect(body.rejected.map(({ index, code }) => [index, code])).toEqual(bad.map((_, n) => [n, 'FORBIDDEN']));
      for (const [n, [, member]] of bad.entries()) expect(body.rejected[n]!.detail).toContain(member);
    }
    await server.call(400, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'control-plane' });
    const keys = await server.call<{ keys: { id: string; label: string }[] }>(200, 'GET /v1/keys', tenant.admin);
    const stored = await server.call<{ key_id: string }>(200, `GET /v1/events/${good.event_id}`, tenant.admin);
    expect(stored.body.key_id).toBe(keys.body.keys.find(({ label }) => label === 'proxy')!.id);
    const { body } = await server.call<{ events: { id: string; proxy_id: string }[] }>(
      200,
      'GET /v1/events?limit=50',
      tenant.admin,
    );
    const own = body.events.find(({ proxy_id }) => proxy_id === 'control-plane')!;
    const agentKeys = await server.call<{ agent_keys: { id: string }[] }>(200, 'GET /v1/agent-keys', tenant.admin);
    const detail = await server.call<{ key_id: string }>(200, `GET /v1/events/${own.id}`, tenant.admin);
    expect(agentKeys.body.agent_keys.map((key) => key.id)).toContain(detail.body.key_id);
  });

  test('a key that is revoked while its body is in transit stores nothing', async () => {
    const tenant = await server.tenant();
    const made = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', tenant.admin, {
      label: 'p',
      scopes: ['proxy'],
    });
    const late = event();
    const text = JSON.stringify({ events: [late] });
    const sending = async function* () {
      yield Buffer.from(text.slice(0, 20));
      await server.call(204, `DELETE /v1/keys/${made.body.id}`, tenant.admin);
      // longer than a body takes that is not looked at again
      await delay(150);
      yield Buffer.from(text.slice(20));
    };
    const answer = await fetch(`${server.url}/v1/events/ingest`, {
      method: 'POST',
      headers: { authorization: `Bearer ${made.body.key}`, 'content-type': 'application/json' },
      body: ReadableStream.from(sending()),
      duplex: 'half',
    } as RequestInit);
    expect(answer.status).toBe(401);
    await server.call(404, `GET /v1/events/${late.event_id}`, tenant.admin);
  });
});

test('retention erases the arguments stored and sent with holds, and no one can approve what cannot be seen', async () => {
  const { tenant, agent, approver, proxy } = await setUp();
  const { escrow } = (await evaluate(200, agent)).body;
  server.clock.advance(1000);
  const young = (await open(201, proxy, { arguments_preview: { secret: 'young' } })).body;
  const before = new Date(Date.parse(String((await read(approver, young.id)).created_at)));
  while ((await server.core.holds.forget(tenant.id, before, server.core.db.owner)) > 0);
  const hold = await read(approver, escrow!.id);
  expect(hold).toMatchObject({ arguments_preview: null, context_preview: null, erased: true, tool_name: 'pay' });
  const { rows } = await server.core.db.owner.query<{ text: string }>(
    `select (select string_agg(h::text, '') from escrow_hold h where tenant_id = $1 and id = $2)
       || (select string_agg(o::text, '') from event_outbox o where tenant_id = $1 and payload->>'escrow_id' = $2) as text`,
    [tenant.id, escrow!.id],
  );
  expect(rows[0]!.text).not.toContain('ACME');
  expect((await read(approver, young.id)).arguments_preview).toEqual({ secret: 'young' });
  await vote(403, approver, escrow!.id);
  await vote(200, approver, escrow!.id, 'reject');
});

describe('practice', () => {
  const practice = (status: number, who: Credential, resume = false) =>
    server.call<Evaluation & { event_id: string }>(status, 'POST /v1/practice', who, {
      ...{ agent_role: AGENT.agent_role, tool_name: ACTION.tool_name, arguments: ACTION.arguments, resume },
    });

  test('may be approved by anyone who asked, and releases nothing but the next practice', async () => {
    const { tenant, agent, proxy } = await setUp();
    const admin = await tenant.person('admin');
    const { escrow, action_hash } = (await practice(200, admin)).body;
    const real = (await evaluate(200, agent)).body;
    expect(real.escrow!.id).not.toBe(escrow!.id);
    await vote(200, admin, escrow!.id);
    // the agent's own action waits on, with the released hold named or not
    expect((await evaluate(200, agent, undefined, { resume: true })).body).toMatchObject({
      ...{ decision: 'escrow', escrow: { id: real.escrow!.id, status: 'held' } },
    });
    await evaluate(403, agent, escrow!.id);
    await server.call(400, `POST /v1/escrow/${escrow!.id}/consume`, proxy, {
      ...{ agent_id: '~practice', agent_role: AGENT.agent_role, action_hash },
    });
    await server.call(403, `POST /v1/escrow/${escrow!.id}/consume`, proxy, { ...AGENT, action_hash });
    const allowed = (await practice(200, admin, true)).body;
    expect(allowed.decision).toBe('allow');
    expect((await read(admin, escrow!.id)).status).toBe('consumed');
    const record = await server.call(200, `GET /v1/events/${allowed.event_id}`, admin);
    expect(record.body).toMatchObject({ agent_id: '~practice', key_id: admin.userId });
  });

  test('is for signed-in admins, and its name is nobody else’s', async () => {
    const { tenant, approver, proxy } = await setUp();
    await practice(403, approver);
    await practice(403, tenant.admin);
    const named = { agent_id: '~practice', agent_role: 'clerk' };
    await server.call(400, 'POST /v1/agent-keys', tenant.admin, named);
    await open(400, proxy, named);
    const ingested = await server.call(202, 'POST /v1/events/ingest', proxy, { events: [event(named)] });
    expect(ingested.body).toMatchObject({ accepted: 0, rejected: [{ index: 0, code: 'VALIDATION_FAILED' }] });
  });
});
