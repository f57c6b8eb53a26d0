import { z } from 'zod';
import { isReservedProxyId } from '../domain/proxy-ids.ts';
import { AppError } from '../errors.ts';
import { CURRENT_HEADER, TRUSTED_HEADER } from '../keys/current.ts';
import type { CurrentSigner } from '../keys/current-signer.ts';
import { AtOnce } from '../rpc/at-once.ts';
import { text } from '../rpc/fields.ts';
import { longPoll, MOST_POLLS } from '../rpc/long-poll.ts';
import { type PlainRoute, principalOf } from '../rpc/plain.ts';
import type { Stops } from './stops.ts';

const HEADERS = {
  ETag: { description: 'The hash of what the document says, in quotes' },
  'X-Svc-Current': {
    description: 'The control plane’s signed and dated word that this is the current document (compact JWS)',
  },
} as const;

/** The signed document of the stops in force, which proxies poll. */
export function stopsRoute(stops: Stops, current: CurrentSigner): PlainRoute {
  const atOnce = new AtOnce(MOST_POLLS);
  return {
    method: 'GET',
    path: '/v1/stops/document',
    access: { keys: ['proxy'] },
    summary: 'The signed document of the stops in force',
    description:
      'A compact JWS. Answers 304 when `If-None-Match` names the document in force; with `Prefer: wait=N` (at most 60 s) the answer waits for a change. `proxy_id` says who asks, and `applied_seq` which document it has applied.',
    tag: 'stops',
    query: {
      proxy_id: text(200)
        .refine((id) => !isReservedProxyId(id), 'is reserved for the control plane')
        .optional(),
      applied_seq: z
        .string()
        .regex(/^\d{1,15}$/)
        .optional(),
    },
    answers: {
      200: { description: 'The document', type: 'application/jose' },
      304: { description: 'The document has not changed' },
    },
    headers: {
      request: {
        'If-None-Match': { description: 'The entity tag of the document that the caller has' },
        Prefer: { description: 'wait=N: wait up to N seconds, at most 60, for another document (RFC 7240)' },
        'X-Svc-Trusted-Keys': { description: 'The ids of the only keys that the caller trusts, separated by commas' },
      },
      answer: { 200: HEADERS, 304: HEADERS },
    },
    async handler(call) {
      const { query, reply } = call;
      const principal = principalOf(call);
      if (principal.kind !== 'api_key') throw new AppError('FORBIDDEN');
      const { tenantId } = principal;
      if (query.proxy_id !== undefined) {
        const seq = query.applied_seq === undefined ? null : Number(query.applied_seq);
        stops.heard(tenantId, { proxyId: query.proxy_id, keyId: principal.id, seq });
      }
      const { found, unchanged } = await longPoll(call, {
        atOnce,
        look: () => stops.standing(tenantId),
        wait: (hash, seconds, signal) => stops.waitForChange(tenantId, hash, seconds, signal),
      });
      reply.headers({
        etag: `"${found.hash}"`,
        [CURRENT_HEADER]: current.sign(
          { what: 'stops', tenant: tenantId, seq: found.seq, hash: found.hash },
          String(call.request.headers[TRUSTED_HEADER] ?? ''),
        ),
        'cache-control': 'private, no-cache',
        vary: 'authorization',
      });
      if (unchanged) return reply.code(304).send();
      return reply.type('application/jose').send(found.jws);
    },
  };
}
