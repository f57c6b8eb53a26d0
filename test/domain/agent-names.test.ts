import { describe, expect, test } from 'vitest';
import { AgentNamePattern, isAgentName, isNamedBy } from '../../server/domain/agent-names.ts';
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

describe('wherever an agent or role is named, no other name is accepted:', () => {
  const server = useServer({}, { shared: true });
  const holdOf = (agent_id: string, agent_role: string) => ({
    agent_id,
    agent_role,
    action_type: 'tool_call',
    action_summary: 'refund',
    action_hash: `sha256:${'0'.repeat(64)}`,
    hold_type: 'single',
    ttl_seconds: 60,
  });

  test('keys, holds, their use, trial evaluations and events', async () => {
    const { admin } = await server.tenant();
    const request = { action_type: 'tool_call', tool_name: 't' };
    const text = 'permit(principal, action, resource);';
    const policies = (agent_id: string, agent_role: string) => ({
      dsl_source: text,
      alone: true,
      request: { ...request, agent_id, agent_role },
    });
    const entrances: [line: string, body: (id: string, role: string) => object][] = [
      ['POST /v1/agent-keys', (agent_id, agent_role) => ({ agent_id, agent_role })],
      ['POST /v1/escrow', holdOf],
      [
        'POST /v1/escrow/esc_none/consume',
        (agent_id, agent_role) => ({ agent_id, agent_role, action_hash: `sha256:${'0'.repeat(64)}` }),
      ],
      ['POST /v1/policies/try', policies],
    ];
    for (const [line, body] of entrances) {
      for (const bad of BAD) {
        await server.call(400, line, admin, body(bad, 'role'));
        await server.call(400, line, admin, body('agent', bad));
      }
    }
    const events = BAD.flatMap((bad) => [event({ agent_id: bad }), event({ agent_role: bad })]);
    const { body } = await server.call<{ accepted: number; rejected: { index: number }[] }>(
      202,
      'POST /v1/events/ingest',
      admin,
      { events },
    );
    expect([body.accepted, body.rejected.length]).toEqual([0, events.length]);
    for (const name of GOOD) {
      const made = await server.call(201, 'POST /v1/agent-keys', admin, { agent_id: name, agent_role: name });
      expect(made.body).toMatchObject({ agent_id: name, agent_role: name });
      await server.call(200, 'POST /v1/policies/try', admin, policies(name, name));
    }
    const good = GOOD.map((name) => event({ agent_id: name, agent_role: name }));
    const sent = await server.call(202, 'POST /v1/events/ingest', admin, { events: good });
    expect(sent.body).toMatchObject({ accepted: good.length, rejected: [] });
  });
});
