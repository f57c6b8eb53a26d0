import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { doubtsOf } from '../../web/pages/approvals/claims.ts';
import { effectWords } from '../../web/pages/approvals/effect.ts';
import { type Marked, toggled } from '../../web/pages/approvals/marked.ts';
import { placed } from '../../web/pages/approvals/pages.ts';

describe('a stated value', () => {
  const doubts = (estimated_value: number | null, arguments_preview: unknown, value_currency: string | null = 'EUR') =>
    doubtsOf({ estimated_value, value_currency, arguments_preview });

  test.each([
    [12, { amount: 12 }],
    [1200.5, { order: { totalAmount: '1,200.50' } }],
    [1200.5, { total: '1.200,50 €' }],
    [1200, { amount: '1,200' }],
    [15, { price: 5, items: 3, total: 15 }],
    [12, { to: 'ACME', note: '900' }],
    [12, undefined],
    [null, { amount: 900 }],
    [12, { amount: '[masked]' }],
    [12, { currency: 'eur', amount: 12 }],
  ])('of %j stands with %j', (value, args) => expect(doubts(value, args)).toEqual([]));

  test.each([
    [12, { amount: 900 }, '$.amount', '900'],
    // an amount that agrees does not hide one that is higher
    [12, { total: 12, payment: { amount: 900 } }, '$.payment.amount', '900'],
    [12, { amount: '9e2' }, '$.amount', '9e2'],
    [12, { lines: [{ price: '900.00' }] }, '$.lines[0].price', '900.00'],
    [12, { amount: 1200 }, '$.amount', '1200'],
    [12, { amount: -900 }, '$.amount', '-900'],
    [12, { amount: 12, currency: 'BTC' }, '$.currency', 'BTC'],
    [12, JSON.parse('{"__proto__": {"amount": 900}}'), '$.__proto__.amount', '900'],
  ])('of %j is doubted with %j', (value, args, path, says) => expect(doubts(value, args)).toEqual([{ path, says }]));

  test('never fails on what an agent sends, and says at most three things', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 6 }), fc.double(), fc.string(), (args, value, currency) => {
        expect(
          doubtsOf({ estimated_value: value, value_currency: currency, arguments_preview: args }).length,
        ).toBeLessThan(4);
      }),
    );
  });
});

describe('what a vote will do', () => {
  const words = (effect: Parameters<typeof effectWords>[0]) => effectWords(effect, (at) => at, 'within 1 h');
  const waits = { outcome: 'waits', counts: true, approvals: 0, seats: [], conditions: [] } as const;
  test.each([
    [{ outcome: 'ends' } as const, /^This ends the hold/],
    [{ outcome: 'releases' } as const, /^This releases the action.* within 1 h\.$/],
    [{ ...waits, approvals: 1 }, /^This counts, and does not release .* Still missing: 1 more approval\.$/],
    [{ ...waits, seats: [{ group: 'security', count: 2 }] }, /Still missing: 2 approvals from security\.$/],
    [{ ...waits, counts: false, conditions: ['kyc'] }, /^This changes nothing yet.* on the condition “kyc”\.$/],
    [{ ...waits, counts: false, conditions: [], releasesAt: 'noon' }, /^This changes nothing yet.* at noon\.$/],
  ])('is said of %j', (effect, expected) => expect(words(effect as never)).toMatch(expected));
});

describe('a list of holds', () => {
  const hold = (id: string, minute: number) => ({
    id,
    expires_at: `2026-01-01T00:${String(minute).padStart(2, '0')}:00.000Z`,
    created_at: `2026-01-01T00:${String(minute).padStart(2, '0')}:00.000Z`,
    estimated_value: minute === 0 ? null : minute,
    risk_score: null,
  });
  const pages = (next: string | null, ...groups: ReturnType<typeof hold>[][]) => ({
    pages: groups.map((holds, n) => ({ holds, total: 9, next_cursor: n < groups.length - 1 ? 'more' : next })),
    pageParams: groups.map((_, n) => n),
  });
  const ids = (data: Pick<ReturnType<typeof pages>, 'pages'>) =>
    data.pages.map(({ holds }) => holds.map(({ id }) => id).join(' '));

  test('takes a hold where it belongs, changes it there, and lets it go', () => {
    const data = pages(null, [hold('a', 1), hold('c', 3)], [hold('e', 5)]);
    const soonest = placed(data, hold('b', 2), true, 'expires_at', 10);
    expect(ids(soonest)).toEqual(['a b c', 'e']);
    expect(soonest.pages.map(({ total }) => total)).toEqual([10, 10]);
    expect(ids(placed(data, hold('f', 6), true, 'expires_at', 10))).toEqual(['a c', 'e f']);
    expect(ids(placed(data, hold('a', 4), true, 'expires_at', 9))).toEqual(['c', 'a e']);
    expect(ids(placed(data, hold('c', 3), false, 'expires_at', 8))).toEqual(['a', 'e']);
    // what comes after everything that was loaded appears with its page
    const part = pages('more', [hold('a', 1), hold('c', 3)]);
    expect(ids(placed(part, hold('z', 9), true, 'expires_at', 10))).toEqual(['a c']);
    const newest = pages(null, [hold('c', 3), hold('a', 1)]);
    expect(ids(placed(newest, hold('b', 2), true, 'created_at', 3))).toEqual(['c b a']);
    expect(ids(placed(pages(null, []), hold('b', 2), true, 'created_at', 1))).toEqual(['b']);
    // the highest value first, and those without one last
    const dearest = pages(null, [hold('c', 3), hold('a', 1), hold('n', 0)]);
    expect(ids(placed(dearest, hold('b', 2), true, 'value', 4))).toEqual(['c b a n']);
    expect(ids(placed(dearest, hold('m', 0), true, 'value', 4))).toEqual(['c a n m']);
  });
});

describe('selecting holds', () => {
  const rows = ['a', 'b', 'c', 'd', 'e'];
  const steps = (...what: [id: string, range?: boolean][]) => {
    let marked: Marked = { ids: new Set<string>(), anchor: undefined };
    for (const [id, range = false] of what) marked = toggled(marked, rows, id, range);
    return [...marked.ids].sort().join('');
  };

  test('a press selects one and lets it go; a range becomes like the one where it begins', () => {
    expect(steps(['b'], ['d'])).toBe('bd');
    expect(steps(['b'], ['b'])).toBe('');
    expect(steps(['b'], ['d', true])).toBe('bcd');
    expect(steps(['d'], ['b', true])).toBe('bcd');
    expect(steps(['a'], ['e', true], ['b'], ['d', true])).toBe('ae');
    // what the range began at has left the list
    expect([...toggled({ ids: new Set(['x']), anchor: 'x' }, rows, 'c', true).ids].sort()).toEqual(['c', 'x']);
  });

  test('at most 50 are selected', () => {
    const many = Array.from({ length: 80 }, (_, n) => `h${n}`);
    const all = toggled({ ids: new Set(['h0']), anchor: 'h0' }, many, 'h79', true);
    expect(all.ids.size).toBe(50);
  });
});
