import { expect, test } from 'vitest';
import { BODIES, event, makeWorld } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer();

/** Reads a stream until it has seen what is looked for. A stream that is silent for too long fails. */
async function listen(who: Credential) {
  const gone = new AbortController();
  const response = await fetch(`${server.url}/v1/stream`, {
    headers: { ...(who.key && { authorization: `Bearer ${who.key}` }), ...(who.cookie && { cookie: who.cookie }) },
    signal: AbortSignal.any([gone.signal, AbortSignal.timeout(20_000)]),
  });
  expect(response.status).toBe(200);
  expect(response.headers.get('content-type')).toBe('text/event-stream');
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  return {
    async until(part: string): Promise<void> {
      while (!text.includes(part)) {
        const { done, value } = await reader.read();
        if (done) throw new Error(`the stream ended without ${part}: ${text}`);
        text += value;
      }
    },
    async end(): Promise<void> {
      for (;;) if ((await reader.read()).done) return;
    },
    seen: () => text,
    leave: () => gone.abort(),
  };
}

test('sends hints about holds, policies, settings and decisions of its own tenant only', async () => {
  const [mine, other] = [await makeWorld(server), await makeWorld(server)];
  const stream = await listen(mine.credential.admin);
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
  const stream = await listen(person);
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
