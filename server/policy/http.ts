import { z } from 'zod';
import { AppError } from '../errors.ts';
import { CURRENT_HEADER, TRUSTED_HEADER } from '../keys/current.ts';
import type { CurrentSigner } from '../keys/current-signer.ts';
import { AtOnce } from '../rpc/at-once.ts';
import { longPoll, MOST_POLLS } from '../rpc/long-poll.ts';
import { type PlainRoute, principalOf } from '../rpc/plain.ts';
import type { Bundles } from './bundles.ts';

const BUNDLE_HEADERS = {
  ETag: { description: 'The hash of the bundle, in quotes' },
  'X-Svc-Bundle-Hash': { description: 'sha256 of the uncompressed content: the identity of the bundle' },
  'X-Svc-Bundle-Seq': {
    description: 'The sequence number of the bundle; a proxy refuses a lower one than it has seen',
    schema: { type: 'integer' },
  },
  'X-Svc-Current': {
    description: 'The control plane’s signed and dated word that this is the current bundle (compact JWS)',
  },
  'X-Svc-Poll-Seconds': { description: 'How often to poll', schema: { type: 'integer' } },
} as const;

/** The bundle that proxies poll. Responds with 304 if it has not changed; with `Prefer: wait=N` it waits for a change. */
export function bundleRoute(
  bundles: Bundles,
  current: CurrentSigner,
  pollSeconds: (tenantId: string) => Promise<number>,
): PlainRoute {
  const atOnce = new AtOnce(MOST_POLLS);
  return {
    method: 'GET',
    path: '/v1/policies/bundle',
    access: { keys: ['proxy'] },
    summary: 'The signed bundle of the live policies',
    description:
      'Answers 304 when `current_hash` or `If-None-Match` names the bundle in force. `scopes` filters whole policies by their tags. With `Prefer: wait=N` (at most 60 s) the answer waits for a change.',
    tag: 'policies',
    query: {
      current_hash: z.string().max(100).optional(),
      scopes: z.string().max(2000).optional(),
    },
    answers: {
      200: { description: 'The bundle', type: 'application/vnd.svc.bundle.v1' },
      304: { description: 'The bundle has not changed' },
    },
    headers: {
      request: {
        'If-None-Match': {
          description: 'The entity tag of the bundle that the caller has; an alternative to `current_hash`',
        },
        Prefer: { description: 'wait=N: wait up to N seconds, at most 60, for another bundle (RFC 7240)' },
        'X-Svc-Trusted-Keys': { description: 'The ids of the only keys that the caller trusts, separated by commas' },
      },
      answer: { 200: BUNDLE_HEADERS, 304: BUNDLE_HEADERS },
    },
    async handler(call) {
      const { query, reply } = call;
      const principal = principalOf(call);
      const { tenantId } = principal;
      const keyId = principal.kind === 'api_key' ? principal.id : undefined;
      const scopes = query.scopes === undefined ? null : scopeList(query.scopes);
      const { found: bundle, unchanged } = await longPoll(call, {
        known: query.current_hash,
        atOnce,
        look: () => bundles.current(tenantId, scopes, keyId),
        wait: (hash, seconds, signal) => bundles.waitForChange(tenantId, scopes, hash, seconds, signal, keyId),
      });
      reply.headers({
        etag: `"${bundle.hash}"`,
        'x-svc-bundle-hash': bundle.hash,
        'x-svc-bundle-seq': String(bundle.seq),
        [CURRENT_HEADER]: current.sign(
          { what: 'bundle', tenant: tenantId, seq: bundle.seq, hash: bundle.hash },
          String(call.request.headers[TRUSTED_HEADER] ?? ''),
        ),
        'x-svc-poll-seconds': String(await pollSeconds(tenantId)),
        'cache-control': 'private, no-cache',
        vary: 'authorization',
      });
      if (unchanged) return reply.code(304).send();
      return reply.type('application/vnd.svc.bundle.v1').send(bundle.bytes);
    },
  };
}

function scopeList(text: string): string[] {
  const scopes = text
    .split(',')
    .map((scope) => scope.trim())
    .filter(Boolean);
  if (scopes.length === 0 || scopes.length > 50 || scopes.some((scope) => !/^[\w.-]{1,64}$/.test(scope))) {
    throw new AppError('VALIDATION_FAILED', undefined, {
      faults: [{ pointer: '?scopes', message: 'must be 1 to 50 scope names, separated by commas' }],
    });
  }
  return scopes;
}
