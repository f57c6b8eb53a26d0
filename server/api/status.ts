import type { FastifyInstance } from 'fastify';
import type { Registry } from 'prom-client';

/** Health, readiness and metrics: what is served to everyone, also while the server is sealed. */
export function mountStatus(
  app: FastifyInstance,
  parts: { registry: Registry; ready: () => Promise<string | undefined> },
): void {
  app.get('/healthz', async () => ({ status: 'ok' }));
  app.get('/readyz', async (_request, reply) => {
    const reason = await parts.ready();
    if (!reason) return { status: 'ready' };
    return reply.code(503).send({ status: 'not_ready', reason });
  });
  app.get('/metrics', async (_request, reply) => {
    return reply.type(parts.registry.contentType).send(await parts.registry.metrics());
  });
}
