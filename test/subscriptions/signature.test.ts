import { createHmac } from 'node:crypto';
import fc from 'fast-check';
import { Webhook } from 'standardwebhooks';
import { describe, expect, test } from 'vitest';
import { signatureHeaders } from '../../server/subscriptions/signature.ts';

const at = { body: '{"event":"svc.test"}', eventId: 'oev_1', timestamp: 1_750_000_000 };

describe('signatures', () => {
  test('match a worked example', () => {
    const headers = signatureHeaders({ ...at, secrets: ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'] });
    const own = createHmac('sha256', 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw').update(`1750000000.${at.body}`);
    const key = Buffer.from('MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'base64');
    const standard = createHmac('sha256', key).update(`oev_1.1750000000.${at.body}`);
    expect(headers).toEqual({
      'x-svc-signature': `t=1750000000,v1=${own.digest('hex')}`,
      'webhook-id': 'oev_1',
      'webhook-timestamp': '1750000000',
      'webhook-signature': `v1,${standard.digest('base64')}`,
    });
  });

  test('of any secret and body are accepted by the Standard Webhooks library, and with any other secret are not', () => {
    const plain = fc.string({ minLength: 8 }).filter((s) => !s.startsWith('whsec_') && s.isWellFormed());
    const prefixed = fc
      .uint8Array({ minLength: 24, maxLength: 64 })
      .map((b) => `whsec_${Buffer.from(b).toString('base64')}`);
    const timestamp = Math.floor(Date.now() / 1000);
    fc.assert(
      fc.property(fc.oneof(plain, prefixed), fc.json(), (secret, body) => {
        const headers = signatureHeaders({ body, eventId: 'oev_1', timestamp, secrets: [secret, 'the one before'] });
        const theirs = secret.startsWith('whsec_') ? secret : `whsec_${Buffer.from(secret).toString('base64')}`;
        expect(new Webhook(theirs).verify(body, headers)).toEqual(JSON.parse(body));
        expect(() =>
          new Webhook(`whsec_${Buffer.from(`${secret}x`).toString('base64')}`).verify(body, headers),
        ).toThrow();
      }),
    );
  });

  test('a secret that only looks like the base64 form counts by its own bytes', () => {
    const secret = 'whsec_not base64!';
    const headers = signatureHeaders({ ...at, secrets: [secret] });
    const mac = createHmac('sha256', secret).update(`oev_1.1750000000.${at.body}`).digest('base64');
    expect(headers['webhook-signature']).toBe(`v1,${mac}`);
  });
});
