import type { FastifyInstance } from 'fastify';
import type { Registry } from 'prom-client';
import { z } from 'zod';
import type { Readiness } from '../../db/readiness.ts';
import type { PlainDescription } from '../rpc/plain.ts';

const Ready = z.object({
  status: z
    .enum(['ready', 'degraded', 'not_ready'])
    .describe('degraded: proxies and agents are served, and something else does not work'),
  reason: z.string().optional(),
});

/** The routes of `mountStatus`, and the OpenAPI document: public, and mounted separately from the API. */
export const statusRoutes: readonly PlainDescription[] = [
  {
    path: '/healthz',
    summary: 'Whether the process is alive',
    answers: {
      200: { description: 'It does', type: 'application/json', schema: z.object({ status: z.literal('ok') }) },
    },
  },
  {
    path: '/readyz',
    summary: 'Whether the process is ready to serve requests',
    answers: {
      200: { description: 'It can', type: 'application/json', schema: Ready },
      503: { description: 'Not ready, and why', type: 'application/json', schema: Ready },
    },
  },
  {
    path: '/metrics',
    summary: 'Metrics for Prometheus',
    answers: { 200: { description: 'Prometheus text format', type: 'text/plain', schema: z.string() } },
  },
  {
    path: '/openapi.json',
    summary: 'This document',
    answers: {
      200: { description: 'OpenAPI 3.1', type: 'application/json', schema: z.record(z.string(), z.unknown()) },
    },
  },
].map((route) => ({
  ...route,
  method: 'GET' as const,
  access: { public: true as const },
  tag: 'meta',
  standalone: true as const,
}));

/** Health, readiness and metrics: public, and served even while the server is sealed. */
export function mountStatus(
  app: FastifyInstance,
  parts: { registry: Registry; ready: () => Promise<Readiness> },
): void {
  app.get('/healthz', async () => ({ status: 'ok' }));
  app.get('/readyz', async (_request, reply) => {
    const { ready, reason } = await parts.ready();
    if (!ready) return reply.code(503).send({ status: 'not_ready', reason });
    return reason === undefined ? { status: 'ready' } : { status: 'degraded', reason };
  });
  app.get('/metrics', async (_request, reply) => {
    return reply.type(parts.registry.contentType).send(await parts.registry.metrics());
  });
}
