import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ANNOTATION_NAMES } from '../../server/domain/annotations.ts';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { openBundle } from '../../server/policy/bundle.ts';
import { actionHash } from '../../server/policy/evaluation/action-hash.ts';
import { conditionsOf } from '../../server/policy/evaluation/cedar/parse.ts';
import { Question } from '../../server/policy/evaluation/cedar/question.ts';
import { ASK } from '../../server/policy/evaluation/cedar/values.ts';
import { decisionHost, PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { mapRequest } from '../../server/policy/evaluation/request.ts';
import { actionEntities } from '../../server/policy/language/schema.ts';
import { CONDITION_FACTS, type ConditionVector } from '../vectors/policy/conditions.ts';
import { generate, vectorKey } from '../vectors/policy/generate.ts';

const VECTORS = new URL('../vectors/', import.meta.url);
const stored = (name: string) => readFileSync(new URL(name, VECTORS));
const json = (name: string) => JSON.parse(stored(name).toString());

describe('the published vectors', () => {
  it('are the output of the generator, which is deterministic', async () => {
    const [once, again] = [await generate(), await generate()];
    expect(again).toEqual(once);
    for (const [name, data] of Object.entries(once)) {
      expect(stored(`policy/${name}`).equals(Buffer.from(data as string)), name).toBe(true);
    }
  });

  it('the golden bundle verifies with its key, and its requests are decided as published', () => {
    const { publicKey, kid } = vectorKey();
    const golden = json('bundle/golden.json');
    const { header, hash, content } = openBundle(
      stored('bundle/golden.svcb'),
      (id) => (id === kid ? publicKey : undefined),
      {
        tenant: golden.tenant,
        min_seq: golden.seq,
      },
    );
    expect(hash).toBe(golden.hash);
    expect(header).toMatchObject({ kid: golden.kid, seq: golden.seq, not_after: golden.not_after });
    expect(publicKey.export({ type: 'spki', format: 'pem' })).toBe(golden.public_key);

    const engine = new PolicyEngine(content);
    const { requests } = json('policy/requests.json');
    expect(requests.length).toBeGreaterThan(40);
    for (const { name, request, exceeded, covered, verdict } of requests) {
      const state = {
        exceeded: new Map<string, { retry_after: number }>(Object.entries(exceeded)),
        covered,
      };
      expect(JSON.parse(JSON.stringify(settle(engine.match(request), state))), name).toEqual(verdict);
    }
    engine.dispose();
  });

  it('the compiled conditions find what Cedar found, or ask it', () => {
    const { conditions, requests } = json('policy/conditions.json');
    const texts = conditions.map(
      ({ condition }: ConditionVector) => `permit(principal, action, resource) when { ${condition} };`,
    );
    const compiled = conditionsOf(decisionHost, texts);
    const questions = requests.map(
      (request: ActionRequest) => new Question(mapRequest(request, actionEntities()).values, CONDITION_FACTS),
    );
    let asked = 0;
    for (const [n, { condition, answers }] of conditions.entries()) {
      for (const [r, question] of questions.entries()) {
        const found = compiled[n]?.(question) ?? ASK;
        if (found === ASK) asked++;
        else expect(found ? 'T' : 'F', `${condition}, request ${r}`).toBe(answers[r]);
      }
    }
    const all = conditions.map(({ answers }: ConditionVector) => answers).join('');
    for (const outcome of 'TFE') expect(all.split(outcome).length - 1).toBeGreaterThan(10);
    expect(asked).toBeLessThan(all.length / 4);
  });

  it('every decision and every annotation occurs in them', () => {
    const decisions = new Set(
      json('policy/requests.json').requests.map((one: { verdict: { decision: string } }) => one.verdict.decision),
    );
    expect([...decisions].sort()).toEqual(['allow', 'allow_with_masking', 'deny', 'escrow', 'rate_limited']);
    const demo = stored('policy/demo.cedar').toString();
    for (const name of ANNOTATION_NAMES) {
      expect(demo).toContain(`@${name}("`);
    }
  });
});

describe('the action hash', () => {
  const ACTION = { agent_id: 'a', agent_role: 'r', action_type: 'tool_call', tool_name: 't' };

  it('matches the vectors', () => {
    for (const { name, action, hash } of json('policy/action-hash.json').actions)
      expect(actionHash(action), name).toBe(hash);
  });

  it('refuses what has no exact form', () => {
    const of = (args: unknown) => actionHash({ ...ACTION, arguments: args });
    for (const value of [Number.NaN, Infinity, 2 ** 53, -(2 ** 60), 1e300, '\uD83D', 10n]) {
      expect(() => of({ value }), String(value)).toThrow(RangeError);
    }
    expect(() => of({ '\uD83D': 1 })).toThrow(RangeError);
    expect(() => actionHash({ ...ACTION, agent_id: '\uD83D' })).toThrow(RangeError);
  });

  it('is the same for the same action, and differs for another', () => {
    const action = fc.record({
      agent_id: fc.string(),
      agent_role: fc.string(),
      action_type: fc.string(),
      tool_server: fc.option(fc.string()),
      tool_name: fc.string(),
      tool_pin: fc.option(fc.string()),
      method: fc.option(fc.string()),
      resource: fc.option(fc.string()),
      arguments: fc.dictionary(fc.string(), fc.oneof(fc.string(), fc.integer(), fc.boolean(), fc.constant(null))),
      context: fc.option(fc.constant({ ticket: 1 })),
      estimated_value: fc.option(fc.integer()),
      value_currency: fc.option(fc.string()),
    });
    fc.assert(
      fc.property(action, action, (one, other) => {
        // each member counts, the absent as null
        for (const name of Object.keys(one) as (keyof typeof one)[]) {
          expect(actionHash({ ...one, [name]: 'another' } as typeof one), name).not.toBe(actionHash(one));
          if (one[name] === null) expect(actionHash({ ...one, [name]: undefined } as typeof one)).toBe(actionHash(one));
        }
        const shuffled = Object.fromEntries(Object.entries(one).reverse()) as typeof one;
        expect(actionHash(shuffled)).toBe(actionHash(one));
        expect(actionHash(one) === actionHash(other)).toBe(
          JSON.stringify(sorted(one)) === JSON.stringify(sorted(other)),
        );
      }),
    );
  });
});

function sorted(action: { arguments: object }): unknown {
  return Object.entries({ ...action, arguments: Object.entries(action.arguments).sort() }).sort();
}
