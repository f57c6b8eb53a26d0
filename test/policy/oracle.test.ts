import { describe, expect, it } from 'vitest';
import { conditionsOf } from '../../server/policy/evaluation/cedar/parse.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';
import { contentOf, NO_STATE, request } from './support.ts';

const limit = (id: string, most: number) =>
  `@id("${id}") permit(principal, action, resource) when { context.num.hasTag("n") && context.num.getTag("n").lessThan(decimal("${most}.0")) };`;

/** A compiler with a fault: conditions about `n` hold where they must not, once it is switched on. */
function faulty(isFaulty: () => boolean): typeof conditionsOf {
  return (host, texts) =>
    conditionsOf(host, texts).map((condition, n) =>
      texts[n]!.includes('"faulty"') && condition ? (question) => isFaulty() || condition(question) : condition,
    );
}

describe('Cedar as the oracle of compiled conditions', () => {
  it('is asked of the first answer of each statement; where it differs, the action is denied, and the statement left to it', () => {
    const content = contentOf({ pol: `${limit('faulty', 101)}\n${limit('sound', 11)}` });
    const engine = new PolicyEngine(content, { conditionsOf: faulty(() => true) });
    const match = engine.match(request({ arguments: { n: 500 } }));
    expect(match).toMatchObject({ outcome: 'error', disputed: ['pol#faulty'], hits: [{ id: 'pol#faulty' }] });
    expect(match.detail).toMatch(/differ about pol#faulty/);
    expect(settle(match, NO_STATE)).toMatchObject({ decision: 'deny', deny_reason: 'policy_error' });
    // from now on Cedar's word counts, here and in every other engine of the process
    for (const other of [engine, new PolicyEngine(content, { conditionsOf: faulty(() => true) })]) {
      for (const [n, hits] of [
        [500, []],
        [50, ['pol#faulty']],
        [5, ['pol#faulty', 'pol#sound']],
      ] as const) {
        const { outcome, hits: found, disputed } = other.match(request({ arguments: { n } }));
        expect({ outcome, hits: found.map(({ id }) => id), disputed }).toEqual({
          outcome: hits.length > 0 ? 'permitted' : 'unpermitted',
          hits,
          disputed: undefined,
        });
      }
      other.dispose();
    }
  });

  it('makes many statements ready in small steps, and then finds what it finds at one stretch', async () => {
    const content = contentOf({ pol: Array.from({ length: 300 }, (_, n) => limit(`l${n}`, n)).join('\n') });
    const together: number[] = [];
    const engine = new PolicyEngine(content, {
      conditionsOf: (host, texts) => {
        together.push(texts.length);
        return conditionsOf(host, texts);
      },
    });
    let turns = 0;
    const turn = async () => void turns++;
    const asked = request({ arguments: { n: 150 } });
    const [one, other] = [engine.ready(asked, turn), engine.ready(asked, turn)];
    // those who ask at the same time wait for the same
    expect(other).toBe(one);
    await one;
    expect(Math.max(...together)).toBeLessThanOrEqual(16);
    expect(turns).toBeGreaterThan(300 / 16);
    expect(engine.ready(asked, turn)).toBeUndefined();
    const calls = together.length;
    turns = 0;
    const first = engine.matchInSteps(asked, turn);
    expect(first).toBeInstanceOf(Promise);
    const { narrowing: _, ...match } = await first;
    expect(turns).toBe(Math.ceil(300 / 64));
    const { narrowing: __, ...plain } = new PolicyEngine(content).match(asked);
    expect(match).toEqual(plain);
    expect(match.hits.length).toBe(149);
    // nothing is left to be done in steps
    expect(engine.matchInSteps(asked, turn)).not.toBeInstanceOf(Promise);
    expect(together.length).toBe(calls);
    // what cannot be asked about is not made ready, and says so itself
    await engine.ready({ ...asked, tool_name: '' }, turn);
    engine.dispose();
  });

  it('is asked of a sample later on', () => {
    let broken = false;
    const content = contentOf({ pol: limit('faulty', 102) });
    const engine = new PolicyEngine(content, { every: 10, conditionsOf: faulty(() => broken) });
    const ask = () => engine.match(request({ arguments: { n: 500 } })).outcome;
    for (let n = 0; n < 25; n++) expect(ask()).toBe('unpermitted');
    broken = true;
    const later = Array.from({ length: 20 }, ask);
    const first = later.indexOf('error');
    expect(first).toBeGreaterThanOrEqual(0);
    expect(first).toBeLessThan(10);
    expect(later.slice(first + 1).every((outcome) => outcome === 'unpermitted')).toBe(true);
    engine.dispose();
  });

  it('is asked at once by engines that had compiled a statement before another one found it wrong', () => {
    let broken = false;
    const content = contentOf({ pol: limit('faulty', 104) });
    const [one, other] = [1, 1_000_000].map(
      (every) => new PolicyEngine(content, { every, conditionsOf: faulty(() => broken) }),
    );
    const ask = (engine: PolicyEngine | undefined) => engine!.match(request({ arguments: { n: 500 } })).outcome;
    expect([one, other].map(ask)).toEqual(['unpermitted', 'unpermitted']);
    broken = true;
    expect([one, other].map(ask)).toEqual(['error', 'unpermitted']);
    for (const engine of [one, other]) engine!.dispose();
  });

  it('finds a forbid that does not hold, in whichever call of Cedar it is', () => {
    const forbids = Array.from({ length: 150 }, (_, n) =>
      limit(n === 140 ? 'faulty' : `f${n}`, 200 + n).replace('permit', 'forbid'),
    );
    const content = contentOf({ pol: `permit(principal, action, resource);\n${forbids.join('\n')}` });
    const engine = new PolicyEngine(content, { conditionsOf: faulty(() => true) });
    expect(engine.match(request({ arguments: { n: 500 } }))).toMatchObject({
      outcome: 'error',
      disputed: ['pol#faulty'],
    });
    expect(engine.match(request({ arguments: { n: 500 } }))).toMatchObject({ outcome: 'permitted' });
    expect(engine.match(request({ arguments: { n: 348 } }))).toMatchObject({ outcome: 'forbidden' });
    engine.dispose();
  });

  it('alone is asked where the schema is not the one that conditions are compiled for', () => {
    const content = contentOf({ pol: limit('foreign', 103) });
    const never: typeof conditionsOf = () => {
      throw new Error('nothing is to be compiled');
    };
    const all = [
      { ...content, schema: `${content.schema}// another\n` },
      { ...content, action_entities: { ...content.action_entities, extra: ['read'] } },
    ];
    for (const one of all) {
      const engine = new PolicyEngine(one, { conditionsOf: never });
      expect(engine.match(request({ arguments: { n: 5 } })).outcome).toBe('permitted');
      engine.dispose();
    }
    expect(content.schema).toBe(schemaFor());
  });

  it('answers for what is not compiled, and for errors, beside what is', () => {
    const engine = new PolicyEngine(
      contentOf({
        pol: [
          limit('compiled', 100),
          '@id("left") permit(principal, action, resource) when { context has method && context.str.hasTag(context.method) };',
          '@id("error") @mask("$.a") forbid(principal, action, resource) when { context.session.call_count * 4611686018427387904 > 0 };',
        ].join('\n'),
      }),
    );
    const of = (call_count: number, n: number, method = 'GET') => {
      const session = { call_count, started: request().now };
      const match = engine.match(request({ session, session_id: 's', method, arguments: { n, GET: 'x' } }));
      return [match.outcome, match.hits.map(({ id }) => id.slice(4)).join()];
    };
    for (let again = 0; again < 3; again++) {
      expect(of(1, 5)).toEqual(['permitted', 'compiled,error,left']);
      expect(of(0, 500)).toEqual(['permitted', 'left']);
      expect(of(2, 5)).toEqual(['error', 'error']);
      expect(of(2, 500, 'PUT')).toEqual(['unpermitted', '']);
    }
    engine.dispose();
  });
});
