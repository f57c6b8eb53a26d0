import { z } from 'zod';
import { AppError } from '../errors.ts';
import type { PlainRoute } from '../rpc/plain.ts';
import type { Keyring } from './keyring.ts';

/** The public keys, for anyone who verifies this server's signatures. */
export function keyRoutes(keyring: () => Keyring): PlainRoute[] {
  return [
    {
      method: 'GET',
      path: '/pubkey',
      access: { public: true },
      summary: 'The current Ed25519 public key, as SPKI PEM, or a retired one by its fingerprint',
      description: 'Its fingerprint (sha256 of the DER) is in X-Svc-Key-Fingerprint.',
      tag: 'keys',
      query: {
        fingerprint: z
          .string()
          .regex(/^sha256:[0-9a-f]{64}$/)
          .optional()
          .describe('of the key that signed something earlier, as the package or the checkpoint names it'),
      },
      problems: ['NOT_FOUND'],
      answers: { 200: { description: 'PEM', type: 'application/x-pem-file' } },
      headers: { answer: { 200: { 'X-Svc-Key-Fingerprint': { description: 'sha256:<hex> of the key’s DER' } } } },
      async handler({ reply, query }) {
        const { current, all } = keyring();
        const wanted = query.fingerprint ?? current.fingerprint;
        const key = all.find(({ fingerprint }) => fingerprint === wanted);
        if (!key) throw new AppError('NOT_FOUND', 'this server has no key with this fingerprint');
        const { publicKey, fingerprint } = key;
        reply.headers({ 'x-svc-key-fingerprint': fingerprint, 'cache-control': 'public, max-age=60' });
        return reply.type('application/x-pem-file').send(publicKey.export({ type: 'spki', format: 'pem' }));
      },
    },
    {
      method: 'GET',
      path: '/.well-known/jwks.json',
      access: { public: true },
      summary: 'All public keys as a JWK set, including retired ones',
      tag: 'keys',
      answers: {
        200: {
          description: 'RFC 7517 key set',
          type: 'application/json',
          schema: z.object({
            keys: z.array(
              z.object({
                kty: z.literal('OKP'),
                crv: z.literal('Ed25519'),
                x: z.string(),
                kid: z.string(),
                use: z.literal('sig'),
                alg: z.literal('EdDSA'),
              }),
            ),
          }),
        },
      },
      async handler({ reply }) {
        reply.header('cache-control', 'public, max-age=60');
        return {
          keys: keyring().all.map(({ kid, publicKey }) => {
            const { kty, crv, x } = publicKey.export({ format: 'jwk' });
            return { kty, crv, x, kid, use: 'sig', alg: 'EdDSA' };
          }),
        };
      },
    },
  ];
}
