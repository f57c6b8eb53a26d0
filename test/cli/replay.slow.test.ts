import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { Api } from '../../server/cli/replay.ts';
import { RateLimiter } from '../../server/lib/rate-limit.ts';
import { freePort } from '../helpers/ports.ts';
import { Receiver } from '../helpers/receiver.ts';
import { useServer } from '../helpers/server.ts';
import { svc, svcHere, temporaryDirectory } from './svc.ts';

const RATE = 20;
const server = useServer({ SVC_RATE_EVALUATE: String(RATE) });
const dir = temporaryDirectory();
const policies = path.join(dir, 'policies');

interface Result {
  tenant_id: string;
  calls: number;
  sessions: number;
  policies: { id: string; version: number; change: string }[];
  decisions: Record<string, number>;
  tools: Record<string, Record<string, number>>;
  rules: Record<string, Record<string, number>>;
  deny_reasons: Record<string, number>;
  latency_ms: { p50: number; p99: number; max: number };
  rate_limit_waits: number;
  waited_seconds: number;
  bad_lines: { line: number; reason: string }[];
}

const call = (session: number, step: number, tool_name: string, more: object = {}) => ({
  session_id: `s${session}`,
  step,
  agent_role: 'clerk',
  agent_id: 'bot',
  tool_name,
  arguments: { n: step },
  ...more,
});

function calls(name: string, lines: (object | string)[]): string {
  const file = path.join(dir, name);
  writeFileSync(file, lines.map((line) => `${typeof line === 'string' ? line : JSON.stringify(line)}\n`).join(''));
  return file;
}

beforeAll(() => {
  mkdirSync(policies);
  writeFileSync(path.join(policies, 'desk.cedar'), desk('a clerk may read'));
});
const desk = (reason: string) => `
@id("read") @reason("${reason}")
permit(principal in AgentRole::"clerk", action, resource == Tool::"read");
@id("pay") @escrow("single") @reason("a person looks at payments")
permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");
@id("never") @reason("nobody drops tables")
forbid(principal, action, resource == Tool::"drop");
`;

async function target() {
  const tenant = await server.tenant();
  return { tenant, flags: ['--policies', policies, '--url', server.url, '--api-key', tenant.admin.key] };
}

describe('a replay', () => {
  test('decides every call, in the order of its session, and counts what was decided', async () => {
    const { tenant, flags } = await target();
    const file = calls('few.jsonl', [
      call(1, 2, 'drop'),
      call(1, 1, 'read'),
      call(2, 1, 'pay'),
      '',
      call(2, 2, 'unknown', { arguments: undefined }),
      call(1, 3, 'read'),
    ]);
    const { json, stderr } = await svc(0, {}, 'replay', file, ...flags, '--json');
    expect(stderr).toBe('');
    const result = json<Result>();
    expect(result).toMatchObject({
      tenant_id: tenant.id,
      calls: 5,
      sessions: 2,
      policies: [{ id: 'desk', version: 1, change: 'created' }],
      decisions: { allow: 2, deny: 2, escrow: 1 },
      tools: { read: { allow: 2 }, drop: { deny: 1 }, pay: { escrow: 1 }, unknown: { deny: 1 } },
      rules: {
        'desk#read': { allow: 2 },
        'desk#pay': { escrow: 1 },
        'desk#never': { deny: 1 },
        '(no rule)': { deny: 1 },
      },
      deny_reasons: { 'nobody drops tables': 1, 'no policy permits this action': 1 },
      bad_lines: [],
    });
    expect(result.latency_ms.p50).toBeGreaterThan(0);
    expect(result.latency_ms.p99).toBeLessThanOrEqual(result.latency_ms.max);

    const { body } = await server.call<{ events: { session_id: string; tool_name: string; agent_id: string }[] }>(
      200,
      'GET /v1/events?order=asc',
      tenant.admin,
    );
    const session = body.events.filter((event) => event.session_id === 's1').map((event) => event.tool_name);
    expect(session).toEqual(['read', 'drop', 'read']);
    // the keys of the agents end with the replay
    const keys = await server.call<{ agent_keys: object[] }>(200, 'GET /v1/agent-keys', tenant.admin);
    expect(keys.body.agent_keys).toEqual([]);
  });

  test('leaves a live policy unchanged, and enforces a new text', async () => {
    const { flags } = await target();
    const file = calls('one.jsonl', [call(1, 1, 'read')]);
    const replay = async () => (await svcHere(0, {}, 'replay', file, ...flags, '--json')).json<Result>().policies;
    expect(await replay()).toEqual([{ id: 'desk', version: 1, change: 'created' }]);
    expect(await replay()).toEqual([{ id: 'desk', version: 1, change: 'unchanged' }]);
    writeFileSync(path.join(policies, 'desk.cedar'), desk('a clerk may read, still'));
    expect(await replay()).toEqual([{ id: 'desk', version: 2, change: 'updated' }]);
  });

  test('the time of a call does not include the wait that the server asked for', async () => {
    const busy = await Receiver.start((_, response) => {
      const wait = busy.received.length === 1;
      response.writeHead(wait ? 429 : 200, wait ? { 'retry-after': '1' } : {}).end();
    });
    try {
      const api = new Api(busy.url(''), 'a key');
      const began = performance.now();
      const { ms } = await api.call([200], 'POST /v1/evaluate', {});
      const elapsed = performance.now() - began;
      expect(api.waits).toBe(1);
      expect(api.waitedMs).toBeGreaterThan(900);
      // both are parts of what has elapsed, however slow the machine is; a timer may fire a little early
      expect(ms + api.waitedMs).toBeLessThan(elapsed + 100);
    } finally {
      await busy.stop();
    }
  });

  test('waits where the server asks for it', async () => {
    const { flags } = await target();
    const file = calls(
      'many.jsonl',
      Array.from({ length: 10 }, (_, i) => call(i % 5, i, 'read')),
    );
    // as if others used the key, too, in the second in which it begins
    const { take } = RateLimiter.prototype;
    let refused = false;
    const spy = vi.spyOn(RateLimiter.prototype, 'take').mockImplementation(async function (this: RateLimiter, key) {
      const state = await take.call(this, key, refused ? 1 : RATE + 1);
      refused ||= !state.allowed;
      return state;
    });
    onTestFinished(() => spy.mockRestore());
    const result = (await svcHere(0, {}, 'replay', file, ...flags, '--json')).json<Result>();
    expect(result.decisions).toEqual({ allow: 10 });
    expect(result.rate_limit_waits).toBeGreaterThan(0);
    expect(result.waited_seconds).toBeGreaterThan(0.5);
  });

  test('reports the lines that it cannot replay by number, and exits with 1 unless that is accepted', async () => {
    const { flags } = await target();
    const deep = `${'{"a":'.repeat(40)}1${'}'.repeat(40)}`;
    const file = calls('bad.jsonl', [
      call(1, 1, 'read'),
      '{"session_id": "s1", ',
      call(1, 2, ''),
      { ...call(1, 3, 'read'), agent_role: undefined },
      `{"session_id":"s1","agent_role":"clerk","agent_id":"bot","tool_name":"read","arguments":${deep}}`,
      call(1, 4, 'read'),
    ]);
    const { json, stderr } = await svcHere(1, {}, 'replay', file, ...flags, '--json');
    expect(json<Result>().bad_lines.map(({ line }) => line)).toEqual([2, 3, 4, 5]);
    expect(json<Result>().decisions).toEqual({ allow: 2 });
    expect(stderr).toMatch(/^line 2: not JSON/m);
    expect(stderr).toMatch(/^line 3: tool_name/m);
    expect(stderr).toMatch(/^line 5: VALIDATION_FAILED.*nested deeper/m);
    const text = await svcHere(0, {}, 'replay', file, ...flags, '--skip-bad', '--agent-role', 'clerk');
    expect(text.stdout).toMatch(/^3 calls of 1 sessions/m);
    expect(text.stdout).toMatch(/^3 lines could not be replayed$/m);
    expect(text.stdout).toMatch(/^latency p50 [\d.]+ ms, p99/m);
  });

  test('can treat each session as a separate agent, use another role, and stop early', async () => {
    const { tenant, flags } = await target();
    const file = calls('roles.jsonl', [call(1, 1, 'read'), call(2, 1, 'read'), call(3, 1, 'read')]);
    const more = ['--agent-per-session', '--agent-role', 'guest', '--limit', '2', '--concurrency', '1', '--json'];
    const result = (await svcHere(0, {}, 'replay', file, ...flags, ...more)).json<Result>();
    expect(result.decisions).toEqual({ deny: 2 });
    const { body } = await server.call<{ events: { agent_id: string; agent_role: string }[] }>(
      200,
      'GET /v1/events',
      tenant.admin,
    );
    expect(body.events.map((event) => [event.agent_id, event.agent_role])).toEqual([
      ['bot/s2', 'guest'],
      ['bot/s1', 'guest'],
    ]);
  });

  test('counts a @rate for the agent over all its sessions, or for each session when each is an agent', async () => {
    const rated = path.join(dir, 'rated');
    mkdirSync(rated);
    writeFileSync(
      path.join(rated, 'rated.cedar'),
      '@id("slow") @rate("2/h")\npermit(principal, action, resource == Tool::"read");',
    );
    const file = calls('rated.jsonl', [call(1, 1, 'read'), call(1, 2, 'read'), call(2, 1, 'read'), call(2, 2, 'read')]);
    const replay = async (...more: string[]) => {
      const { flags } = await target();
      return (await svcHere(0, {}, 'replay', file, ...flags.with(1, rated), ...more, '--json')).json<Result>()
        .decisions;
    };
    expect(await replay()).toEqual({ allow: 2, rate_limited: 2 });
    expect(await replay('--agent-per-session')).toEqual({ allow: 4 });
  });

  test('explains why it cannot run', async () => {
    const { tenant, flags } = await target();
    const file = calls('one.jsonl', [call(1, 1, 'read')]);
    const wrong = path.join(dir, 'wrong');
    mkdirSync(wrong);
    const cases: [string[], RegExp][] = [
      [['--policies', wrong, '--url', server.url, '--api-key', tenant.admin.key], /has no \*\.cedar files/],
      [[...flags, '--tenant', 'other'], new RegExp(`the key belongs to the tenant ${tenant.id}`)],
      [['--policies', policies, '--url', server.url, '--api-key', 'svc_key_wrong'], /does not accept the key/],
      [['--policies', policies, '--url', `http://127.0.0.1:${await freePort()}`, '--api-key', 'x'], /no answer from/],
    ];
    for (const [words, fault] of cases) expect((await svcHere(1, {}, 'replay', file, ...words)).stderr).toMatch(fault);
    writeFileSync(path.join(wrong, 'bad.cedar'), '@id("x")\npermit(principal, action, resource) when { nonsense };');
    const invalid = await svcHere(1, {}, 'replay', file, ...flags.with(1, wrong));
    expect(invalid.stderr).toMatch(/POLICY_INVALID[\s\S]*line 2, column \d+/);
    expect((await svcHere(1, {}, 'replay', path.join(dir, 'none.jsonl'), ...flags)).stderr).toContain('ENOENT');
    expect((await svcHere(1, {}, 'replay', calls('empty.jsonl', ['']), ...flags)).stderr).toContain(
      'no calls to replay',
    );
    const alone = { SVC_DATA_DIR: dir, PORT: String(await freePort()) };
    expect((await svcHere(1, alone, 'replay', file, '--policies', policies)).stderr).toContain('no server answers');
  });
});
