import { expect, test } from 'vitest';
import { DECISIONS } from '../../server/domain/decision.ts';
import { event } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer();

interface Summary {
  buckets: Record<string, number>[];
  complete_since: string | null;
  head: { seq: number } | null;
}

test('decisions are counted by kind and time, exactly, and only the tenant’s own', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const empty = await server.call<Summary>(200, 'GET /v1/events/summary', tenant.admin);
  expect(empty.body.head).toBeNull();
  expect(empty.body.buckets).toHaveLength(24);

  const ingest = (of: typeof tenant, counts: Record<string, number>) =>
    server.call(202, 'POST /v1/events/ingest', of.admin, {
      events: DECISIONS.flatMap((decision) =>
        Array.from({ length: counts[decision] ?? 0 }, () => event({ decision, event_type: `decision.${decision}` })),
      ),
    });
  const early = { allow: 7, deny: 3, escrow: 1 };
  const late = { allow: 2, allow_with_masking: 5, rate_limited: 4 };
  await ingest(other, { allow: 9, deny: 9 });
  await ingest(tenant, early);
  server.clock.advance(2 * 3600_000);
  await ingest(tenant, late);

  const { body } = await server.call<Summary>(200, 'GET /v1/events/summary?hours=4&buckets=4', tenant.admin);
  expect(body.complete_since).toBeNull();
  // two hours lie between them: the last bucket has the late ones, one before has the early ones
  const counts = body.buckets.map(({ at: _at, ...rest }) => rest).filter((b) => Object.values(b).some((n) => n > 0));
  const zero = Object.fromEntries(DECISIONS.map((decision) => [decision, 0]));
  expect(counts).toEqual([
    { ...zero, ...early },
    { ...zero, ...late },
  ]);
});
