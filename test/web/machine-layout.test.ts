import fc from 'fast-check';
import { expect, test } from 'vitest';
import { chartOf } from '../../machines/chart.ts';
import { deliveryMachine } from '../../machines/delivery.ts';
import { holdMachine } from '../../machines/escrow.ts';
import { type Box, type ChartShape, type Drawing, layOut } from '../../machines/layout.ts';
import { policyMachine } from '../../machines/policy.ts';

const apart = (a: Box, b: Box) =>
  a.x + a.width <= b.x + 0.01 ||
  b.x + b.width <= a.x + 0.01 ||
  a.y + a.height <= b.y + 0.01 ||
  b.y + b.height <= a.y + 0.01;

function assertLegible(chart: ChartShape, drawing: Drawing): void {
  const boxes = [
    ...drawing.states.map((box) => [box.id, box] as const),
    ...drawing.edges.map(({ from, to, label }) => [`${from} → ${to}`, label] as const),
  ];
  for (const [n, [name, box]] of boxes.entries()) {
    expect(box.x >= 0 && box.y >= 0, name).toBe(true);
    expect(box.x + box.width <= drawing.width && box.y + box.height <= drawing.height, name).toBe(true);
    for (const [other, its] of boxes.slice(n + 1)) expect(apart(box, its), `${name} and ${other}`).toBe(true);
  }
  const shown = drawing.edges.flatMap(({ from, to, events }) => events.map((event) => `${from} ${event} ${to}`));
  expect(shown.toSorted()).toEqual(
    [...new Set(chart.transitions.map(({ from, event, to }) => `${from} ${event} ${to}`))].toSorted(),
  );
  for (const { path } of drawing.edges) expect(path).not.toContain('NaN');
}

test('the drawing of any machine shows every transition, and no state or label overlaps another', () => {
  const charts = fc.integer({ min: 1, max: 7 }).chain((count) =>
    fc.record({
      initial: fc.constant('s0'),
      states: fc.constant(Array.from({ length: count }, (_, n) => ({ id: `s${n}` }))),
      transitions: fc.array(
        fc.record({
          event: fc.constantFrom('go', 'request_changes', 'wake', 'a'),
          from: fc.nat(count - 1).map((n) => `s${n}`),
          to: fc.nat(count - 1).map((n) => `s${n}`),
        }),
        { maxLength: 20 },
      ),
    }),
  );
  fc.assert(
    fc.property(charts, fc.constantFrom('right', 'down' as const), (chart, direction) =>
      assertLegible(chart, layOut(chart, direction)),
    ),
  );
});

test.each([
  ['policy', chartOf(policyMachine)],
  ['escrow', chartOf(holdMachine)],
  ['delivery', chartOf(deliveryMachine)],
] as const)('the %s machine fits a page, and a narrow one', (_name, chart) => {
  const [wide, narrow] = [layOut(chart, 'right'), layOut(chart, 'down')];
  assertLegible(chart, wide);
  assertLegible(chart, narrow);
  expect(wide.width).toBeLessThan(1000);
  expect(narrow.width).toBeLessThan(620);
});

test('the same machine is always drawn in the same way', () => {
  const chart = chartOf(holdMachine);
  expect(layOut(chart, 'right')).toEqual(layOut(chart, 'right'));
});
