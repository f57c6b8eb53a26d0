import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import type { CompleteEvent } from '../../server/domain/decision.ts';
import { commitment, type KeptInput, unfitting } from '../../server/domain/kept-input.ts';
import type { ActionRequest, BundleContent, BundleStatement } from '../../server/domain/policy.ts';
import type { Stop, StopMode } from '../../server/domain/stops.ts';
import { doubtfulMatch, type Match, PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { ruleReference } from '../../server/policy/evaluation/hold-terms.ts';
import type { Projection } from '../../server/policy/evaluation/projection.ts';
import { type Attempt, decide, type KnownHold } from '../../server/policy/evaluation/protocol.ts';
import { rederive } from '../../server/policy/evaluation/rederive.ts';
import { runs } from '../siege/rounds.ts';
import { CONDITIONS, DECLARED, LISTS, requests, statement } from './generators.ts';
import { compile, contentOf, request } from './support.ts';

const stopOf = (mode: StopMode): Stop => ({ id: 'stp_1', kind: 'tenant', target: '*', mode, reason: 'incident' });

interface Recorded {
  fields: Omit<CompleteEvent, 'proxy_id'> | Record<string, unknown>;
  kept: KeptInput | undefined;
}

/** Decides as a decision point does, with the counters and the released hold that are given. */
async function recorded(
  engine: PolicyEngine,
  asked: ActionRequest,
  world: { over: boolean; away?: boolean; covered: readonly BundleStatement[] } & Pick<
    Attempt,
    'standstill' | 'stop' | 'unholdable' | 'keep'
  > & {
      doubt?: string | undefined;
    },
): Promise<Recorded | undefined> {
  const { over, away, covered, standstill, stop, unholdable, keep, doubt } = world;
  const { session, ...request } = asked;
  let found: Recorded | undefined;
  const hold = { id: 'hld_1', status: covered.length > 0 ? 'released' : 'held', source: 'evaluate' } as KnownHold;
  try {
    await decide<KnownHold, void>(
      {
        ...{ request, eventId: 'evt_1', bundleHash: 'sha256:00', standstill, stop, unholdable, keep },
        resume: covered.length > 0,
      },
      {
        session: () => session,
        match: (one) => (doubt === undefined ? engine.match(one) : doubtfulMatch(doubt)),
        definition: async () => (away ? { unavailable: 'nobody there' } : { pin: null }),
        take: ({ limits }) =>
          away
            ? { unavailable: 'nobody there' }
            : {
                exceeded: new Map(over ? limits.map(({ rule_id }) => [rule_id, { retry_after: 91 }] as const) : []),
                giveBack: async () => {},
              },
        find: async () => hold,
        refuse: async () => {
          throw new Error('refused');
        },
        open: async () => ({ hold: { ...hold, rules: covered.map(ruleReference) }, opened: false }),
        consume: async (one) => one,
        withdraw: async () => {},
        consumedWithoutRecord: async () => {},
        elapsed: () => 1,
        record: async (fields, kept) => {
          found = { fields: fields as Recorded['fields'], kept };
        },
      },
    );
  } catch (error) {
    // an action without an exact canonical form is not decided
    expect((error as Error).name).toBe('InexactAction');
  }
  return found;
}

const of = (fields: Recorded['fields']) => {
  const { decision, rule_id, hits, obligations } = fields as CompleteEvent;
  return { decision, rule_id: rule_id ?? null, rule_ids: hits ?? [], masks: obligations };
};
const again = (engine: PolicyEngine, { fields, kept }: Recorded, half: 'input' | 'projection') => {
  const text = JSON.parse(kept![half]!);
  const { facts } = fields as CompleteEvent;
  const { masks, retry_after, ...verdict } = rederive(
    engine,
    half === 'input' ? { input: text as ActionRequest } : { projection: text as Projection },
    facts,
  );
  if (verdict.decision === 'rate_limited') expect(retry_after).toBe(91);
  return { ...verdict, masks: masks?.map((path) => `mask ${path}`) };
};

describe('a decision', () => {
  it('follows again from its record with the request, and with the projection of it alone', async () => {
    const unusable = CONDITIONS.filter(
      (when) => compile(`${DECLARED} permit(principal, action, resource) ${when};`).errors.length > 0,
    );
    expect(unusable).toEqual([]);
    const seen = new Map<string, number>();
    await fc.assert(
      fc.asyncProperty(
        fc.array(statement, { minLength: 1, maxLength: 8 }),
        fc.array(requests, { minLength: 4, maxLength: 8 }),
        fc.record({
          over: fc.boolean(),
          away: fc.constantFrom(false, false, true),
          part: fc.constantFrom(0, 1, 99),
          standstill: fc.constantFrom(undefined, undefined, undefined, { code: 'no_bundle', reason: 'none' }),
          stop: fc.constantFrom(undefined, undefined, undefined, stopOf('freeze'), stopOf('deny')),
          unholdable: fc.constantFrom(undefined, undefined, 'nobody there'),
          doubt: fc.constantFrom(undefined, undefined, undefined, 'arguments.amount'),
        }),
        async (statements, all, { part, ...world }) => {
          const possible = statements.filter((text) => compile(`${DECLARED} ${text}`).errors.length === 0);
          fc.pre(possible.length > 0);
          const content = contentOf({ pol: [DECLARED, ...possible].join('\n') }, null, LISTS);
          const engine = new PolicyEngine(content);
          const other = new PolicyEngine(content);
          for (const one of all) {
            const covered = content.policies.filter(({ annotations }) => annotations.escrow).slice(0, part);
            const record = await recorded(engine, one, { ...world, covered });
            if (!record) continue;
            const expected = of(record.fields);
            seen.set(expected.decision, (seen.get(expected.decision) ?? 0) + 1);
            expect(again(other, record, 'input')).toEqual(expected);
            expect(again(other, record, 'projection')).toEqual(expected);
            expect(unfitting(record.kept!, record.fields as CompleteEvent)).toBeUndefined();
            // the engine is told about the same questions: not only this bundle's verdict is the same
            const projection = JSON.parse(record.kept!.projection!) as Projection;
            if (projection.reads) {
              const [whole, part] = [one, projection].map((asked) => engine.match(asked));
              const told = ({ outcome, ambiguousPath, ambiguousName, limits }: Match) => [
                ...[outcome, ambiguousPath, ambiguousName, limits],
              ];
              expect(told(part!)).toEqual(told(whole!));
              expect(engine.match(projection).narrowing!.project(projection)).toEqual(projection);
            }
          }
          engine.dispose();
          other.dispose();
        },
      ),
      {
        numRuns: runs(2_000, 40),
        // each decision at least once
        examples: ['', '@escrow("single")', '@mask("$.iban")', '@rate("2/h")'].map(
          (
            annotation,
          ): [
            string[],
            ActionRequest[],
            {
              over: true;
              away: false;
              part: 0;
              standstill: undefined;
              stop: undefined;
              unholdable: undefined;
              doubt: undefined;
            },
          ] => [
            [`${annotation} permit(principal, action, resource);`],
            [request()],
            {
              over: true,
              away: false,
              part: 0,
              standstill: undefined,
              stop: undefined,
              unholdable: undefined,
              doubt: undefined,
            },
          ],
        ),
      },
    );
    expect([...seen.keys()].sort()).toEqual(['allow', 'allow_with_masking', 'deny', 'escrow', 'rate_limited']);
  });

  it('cannot be pinned on anything else: one changed bit does not fit', async () => {
    const engine = new PolicyEngine(contentOf({ pol: 'permit(principal, action, resource);' }));
    const { fields, kept } = (await recorded(engine, request({ arguments: { amount: 20 } }), {
      over: false,
      covered: [],
    }))!;
    const record = fields as CompleteEvent;
    expect(unfitting(kept!, record)).toBeUndefined();
    const halves = { salt_a: 'projection', projection: 'projection', salt_b: 'input', input: 'input' } as const;
    fc.assert(
      fc.property(
        fc.constantFrom(...(Object.keys(halves) as (keyof typeof halves)[])),
        fc.nat(),
        fc.nat(7),
        (part, at, bit) => {
          const bytes = Buffer.from(kept![part]!, part.startsWith('salt') ? 'hex' : 'latin1');
          bytes[at % bytes.length]! ^= 1 << bit;
          const changed = bytes.toString(part.startsWith('salt') ? 'hex' : 'latin1');
          expect(unfitting({ ...kept, [part]: changed }, record)).toBe(halves[part]);
        },
      ),
    );
    const other = (await recorded(engine, request({ arguments: { amount: 20 } }), { over: false, covered: [] }))!;
    // of another record of the very same action
    expect(unfitting(other.kept!, record)).toBe('projection');
    expect(record.action_ref).not.toBe((other.fields as CompleteEvent).action_ref);
    engine.dispose();
  });
});

const PROJECTED = contentOf({
  pol: `permit(principal, action, resource == Tool::"refund")
    when { context.num.hasTag("refund.total") && context.num.getTag("refund.total").lessThan(decimal("100.0")) };`,
});
const projectionOf = (content: BundleContent, change: Partial<ActionRequest>) => {
  const engine = new PolicyEngine(content);
  const asked = request(change);
  const projection = engine.match(asked).narrowing!.project(asked);
  engine.dispose();
  return JSON.parse(JSON.stringify(projection)) as Record<string, unknown>;
};

describe('a projection', () => {
  const names = {
    v: 1,
    agent_id: 'agent-1',
    agent_role: 'bot',
    action_type: 'tool_call',
    tool_name: 'refund',
    tool_server: 'crm',
  };
  const now = '2026-01-02T10:00:00.000Z';

  test('has what the fitting statements read, and nothing else that the agent sent', () => {
    expect(
      projectionOf(PROJECTED, {
        arguments: { refund: { total: 20.5, iban: 'DE02' }, customer: { name: 'Ann' }, note: 'secret' },
        context: { ticket: 'secret' },
        session_id: 's',
        resource: 'https://x.example/secret',
        estimated_value: 20,
      }),
    ).toEqual({
      ...names,
      now,
      arguments: { refund: { total: 20.5 } },
      reads: { attributes: [], keys: ['refund.total'] },
    });
    // of a tool that no statement fits, nothing is read
    expect(projectionOf(PROJECTED, { tool_name: 'mail', arguments: { to: 'ann@example.com' } })).toEqual({
      ...{ ...names, tool_name: 'mail' },
      ...{ now, reads: { attributes: [], keys: [] } },
    });
  });

  test('has a blank in place of a value that only by being there, or by its type, puts another in doubt', () => {
    const args = (value: unknown) => projectionOf(PROJECTED, { arguments: value }).arguments;
    expect(args({ refund: { total: 20 }, Refund: { total: 9000, iban: 'DE02' } })).toEqual({
      refund: { total: 20 },
      Refund: { total: 0 },
    });
    expect(args({ 'refund[total]': 9000, name: 'Ann' })).toEqual({ 'refund[total]': 0 });
    expect(args({ refund: '{"total": 9000, "iban": "DE02"}' })).toEqual({ refund: '' });
    expect(args([{ refund: 1 }, 'Ann'])).toEqual([null, null]);
    expect(args('Ann')).toBe('');
    expect(args(4711)).toBe(0);
    expect(
      JSON.stringify(args(JSON.parse('{"__proto__": {"total": 5}, "refund": {"__proto__": 1, "total": 2}}'))),
    ).toBe('{"refund":{"total":2}}');
  });

  test('shortens a text that is too long to be read, which stays too long', () => {
    const content = contentOf({
      pol: 'permit(principal, action, resource) when { context.str.hasTag("note") && context.str.getTag("note") like "A*" };',
    });
    const { note } = projectionOf(content, { arguments: { note: 'A'.repeat(100_000) } }).arguments as { note: string };
    expect(note).toBe('A'.repeat(16_385));
    const engine = new PolicyEngine(content);
    for (const text of ['A'.repeat(100_000), note]) {
      expect(settle(engine.match(request({ arguments: { note: text } })), { exceeded: new Map() }).deny_reason).toBe(
        'argument_in_doubt: arguments.note',
      );
    }
    engine.dispose();
  });

  test('is all of the request where a statement computes which argument it reads', () => {
    const content = contentOf({
      pol: 'permit(principal, action, resource) when { context has method && context.str.hasTag(context.method) };',
    });
    const args = { GET: 'x', other: [1, { a: null }] };
    expect(projectionOf(content, { method: 'GET', arguments: args, context: { c: 1 } })).toMatchObject({
      method: 'GET',
      arguments: args,
      context: { c: 1 },
      reads: { attributes: null, keys: null },
    });
    // whatever text of the request the statement may have computed puts the argument of that name in doubt
    const doubtful = { method: 'GET', value_currency: 'EUR', arguments: { GET: 'x', EUR: 5 } };
    const engine = new PolicyEngine(content);
    for (const asked of [request(doubtful), request(projectionOf(content, doubtful))]) {
      expect(engine.match(asked)).toMatchObject({ outcome: 'ambiguous' });
    }
    engine.dispose();
  });

  test('has the names alone where the request could not be mapped, and then it is denied', async () => {
    const engine = new PolicyEngine(PROJECTED);
    const asked = request({ source_ip: 'nowhere', arguments: { refund: { total: 1 } } });
    const record = (await recorded(engine, asked, { over: false, covered: [] }))!;
    expect(JSON.parse(record.kept!.projection!)).toEqual({ ...names, now });
    expect(again(engine, record, 'projection')).toMatchObject({ decision: 'deny', rule_id: null });
    engine.dispose();
  });
});

test('the record of a decision names the stop, and the facts of the session that policies read', async () => {
  const content = contentOf({
    pol: `${DECLARED} permit(principal, action, resource == Tool::"refund")
      when { context.session.num.hasTag("total[ticket]") && context.session.called.hasTag("read_customer") };`,
  });
  const engine = new PolicyEngine(content);
  const session = { call_count: 1, lowest_trust: 90, called: ['read_customer'], facts: { 'total[ticket]': 5 } };
  const world = { over: false, covered: [] };
  const asked = request({ session_id: 's', session, arguments: { ticket: '7' } });
  const factsOf = async (change: Partial<ActionRequest>, mode?: StopMode) => {
    const record = await recorded(engine, { ...asked, ...change }, { ...world, stop: mode && stopOf(mode) });
    expect(again(engine, record!, 'projection')).toEqual(of(record!.fields));
    return (record!.fields as CompleteEvent).facts;
  };
  const read = ['read_customer', 'total[ticket]'];
  expect(await factsOf({})).toEqual({ session: read });
  expect(await factsOf({}, 'freeze')).toMatchObject({ session: read, stop: 'stp_1' });
  expect(await factsOf({}, 'deny')).toEqual({ standstill: 'stopped', stop: 'stp_1' });
  expect(await factsOf({ tool_name: 'mail' })).toBeUndefined();
  engine.dispose();
});

test('another spelling of a known name follows again from the names alone', async () => {
  const engine = new PolicyEngine(contentOf({ pol: 'forbid(principal, action, resource == Tool::"refund");' }));
  const asked = request({ tool_name: 'Ｒefund', arguments: { total: 5 } });
  const record = (await recorded(engine, asked, { over: false, covered: [] }))!;
  expect(record.fields).toMatchObject({ deny_reason: 'tool_name_in_doubt: refund', rule_id: 'pol#0' });
  expect(again(engine, record, 'projection')).toEqual(of(record.fields));
  engine.dispose();
});

describe('what is kept', () => {
  const engine = new PolicyEngine(PROJECTED);
  const asked = request({ arguments: { refund: { total: 1 }, note: 'x'.repeat(2000) } });
  const kept = (keep: Attempt['keep']) => recorded(engine, asked, { over: false, covered: [], keep });

  test('is what the record commits to, and no more than is wanted', async () => {
    const commitments = ({ fields }: Recorded) => {
      const { ask_commit, input_hash, action_ref } = fields as CompleteEvent;
      return [ask_commit, input_hash, action_ref].map((one) => one !== undefined);
    };
    for (const [keep, members, committed] of [
      [undefined, ['input', 'projection', 'salt_a', 'salt_b'], [true, true, true]],
      [{ input: 4000, projection: 4000 }, ['input', 'projection', 'salt_a', 'salt_b'], [true, true, true]],
      [{ input: 0, projection: 4000 }, ['projection', 'salt_a'], [true, false, false]],
      // too long to be kept
      [{ input: 1000, projection: 4000 }, ['projection', 'salt_a'], [true, false, false]],
      [{ input: 0, projection: 0 }, [], [false, false, false]],
    ] as const) {
      const record = (await kept(keep))!;
      const there = Object.entries(record.kept ?? {}).filter(([, value]) => value !== undefined);
      expect(there.map(([name]) => name).sort()).toEqual(members);
      expect(commitments(record)).toEqual(committed);
    }
    const { fields, kept: whole } = (await kept(undefined))!;
    expect((fields as CompleteEvent).ask_commit).toBe(commitment(whole!.salt_a!, whole!.projection!));
  });
});
