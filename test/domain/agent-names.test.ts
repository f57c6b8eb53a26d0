import { describe, expect, test } from 'vitest';
import { AgentNamePattern, isAgentName, isNamedBy } from '../../server/domain/agent-names.ts';
import { exactly } from '../../server/domain/sought.ts';
import { event } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const GOOD = [
  'a',
  'support-bot-1',
  'gpt-4o/airline-00-trial0',
  'spiffe://example.org/ns/prod/sa/refunds',
  'system:serviceaccount:agents:refunds',
  'bot@project.iam.example.com',
  'auth0|5f7c',
  '6f1c9a1e-4c1d-4b3e-9d52-8e1a',
  'x'.repeat(200),
];
/** Look-alikes, text that turns around, and what another reader would take apart. */
const BAD = [
  '',
  ' ',
  ' bot',
  'bot ',
  'finance bot',
  'bоt',
  'ｂｏｔ',
  'bot\u200b',
  '\u202etob',
  'bot\n',
  'bot\0',
  '\ud800',
  'é',
  '😀',
  '-bot',
  '.bot',
  '*',
  'bot*',
  'bot#rule',
  'a,b',
  'a;b',
  'a"b',
  "a'b",
  '<b>bot</b>',
  '`bot`',
  'a\\b',
  '=cmd()',
  '$(x)',
  'x'.repeat(201),
];

describe('the name of an agent or role', () => {
  test('uses a closed alphabet', () => {
    expect(GOOD.filter((name) => !isAgentName(name))).toEqual([]);
    expect(BAD.filter(isAgentName)).toEqual([]);
    expect([null, 1, ['a'], { a: 1 }].filter(isAgentName)).toEqual([]);
  });

  test('is matched by itself, or by a pattern with one star', () => {
    const named = (pattern: string, name: string) => isNamedBy([pattern], name);
    expect(named('bot', 'bot')).toBe(true);
    expect(named('*', 'anything')).toBe(true);
    expect(named('bot-*', 'bot-')).toBe(true);
    expect(named('*@x.example', 'bot@x.example')).toBe(true);
    expect(named('a/*/z', 'a/b/c/z')).toBe(true);
    // head and tail do not share letters
    for (const [pattern, name] of [
      ['bot', 'bot2'],
      ['bot', 'Bot'],
      ['bot-*', 'bot'],
      ['bot-*', 'xbot-1'],
      ['aba*aba', 'aba'],
      ['aba*aba', 'ababa'],
      ['*@x.example', 'bot@x.example.evil'],
      ['b.t', 'bot'],
    ] as const) {
      expect([pattern, name, named(pattern, name)]).toEqual([pattern, name, false]);
    }
    expect(isNamedBy([], 'bot')).toBe(false);
    for (const pattern of ['**', 'a*b*', '', 'a b*', 'é', 'bot\n', 'x'.repeat(201)]) {
      expect(AgentNamePattern.safeParse(pattern).success, pattern).toBe(false);
    }
  });
});

describe('an agent or role', () => {
  const server = useServer({}, { shared: true });
  const action = { action_type: 'tool_call', action_hash: `sha256:${'0'.repeat(64)}` };
  const holdOf = (agent_id: string, agent_role: string) => ({
    ...{ agent_id, agent_role, ...action, action_summary: 'refund', hold_type: 'single', ttl_seconds: 60 },
  });
  /** What no database has, or no one but people who practice. */
  const NEVER = ['bot\0', '\ud800', 'x'.repeat(201)];
  /** How proxies of others may name them. */
  const REPORTED = [
    ...BAD.filter((name) => name !== '' && !NEVER.includes(name)),
    ...['customer support', 'агент-1', '_bot', 'bot 9', 'a"}],"b', "=HYPERLINK('x')", 'bot**', '漢'.repeat(200)],
  ];

  test('gets a key by no other name', async () => {
    const { admin } = await server.tenant();
    for (const bad of [...BAD, '~practice']) {
      await server.call(400, 'POST /v1/agent-keys', admin, { agent_id: bad, agent_role: 'role' });
      await server.call(400, 'POST /v1/agent-keys', admin, { agent_id: 'agent', agent_role: bad });
    }
    for (const name of GOOD) {
      const made = await server.call(201, 'POST /v1/agent-keys', admin, { agent_id: name, agent_role: name });
      expect(made.body).toMatchObject({ agent_id: name, agent_role: name });
    }
  });

  test('is recorded, held, found and proven by whatever name a proxy reports', async () => {
    const tenant = await server.tenant();
    const { admin } = tenant;
    const never = [...NEVER.flatMap((bad) => [{ agent_id: bad }, { agent_role: bad }]), { agent_id: '~practice' }];
    const all = [...GOOD, ...REPORTED];
    const events = all.map((name, n) =>
      event({ agent_id: name, agent_role: name, session_id: n < 40 ? 'odd' : 'odder', tool_name: `t${n}` }),
    );
    const ingest = async (these: object[]) =>
      (
        await server.call<{ accepted: number; rejected: { index: number }[] }>(
          202,
          'POST /v1/events/ingest',
          await tenant.key('proxy'),
          { events: these },
        )
      ).body;
    expect(await ingest(events)).toMatchObject({ accepted: all.length, rejected: [] });
    expect((await ingest(never.map((bad) => event(bad)))).rejected).toHaveLength(never.length);
    const q = (value: string) => encodeURIComponent(value);
    type Found = { events: { agent_id: string; agent_role: string; tool_name: string }[] };
    const proxy = await tenant.key('proxy');
    for (const [n, name] of all.entries()) {
      for (const field of ['agent_id', 'agent_role']) {
        const line = `GET /v1/events?${field}=${q(exactly(name))}`;
        const { body } = await server.call<Found>(200, line, admin);
        expect(body.events).toMatchObject([{ agent_id: name, agent_role: name, tool_name: `t${n}` }]);
      }
      await server.call(200, `GET /v1/rules?agent_id=${q(name)}&agent_roles=${q(name)}&agent_roles=a`, admin);
      const hold = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, holdOf(name, name));
      const listed = await server.call<{ holds: { id: string }[] }>(
        200,
        `GET /v1/escrow?agent_id=${q(name)}&agent_role=${q(name)}`,
        admin,
      );
      expect(listed.body.holds).toMatchObject([{ id: hold.body.id }]);
      // it is another's by any other name
      const other = { action_hash: action.action_hash, agent_id: `${name.slice(0, 199)}.`, agent_role: name };
      await server.call(403, `POST /v1/escrow/${hold.body.id}/consume`, proxy, other);
    }
    for (const bad of [...NEVER, '~practice']) await server.call(400, 'POST /v1/escrow', proxy, holdOf(bad, 'role'));
    for (const bad of NEVER) await server.call(400, 'POST /v1/escrow', proxy, holdOf('agent', bad));

    // nothing of it acts in a spreadsheet, and the evidence holds
    const { text } = await server.call(200, 'GET /v1/events/export', await tenant.key('pipeline'));
    expect(text).toContain(`"'=HYPERLINK('x')"`);
    expect(text).not.toMatch(/"=/);
    expect(text.trim().split('\r\n')).toHaveLength(all.length + 1);
    const person = await tenant.enter(admin.userId);
    const made = await server.call(201, 'POST /v1/forensics/export', person, { purpose: 'p', sequence_id: 'odd' });
    expect(made.body).toMatchObject({ record_count: Math.min(all.length, 40), chain_intact: true });
    expect((await server.call(200, 'GET /v1/forensics/verify', admin)).body).toMatchObject({ verified: true });
  });
});
