import { expect, test } from 'vitest';
import { openAppender } from '../../server/chain/appender.ts';
import { createLog } from '../../server/lib/log.ts';
import { useDatabase } from '../helpers/database.ts';

const box = useDatabase();
test('smoke', async () => {
  await box.db.owner.query("insert into tenant values ('a','a','{}',now())");
  const a = openAppender({
    db: box.db,
    clock: { now: () => Date.now() },
    log: createLog('info'),
    fingerprint: () => 'sha256:x',
  });
  const ev = (i: number) => ({
    event: {
      event_id: `e${i}`,
      timestamp: '2026-01-01T00:00:00.000Z',
      proxy_id: 'p',
      agent_role: 'r',
      agent_id: 'a',
      session_id: 's',
      tool_name: 't',
      method: 'm',
      decision: 'allow' as const,
      policy_id: 'p',
      evaluation_us: 1,
    },
    input: i % 2 ? '{}' : undefined,
  });
  const r = await a.append('a', [ev(1), ev(2), ev(1)]);
  expect(r).toEqual(1);
  await a.stop();
});
