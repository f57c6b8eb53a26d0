import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { areAnnotations, isGuardrail, readAnnotations } from '../../server/policy/language/annotations.ts';

const read = (raw: Record<string, string | null>) => readAnnotations(new Map(Object.entries(raw)));
const faults = (raw: Record<string, string | null>) => read(raw).faults.map(({ message }) => message);
const held = (more: Record<string, string>) => ({ escrow: 'single', ...more });

describe('the annotations', () => {
  it('are typed', () => {
    const { annotations, faults, warnings } = read({
      id: 'pay.large-1',
      scope: 'payments, core',
      reason: 'zu groß 😀',
      escrow: 'multi_party',
      approvals: '3',
      quorum: 'finance:1, security:2',
      ttl: '4h',
      execute_within: '90s',
      notify: 'https://a.example/x,https://b.example',
      mask: "$.card.number,$['a,b'][0],$..ssn,$.items[*].*",
      rate: '10/m',
      budget: '2500.50 EUR/30d of arguments.total in arguments.currency per arguments.items[0].order_id',
      description: 'a\nb',
      severity: 'critical',
    });
    expect(faults).toEqual([]);
    expect(warnings).toEqual([]);
    expect(annotations).toEqual({
      id: 'pay.large-1',
      scope: ['payments', 'core'],
      reason: 'zu groß 😀',
      escrow: 'multi_party',
      approvals: 3,
      quorum: [
        { group: 'finance', count: 1 },
        { group: 'security', count: 2 },
      ],
      ttl: 14_400,
      execute_within: 90,
      notify: ['https://a.example/x', 'https://b.example'],
      mask: ['$.card.number', "$['a,b'][0]", '$..ssn', '$.items[*].*'],
      rate: { limit: 10, window_seconds: 60 },
      budget: {
        ...{ amount: '2500.50', currency: 'EUR', window_seconds: 2_592_000, of: 'arguments.total' },
        ...{ in: 'arguments.currency', per: 'arguments.items[0].order_id' },
      },
      description: 'a\nb',
      severity: 'critical',
    });
    expect(read({ escrow: 'conditional', condition: 'kyc-check,legal-ok' }).annotations.condition).toEqual([
      'kyc-check',
      'legal-ok',
    ]);
    expect(read({ escrow: 'time_delayed', delay: '15m' }).annotations.delay).toBe(900);
  });

  it.each<[string, string[]]>([
    ['id', ['', '0', '1a', 'a b', 'a#b', 'é', 'a'.repeat(65)]],
    ['scope', ['', ',', 'a,', '**', 'a b', 'a,,b', Array.from({ length: 33 }, (_, n) => `s${n}`).join()]],
    ['reason', ['', '  \n', 'x'.repeat(501)]],
    ['escrow', ['', 'manual', 'Single', 'single,multi_party']],
    ['approvals', ['', '0', '-1', '1.5', '01', '2 ', '21', '1e1', 'two']],
    ['quorum', ['', 'finance', 'finance:0', 'finance:1,finance:1', ':1', 'a:1,', 'a:11,b:10', 'a:1:2']],
    ['delay', ['', '0s', '15', '15 m', '1.5h', '31d', '721h', '1w', '-1m', '9999999d']],
    ['ttl', ['30D', '31d', '∞']],
    ['execute_within', ['0m', '31d']],
    [
      'notify',
      [
        '',
        'http://a.example',
        'a.example',
        'https://',
        'https://u:p@a.example',
        'https://a.example/ x',
        'javascript:1',
      ],
    ],
    ['mask', ['', 'card', '$.', '$.a,', ',$.a', '$.a,,$.b', '$.a b', '$[a]', "$['a]", '$[?(@.x)]', '$[-1]', '$[0:2]']],
    [
      'rate',
      [
        ...['', '10', '0/m', '10/w', '10/min', '1.5/s', '-1/s', '10 /m', '1000001/d', '1/0d', '1/31d', '10 EUR/d'],
        ...[
          '1/d per',
          '1/d per everyone',
          '1/d per order_id',
          '1/d per arguments',
          '1/d per arguments.',
          '1/d of arguments.x',
        ],
        ...[
          '1/d per arguments.a b',
          '1/d per arguments["a"]',
          '1/d per agent per role',
          `1/d per arguments.${'a'.repeat(65)}`,
        ],
      ],
    ],
    [
      'budget',
      [
        ...[
          '',
          '500',
          '500/d',
          '500 EUR',
          '0 EUR/d',
          '-5 EUR/d',
          '1e3 EUR/d',
          '500 eur/d',
          '500 EURO/d',
          '500.12345 EUR/d',
        ],
        ...['05 EUR/d', '100000000000 EUR/d', '500  EUR/d', '500 EUR/d of amount', '500 EUR/d in arguments.currency'],
        ...['500 EUR/d per order', '500 EUR/31d', '500 EUR/d of agent', '1,000 EUR/d'],
      ],
    ],
    ['severity', ['', 'Low', 'urgent']],
    ['description', ['', 'x'.repeat(2_001)]],
  ])('a malformed @%s is refused', (name, values) => {
    const around: Record<string, Record<string, string>> = {
      condition: { escrow: 'conditional' },
      delay: { escrow: 'time_delayed' },
    };
    for (const value of values) {
      const raw = { ...(name === 'escrow' ? {} : (around[name] ?? { escrow: 'single' })), [name]: value };
      expect(faults(raw), JSON.stringify(value)).toEqual([
        expect.stringContaining(`@${name}(${JSON.stringify(value)})`),
      ]);
    }
  });

  it('an unknown name is refused, with the known one that it resembles', () => {
    expect(faults({ escroww: 'single' })).toEqual(['unknown annotation @escroww; did you mean @escrow?']);
    expect(faults({ Escrow: 'single' })).toEqual(['unknown annotation @Escrow; did you mean @escrow?']);
    for (const name of ['permit', 'constructor', '__proto__', 'toString', 'hasOwnProperty']) {
      expect(readAnnotations(new Map([[name, 'x']])).faults[0]?.message, name).toMatch(/^unknown annotation/);
    }
  });

  it('a missing value is refused, for every annotation', () => {
    for (const name of ['id', 'scope', 'reason', 'escrow', 'mask', 'rate', 'budget', 'description', 'severity']) {
      expect(faults({ [name]: null })).toEqual([expect.stringContaining(`@${name} needs a value`)]);
    }
  });

  it.each<[string, Record<string, string>, RegExp | null]>([
    ['multi_party alone', { escrow: 'multi_party' }, /needs @approvals\("2"\)/],
    ['multi_party of one', { escrow: 'multi_party', approvals: '1' }, /needs @approvals\("2"\)/],
    ['multi_party of two', { escrow: 'multi_party', approvals: '2' }, null],
    ['multi_party by a quorum of one', { escrow: 'multi_party', quorum: 'a:1' }, /needs @approvals\("2"\)/],
    ['multi_party by a quorum of two', { escrow: 'multi_party', quorum: 'a:1,b:1' }, null],
    [
      'fewer approvals than the quorum',
      { escrow: 'multi_party', approvals: '2', quorum: 'a:2,b:1' },
      /less than the 3/,
    ],
    ['more approvals than the quorum', { escrow: 'multi_party', approvals: '4', quorum: 'a:2,b:1' }, null],
    ['conditional without condition', { escrow: 'conditional' }, /needs @condition/],
    ['a condition of another kind', held({ condition: 'c' }), /@condition needs @escrow\("conditional"\)/],
    ['time_delayed without delay', { escrow: 'time_delayed' }, /needs @delay/],
    ['a delay of another kind', held({ delay: '1m' }), /@delay needs @escrow\("time_delayed"\)/],
    ['a delay as long as the ttl', { escrow: 'time_delayed', delay: '1h', ttl: '1h' }, /shorter than @ttl/],
    ['a delay as long as the usual ttl', { escrow: 'time_delayed', delay: '24h' }, /shorter than @ttl/],
    ['a delay within the ttl', { escrow: 'time_delayed', delay: '24h', ttl: '2d' }, null],
  ])('%s', (_, raw, expected) => {
    expect(faults(raw)).toEqual(expected ? [expect.stringMatching(expected)] : []);
  });

  it('a single approval by several people is warned about', () => {
    expect(read(held({ approvals: '2' })).warnings).toHaveLength(1);
    expect(read(held({ approvals: '1' })).warnings).toHaveLength(0);
  });

  it('an obligation makes a forbid a guardrail, a description does not', () => {
    expect(isGuardrail('forbid', { reason: 'x', description: 'y', severity: 'high', scope: ['*'] })).toBe(false);
    expect(isGuardrail('forbid', { escrow: 'single' })).toBe(true);
    expect(isGuardrail('forbid', { mask: ['$.a'] })).toBe(true);
    expect(isGuardrail('forbid', { rate: { limit: 1, window_seconds: 1 } })).toBe(true);
    expect(isGuardrail('permit', { escrow: 'single' })).toBe(false);
  });

  it('no text makes the parser throw, and everything parsed without a fault is allowed in a bundle', () => {
    const names = fc.constantFrom('id', 'scope', 'escrow', 'approvals', 'quorum', 'mask', 'rate', 'ttl', 'notify', 'x');
    const values = fc.oneof(
      fc.string(),
      fc.constantFrom('single', 'multi_party', '2', 'a:1,b:1', '$.a', '1/s', '5m', 'https://a.example', '*'),
    );
    fc.assert(
      fc.property(fc.dictionary(names, values), (raw) => {
        const { annotations } = read(raw);
        expect(areAnnotations(JSON.parse(JSON.stringify(annotations)))).toBe(true);
      }),
      { numRuns: 1_000 },
    );
  });

  it('a bundle may not contain obligations that this program does not know', () => {
    for (const value of [
      { quarantine: true },
      { escrow: 'triple' },
      { approvals: '2' },
      { approvals: 0 },
      { rate: { limit: 1 } },
      { rate: { limit: 1, window_seconds: 60, burst: 2 } },
      { rate: { limit: 1, window_seconds: 60, per: 'everyone' } },
      { rate: { limit: 1, window_seconds: 3_000_000 } },
      { budget: { amount: '1', currency: 'EUR' } },
      { budget: { amount: 1, currency: 'EUR', window_seconds: 60 } },
      { budget: { amount: '-1', currency: 'EUR', window_seconds: 60 } },
      { budget: { amount: '1', currency: 'EUR', window_seconds: 60, in: 'arguments.currency' } },
      { mask: '$.a' },
      { quorum: [{ group: 'a' }] },
      { constructor: 'x' },
      [],
      null,
      'x',
    ]) {
      expect(areAnnotations(value), JSON.stringify(value)).toBe(false);
    }
  });
});
