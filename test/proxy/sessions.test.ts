import { expect, test } from 'vitest';
import { FACT_LIMITS, type LedgerEntry, type LedgerRow, TRUST } from '../../server/domain/session-facts.ts';
import { createLog } from '../../server/lib/log.ts';
import { Sessions } from '../../server/proxy/sessions.ts';

const at = (second: number) => new Date(1_800_000_000_000 + second * 1000).toISOString();
const entry = (source: string, key: string, value: number, second: number): LedgerEntry => ({
  ...{ source, name: 'lowest_trust', key, value },
  ...{ observed_at: at(second), expires_at: at(second + 86_400) },
});
const facts = (from: number, count: number) =>
  Array.from({ length: count }, (_, n) => entry('fact', `k${from + n}`, 1, from + n));

function make(known: LedgerRow[] = [], behind = () => false) {
  let asked = 0;
  const control = {
    sessionFacts: async () => {
      asked++;
      return [...known];
    },
  };
  const sessions = new Sessions({ control, behind, log: createLog('silent') });
  return { sessions, asked: () => asked };
}
const trustOf = (rows: readonly LedgerRow[]) => rows.filter(({ source }) => source === TRUST).map(({ value }) => value);

test('no number of later answers makes a server forgotten that is not trusted', async () => {
  const { sessions } = make();
  sessions.note('bot', 's', 'evt_1', [entry(TRUST, 'web', 10, 0), entry(TRUST, 'crm', 90, 1)]);
  for (let round = 0; round < 7; round++) sessions.note('bot', 's', 'evt_2', facts(10 + round * 100, 100));
  const { rows } = await sessions.known('bot', 's');
  expect(rows).toHaveLength(FACT_LIMITS.ofSession);
  expect(trustOf(rows)).toEqual([10, 90]);
  // the newest of the others
  expect(rows.filter(({ source }) => source === 'fact').map(({ key }) => key)).toEqual(
    facts(10 + 700 - 498, 498).map(({ key }) => key),
  );
  // nor does any number of servers that are trusted more
  const servers = Array.from({ length: 2 * FACT_LIMITS.ofSession }, (_, n) => entry(TRUST, `s${n}`, 50, 2000 + n));
  sessions.note('bot', 's', 'evt_3', servers);
  const after = (await sessions.known('bot', 's')).rows;
  expect(after).toHaveLength(FACT_LIMITS.ofSession);
  expect(Math.min(...(trustOf(after) as number[]))).toBe(10);
});

test('what the control plane says counts as all there is only once it has what earlier processes saw', async () => {
  let behind = true;
  const known: LedgerRow[] = [];
  const { sessions, asked } = make(known, () => behind);
  expect(await sessions.known('bot', 's')).toEqual({ rows: [], complete: false });
  known.push({ ...entry(TRUST, 'web', 10, 0), event_id: 'evt_1', reported: false });
  behind = false;
  // the call that notices this asks, and is still decided on what was known
  await sessions.known('bot', 's');
  const { rows, complete } = await sessions.known('bot', 's');
  expect({ trust: trustOf(rows), complete }).toEqual({ trust: [10], complete: true });
  const so = asked();
  await sessions.known('bot', 's');
  expect(asked()).toBe(so);
});
