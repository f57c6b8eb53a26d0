import { expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { enforce, temporaryDirectory } from '../proxy/support.ts';
import { startWatches } from './watches.ts';

/** `npm run bench -- stop` measures how long it takes. */
const server = useServer();
const PROXIES = 12;

interface Stop {
  id: string;
  proxies: { applied: number; pending: unknown[]; unreachable: unknown[] };
}

test('once a stop is answered nothing passes here, and once it is said to be applied nothing passes at a proxy', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'all', 'permit(principal in AgentRole::"clerk", action, resource);');
  // none falls silent because the machine is slow
  await tenant.set({ poll_seconds: 60 });
  const admin = await tenant.person('admin');
  const bots = [await tenant.agent('bot-0', 'clerk'), await tenant.agent('bot-1', 'clerk')];
  const { key } = await tenant.key('proxy');
  const watches = await startWatches({ url: server.url, key: key!, dir: temporaryDirectory(), count: PROXIES });
  atEnd(() => Promise.all(watches.map((watch) => watch.stop())));

  /** The agent that is stopped: when POST /v1/stops has answered, and until it is lifted. */
  let stopped: string | undefined;
  const counts = { passed: 0, denied: 0, late: 0, lookups: 0, lateAtProxies: 0 };
  let over = false;
  const asking = bots.map(async (bot, n) => {
    while (!over) {
      const of = stopped;
      const body = { action_type: 'tool_call', tool_name: 'send' };
      const answer = await server.call<{ decision: string }>(200, 'POST /v1/evaluate', bot, body);
      const passed = answer.body.decision === 'allow';
      counts[passed ? 'passed' : 'denied']++;
      if (passed && of === `bot-${n}`) counts.late++;
    }
  });
  const looking = setInterval(() => {
    for (const watch of watches) {
      for (const agent_id of ['bot-0', 'bot-1']) {
        counts.lookups++;
        if (!watch.of({ agent_id, agent_role: 'clerk' }) && stopped === agent_id) counts.lateAtProxies++;
      }
    }
  }, 1);
  for (let n = 0; n < 10; n++) {
    const target_id = `bot-${n % 2}`;
    const body = { target_kind: 'agent', target_id, reason: 'it misbehaves', wait: 30 };
    const made = await server.call<Stop>(201, 'POST /v1/stops', tenant.admin, body);
    let { proxies } = made.body;
    while (proxies.pending.length > 0) {
      const path = `/v1/stops/${made.body.id}?wait=30`;
      ({ proxies } = (await server.call<Stop>(200, `GET ${path}`, tenant.admin)).body);
    }
    stopped = target_id;
    expect(proxies).toMatchObject({ applied: PROXIES, unreachable: [] });
    const denied = counts.denied + 3;
    while (counts.denied < denied) await new Promise((resolve) => setImmediate(resolve));
    stopped = undefined;
    await server.call(200, `POST /v1/stops/${made.body.id}/lift`, admin, { reason: 'repaired' });
  }
  await until(() => Math.min(counts.passed, counts.denied, counts.lookups) > 20, 'enough was asked');
  over = true;
  await Promise.all(asking);
  clearInterval(looking);
  expect(counts).toMatchObject({ late: 0, lateAtProxies: 0 });
});
