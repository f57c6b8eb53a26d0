import { createPublicKey, type JsonWebKey, type KeyObject } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { openBundle } from '../../server/policy/bundle.ts';
import { deploy, sql } from '../helpers/api.ts';
import { type Answer, type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

const server = useServer();
const PERMIT = 'permit(principal, action, resource == Tool::"read");';
const tagged = (scope: string) => `@scope("${scope}") permit(principal, action, resource == Tool::"${scope}");`;

const poll = (who: Credential, query = '', headers: Record<string, string> = {}, expected = 200) =>
  server.call<Buffer>(expected, `GET /v1/policies/bundle${query}`, { ...who, headers }) as Promise<Answer<Buffer>>;
const hashOf = (answer: Answer<Buffer>) => answer.headers.get('x-svc-bundle-hash')!;
const seqOf = (answer: Answer<Buffer>) => Number(answer.headers.get('x-svc-bundle-seq'));

/** The keys as anyone can fetch them. */
async function publicKeys(): Promise<(kid: string) => KeyObject | undefined> {
  const { body } = await server.call<{ keys: (JsonWebKey & { kid: string })[] }>(
    200,
    'GET /.well-known/jwks.json',
    undefined,
  );
  const keys = new Map(body.keys.map((key) => [key.kid, createPublicKey({ key, format: 'jwk' })]));
  return (kid) => keys.get(kid);
}

async function fresh(): Promise<{ tenant: TestTenant; proxy: Credential }> {
  const tenant = await server.tenant();
  return { tenant, proxy: await tenant.key('proxy') };
}

describe('a proxy that polls', () => {
  test('gets a valid signed empty bundle while nothing is live', async () => {
    const { tenant, proxy } = await fresh();
    const answer = await poll(proxy);
    expect(answer.headers.get('content-type')).toBe('application/vnd.svc.bundle.v1');
    const { header, content, hash } = openBundle(answer.body, await publicKeys(), { tenant: tenant.id });
    expect(content.policies).toEqual([]);
    expect(content.tenant).toBe(tenant.id);
    expect(header.seq).toBe(1);
    expect([hashOf(answer), answer.headers.get('etag')]).toEqual([hash, `"${hash}"`]);
  });

  test('gets 304 without a body for its current hash, by query and by If-None-Match', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    const first = await poll(proxy);
    const hash = hashOf(first);
    for (const answer of [
      await poll(proxy, `?current_hash=${hash}`, {}, 304),
      await poll(proxy, '', { 'if-none-match': `"${hash}"` }, 304),
      await poll(proxy, '', { 'if-none-match': `W/"${hash}"` }, 304),
      await poll(proxy, '', { 'if-none-match': `"sha256:0", "${hash}"` }, 304),
    ]) {
      expect(answer.text).toBe('');
      expect([hashOf(answer), seqOf(answer)]).toEqual([hash, seqOf(first)]);
    }
    await poll(proxy, '?current_hash=sha256:other');
    await poll(proxy, '', { 'if-none-match': '"sha256:other"' });
    // what the query says counts
    await poll(proxy, '?current_hash=sha256:other', { 'if-none-match': `"${hash}"` });
  });

  test('gets each change with a higher seq, and equal content with the same hash and seq', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    const one = await poll(proxy);
    const again = await poll(proxy);
    expect(again.body.equals(one.body)).toBe(true);
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'draft', dsl_source: PERMIT });
    const unchanged = await poll(proxy);
    expect([hashOf(unchanged), seqOf(unchanged)]).toEqual([hashOf(one), seqOf(one)]);
    await server.call(200, 'PUT /v1/policies/p', tenant.admin, { dsl_source: tagged('b') });
    const two = await poll(proxy);
    expect(seqOf(two)).toBe(seqOf(one) + 1);
    expect(hashOf(two)).not.toBe(hashOf(one));
    const keys = await publicKeys();
    expect(openBundle(two.body, keys).content.policies[0]).toMatchObject({ policy_id: 'p', version: 2 });
    expect(() => openBundle(one.body, keys, { min_seq: seqOf(two) })).toThrow(/seq/);
  });

  test('gets a bundle without a revoked policy, and an empty one after the last', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'a', tagged('a'));
    await deploy(server, tenant.admin, 'b', tagged('b'));
    const keys = await publicKeys();
    const ids = (answer: Answer<Buffer>) =>
      openBundle(answer.body, keys).content.policies.map(({ policy_id }) => policy_id);
    expect(ids(await poll(proxy))).toEqual(['a', 'b']);
    await server.call(200, 'DELETE /v1/policies/a', tenant.admin);
    expect(ids(await poll(proxy))).toEqual(['b']);
    await server.call(200, 'DELETE /v1/policies/b', tenant.admin);
    const none = await poll(proxy);
    expect([ids(none), seqOf(none)]).toEqual([[], 3]);
  });

  test('is refused on its next poll once its key is revoked, also when it was served from memory', async () => {
    const tenant = await server.tenant();
    const made = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', tenant.admin, {
      label: 'p',
      scopes: ['proxy'],
    });
    const proxy = { key: made.body.key };
    for (let i = 0; i < 3; i++) await poll(proxy);
    await server.call(204, `DELETE /v1/keys/${made.body.id}`, tenant.admin);
    await server.call(401, 'GET /v1/policies/bundle', proxy);
  });

  test('sees no other tenant, whose bundle does not verify as its own', async () => {
    const [mine, other] = [await fresh(), await fresh()];
    await deploy(server, other.tenant.admin, 'secret', PERMIT);
    const theirs = await poll(other.proxy);
    const keys = await publicKeys();
    expect(openBundle((await poll(mine.proxy)).body, keys).content.policies).toEqual([]);
    expect(() => openBundle(theirs.body, keys, { tenant: mine.tenant.id })).toThrow(/the bundle is for/);
  });
});

describe('a bundle is built from the texts that were approved', () => {
  const rebuild = async (tenant: TestTenant, id: string) =>
    deploy(server, tenant.admin, id, `permit(principal, action, resource == Tool::"${id}");`);

  test('and from no other column in the database', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(
      server,
      tenant.admin,
      'p',
      '@id("cap") @scope("payments") @mask("$.a") permit(principal, action, resource);',
    );
    const { content: before } = openBundle((await poll(proxy)).body, await publicKeys());
    await sql(server, `update policy set scopes = '{other}', roles = '{}', any_role = false where tenant_id = $1`, [
      tenant.id,
    ]);
    await sql(server, 'update policy_revision set statement_count = 0 where tenant_id = $1', [tenant.id]);
    await rebuild(tenant, 'q');
    const { content } = openBundle((await poll(proxy, '?scopes=payments')).body, await publicKeys());
    expect(content.policies).toEqual(before.policies);
    expect(content.policies).toMatchObject([{ id: 'p#cap', scopes: ['payments'], annotations: { mask: ['$.a'] } }]);
  });

  test('so that with a text of another hash there is none, and the next attempt starts over', async () => {
    const { tenant, proxy } = await fresh();
    const agent = await tenant.agent('agent-1', 'clerk');
    const action = { action_type: 'tool_call', tool_name: 'read' };
    await deploy(server, tenant.admin, 'p', PERMIT);
    const last = await poll(proxy);
    const change = (from: string, to: string) =>
      sql(server, 'update policy_revision set dsl_source = replace(dsl_source, $2, $3) where tenant_id = $1', [
        tenant.id,
        from,
        to,
      ]);
    await change('"read"', '"wipe"');
    await rebuild(tenant, 'q');
    for (const refused of [
      await server.call(503, 'GET /v1/policies/bundle', proxy),
      await server.call(503, 'POST /v1/evaluate', agent, action),
    ]) {
      expect(refused.headers.get('retry-after')).toBe('30');
      expect(refused.body).toMatchObject({
        code: 'UNAVAILABLE',
        detail: 'policy p, version 1, differs from the approved text',
      });
    }
    // nor does a text with its own hash, a draft, an older version, or one that was revoked become what is enforced
    const hash = (text: string) => `'sha256:' || encode(sha256(convert_to(${text}, 'UTF8')), 'hex')`;
    await sql(server, `update policy_revision set content_hash = ${hash('dsl_source')} where tenant_id = $1`, [
      tenant.id,
    ]);
    await rebuild(tenant, 'r');
    await server.call(503, 'GET /v1/policies/bundle', proxy);
    // what a proxy has stays good
    expect(openBundle(last.body, await publicKeys()).content.policies.map(({ id }) => id)).toEqual(['p#0']);
    await change('"wipe"', '"read"');
    await sql(server, `update policy_revision set content_hash = ${hash('dsl_source')} where tenant_id = $1`, [
      tenant.id,
    ]);
    const { header, content } = openBundle((await poll(proxy)).body, await publicKeys());
    expect(header.seq).toBe(seqOf(last) + 1);
    expect(content.policies.map(({ id }) => id)).toEqual(['p#0', 'q#0', 'r#0']);
    expect((await server.call(200, 'POST /v1/evaluate', agent, action)).body).toMatchObject({ decision: 'allow' });
  });
});

describe('no policy is enforced unless the audit log says so', () => {
  test.each([
    ['a draft', 'live_version = 2'],
    ['an older version', 'live_version = 1'],
    ['one that was revoked', `live_version = 1, status = 'deployed'`],
  ])('%s that somebody made live in the database', async (what, change) => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    if (what === 'a draft') {
      await tenant.set({ approval_required: true });
    }
    if (what !== 'one that was revoked') {
      await server.call(200, 'PUT /v1/policies/p', tenant.admin, { dsl_source: tagged('other') });
    } else {
      await server.call(200, 'DELETE /v1/policies/p', tenant.admin);
    }
    await poll(proxy);
    await sql(server, `update policy set ${change} where tenant_id = $1`, [tenant.id]);
    await server.core.db.transaction(tenant.id, (_, notify) => notify('policies'));
    const refused = await server.call(503, 'GET /v1/policies/bundle', proxy);
    expect(refused.body).toMatchObject({
      code: 'UNAVAILABLE',
      detail: expect.stringContaining('differs from the approved text'),
    });
  });
});

describe('a filter by scopes', () => {
  test('keeps whole policies, has its own seq, and does not depend on order or repetition', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'a', `${tagged('a')}\nforbid(principal, action, resource == Tool::"x");`);
    await deploy(server, tenant.admin, 'b', tagged('b'));
    await deploy(server, tenant.admin, 'everywhere', tagged('*').replace('Tool::"*"', 'Tool::"e"'));
    await deploy(server, tenant.admin, 'untagged', PERMIT);
    const keys = await publicKeys();
    const ids = (answer: Answer<Buffer>) => [
      ...new Set(openBundle(answer.body, keys).content.policies.map(({ policy_id }) => policy_id)),
    ];
    const onlyA = await poll(proxy, '?scopes=a');
    expect(ids(onlyA)).toEqual(['a', 'everywhere']);
    expect(openBundle(onlyA.body, keys).content.policies.filter(({ policy_id }) => policy_id === 'a')).toHaveLength(2);
    expect(openBundle(onlyA.body, keys).content.scopes).toEqual(['a']);
    const both = await poll(proxy, '?scopes=b,a');
    expect(ids(both)).toEqual(['a', 'b', 'everywhere']);
    const same = await poll(proxy, '?scopes=a,%20b,a');
    expect([hashOf(same), seqOf(same)]).toEqual([hashOf(both), seqOf(both)]);
    expect(ids(await poll(proxy))).toEqual(['a', 'b', 'everywhere', 'untagged']);
    await server.call(200, 'PUT /v1/policies/b', tenant.admin, { dsl_source: tagged('c') });
    // the change does not touch what is filtered to a
    const later = await poll(proxy, '?scopes=a');
    expect([hashOf(later), seqOf(later)]).toEqual([hashOf(onlyA), seqOf(onlyA)]);
    expect(seqOf(await poll(proxy))).toBe(2);
    expect(ids(await poll(proxy, '?scopes=b'))).toEqual(['everywhere']);
  });
});

describe('what a proxy key can leave behind is bounded', () => {
  test('a set of scopes beyond the fiftieth is refused to that key alone, and existing ones stay', async () => {
    const { tenant, proxy } = await fresh();
    const other = await tenant.key('proxy');
    await poll(proxy, '?scopes=s0');
    await sql(
      server,
      `insert into policy_bundle select (jsonb_populate_record(b, jsonb_build_object('scope_set', '=s' || n))).*
       from generate_series(1, 49) n join policy_bundle b on b.tenant_id = $1 and b.scope_set = '=s0'`,
      [tenant.id],
    );
    const refused = await server.call(409, 'GET /v1/policies/bundle?scopes=one-more', proxy);
    expect(refused.body).toMatchObject({
      code: 'CONFLICT',
      detail: 'a key may request at most 50 different scope sets',
    });
    await poll(proxy, '?scopes=s0');
    await deploy(server, tenant.admin, 'p', PERMIT);
    await poll(proxy, '?scopes=s1');
    await poll(proxy);
    await poll(other, '?scopes=one-more');
    await poll(proxy, '?scopes=one-more');
    // who joins a look-up that is under way is not refused for what the key that began it has asked for
    const [full] = await sql<{ key_id: string }>(
      server,
      `select key_id from policy_bundle where tenant_id = $1 and scope_set = '=s0'`,
      [tenant.id],
    );
    const { bundles } = server.core;
    const joined = await Promise.allSettled([
      bundles.current(tenant.id, ['at once'], full!.key_id),
      bundles.current(tenant.id, ['at once'], 'of another key'),
      bundles.current(tenant.id, ['at once'], full!.key_id),
    ]);
    expect(joined).toMatchObject([{ reason: { problem: 'CONFLICT' } }, { status: 'fulfilled' }, {}]);
    const rows = await sql(
      server,
      'select count(distinct scope_set)::int as sets from policy_bundle where tenant_id = $1',
      [tenant.id],
    );
    expect(rows).toEqual([{ sets: 53 }]);
  });

  test('a proxy name beyond the hundredth replaces the one silent for the longest', async () => {
    const { tenant, proxy } = await fresh();
    const other = await tenant.key('proxy');
    const beat = (key: Credential, proxy_id: string, expected = 200) =>
      server.call(expected, 'POST /v1/proxies/heartbeat', key, { proxy_id });
    await beat(other, 'of another key');
    for (let n = 0; n < 4; n++) await beat(proxy, `p${n}`);
    // as many as there may be, heard of in this order
    await sql(
      server,
      `insert into proxy_instance select made.*
       from generate_series(4, 99) n, (select * from proxy_instance where tenant_id = $1 and id = 'p3') p,
         jsonb_populate_record(null::proxy_instance, to_jsonb(p)
           || jsonb_build_object('id', 'p' || n, 'last_seen_at', p.last_seen_at + n * interval '1 ms')) made`,
      [tenant.id],
    );
    server.clock.advance(100);
    await beat(proxy, 'p0');
    for (const name of ['one-more', 'and-another']) await beat(proxy, name);
    const { body } = await server.call<{ proxies: { proxy_id: string }[] }>(200, 'GET /v1/proxies', tenant.admin);
    const names = body.proxies.map(({ proxy_id }) => proxy_id);
    expect(names).toHaveLength(101);
    expect(names).toEqual(expect.arrayContaining(['of another key', 'one-more', 'and-another', 'p0', 'p3']));
    expect(names).not.toContain('p1');
    expect(names).not.toContain('p2');

    // nor can a key speak for another's proxy, until that was silent
    expect((await beat(proxy, 'of another key', 409)).body).toMatchObject({ code: 'CONFLICT' });
    await sql(
      server,
      `update proxy_instance set last_seen_at = last_seen_at - interval '1 hour' where tenant_id = $1`,
      [tenant.id],
    );
    await beat(proxy, 'of another key');
  });
});

describe('a poll that waits', () => {
  test('is answered as soon as a policy is enforced', async () => {
    const { tenant, proxy } = await fresh();
    const before = await poll(proxy);
    const began = performance.now();
    const waiting = poll(proxy, `?current_hash=${hashOf(before)}`, { prefer: 'wait=60' });
    await deploy(server, tenant.admin, 'p', PERMIT);
    const answer = await waiting;
    expect(seqOf(answer)).toBe(2);
    expect(answer.headers.get('preference-applied')).toBe('wait=60');
    expect(performance.now() - began).toBeLessThan(50_000);
  });

  test('returns 304 at the end of the wait, and is not woken by a draft or another tenant', async () => {
    const { tenant, proxy } = await fresh();
    const other = await fresh();
    const before = await poll(proxy);
    const began = performance.now();
    const waiting = poll(proxy, `?current_hash=${hashOf(before)}`, { prefer: 'wait=1' }, 304);
    await deploy(server, other.tenant.admin, 'p', PERMIT);
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'draft', dsl_source: PERMIT });
    expect(seqOf(await waiting)).toBe(1);
    expect(performance.now() - began).toBeGreaterThan(950);
  });

  test('of any scopes is answered when a policy for every scope is enforced', async () => {
    const { tenant, proxy } = await fresh();
    const query = '?scopes=payments';
    const before = await poll(proxy, query);
    const waiting = poll(proxy, `${query}&current_hash=${hashOf(before)}`, { prefer: 'wait=30' });
    await deploy(server, tenant.admin, 'p', tagged('*'));
    const { content } = openBundle((await waiting).body, await publicKeys());
    expect(content).toMatchObject({ scopes: ['payments'], policies: [{ id: 'p#0', scopes: ['*'] }] });
  });

  test('is answered with what changed while this process received no notices', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    const before = await poll(proxy);
    const waiting = poll(proxy, `?current_hash=${hashOf(before)}`, { prefer: 'wait=30' });
    // as another process would, whose notice did not arrive
    await sql(server, `update policy set live_version = null, status = 'revoked' where tenant_id = $1`, [tenant.id]);
    await sql(server, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'svc notices'`);
    const { content } = openBundle((await waiting).body, await publicKeys());
    expect(content.policies).toEqual([]);
  });

  test('returns nothing to a key that was revoked meanwhile', async () => {
    const { tenant } = await fresh();
    const key = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', tenant.admin, {
      label: 'proxy',
      scopes: ['proxy'],
    });
    const proxy = { key: key.body.key };
    const before = await poll(proxy);
    const waiting = poll(proxy, `?current_hash=${hashOf(before)}`, { prefer: 'wait=30' }, 401);
    await server.call(204, `DELETE /v1/keys/${key.body.id}`, tenant.admin);
    await deploy(server, tenant.admin, 'p', PERMIT);
    expect((await waiting).headers.get('x-svc-bundle-hash')).toBeNull();
  });

  test('does not wait when it has another bundle, or when the wait is not a number', async () => {
    const { proxy } = await fresh();
    const hash = hashOf(await poll(proxy));
    await poll(proxy, '?current_hash=sha256:0', { prefer: 'wait=30' });
    await poll(proxy, '', { prefer: 'wait=30' });
    for (const prefer of ['wait=x', 'wait=', 'await=30', 'wait=-1'])
      await poll(proxy, `?current_hash=${hash}`, { prefer }, 304);
  });
});

describe('signatures', () => {
  test('are made by the key that /pubkey shows', async () => {
    const { proxy } = await fresh();
    const pem = await server.call(200, 'GET /pubkey', undefined);
    const key = createPublicKey(pem.text);
    const fingerprint = pem.headers.get('x-svc-key-fingerprint');
    expect(fingerprint).toBe(server.core.keyring.current.fingerprint);
    openBundle((await poll(proxy)).body, () => key);
  });

  test('by a new key come with a higher seq and the same hash, and old bundles still verify', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    const old = await poll(proxy);
    const { kid } = await server.core.keyring.rotate();
    await expect.poll(async () => openBundle((await poll(proxy)).body, await publicKeys()).header.kid).toBe(kid);
    const signed = await poll(proxy);
    const keys = await publicKeys();
    const [before, after] = [openBundle(old.body, keys).header, openBundle(signed.body, keys).header];
    expect(before.kid).not.toBe(after.kid);
    expect(after.seq).toBeGreaterThan(before.seq);
    expect(hashOf(signed)).toBe(hashOf(old));
    // a proxy that has the content learns of the new signature from the seq
    expect(seqOf(await poll(proxy, `?current_hash=${hashOf(old)}`, {}, 304))).toBe(after.seq);
  });

  test('are renewed after half of their validity', async () => {
    const { proxy } = await fresh();
    const keys = await publicKeys();
    const old = openBundle((await poll(proxy)).body, keys).header;
    server.clock.advance(16 * 24 * 3600 * 1000);
    const renewed = openBundle((await poll(proxy)).body, keys).header;
    expect(renewed.seq).toBe(old.seq + 1);
    expect(Date.parse(renewed.not_after) - Date.parse(old.not_after)).toBeGreaterThan(15 * 24 * 3600 * 1000);
    expect(renewed.content_hash).toBe(old.content_hash);
  });
});

describe('the fleet', () => {
  test('shows how old the bundle of each proxy is, and whether there is a newer one', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    const built: number[] = [];
    const bundles: { bundle_hash: string; bundle_seq: number }[] = [];
    const fetch = async (query = '') => {
      built.push(server.clock.now());
      const answer = await poll(proxy, query);
      bundles.push({ bundle_hash: hashOf(answer), bundle_seq: seqOf(answer) });
      server.clock.advance(3_600_000);
    };
    await fetch();
    await deploy(server, tenant.admin, 'q', tagged('a'));
    await fetch();
    await fetch('?scopes=a');
    // the first content again, as a bundle of its own
    await server.call(200, 'DELETE /v1/policies/q', tenant.admin);
    await fetch();
    const beats = {
      first: bundles[0]!,
      second: bundles[1]!,
      scoped: bundles[2]!,
      again: bundles[3]!,
      'without number': { bundle_hash: bundles[0]!.bundle_hash },
      foreign: { bundle_hash: `sha256:${'0'.repeat(64)}`, bundle_seq: 1 },
      none: {},
    };
    for (const [proxy_id, beat] of Object.entries(beats)) {
      await server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id, ...beat });
    }
    const { body } = await server.call<{
      proxies: { proxy_id: string; bundle_built_at: string | null; up_to_date: boolean | null }[];
    }>(200, 'GET /v1/proxies', tenant.admin);
    // which of the bundles it is by its age, to the minute
    const nth = (at: string) => built.findIndex((time) => Math.abs(Date.parse(at) - time) < 60_000);
    const shown = Object.fromEntries(
      body.proxies.map(({ proxy_id, bundle_built_at: at, up_to_date }) => [proxy_id, [at && nth(at), up_to_date]]),
    );
    expect(shown).toEqual({
      // what it enforces is what the newest one says
      first: [0, true],
      second: [1, false],
      scoped: [2, false],
      again: [3, true],
      'without number': [3, true],
      foreign: [null, null],
      none: [null, null],
    });
  });

  interface Run {
    bundle_seq: number | null;
    since: string;
    until: string | null;
    lag_seconds: number | null;
    change: { id: string; action: string; target: { id: string } } | null;
  }
  const runsOf = async (who: Credential, id: string) =>
    (await server.call<{ bundles: Run[] }>(200, `GET /v1/proxies/${encodeURIComponent(id)}/bundles`, who)).body.bundles;

  test('tells which bundle a proxy used from when to when, how long it took, and which change made it', async () => {
    const [{ tenant, proxy }, other] = [await fresh(), await server.tenant()];
    const viewer = await tenant.person('viewer');
    const report = async (bundle?: { bundle_hash: string; bundle_seq: number }) => {
      await server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'edge/1', ...bundle });
      server.clock.advance(60_000);
    };
    const fetched = async () => {
      const answer = await poll(proxy);
      return { bundle_hash: hashOf(answer), bundle_seq: seqOf(answer) };
    };
    await report();
    expect(await runsOf(viewer, 'edge/1')).toEqual([]);
    await deploy(server, tenant.admin, 'p', PERMIT);
    const first = await fetched();
    await report(first);
    await report(first);
    await deploy(server, tenant.admin, 'q', tagged('a'));
    // newer than the policy, and in no bundle
    await server.call(200, 'PATCH /v1/settings', await tenant.person('admin'), {
      approval_required: true,
      reason: 'four eyes',
    });
    const second = await fetched();
    server.clock.advance(30_000);
    await report(second);
    // what this server never made says nothing of itself
    await report({ bundle_hash: '<b>\u202emade up', bundle_seq: 7 });
    await report({ bundle_hash: 'another', bundle_seq: 8 });
    await report(second);
    const runs = await runsOf(viewer, 'edge/1');
    expect(runs.map(({ bundle_seq }) => bundle_seq)).toEqual([
      second.bundle_seq,
      null,
      second.bundle_seq,
      first.bundle_seq,
    ]);
    expect(JSON.stringify(runs)).not.toContain('made up');
    expect(runs.map(({ lag_seconds: lag }) => lag)).toEqual([null, null, expect.any(Number), null]);
    expect(runs[2]!.lag_seconds).toBeGreaterThanOrEqual(30);
    expect(runs.map(({ until }) => until)).toEqual([null, ...runs.slice(0, 3).map(({ since }) => since)]);
    expect(runs[1]!.change).toBe(null);
    expect(runs[3]!.change).toMatchObject({ action: expect.stringMatching(/^policy\./), target: { id: 'p' } });
    expect(runs[2]!.change).toMatchObject({ action: expect.stringMatching(/^policy\./), target: { id: 'q' } });
    await server.call(200, `GET /v1/audit/${runs[2]!.change!.id}`, viewer);

    await server.call(404, 'GET /v1/proxies/nobody/bundles', viewer);
    await server.call(404, 'GET /v1/proxies/edge%2F1/bundles', await other.person('viewer'));
    await server.call(403, 'GET /v1/proxies/edge%2F1/bundles', proxy);
    await server.call(204, 'DELETE /v1/proxies/edge%2F1', tenant.admin, { reason: 'out of service' });
    expect(await sql(server, 'select 1 from proxy_bundle where tenant_id = $1', [tenant.id])).toEqual([]);
  });

  test('keeps no more of it than fifty bundles and ninety days, whatever a proxy reports', async () => {
    const { tenant, proxy } = await fresh();
    const hashes: string[] = [];
    for (const scope of ['', '?scopes=a']) {
      await deploy(server, tenant.admin, `p${hashes.length}`, tagged('a'));
      hashes.push(hashOf(await poll(proxy, scope)));
    }
    const report = async (n: number) => {
      await server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'edge', bundle_hash: hashes[n % 2] });
      server.clock.advance(1000);
    };
    for (let n = 0; n < 60; n++) await report(n);
    const stored = () => sql(server, 'select since from proxy_bundle where tenant_id = $1', [tenant.id]);
    expect(await stored()).toHaveLength(50);
    expect(await runsOf(tenant.admin, 'edge')).toHaveLength(50);
    server.clock.advance(91 * 24 * 3_600_000);
    // the one that it still uses stays, however old
    expect(await runsOf(tenant.admin, 'edge')).toHaveLength(1);
    await report(60);
    expect(await stored()).toHaveLength(2);
  });

  test('says when and at which proxy an agent key was used, of its own tenant alone, and seldom', async () => {
    const [{ tenant, proxy }, other] = [await fresh(), await server.tenant()];
    const made = async (of: TestTenant) =>
      (
        await server.call<{ id: string; key: string }>(201, 'POST /v1/agent-keys', of.admin, {
          agent_id: 'bot',
          agent_role: 'clerk',
        })
      ).body;
    const [own, idle, foreign] = [await made(tenant), await made(tenant), await made(other)];
    const used = async (of: TestTenant) =>
      (
        await server.call<{ agent_keys: { id: string; last_used_at?: string; last_used_by: string | null }[] }>(
          200,
          'GET /v1/agent-keys',
          of.admin,
        )
      ).body.agent_keys.map(({ id, last_used_at: at, last_used_by: by }) => [id, at, by]);
    const report = (proxy_id: string) =>
      server.call(200, 'POST /v1/proxies/heartbeat', proxy, {
        ...{ proxy_id, agent_keys: [own.id, foreign.id, 'agk_none', own.id] },
      });
    await report('edge-1');
    const [first] = (await used(tenant)).filter(([id]) => id === own.id);
    expect(first).toEqual([own.id, expect.any(String), 'edge-1']);
    expect(await used(tenant)).toContainEqual([idle.id, undefined, null]);
    expect(await used(other)).toEqual([[foreign.id, undefined, null]]);
    await report('edge-2');
    expect(await used(tenant)).toContainEqual(first);
    server.clock.advance(31_000);
    await report('edge-2');
    expect(await used(tenant)).toContainEqual([own.id, expect.not.stringContaining(String(first![1])), 'edge-2']);
    // a use here is newer than that, and was at no proxy
    server.clock.advance(61_000);
    await server.call(
      200,
      'POST /v1/evaluate',
      { key: own.key, headers: { 'x-svc-tenant': tenant.id } },
      {
        ...{ action_type: 'tool_call', tool_name: 'read' },
      },
    );
    await until(
      async () => (await used(tenant)).some(([id, , by]) => id === own.id && by === null),
      'it was used here',
    );
    const many = Array.from({ length: 1001 }, (_, n) => `agk_${n}`);
    await server.call(400, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'edge-1', agent_keys: many });
  });
});

describe('concurrent requests', () => {
  test('first polls share one bundle and one seq', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    const answers = await Promise.all(Array.from({ length: 20 }, () => poll(proxy)));
    expect(new Set(answers.map(seqOf))).toEqual(new Set([1]));
    expect(new Set(answers.map(hashOf)).size).toBe(1);
    for (const answer of answers) expect(answer.body.equals(answers[0]!.body)).toBe(true);
    const rows = await sql<{ n: number }>(server, 'select count(*)::int as n from policy_bundle where tenant_id = $1', [
      tenant.id,
    ]);
    expect(rows[0]!.n).toBe(1);
  });

  test('a bundle that waits for another builder has the action types as they are when it is built', async () => {
    const { tenant, proxy } = await fresh();
    await tenant.set({ action_types: { read: ['transfer'], write: [] } });
    const builder = await server.core.db.connectOwner();
    try {
      await builder.query('begin');
      await builder.query('select pg_advisory_xact_lock(hashtextextended($1, 1))', [`bundle ${tenant.id} `]);
      const polled = poll(proxy);
      const waits = `select from pg_locks where locktype = 'advisory' and not granted`;
      await until(async () => (await builder.query(waits)).rowCount === 1, 'the poll waits');
      await tenant.set({ action_types: { read: [], write: ['transfer'] } });
      await builder.query('commit');
      const { content } = openBundle((await polled).body, await publicKeys());
      expect(content.action_entities).toMatchObject({ transfer: ['write'] });
    } finally {
      await builder.end();
    }
  });

  test('polls during changes never see a lower seq than before, nor a hash with two contents', async () => {
    const { tenant, proxy } = await fresh();
    await deploy(server, tenant.admin, 'p', PERMIT);
    let changing = true;
    const contents = new Map<string, string>();
    const keys = await publicKeys();
    const watch = async () => {
      let last = 0;
      while (changing) {
        const answer = await poll(proxy);
        const { header, content } = openBundle(answer.body, keys);
        expect(header.seq).toBeGreaterThanOrEqual(last);
        last = header.seq;
        const text = JSON.stringify(content);
        expect(contents.get(header.content_hash) ?? text).toBe(text);
        contents.set(header.content_hash, text);
      }
    };
    const watching = [watch(), watch(), watch()];
    for (let n = 0; n < 8; n++)
      await server.call(200, 'PUT /v1/policies/p', tenant.admin, { dsl_source: tagged(`s${n}`) });
    changing = false;
    await Promise.all(watching);
    const last = openBundle((await poll(proxy)).body, keys);
    expect(last.content.policies[0]).toMatchObject({ version: 9, scopes: ['s7'] });
  });
});
