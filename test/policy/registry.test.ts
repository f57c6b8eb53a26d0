import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { DRIFT_MODES, type RegisteredServer } from '../../server/domain/tools.ts';
import { BundleError, openBundle } from '../../server/policy/bundle.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { definitionRule, Registry } from '../../server/policy/evaluation/registry.ts';
import { packBundle } from '../../server/policy/pack-bundle.ts';
import { vectorKey } from '../vectors/policy/generate.ts';
import { contentOf, request } from './support.ts';

const pin = (n: number) => `sha256:${String(n).repeat(64)}`;
const server = (change: Partial<RegisteredServer> = {}): RegisteredServer => ({
  id: 'crm',
  mode: 'default',
  reviewed: true,
  trust: null,
  check_arguments: false,
  tools: [{ name: 'refund', pins: [pin(1), pin(2)], rejected: [pin(3)], seen: 'approved', labels: ['money'] }],
  ...change,
});
const drift = (
  mode: RegisteredServer['mode'],
  tool_pin: string | null | undefined,
  more: Partial<RegisteredServer> = {},
) =>
  new Registry({ agents: [], servers: [server({ mode, ...more })] }).drift(
    { action_type: 'tool_call', tool_server: 'crm', tool_name: 'refund', tool_pin },
    false,
  );

describe('the registry', () => {
  test.each<[RegisteredServer['mode'], (string | undefined)[]]>([
    //            approved  accepted   rejected unknown  none
    ['off', [undefined, undefined, undefined, undefined, undefined]],
    ['warn', [undefined, undefined, 'deny', undefined, undefined]],
    ['hold', [undefined, undefined, 'deny', 'hold', 'hold']],
    ['enforce', [undefined, undefined, 'deny', 'deny', 'deny']],
    ['default', [undefined, undefined, 'deny', 'hold', 'hold']],
  ])('in the mode %s', (mode, expected) => {
    expect([pin(1), pin(2), pin(3), pin(4), null].map((one) => drift(mode, one))).toEqual(expected);
    // who says nothing is asked about what was seen last
    const tools = (seen: 'approved' | 'changed' | 'rejected') => ({ tools: [{ ...server().tools[0]!, seen }] });
    const [approved, , rejected, changed] = expected;
    expect(drift(mode, undefined, tools('approved'))).toBe(approved);
    expect(drift(mode, undefined, tools('changed'))).toBe(changed);
    expect(drift(mode, undefined, tools('rejected'))).toBe(rejected);
    expect(drift(mode, undefined, { tools: [] })).toBe(changed);
  });

  test('does not match other servers, or property names of objects', () => {
    for (const id of ['other', '__proto__', 'constructor', undefined]) {
      const registry = new Registry({ agents: [], servers: [server({ mode: 'enforce' })] });
      expect(registry.drift({ action_type: 'tool_call', tool_server: id, tool_name: 'refund' }, false)).toBeUndefined();
      expect(registry.attributes({ agent_id: '__proto__', tool_server: id, tool_name: 'constructor' })).toEqual({});
    }
  });

  test('judges a call that names no server by each server that lists the tool and enforces', () => {
    const servers = (...modes: RegisteredServer['mode'][]) =>
      modes.map((mode, n) => {
        const tool = server().tools[0]!;
        // the second server has another definition, which it changed since
        const other = { ...tool, pins: [pin(5)], rejected: [], seen: 'changed' as const };
        return server({ id: `crm-${n}`, mode, tools: [n === 0 ? tool : other] });
      });
    const drift = (list: RegisteredServer[], tool_pin?: string | null, tool_name = 'refund') =>
      new Registry({ agents: [], servers: list }).drift({ action_type: 'tool_call', tool_name, tool_pin }, false);
    expect(drift(servers('enforce'))).toBeUndefined();
    expect(drift(servers('enforce'), pin(1))).toBeUndefined();
    for (const seen of [pin(3), pin(4), null]) expect(drift(servers('enforce'), seen)).toBe('deny');
    expect(drift(servers('enforce', 'enforce'))).toBe('deny');
    expect(drift(servers('enforce', 'enforce'), pin(1))).toBe('deny');
    expect(drift(servers('enforce', 'hold'), pin(1))).toBeUndefined();
    for (const mode of ['off', 'warn', 'hold', 'default'] as const)
      expect(drift(servers(mode), pin(4))).toBeUndefined();
    // a tool that no such server lists is for the policies
    expect(drift(servers('enforce'), undefined, 'another')).toBeUndefined();
  });

  test('does not apply to methods that are not tools, unless a request names a definition', () => {
    const registry = new Registry({ agents: [], servers: [server({ mode: 'enforce' })] });
    const read = { action_type: 'resource_read', tool_server: 'crm', tool_name: 'resources/read' };
    expect(registry.drift(read, true)).toBeUndefined();
    expect(registry.drift({ ...read, tool_pin: pin(4) }, true)).toBe('deny');
    expect(registry.drift({ ...read, action_type: 'file_read' }, true)).toBe('deny');
  });

  test('a stricter mode is never milder, whatever the definition', () => {
    const rank = (one: 'deny' | 'hold' | undefined) => [undefined, 'hold', 'deny'].indexOf(one);
    const pins = fc.constantFrom(pin(1), pin(2), pin(3), pin(4), null, undefined);
    const seen = fc.constantFrom('approved' as const, 'changed' as const, 'rejected' as const);
    fc.assert(
      fc.property(pins, seen, fc.boolean(), (one, last, reviewed) => {
        const tools = [{ ...server().tools[0]!, seen: last }];
        const all = DRIFT_MODES.map((mode) => rank(drift(mode, one, { tools, reviewed })));
        expect(all).toEqual([...all].sort());
      }),
    );
  });

  test('a rule differs for another definition, tool or server', () => {
    const of = (tool_server: string, tool_name: string, tool_pin: string | null) =>
      definitionRule({ tool_server, tool_name, tool_pin }).cedar;
    const texts = [
      of('a', 'b', pin(1)),
      of('a', 'b', pin(2)),
      of('a', 'c', pin(1)),
      of('ab', '', pin(1)),
      of('a', 'b', null),
    ];
    expect(new Set(texts).size).toBe(texts.length);
    expect(of('a\n', '"\ud800', null)).toMatch(/^\/\/ [^\n]*\n@escrow/);
  });
});

describe('an engine with a registry', () => {
  const PERMIT = 'permit(principal, action, resource);';
  const engine = (source: string, change: Partial<RegisteredServer>) =>
    new PolicyEngine({ ...contentOf({ pol: source }), registry: { agents: [], servers: [server(change)] } });
  const decide = (source: string, tool_pin: string, change: Partial<RegisteredServer> = {}) =>
    settle(engine(source, change).match(request({ tool_pin })), { exceeded: new Map() });

  test('combines its hold with those of policies', () => {
    const held = `${PERMIT} @id("two") @escrow("multi_party") @approvals("3") @ttl("1h") forbid(principal, action, resource);`;
    expect(decide(held, pin(4))).toMatchObject({
      decision: 'escrow',
      policy_id: 'pol',
      escrow: {
        hold_type: 'multi_party',
        required_approvals: 3,
        ttl_seconds: 3600,
        rules: [{ id: 'pol#two' }, { id: 'tool-registry#definition' }],
      },
    });
    expect(decide(PERMIT, pin(4))).toMatchObject({
      decision: 'escrow',
      policy_id: 'tool-registry',
      escrow: {
        hold_type: 'single',
        required_approvals: 1,
        ttl_seconds: 86_400,
        reason: 'nobody has approved the definition of this tool',
      },
    });
    expect(decide(PERMIT, pin(2)).decision).toBe('allow');
  });

  test('reports a denial by policy before a changed tool', () => {
    const enforce = { mode: 'enforce' } as const;
    expect(decide('@reason("no") forbid(principal, action, resource);', pin(4), enforce).deny_reason).toBe('no');
    expect(decide('permit(principal, action, resource == Tool::"x");', pin(4), enforce).deny_reason).toMatch(
      /no policy/,
    );
    expect(decide(PERMIT, pin(4), enforce)).toMatchObject({
      decision: 'deny',
      deny_reason: 'tool_changed',
      policy_id: 'tool-registry',
    });
    const masked = `${PERMIT} @mask("$.a") forbid(principal, action, resource);`;
    expect(decide(masked, pin(4), enforce).decision).toBe('deny');
  });

  test('takes a null for an absent argument where the approved definition does', () => {
    const reads = `${PERMIT} forbid(principal, action, resource) when { context.str.hasTag("note") };`;
    const nullable = { tools: [{ ...server().tools[0]!, nullable: ['note'] }] };
    const ask = (args: object, change: Partial<RegisteredServer>, tool_pin?: string) => {
      const called = request({ arguments: args as Record<string, unknown>, ...(tool_pin && { tool_pin }) });
      const { decision, deny_reason } = settle(engine(reads, change).match(called), { exceeded: new Map() });
      return deny_reason ?? decision;
    };
    const doubt = 'argument_in_doubt: arguments.note';
    expect(ask({ note: null }, {})).toBe(doubt);
    expect(ask({ note: null }, nullable)).toBe('allow');
    expect(ask({ note: null }, nullable, pin(2))).toBe('allow');
    expect(ask({ note: null }, { ...nullable, mode: 'warn' }, pin(4))).toBe(doubt);
    expect(ask({ note: 1 }, nullable)).toBe(doubt);
    expect(ask({ note: null, NOTE: 'x' }, nullable)).toBe(doubt);
    expect(ask({ Note: null }, nullable)).toBe(doubt);
  });

  test('an agent’s own claims are never read as labels', () => {
    const labeled = engine(
      'permit(principal, action, resource) when { resource has labels && resource.labels.contains("money") };',
      {},
    );
    const decision = (change: object) =>
      settle(labeled.match(request({ ...change })), { exceeded: new Map() }).decision;
    const stated = {
      arguments: { labels: ['money'] },
      context: { labels: ['money'], resource: { labels: ['money'] } },
    };
    expect(decision({ tool_name: 'other', ...stated, labels: ['money'], tool_labels: ['money'] })).toBe('deny');
    expect(decision({ tool_name: 'refund' })).toBe('allow');
  });
});

describe('a bundle', () => {
  const { privateKey, publicKey, kid } = vectorKey();
  const pack = (registry: unknown) =>
    packBundle({ ...contentOf({}), registry } as never, { seq: 1, not_after: '2030-01-01T00:00:00Z', kid, privateKey });

  test('has the registry, covered by its hash', async () => {
    const registry = { agents: [{ id: 'a', labels: ['x'] }], servers: [server()] };
    const [one, other] = [await pack(registry), await pack({ ...registry, agents: [] })];
    expect(openBundle(one.bytes, () => publicKey).content.registry).toEqual(registry);
    expect(one.hash).not.toBe(other.hash);
  });

  test.each<[string, unknown]>([
    ['none', undefined],
    ['an unknown member', { agents: [], servers: [], more: 1 }],
    ['a server with an unknown member', { agents: [], servers: [{ ...server(), more: 1 }] }],
    ['a mode that is none', { agents: [], servers: [server({ mode: 'strict' as never })] }],
    ['a trust that is none', { agents: [], servers: [server({ trust: '9' as never })] }],
    ['servers out of order', { agents: [], servers: [server({ id: 'b' }), server({ id: 'a' })] }],
    ['one server twice', { agents: [], servers: [server(), server()] }],
    ['one tool twice', { agents: [], servers: [server({ tools: [server().tools[0]!, server().tools[0]!] })] }],
    [
      'a tool of no known standing',
      { agents: [], servers: [server({ tools: [{ ...server().tools[0]!, seen: 'new' as never }] })] },
    ],
    [
      'an agent twice',
      {
        agents: [
          { id: 'a', labels: [] },
          { id: 'a', labels: [] },
        ],
        servers: [],
      },
    ],
  ])('with %s is none', async (_, registry) => {
    await expect(pack(registry)).rejects.toThrow(RangeError);
    expect(BundleError).toBeDefined();
  });
});

describe('a name that could be taken for another one', () => {
  const text = `permit(principal, action, resource);
    @id("no") forbid(principal, action, resource == Tool::"move_file");
    forbid(principal, action, resource) when { [Tool::"drop_table", Tool::"na\\u{ef}ve"].contains(resource) };
    forbid(principal, action, resource in ToolServer::"files");`;
  const engine = new PolicyEngine({ ...contentOf({ p: text }), registry: { agents: [], servers: [server()] } });
  const reason = (tool_name: string, tool_server?: string) =>
    settle(engine.match(request({ tool_name, tool_server, tool_pin: pin(1) })), { exceeded: new Map() }).deny_reason;

  test.each([
    ['MOVE_FILE', 'tool_name_in_doubt: move_file'],
    ['Move_File', 'tool_name_in_doubt: move_file'],
    ['move_file\u200b', 'tool_name_in_doubt: move_file'],
    [' move_file\n', 'tool_name_in_doubt: move_file'],
    ['\uff4dove_file', 'tool_name_in_doubt: move_file'],
    ['Drop_Table', 'tool_name_in_doubt: drop_table'],
    ['nai\u0308ve', 'tool_name_in_doubt: na\u00efve'],
  ])('of a tool that a policy names, %j, is denied', (name, expected) => {
    expect(reason(name)).toBe(expected);
  });

  test('of a tool that people decided about, or of a server, is denied; the very names are decided by their rules', () => {
    expect(reason('Refund', 'crm')).toBe('tool_name_in_doubt: refund');
    expect(reason('refund', 'CRM')).toBe('server_name_in_doubt: crm');
    expect(reason('any', 'Files')).toBe('server_name_in_doubt: files');
    expect(reason('move_file')).toBe('forbidden by policy');
    expect([reason('refund', 'crm'), reason('movefile'), reason('other', 'crm')]).toEqual([
      undefined,
      undefined,
      undefined,
    ]);
  });

  test('is not looked for where the registry is off, and is found whatever case it has', () => {
    const off = new Registry({ agents: [], servers: [server({ mode: 'off' })] });
    expect(off.meantTool('crm', 'REFUND')).toBeUndefined();
    fc.assert(
      fc.property(fc.array(fc.boolean(), { minLength: 9, maxLength: 9 }), (upper) => {
        const name = [...'move_file'].map((letter, n) => (upper[n] ? letter.toUpperCase() : letter)).join('');
        expect(reason(name)).not.toBeUndefined();
      }),
    );
  });
});
