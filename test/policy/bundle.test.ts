import { generateKeyPairSync, sign } from 'node:crypto';
import { gunzipSync, gzipSync } from 'node:zlib';
import { flattenedVerify } from 'jose';
import { describe, expect, it } from 'vitest';
import type { BundleContent } from '../../server/domain/policy.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { keyThumbprint, newSigningKey, sha256Tag } from '../../server/lib/crypto.ts';
import { BundleError, bundleContent, contentHash, openBundle } from '../../server/policy/bundle.ts';
import { packBundle } from '../../server/policy/pack-bundle.ts';
import { SIEGE } from '../siege/rounds.ts';
import { compile, contentOf } from './support.ts';

const { privateKey, publicKey } = newSigningKey();
const kid = keyThumbprint(publicKey);
const how = { seq: 7, not_after: '2030-01-01T00:00:00.000Z', kid, privateKey };
const keyFor = (id: string) => (id === kid ? publicKey : undefined);
const CONTENT = contentOf({
  b: '@rate("1/s") permit(principal, action, resource);',
  a: 'permit(principal, action, resource);',
});

const BITS = [0, 1, 2, 3, 4, 5, 6, 7];

/** The reason of the refusal; any other outcome fails the test. */
function refused(bytes: Uint8Array, key = keyFor, expected?: Parameters<typeof openBundle>[2]): string {
  try {
    openBundle(bytes, key, expected);
  } catch (error) {
    if (error instanceof BundleError) return error.reason;
    throw error;
  }
  throw new Error('the bundle was not refused');
}

/** A bundle with a header and a payload that `packBundle` would not make, rightly signed. */
function forge(
  change: Record<string, unknown>,
  payload: Buffer = gzipSync(canonicalJson(CONTENT)),
  rawHeader?: string,
): Buffer {
  const header = {
    alg: 'EdDSA',
    kid,
    typ: 'svc-bundle+jws',
    content_hash: contentHash(CONTENT),
    tenant: 'ten_test',
    seq: 7,
    not_after: how.not_after,
  };
  const head = Buffer.from(rawHeader ?? JSON.stringify({ ...header, ...change })).toString('base64url');
  const signature = sign(null, Buffer.from(`${head}.${payload.toString('base64url')}`), privateKey).toString(
    'base64url',
  );
  return container(`${head}..${signature}`, payload);
}

function container(jws: string, payload: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(jws.length);
  return Buffer.concat([Buffer.from('SVCB\x01'), length, Buffer.from(jws), payload]);
}

/** A forged content with the hash that fits it. */
function forgeContent(content: unknown, text = canonicalJson(content)): Buffer {
  return forge({ content_hash: sha256Tag(text) }, gzipSync(text));
}

describe('a bundle', () => {
  it('unpacks to what was packed', async () => {
    const { bytes, hash, canonical } = await packBundle(CONTENT, how);
    const opened = openBundle(bytes, keyFor, { tenant: 'ten_test', min_seq: 7 });
    expect(opened).toEqual({
      hash,
      content: CONTENT,
      header: {
        alg: 'EdDSA',
        kid,
        typ: 'svc-bundle+jws',
        content_hash: hash,
        tenant: 'ten_test',
        seq: 7,
        not_after: how.not_after,
      },
    });
    expect(hash).toBe(sha256Tag(canonical));
    expect(hash).toBe(contentHash(CONTENT));
    expect(canonical).toBe(canonicalJson(CONTENT));
  });

  it('has one identity, whenever, however often and with any key it is packed', async () => {
    const other = newSigningKey();
    const { hash } = await packBundle(CONTENT, how);
    expect((await packBundle(CONTENT, { ...how, seq: 8, not_after: '2031-01-01T00:00:00.000Z', level: 0 })).hash).toBe(
      hash,
    );
    expect((await packBundle(CONTENT, { ...how, privateKey: other.privateKey })).hash).toBe(hash);
    expect((await packBundle(CONTENT, how)).bytes).toEqual((await packBundle(CONTENT, how)).bytes);
  });

  it('is a detached JWS that another program verifies', async () => {
    const { bytes } = await packBundle(CONTENT, how);
    const end = 9 + bytes.readUInt32BE(5);
    const [head, , signature] = bytes.toString('latin1', 9, end).split('.');
    const verified = await flattenedVerify(
      { protected: head as string, signature: signature as string, payload: bytes.subarray(end).toString('base64url') },
      publicKey,
    );
    expect(verified.protectedHeader).toMatchObject({ typ: 'svc-bundle+jws', kid });
    expect(JSON.parse(gunzipSync(bytes.subarray(end)).toString())).toEqual(CONTENT);
  });

  it('is refused with any one bit of any one byte changed', async () => {
    const small = { ...CONTENT, schema: 's', action_entities: {}, policies: CONTENT.policies.slice(0, 1) };
    const { bytes } = await packBundle(small, how);
    expect(bytes.length).toBeLessThan(1_000);
    for (let at = 0; at < bytes.length; at++) {
      // all bits of what says how to read the rest, and of everything in a siege
      for (const bit of SIEGE || at < 10 ? BITS : [at % 8]) {
        const changed = Buffer.from(bytes);
        changed[at] = (changed[at] as number) ^ (1 << bit);
        expect(() => openBundle(changed, keyFor), `byte ${at}, bit ${bit}`).toThrow(BundleError);
      }
    }
  });

  it('is refused if truncated at any length, or with trailing bytes', async () => {
    const { bytes } = await packBundle(CONTENT, how);
    for (let length = 0; length < bytes.length; length += length < 600 ? 1 : 17) refused(bytes.subarray(0, length));
    expect(refused(Buffer.concat([bytes, Buffer.from([0])]))).toBe('signature');
    expect(refused(Buffer.concat([bytes, bytes]))).toBe('signature');
  });

  it('opens from a view into a larger buffer', async () => {
    const { bytes } = await packBundle(CONTENT, how);
    const larger = new Uint8Array(bytes.length + 100);
    larger.set(bytes, 50);
    expect(openBundle(larger.subarray(50, 50 + bytes.length), keyFor).content).toEqual(CONTENT);
  });

  it('is refused with a stable reason', async () => {
    const { bytes } = await packBundle(CONTENT, how);
    const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
    expect(refused(Buffer.alloc(0))).toBe('format');
    expect(refused(Buffer.from('SVCB\x02aaaaaaaaaaaa'))).toBe('format');
    expect(refused(bytes, () => undefined)).toBe('key');
    expect(refused(bytes, () => newSigningKey().publicKey)).toBe('signature');
    expect(refused(bytes, () => rsa.publicKey)).toBe('algorithm');
    expect(refused(bytes, keyFor, { tenant: 'ten_other' })).toBe('tenant');
    expect(refused(bytes, keyFor, { min_seq: 8 })).toBe('rollback');
    expect(refused(forge({ tenant: 'ten_other' }))).toBe('tenant');
    expect(refused(forge({ content_hash: sha256Tag('other') }))).toBe('hash');
    expect(refused(forge({}, Buffer.from('no gzip')))).toBe('payload');
    expect(refused(forge({}, Buffer.alloc(0)))).toBe('payload');
  });

  it.each<[string, Record<string, unknown>, string]>([
    ['alg none', { alg: 'none' }, 'algorithm'],
    ['alg HS256', { alg: 'HS256' }, 'algorithm'],
    ['alg in lower case', { alg: 'eddsa' }, 'algorithm'],
    ['another typ', { typ: 'JWT' }, 'format'],
    ['no typ', { typ: undefined }, 'format'],
    ['crit', { crit: ['exp'] }, 'header'],
    ['b64', { b64: false }, 'header'],
    ['no kid', { kid: undefined }, 'header'],
    ['no seq', { seq: undefined }, 'header'],
    ['a seq that is no integer', { seq: 1.5 }, 'header'],
    ['a seq below 0', { seq: -1 }, 'header'],
    ['a seq as a text', { seq: '7' }, 'header'],
    ['no not_after', { not_after: undefined }, 'header'],
    ['a not_after that is no time', { not_after: 'never' }, 'header'],
    ['a not_after in a month 13', { not_after: '2030-13-01T00:00:00.000Z' }, 'header'],
    ['no content_hash', { content_hash: undefined }, 'header'],
  ])('is refused with the header: %s', (_, change, reason) => {
    expect(refused(forge(change))).toBe(reason);
  });

  it('is refused with a header that is not a JSON object', async () => {
    for (const header of ['', 'x', 'null', '"x"', '[]', '{"alg":"EdDSA"']) {
      expect(['header', 'algorithm'], header).toContain(refused(forge({}, undefined, header)));
    }
  });

  it('is refused with another spelling of the same signature', async () => {
    const { bytes } = await packBundle(CONTENT, how);
    const end = 9 + bytes.readUInt32BE(5);
    const jws = bytes.toString('latin1', 9, end);
    const payload = bytes.subarray(end);
    const [head, , signature = ''] = jws.split('.');
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const last = alphabet.indexOf(signature.at(-1) as string);
    const same = signature.slice(0, -1) + alphabet[last ^ 1];
    expect(Buffer.from(same, 'base64url')).toEqual(Buffer.from(signature, 'base64url'));
    for (const spelling of [same, `${signature}=`, `${signature}\n`, ` ${signature}`, signature.slice(0, -1)]) {
      expect(refused(container(`${head}..${spelling}`, payload))).toBe('header');
    }
    expect(refused(container(`${head}.x.${signature}`, payload))).toBe('header');
    expect(refused(container(`${head}..${signature}.`, payload))).toBe('header');
    expect(refused(container(`${head}.${signature}`, payload))).toBe('header');
  });

  it('is not unpacked before the signature verifies, nor beyond its limit', async () => {
    const bomb = gzipSync(Buffer.alloc(65 * 1024 * 1024), { level: 9 });
    expect(refused(forge({}, bomb))).toBe('payload');
    const { bytes } = await packBundle(CONTENT, how);
    const end = 9 + bytes.readUInt32BE(5);
    expect(refused(Buffer.concat([bytes.subarray(0, end), bomb]))).toBe('signature');
  });

  it('is refused with a content that is not in canonical form', async () => {
    const text = canonicalJson(CONTENT);
    expect(openBundle(forgeContent(CONTENT), keyFor).content).toEqual(CONTENT);
    for (const other of [
      ` ${text}`,
      `\uFEFF${text}`,
      JSON.stringify(CONTENT),
      text.replace('"scopes":null', '"scopes":["x"],"scopes":null'),
      text.replace('"version":1', '"version":1.0'),
      text.replace('"version":1', '"version":1e0'),
      text.replace('/1"', '\\/1"'),
    ]) {
      expect(refused(forgeContent(CONTENT, other)), other.slice(0, 40)).toBe('content');
    }
    const invalid = Buffer.concat([Buffer.from(text.slice(0, -1)), Buffer.from([0xff]), Buffer.from('}')]);
    expect(refused(forge({ content_hash: sha256Tag(invalid) }, gzipSync(invalid)))).toBe('content');
  });

  it.each<[string, (content: BundleContent) => unknown]>([
    ['another format', (content) => ({ ...content, format: 'svc-bundle/2' })],
    ['a further member', (content) => ({ ...content, extra: 1 })],
    ['no schema', ({ schema, ...content }) => content],
    ['scopes as a text', (content) => ({ ...content, scopes: 'a' })],
    ['an action that is in no list', (content) => ({ ...content, action_entities: { x: 'write' } })],
    ['no list of policies', (content) => ({ ...content, policies: {} })],
    ['statements out of order', (content) => ({ ...content, policies: content.policies.toReversed() })],
    ['a statement twice', (content) => ({ ...content, policies: [content.policies[0], content.policies[0]] })],
    [
      'a statement of another policy',
      (content) => ({ ...content, policies: [{ ...content.policies[0], policy_id: 'c' }] }),
    ],
    ['another effect', (content) => ({ ...content, policies: [{ ...content.policies[0], effect: 'allow' }] })],
    [
      'an unknown obligation',
      (content) => ({ ...content, policies: [{ ...content.policies[0], annotations: { quarantine: 1 } }] }),
    ],
    ['no text', (content) => ({ ...content, policies: [{ ...content.policies[0], cedar: '' }] })],
    ['a null', () => null],
    ['a list', () => []],
  ])('is refused with the content: %s', (_, change) => {
    expect(refused(forgeContent(change(CONTENT)))).toBe('content');
  });

  it('throws only its own error for bytes that are not a bundle', async () => {
    for (let n = 0; n < 500; n++) {
      const junk = Buffer.from(Array.from({ length: n }, (_, at) => (at * 7 + n * 13) % 256));
      const framed = Buffer.concat([Buffer.from('SVCB\x01'), junk]);
      expect(() => openBundle(junk, keyFor)).toThrow(BundleError);
      expect(() => openBundle(framed, keyFor)).toThrow(BundleError);
    }
  });

  it('is not packed from content that would not open', async () => {
    await expect(packBundle(CONTENT, { ...how, seq: -1 })).rejects.toThrow(RangeError);
    await expect(packBundle(CONTENT, { ...how, not_after: 'soon' })).rejects.toThrow(RangeError);
    await expect(packBundle({ ...CONTENT, policies: CONTENT.policies.toReversed() }, how)).rejects.toThrow(RangeError);
  });
});

describe('the content of a bundle', () => {
  it('is not packed when it is too large for anybody to open', async () => {
    const lists = [{ name: 'long', version: 1, values: ['x'.repeat(64 * 1024 * 1024)] }];
    await expect(packBundle({ ...CONTENT, lists }, how)).rejects.toThrow('the content is larger than 64 MB');
  });

  const policies = Object.entries({
    guarded:
      '@scope("payments") permit(principal, action, resource);\nforbid(principal, action, resource) when { context has path };',
    support: '@scope("support,core") permit(principal, action, resource);',
    everywhere:
      'permit(principal == Agent::"x", action, resource);\n@scope("*") forbid(principal, action, resource) when { context has host };',
    untagged: 'permit(principal, action, resource);',
  }).map(([policy_id, source]) => ({ policy_id, version: 2, statements: compile(source, policy_id).statements }));
  const ids = (scopes: string[] | null) =>
    bundleContent({ tenant: 't', scopes, policies, schema: 's', action_entities: {}, cedar_lang: '4.5' }).policies.map(
      ({ id }) => id,
    );

  it('a filter keeps or drops whole policies: a forbid stays with the permit that it guards', async () => {
    expect(ids(['payments'])).toEqual(['everywhere#0', 'everywhere#1', 'guarded#0', 'guarded#1']);
    expect(ids(['core', 'payments'])).toEqual(['everywhere#0', 'everywhere#1', 'guarded#0', 'guarded#1', 'support#0']);
    expect(ids(['nothing'])).toEqual(['everywhere#0', 'everywhere#1']);
    expect(ids([])).toEqual(['everywhere#0', 'everywhere#1']);
    expect(ids(null)).toHaveLength(6);
  });

  it('is the same for the same scopes and policies, in whatever order', async () => {
    const content = (scopes: string[], order: typeof policies) =>
      canonicalJson(
        bundleContent({ tenant: 't', scopes, policies: order, schema: 's', action_entities: {}, cedar_lang: '4.5' }),
      );
    expect(content(['b', 'a', 'b'], policies.toReversed())).toBe(content(['a', 'b'], policies));
  });

  it('of no policies is a valid bundle', async () => {
    const content = bundleContent({
      tenant: 't',
      scopes: null,
      policies: [],
      schema: 's',
      action_entities: {},
      cedar_lang: '4.5',
    });
    expect(openBundle((await packBundle(content, how)).bytes, keyFor).content.policies).toEqual([]);
  });

  it('contains the version and the typed obligations of each statement', async () => {
    const [policy] = policies.slice(-1);
    expect(
      contentOf({ p: '@rate("5/m") @ttl("1h") @escrow("single") permit(principal, action, resource);' }).policies,
    ).toEqual([
      {
        id: 'p#0',
        policy_id: 'p',
        version: 1,
        effect: 'permit',
        annotations: { rate: { limit: 5, window_seconds: 60 }, ttl: 3_600, escrow: 'single' },
        scopes: [],
        cedar: '@rate("5/m") @ttl("1h") @escrow("single") permit(principal, action, resource);',
      },
    ]);
    expect(policy?.version).toBe(2);
  });
});
