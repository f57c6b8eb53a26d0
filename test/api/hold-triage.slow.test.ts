import { describe, expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

interface Group {
  agent_id: string | null;
  rule_id: string | null;
  tool_server: string | null;
  tool_name: string | null;
  count: number;
}
interface Listed {
  holds: { id: string }[];
  total: number;
  next_cursor: string | null;
}
interface Similar {
  holds: Record<string, unknown>[];
  looked_at: number;
}

let n = 0;
async function hold(proxy: Credential, more: Record<string, unknown> = {}): Promise<string> {
  const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
    ...{
      agent_role: 'clerk',
      agent_id: 'bot',
      action_type: 'tool_call',
      tool_name: 'pay',
      action_summary: 'secret words',
    },
    ...{ action_hash: `sha256:${(++n).toString(16).padStart(64, '0')}`, hold_type: 'single', ttl_seconds: 3600 },
    ...{ arguments_preview: { note: 'secret words' }, ...more },
  });
  return body.id;
}
const end = (tenant: TestTenant, id: string) =>
  server.call(200, `POST /v1/escrow/${id}/cancel`, tenant.admin, { reason: 'enough' });
const groups = async (who: Credential, query: string) =>
  (await server.call<{ groups: Group[] }>(200, `GET /v1/escrow/groups?${query}`, who)).body.groups;
const similar = async (who: Credential, id: string) =>
  (await server.call<Similar>(200, `GET /v1/escrow/${id}/similar`, who)).body;

/** All holds of a list, two a page. */
async function listed(who: Credential, query: URLSearchParams): Promise<{ ids: string[]; total: number }> {
  const ids: string[] = [];
  for (let after = ''; ; ) {
    const { body } = await server.call<Listed>(200, `GET /v1/escrow?limit=2&${query}${after}`, who);
    ids.push(...body.holds.map(({ id }) => id));
    if (body.next_cursor === null) return { ids, total: body.total };
    after = `&after=${encodeURIComponent(body.next_cursor)}`;
  }
}

const GUARD = [
  '@id("large") @escrow("single") @ttl("1h") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");',
  '@id("other") @escrow("single") @ttl("1h") permit(principal in AgentRole::"clerk", action, resource == Tool::"send");',
].join('\n');

/** What an agent of the control plane asks for, which a rule holds. */
async function asked(bot: Credential, tool_name: string, amount: number): Promise<string> {
  const { body } = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', bot, {
    ...{ action_type: 'tool_call', tool_name, arguments: { amount } },
  });
  return body.escrow.id;
}

describe('the waiting holds in groups', () => {
  test('are as many as the list of each group has, page by page', async () => {
    const [tenant, other] = [await server.tenant(), await server.tenant()];
    const proxy = await tenant.key('proxy');
    const reader = await tenant.person('viewer');
    await deploy(server, tenant.admin, 'guard', GUARD);
    const bot = await tenant.agent('asker', 'clerk');
    for (let i = 0; i < 5; i++) await hold(proxy, { tool_server: 'bank' });
    for (let i = 0; i < 3; i++) await hold(proxy, { agent_id: 'another' });
    for (let i = 0; i < 2; i++) await asked(bot, 'pay', i);
    await asked(bot, 'send', 1);
    await end(tenant, await hold(proxy));
    await hold(await other.key('proxy'));
    const expected = {
      agent: [5, 3, 3],
      rule: [8, 2, 1],
      tool: [5, 5, 1],
    };
    for (const [by, counts] of Object.entries(expected)) {
      const found = await groups(reader, `by=${by}`);
      expect(found.map(({ count }) => count)).toEqual(counts);
      for (const { count, agent_id, rule_id, tool_server, tool_name } of found) {
        const query = new URLSearchParams({ status: 'held', order: 'expires_at' });
        if (by === 'agent') query.set('agent_id', agent_id!);
        if (by === 'rule') query.set('rule_id', rule_id!);
        if (by === 'tool') {
          query.set('tool_name', tool_name!);
          query.set('tool_server', tool_server!);
        }
        const { ids, total } = await listed(reader, query);
        expect(new Set(ids).size).toBe(count);
        expect(ids).toHaveLength(count);
        expect(total).toBe(count);
      }
    }
    expect((await groups(reader, 'by=rule')).map(({ rule_id }) => rule_id)).toEqual(['', 'guard#large', 'guard#other']);
  });

  test('can be those that wait for one’s own vote', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const approver = await tenant.person('approver');
    const [first] = [await hold(proxy, { hold_type: 'multi_party' }), await hold(proxy)];
    await server.call(200, `POST /v1/escrow/${first}/vote`, approver, { decision: 'approve' });
    expect(await groups(approver, 'by=agent')).toMatchObject([{ agent_id: 'bot', count: 2 }]);
    expect(await groups(approver, 'by=agent&mine=needed')).toMatchObject([{ agent_id: 'bot', count: 1 }]);
    await server.call(400, 'GET /v1/escrow/groups?by=agent&mine=needed', tenant.admin);
    await server.call(400, 'GET /v1/escrow/groups?by=secret', approver);
    await server.call(403, 'GET /v1/escrow/groups?by=agent', proxy);
  });
});

describe('similar holds', () => {
  test('are those of the same tool by the same agent or rule, as they ended, and nothing else', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const reader = await tenant.person('viewer');
    const approver = await tenant.person('approver');
    await deploy(server, tenant.admin, 'guard', GUARD);
    const [bot, colleague] = [await tenant.agent('asker', 'clerk'), await tenant.agent('colleague', 'clerk')];
    const hers = await asked(colleague, 'pay', 1);
    await server.call(200, `POST /v1/escrow/${hers}/vote`, approver, { decision: 'reject', reason: 'too much' });
    const his = await asked(bot, 'pay', 2);
    await end(tenant, his);
    const unruled = await hold(proxy, { agent_id: 'asker' });
    await end(tenant, unruled);
    // another tool, another server, another agent without the rule, and one that still waits
    await end(tenant, await asked(bot, 'send', 1));
    await end(tenant, await hold(proxy, { agent_id: 'asker', tool_server: 'bank' }));
    await end(tenant, await hold(proxy, { agent_id: 'stranger' }));
    await asked(bot, 'pay', 3);
    const present = await asked(bot, 'pay', 4);
    const { holds } = await similar(reader, present);
    expect(holds.map(({ id, status }) => [id, status])).toEqual([
      [unruled, 'cancelled'],
      [his, 'cancelled'],
      [hers, 'rejected'],
    ]);
    expect(holds[2]).toMatchObject({ votes: [{ decision: 'reject', reason: 'too much' }] });
    // neither arguments nor the agent's words
    expect(JSON.stringify(holds)).not.toMatch(/secret words|arguments|amount/);
  });

  test('are of the same tenant alone, and not for agents and proxies', async () => {
    const [tenant, other] = [await server.tenant(), await server.tenant()];
    const [proxy, foreign] = [await tenant.key('proxy'), await other.key('proxy')];
    await end(other, await hold(foreign));
    const id = await hold(proxy);
    expect((await similar(await tenant.person('viewer'), id)).holds).toEqual([]);
    await server.call(404, `GET /v1/escrow/${id}/similar`, await other.person('admin'));
    await server.call(403, `GET /v1/escrow/${id}/similar`, proxy);
    await server.call(403, `GET /v1/escrow/${id}/similar`, await tenant.agent('bot', 'clerk'));
  });

  test('are the last 20, found by an index however many there are', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    for (let i = 0; i < 22; i++) await end(tenant, await hold(proxy));
    const { holds, looked_at } = await similar(await tenant.person('viewer'), await hold(proxy));
    expect([holds.length, looked_at]).toEqual([20, 20]);
    const client = await server.core.db.owner.connect();
    try {
      await client.query(
        'begin; set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off',
      );
      await client.query(`set local role svc_app; set local app.tenant = '${tenant.id}'`);
      for (const same of [`agent_id = 'bot'`, `rule_id = 'guard#large'`]) {
        const { rows } = await client.query<{ 'QUERY PLAN': string }>(
          `explain select * from escrow_hold where tenant_id = '${tenant.id}' and tool_name = 'pay' and tool_server = ''
             and ${same} and id <> 'esc_' order by created_at desc, id desc limit 20`,
        );
        expect(rows.map((row) => row['QUERY PLAN']).join('\n')).toMatch(/escrow_hold_like_/);
      }
      await client.query('rollback');
    } finally {
      client.release(true);
    }
  });
});

describe('rejecting several holds', () => {
  interface Rejectable {
    holds: { id: string; shown_hash: string; refusal: { code: string } | null }[];
  }
  const rejectable = async (who: Credential, ids: readonly string[], status = 200) =>
    (await server.call<Rejectable>(status, `GET /v1/escrow/rejectable?ids=${ids.join(',')}`, who)).body.holds;

  test('begins with what each vote would meet, and a hold that has changed since is not rejected', async () => {
    const tenant = await server.tenant();
    const [proxy, ann, bob] = [
      await tenant.key('proxy'),
      await tenant.person('approver'),
      await tenant.person('approver'),
    ];
    const two = { hold_type: 'multi_party', required_approvals: 2 };
    const [open, voted, ended, changes] = [
      await hold(proxy),
      await hold(proxy, two),
      await hold(proxy),
      await hold(proxy, two),
    ];
    const vote = (status: number, who: Credential, id: string, more: object) =>
      server.call(status, `POST /v1/escrow/${id}/vote`, who, { reason: 'as agreed', ...more });
    await vote(200, ann, voted, { decision: 'approve' });
    await end(tenant, ended);
    const other = await server.tenant();
    const theirs = await hold(await other.key('proxy'));
    const found = await rejectable(ann, [changes, open, theirs, voted, ended, 'esc_none', open]);
    expect(found.map(({ id, refusal }) => [id, refusal?.code])).toEqual([
      [changes, undefined],
      [open, undefined],
      [voted, 'ALREADY_VOTED'],
      [ended, 'INVALID_STATUS'],
    ]);
    // it is what the hold itself says, and nothing that the agent says
    const read = await server.call<{ shown_hash: string }>(200, `GET /v1/escrow/${open}`, ann);
    expect(found[1]!.shown_hash).toBe(read.body.shown_hash);
    expect(JSON.stringify(found)).not.toContain('secret words');
    await vote(200, bob, changes, { decision: 'approve' });
    const answer = await vote(409, ann, changes, { decision: 'reject', shown_hash: found[0]!.shown_hash });
    expect(answer.body.code).toBe('VERSION_CHANGED');
    await vote(200, ann, open, { decision: 'reject', shown_hash: found[1]!.shown_hash });
    await rejectable(
      ann,
      Array.from({ length: 51 }, (_, k) => `esc_${k}`),
      400,
    );
  });
});
