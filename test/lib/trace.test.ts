import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { cameWith, siblingOf, traceOf, traceparentOf } from '../../server/lib/trace.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const PARENT = '00f067aa0ba902b7';

describe('a traceparent', () => {
  test('that is valid is gone on with, by a span of its own', () => {
    const trace = traceOf(`00-${TRACE}-${PARENT}-01`, 'vendor=1,other=2');
    expect(trace).toMatchObject({ trace_id: TRACE, parent_id: PARENT, sampled: true, state: 'vendor=1,other=2' });
    expect(trace.span_id).toMatch(/^[0-9a-f]{16}$/);
    expect(trace.span_id).not.toBe(PARENT);
    expect(traceparentOf(trace)).toBe(`00-${TRACE}-${trace.span_id}-01`);
    expect(siblingOf(trace)).toMatchObject({ trace_id: TRACE, parent_id: PARENT });
    expect(siblingOf(trace).span_id).not.toBe(trace.span_id);
    expect(traceOf(`00-${TRACE}-${PARENT}-02`)).toMatchObject({ sampled: false, state: undefined });
    expect(cameWith(`00-${TRACE}-${PARENT}-03`)).toBe(`00-${TRACE}-${PARENT}-01`);
  });

  test('of a later version is read as far as it is known', () => {
    for (const text of [`01-${TRACE}-${PARENT}-01`, `cc-${TRACE}-${PARENT}-01-what-comes-later`]) {
      expect(traceOf(text), text).toMatchObject({ trace_id: TRACE, parent_id: PARENT });
    }
  });

  test('that is anything else begins a new trace, and its state is dropped', () => {
    const wrong = [
      ...[undefined, null, 7, '', {}, [`00-${TRACE}-${PARENT}-01`]],
      `00-${TRACE.toUpperCase()}-${PARENT}-01`,
      `00-${'0'.repeat(32)}-${PARENT}-01`,
      `00-${TRACE}-${'0'.repeat(16)}-01`,
      `00-${TRACE}-${PARENT}-01-more`,
      `00-${TRACE}-${PARENT}-1`,
      `00-${TRACE}-${PARENT}-0g`,
      `ff-${TRACE}-${PARENT}-01`,
      `01-${TRACE}-${PARENT}-01more`,
      ` 00-${TRACE}-${PARENT}-01`,
      `00-${TRACE}-${PARENT}-01\n`,
      `00-${TRACE}-${PARENT}-01, 00-${TRACE}-${PARENT}-01`,
      `01-${TRACE}-${PARENT}-01-${'x'.repeat(201)}`,
    ];
    for (const text of wrong) {
      const trace = traceOf(text, 'vendor=1');
      expect(trace, String(text)).toMatchObject({ parent_id: undefined, sampled: true, state: undefined });
      expect(trace.trace_id).not.toBe(TRACE);
      expect(cameWith(text)).toBeUndefined();
    }
    for (const state of ['', 'ü', 'a\u0000', 'x'.repeat(513), 7, ['a=1']]) {
      expect(traceOf(`00-${TRACE}-${PARENT}-01`, state).state).toBeUndefined();
    }
  });

  test('of any text gives one that is valid', () => {
    const text = fc.oneof(fc.string(), fc.stringMatching(/^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$/));
    fc.assert(
      fc.property(text, (given) => {
        const trace = traceOf(given);
        expect(traceparentOf(trace)).toMatch(/^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[01]$/);
        expect(trace.parent_id === undefined || given.includes(trace.trace_id)).toBe(true);
      }),
    );
  });
});
