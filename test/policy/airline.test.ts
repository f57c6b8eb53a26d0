import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { PolicyEngine, settle, type Verdict } from '../../server/policy/evaluation/evaluate.ts';
import { compile, contentOf, NO_STATE } from './support.ts';

const POLICIES = new URL('../airline/policies/', import.meta.url);
/** Recorded tool calls of an airline's agent, where they are at hand. They are read in place and not part of this. */
const CALLS = `${process.env.SVC_TEST_DATA ?? fileURLToPath(new URL('../../../shared/data', import.meta.url))}/airline-agent-tool-calls.jsonl`;

const sources = Object.fromEntries(
  readdirSync(POLICIES).map((file) => [file.replace('.cedar', ''), readFileSync(new URL(file, POLICIES), 'utf8')]),
);
const engine = new PolicyEngine(contentOf(sources));
afterAll(() => engine.dispose());

function call(tool_name: string, args: unknown, agent_role = 'airline-agent'): Verdict {
  const match = engine.match({
    agent_id: 'agent-1',
    agent_role,
    action_type: 'tool_call',
    tool_name,
    arguments: args,
    now: '2024-05-15T15:00:00.000Z',
  });
  return settle(match, NO_STATE);
}

const means = (...ids: string[]) => ids.map((payment_id) => ({ payment_id, amount: 100 }));
const booking = (payment_methods: unknown, passengers = 1) => ({
  passengers: Array.from({ length: passengers }, () => ({ first_name: 'A', last_name: 'B', dob: '1990-01-01' })),
  payment_methods,
  total_baggages: 2,
  nonfree_baggages: 0,
});

describe("the airline's policies", () => {
  it('compile without errors and warnings, and every statement says what it is for', () => {
    for (const [name, source] of Object.entries(sources)) {
      const { errors, warnings, statements } = compile(source, name);
      expect({ errors, warnings }, name).toEqual({ errors: [], warnings: [] });
      for (const { annotations } of statements) {
        expect(annotations).toMatchObject({
          id: expect.any(String),
          reason: expect.any(String),
          description: expect.any(String),
        });
      }
    }
  });

  it('compile without errors and warnings where they read facts of the session too', () => {
    const source = readFileSync(new URL('../facts/airline.cedar', POLICIES), 'utf8');
    expect(compile(source, 'airline')).toMatchObject({ errors: [], warnings: [] });
  });

  it('let an agent look up, calculate and hand over, and no one else', () => {
    for (const tool of ['get_user_details', 'search_direct_flight', 'calculate', 'think', 'transfer_to_human_agents']) {
      expect(call(tool, {}).decision).toBe('allow');
      expect(call(tool, {}, 'other-agent').decision).toBe('deny');
    }
    expect(call('drop_database', {}).decision).toBe('deny');
  });

  it.each<[string, Record<string, unknown>, string, string | null]>([
    ['one of each', booking(means('certificate_1', 'credit_card_1', 'gift_card_1')), 'allow', 'booking#book'],
    ['three gift cards', booking(means('gift_card_1', 'gift_card_2', 'gift_card_3')), 'allow', 'booking#book'],
    [
      'all five',
      booking(means('gift_card_1', 'gift_card_2', 'certificate_1', 'gift_card_3', 'credit_card_1')),
      'allow',
      'booking#book',
    ],
    ['two certificates', booking(means('certificate_1', 'certificate_2')), 'deny', 'booking#one-certificate'],
    [
      'two certificates apart',
      booking(means('certificate_1', 'gift_card_1', 'credit_card_1', 'gift_card_2', 'certificate_2')),
      'deny',
      'booking#one-certificate',
    ],
    ['two credit cards', booking(means('credit_card_1', 'credit_card_2')), 'deny', 'booking#one-credit-card'],
    [
      'four gift cards',
      booking(means('gift_card_1', 'gift_card_2', 'gift_card_3', 'gift_card_4')),
      'deny',
      'booking#three-gift-cards',
    ],
    [
      'six means',
      booking(means('gift_card_1', 'gift_card_2', 'gift_card_3', 'credit_card_1', 'certificate_1', 'cash_1')),
      'deny',
      'booking#five-means-of-payment',
    ],
    ['cash', booking(means('cash_1')), 'deny', 'booking#known-means-of-payment'],
    ['no means', booking([]), 'deny', null],
    ['five passengers', booking(means('credit_card_1'), 5), 'allow', 'booking#book'],
    ['six passengers', booking(means('credit_card_1'), 6), 'deny', 'booking#five-passengers'],
    ['no passengers', booking(means('credit_card_1'), 0), 'deny', null],
    [
      'passengers that are no list',
      { ...booking(means('credit_card_1')), passengers: 'five' },
      'deny',
      'booking#book', // which reads their number, and is in doubt
    ],
    [
      'more bags paid than there are',
      { ...booking(means('credit_card_1')), nonfree_baggages: 3 },
      'deny',
      'booking#bags-paid',
    ],
  ])('a booking with %s', (_, args, decision, rule) => {
    expect(call('book_reservation', args)).toMatchObject({ decision, rule_id: rule });
  });

  it.each<[unknown, string]>([
    [50, 'allow'],
    [100, 'allow'],
    ['100', 'allow'],
    [100.01, 'escrow'],
    ['100.01', 'escrow'],
    [500, 'escrow'],
    [500.01, 'deny'],
    [0, 'deny'],
    [-50, 'deny'],
    ['a lot', 'deny'],
    [undefined, 'deny'],
  ])('a certificate of %j', (amount, decision) => {
    expect(call('send_certificate', { user_id: 'u', amount }).decision).toBe(decision);
  });

  it('hold for a person what the history decides', () => {
    for (const [tool, args] of [
      ['cancel_reservation', { reservation_id: 'A' }],
      ['update_reservation_flights', { reservation_id: 'A', cabin: 'basic_economy', payment_id: 'gift_card_1' }],
      ['update_reservation_passengers', { reservation_id: 'A', passengers: [{}] }],
    ] as const) {
      expect(call(tool, args)).toMatchObject({
        decision: 'escrow',
        escrow: { hold_type: 'single', required_approvals: 1 },
      });
    }
    expect(
      call('update_reservation_flights', { reservation_id: 'A', cabin: 'economy', payment_id: 'x' }).decision,
    ).toBe('allow');
    expect(call('update_reservation_baggages', { total_baggages: 2, nonfree_baggages: 1 }).decision).toBe('allow');
  });

  it("hold back what was over the limit in the airline's own recorded calls", (test) => {
    if (!existsSync(CALLS)) test.skip();
    const counts: Record<string, number> = {};
    for (const line of readFileSync(CALLS, 'utf8').trim().split('\n')) {
      const { tool_name, arguments: args, agent_role } = JSON.parse(line);
      const { decision, rule_id } = call(tool_name, args, agent_role);
      const key = `${tool_name} ${decision} ${rule_id}`;
      counts[key] = (counts[key] ?? 0) + 1;
    }
    console.log(
      Object.entries(counts)
        .sort()
        .map(([key, count]) => `${String(count).padStart(5)}  ${key}`)
        .join('\n'),
    );
    expect(counts).toEqual({
      'book_reservation allow booking#book': 47,
      'book_reservation deny booking#five-means-of-payment': 3,
      'book_reservation deny booking#one-certificate': 3,
      'calculate allow reads#work-out': 96,
      'cancel_reservation escrow changes#cancel': 69,
      'get_reservation_details allow reads#look-up': 377,
      'get_user_details allow reads#look-up': 120,
      'list_all_airports allow reads#look-up': 2,
      'search_direct_flight allow reads#look-up': 141,
      'search_onestop_flight allow reads#look-up': 38,
      'send_certificate allow compensation#small-gesture': 6,
      'send_certificate escrow compensation#large-gesture': 2,
      'think allow reads#work-out': 92,
      'transfer_to_human_agents allow reads#hand-over': 48,
      'update_reservation_baggages allow changes#change-bags': 14,
      'update_reservation_flights allow changes#change-flights': 104,
      'update_reservation_passengers escrow changes#correct-passengers': 2,
    });
  });
});
