import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { compile, contentOf, NO_STATE } from '../policy/support.ts';
import { root } from './generate.ts';

const text = readFileSync(path.join(root, 'docs/cookbook.md'), 'utf8');
const recipes = text
  .split(/^## /m)
  .slice(1)
  .map((section) => ({
    title: section.split('\n')[0]!,
    source: /^```cedar\n([\s\S]*?)^```/m.exec(section)?.[1],
    lists: Object.entries(
      JSON.parse(/^```lists\n([\s\S]*?)^```/m.exec(section)?.[1] ?? '{}') as Record<string, string[]>,
    ).map(([name, values]) => ({ name, version: 1, values })),
    calls: /^```decides\n([\s\S]*?)^```/m.exec(section)?.[1]?.trim().split('\n') ?? [],
  }));

test('there are many of them', () => {
  expect(recipes.length).toBeGreaterThanOrEqual(12);
});

describe.each(recipes)('the recipe "$title"', ({ source, lists, calls }) => {
  test('compiles without errors and warnings', () => {
    expect(compile(source!, 'recipe')).toMatchObject({ errors: [], warnings: [] });
  });

  test('decides its calls as it says', () => {
    expect(calls.length).toBeGreaterThan(0);
    const engine = new PolicyEngine(contentOf({ recipe: source! }, null, lists));
    const decided = calls.map((call) => {
      const json = call.slice(0, call.lastIndexOf(' → '));
      const request: ActionRequest = {
        agent_id: 'agent-1',
        action_type: 'tool_call',
        now: '2026-03-04T12:00:00.000Z',
        ...JSON.parse(json),
      };
      const { decision, rule_id, deny_reason } = settle(engine.match(request), NO_STATE);
      const why = deny_reason === undefined ? rule_id?.replace('recipe#', '') : JSON.stringify(deny_reason);
      return `${json} → ${decision} ${why}`;
    });
    expect(decided).toEqual(calls);
    engine.dispose();
  });
});
