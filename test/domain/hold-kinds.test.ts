import { expect, test } from 'vitest';
import { ANNOTATION_NAMES, ANNOTATIONS, escrowNeededBy } from '../../server/domain/annotations.ts';
import { HOLD_KIND_NAMES, HOLD_KINDS, holdKind } from '../../server/domain/hold-kinds.ts';

const strictestFirst = [...HOLD_KIND_NAMES].sort((a, b) => HOLD_KINDS[b].strictness - HOLD_KINDS[a].strictness);

test('no two hold kinds are equally strict, and one that needs more approvals is stricter', () => {
  expect(new Set(HOLD_KIND_NAMES.map((kind) => HOLD_KINDS[kind].strictness)).size).toBe(HOLD_KIND_NAMES.length);
  const least = strictestFirst.map((kind) => HOLD_KINDS[kind].leastApprovals);
  expect(least).toEqual([...least].sort((a, b) => b - a));
});

test('approvals by people are stricter than conditions, and conditions than time', () => {
  const known = ['multi_party', 'single', 'conditional', 'time_delayed'];
  expect(strictestFirst.filter((kind) => known.includes(kind))).toEqual(known);
});

test.each(HOLD_KIND_NAMES)('the summary of %s names what the kind waits for, and all approvals', (name) => {
  const { summary, summaryWithApprovals, needsConditions, takesDelay, leastApprovals } = holdKind(name);
  const named = [...(summary + summaryWithApprovals).matchAll(/\{(\w+)\}/g)].map(([, word]) => word).sort();
  expect(named).toEqual(['approvals', ...(needsConditions ? ['conditions'] : []), ...(takesDelay ? ['delay'] : [])]);
  if (leastApprovals === 0) expect(summary).not.toContain('{approvals}');
});

test('an annotation for some kinds only names them', () => {
  const needs = ANNOTATION_NAMES.flatMap((name) => (ANNOTATIONS[name].kinds ? [[name, escrowNeededBy(name)]] : []));
  expect(Object.fromEntries(needs)).toMatchObject({
    approvals: '@escrow',
    condition: expect.stringContaining('@escrow("conditional")'),
    delay: expect.stringContaining('@escrow("time_delayed")'),
  });
});
