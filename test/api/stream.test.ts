import { expect, test } from 'vitest';
import { BODIES, event, makeWorld } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';
import { listen } from '../helpers/stream.ts';

const server = useServer({}, { shared: true });

test('sends hints about holds, policies, settings and decisions of its own tenant only', async () => {
  const [mine, other] = [await makeWorld(server), await makeWorld(server)];
  const stream = await listen(server, mine.credential.admin);
  await stream.until('event: hello');

  await server.call(201, 'POST /v1/policies', other.tenant.admin, { ...BODIES['POST /v1/policies'], id: 'of-another' });
  await server.call(201, 'POST /v1/policies', mine.tenant.admin, { ...BODIES['POST /v1/policies'], id: 'of-mine' });
  await stream.until('{"topic":"policies","id":"of-mine"}');
  await server.call(200, `POST /v1/escrow/${mine.hold}/cancel`, mine.tenant.admin, { reason: 'over' });
  await stream.until(`{"topic":"holds","id":"${mine.hold}"}`);
  await server.call(200, 'PATCH /v1/settings', mine.tenant.admin, { magic_link_confirm: true });
  await stream.until('{"topic":"settings"');
  await server.call(202, 'POST /v1/events/ingest', mine.tenant.admin, { events: [event()] });
  await stream.until('{"topic":"events"');
  expect(stream.seen()).not.toContain('of-another');
  stream.leave();
});

test('ends with the session', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('viewer');
  const stream = await listen(server, person);
  await stream.until('event: hello');
  await server.call(200, 'POST /auth/logout', person, {});
  await stream.end();
});

test('is only for those who may read: an agent key and a proxy key get no stream', async () => {
  const tenant = await server.tenant();
  await server.call(403, 'GET /v1/stream', await tenant.agent('agent-1', 'clerk'));
  await server.call(403, 'GET /v1/stream', await tenant.key('proxy'));
  await server.call(401, 'GET /v1/stream', undefined);
});

test('is one of fifty at most for a credential', async () => {
  const tenant = await server.tenant();
  const [person, other] = [await tenant.person('viewer'), await tenant.person('viewer')];
  const streams = await Promise.all(Array.from({ length: 50 }, () => listen(server, person)));
  await Promise.all(streams.map((stream) => stream.until('event: hello')));
  const { body, headers } = await server.call(429, 'GET /v1/stream', person);
  expect([body.code, headers.get('retry-after')]).toEqual(['RATE_LIMITED', '5']);
  await server.call(200, 'GET /v1/stream', other);
  streams[0]!.leave();
  await expect
    .poll(async () => {
      const response = await fetch(`${server.url}/v1/stream`, { headers: { cookie: person.cookie! } });
      await response.body!.cancel();
      return response.status;
    })
    .toBe(200);
  for (const stream of streams) stream.leave();
});
