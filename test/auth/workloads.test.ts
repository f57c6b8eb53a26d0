import { createPublicKey, createSecretKey, randomUUID } from 'node:crypto';
import { generateKeyPair, UnsecuredJWT } from 'jose';
import { beforeAll, describe, expect, test } from 'vitest';
import { faultsOfMatch, matches, provenSource, writingRefused } from '../../server/domain/workload.ts';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import {
  audienceOf,
  exchangeOf,
  GITHUB_MATCH,
  GITHUB_RUN,
  TokenIssuer,
  trust,
  workloadToken,
} from '../helpers/token-issuer.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' });
let tenant: TestTenant;
let issuer: TokenIssuer;
beforeAll(async () => {
  issuer = await TokenIssuer.start(() => server.clock.now());
  tenant = await server.tenant();
  await trust(server, tenant, issuer);
});

const run = (more: Record<string, unknown> = {}) => ({ ...GITHUB_RUN, aud: audienceOf(server, tenant), ...more });
const exchange = async (status: number, subject: string, scope?: string) =>
  (await server.call(status, 'POST /auth/token', undefined, exchangeOf(subject, scope))).body;
const ALL = 'policies:read policies:write policies:submit';
const READS = 'permit(principal, action, resource == Tool::"read");';

describe('the token of a pipeline', () => {
  test('is exchanged for one of this server, which lives for 15 minutes and says in the audit log whose it is', async () => {
    const body = await exchange(200, await issuer.sign(run()), ALL);
    expect(body).toEqual({
      access_token: expect.stringMatching(/^svc_token_/),
      issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
      token_type: 'Bearer',
      expires_in: 900,
      scope: ALL,
    });
    const who = { key: String(body.access_token) };
    expect((await server.call(200, 'GET /auth/me', who)).body).toEqual({
      ...{ authenticated: true, auth_method: 'workload_token', tenant_id: tenant.id },
      scopes: ALL.split(' '),
    });
    const { body: log } = await server.call<{ records: { detail: string; actor: object }[] }>(
      200,
      'GET /v1/audit?action=workload_token.issued&limit=1',
      tenant.admin,
    );
    expect(log.records[0]!.actor).toMatchObject({ type: 'workload_token' });
    expect(log.records[0]!.detail).toContain('repository "acme/policies"');
    // neither token is stored anywhere, nor logged
    const stored = await sql<{ t: string }>(server, 'select to_jsonb(w)::text as t from workload_token w');
    expect(stored.map(({ t }) => t).join()).not.toContain(who.key);
    expect(server.logged.join()).not.toContain(who.key);
    server.clock.advance(15 * 60_000 + 1000);
    await server.call(401, 'GET /v1/policies', who);
  });

  test('also in the encoding of forms, as RFC 8693 has it, and may only read where nothing more is asked for', async () => {
    const form = new URLSearchParams(exchangeOf(await issuer.sign(run())));
    const response = await fetch(`${server.url}/auth/token`, { method: 'POST', body: form });
    const { access_token: key, scope } = (await response.json()) as { access_token: string; scope: string };
    expect([response.status, scope]).toEqual([200, 'policies:read']);
    await server.call(200, 'GET /v1/policies', { key });
    const draft = { id: 'never', dsl_source: READS };
    expect((await server.call(403, 'POST /v1/policies', { key }, draft)).body.code).toBe('KEY_SCOPE');
  });

  test('needs one key set of its issuer, also while another one that is trusted cannot be fetched', async () => {
    const gone = await TokenIssuer.start(() => server.clock.now());
    const other = await server.tenant();
    await server.call(201, 'POST /v1/workload-trust', other.admin, {
      ...{ label: 'gone', issuer: issuer.issuer, match: GITHUB_MATCH, scopes: ['policies:read'] },
      jwks_uri: `${gone.issuer}/jwks`,
    });
    gone.answer['/jwks'] = (_, response) => void response.writeHead(500).end();
    server.clock.advance(1000);
    await trust(server, other, issuer);
    const aud = audienceOf(server, other);
    await exchange(200, await issuer.sign({ ...run(), aud }));
    expect(gone.requests.length).toBeGreaterThan(1);
    expect((await exchange(503, await gone.sign({ ...run(), aud, iss: issuer.issuer }))).code).toBe('UNAVAILABLE');
  });

  test('works once, in all processes, no matter who is first', async () => {
    const subject = await issuer.sign(run());
    const answers = await Promise.all(
      Array.from({ length: 6 }, () =>
        fetch(`${server.url}/auth/token`, { method: 'POST', body: new URLSearchParams(exchangeOf(subject)) }),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 401, 401, 401, 401, 401]);
    // also signed once more with the same id, and after what it was exchanged for has expired
    const jti = randomUUID();
    const exp = Math.floor(server.clock.now() / 1000) + 3600;
    await exchange(200, await issuer.sign(run({ jti, exp })));
    server.clock.advance(20 * 60_000);
    await server.core.workloads.forget();
    expect((await exchange(401, await issuer.sign(run({ jti, exp: exp + 60 })))).detail).toContain('exchanged before');
    server.clock.advance(60 * 60_000);
    await server.core.workloads.forget();
    expect(await sql(server, 'select 1 from workload_token where tenant_id = $1', [tenant.id])).toEqual([]);
    expect(await sql(server, `select 1 from credential where kind = 'workload_token'`)).toEqual([]);
  });

  test('without an id of its own works once too', async () => {
    const subject = await issuer.sign(run({ jti: undefined }));
    await exchange(200, subject);
    await exchange(401, subject);
  });
});

describe('refused is', () => {
  const hostile: Record<string, () => Promise<string>> = {
    'the token of an issuer that begins like ours': () => issuer.sign(run({ iss: `${issuer.issuer}/evil` })),
    'and of one that ours begins with': () => issuer.sign(run({ iss: issuer.issuer.slice(0, -1) })),
    'an issuer with a slash more': () => issuer.sign(run({ iss: `${issuer.issuer}/` })),
    'a token that is not signed': async () =>
      new UnsecuredJWT({ ...run(), iss: issuer.issuer, jti: randomUUID() })
        .setIssuedAt()
        .setExpirationTime('5m')
        .encode(),
    'a token signed with the public key as a secret': () => {
      const pem = createPublicKey({ key: issuer.publicKey as never, format: 'jwk' }).export({
        ...{ type: 'spki', format: 'pem' },
      });
      return issuer.sign(run(), { alg: 'HS256' }, createSecretKey(Buffer.from(pem as string)) as never);
    },
    'a token with a key of its own in its header': async () => {
      const { privateKey } = await generateKeyPair('RS256');
      return issuer.sign(run(), { jwk: issuer.publicKey, jku: 'http://127.0.0.1:9/jwks' }, privateKey);
    },
    "the platform's default audience": () => issuer.sign(run({ aud: 'https://github.com/acme' })),
    'an audience that begins like ours': () => issuer.sign(run({ aud: `${audienceOf(server, tenant)}x` })),
    'ours among others': () => issuer.sign(run({ aud: [audienceOf(server, tenant), 'https://elsewhere.example'] })),
    'no audience': () => issuer.sign(run({ aud: undefined })),
    'an expired token': () => issuer.sign(run({ exp: Math.floor(server.clock.now() / 1000) - 61 })),
    'a token that never expires': () => issuer.sign(run({ exp: undefined })),
    'a token that is valid for days': () => issuer.sign(run({ exp: Math.floor(server.clock.now() / 1000) + 200_000 })),
    'a token of tomorrow': () => issuer.sign(run({ nbf: Math.floor(server.clock.now() / 1000) + 90 })),
    'another repository': () => issuer.sign(run({ repository: 'acme/other', repository_id: '7002' })),
    'a repository that took over the name': () => issuer.sign(run({ repository_id: '9009' })),
    'another branch': () => issuer.sign(run({ ref: 'refs/heads/main2' })),
    'a claim that is a list': () => issuer.sign(run({ ref: ['refs/heads/main'] })),
    'a claim that is a number': () => issuer.sign(run({ repository_id: 7001 })),
    'a claim that is an object': () => issuer.sign(run({ repository: { toString: 'acme/policies' } })),
    'a claim that is missing': () => issuer.sign(run({ ref: undefined })),
    'no token': async () => 'x.y.z',
  };
  test.each(Object.entries(hostile))('%s', async (_, make) => {
    expect((await exchange(401, await make())).code).toBe('UNAUTHENTICATED');
  });

  test('but a minute of difference between the clocks is not', async () => {
    await exchange(200, await issuer.sign(run({ exp: Math.floor(server.clock.now() / 1000) - 30 })));
  });

  test('a key set that leads to an address inside, when it is trusted and later', async () => {
    const hostile = await TokenIssuer.start(() => server.clock.now());
    hostile.answer['/jwks'] = (_, response) => {
      response.writeHead(302, { location: `${issuer.issuer}/jwks` });
      response.end();
    };
    const body = {
      ...{ label: 'x', issuer: hostile.issuer, match: GITHUB_MATCH, scopes: ['policies:read'] },
    };
    const refused = await server.call(400, 'POST /v1/workload-trust', tenant.admin, body);
    expect(JSON.stringify(refused.body)).toContain('redirects are not followed');
    const inside = { ...body, jwks_uri: 'https://169.254.169.254/latest' };
    await server.call(400, 'POST /v1/workload-trust', tenant.admin, inside);
    const redirecting = hostile.answer;
    hostile.answer = {};
    const other = await server.tenant();
    await trust(server, other, hostile);
    hostile.answer = redirecting;
    const before = issuer.requests.length;
    const aud = audienceOf(server, other);
    expect((await exchange(503, await hostile.sign({ ...run(), aud }))).code).toBe('UNAVAILABLE');
    expect(issuer.requests.length).toBe(before);
  });

  test('a token whose issuer nobody trusts, without asking that issuer', async () => {
    const stranger = await TokenIssuer.start(() => server.clock.now());
    await exchange(401, await stranger.sign(run()));
    expect(stranger.requests).toEqual([]);
  });

  test('what another tenant trusts', async () => {
    const other = await server.tenant();
    // they trust the same runs, under their own audience, and cannot take ours
    await trust(server, other, issuer);
    const taken = { label: 'x', issuer: issuer.issuer, match: GITHUB_MATCH, scopes: ['policies:read'] };
    const body = { ...taken, audience: audienceOf(server, tenant) };
    await server.call(400, 'POST /v1/workload-trust', other.admin, body);
    const mine = await exchange(200, await issuer.sign(run()));
    const me = await server.call(200, 'GET /auth/me', { key: String(mine.access_token) });
    expect(me.body.tenant_id).toBe(tenant.id);
    const { body: listed } = await server.call<{ workload_trust: { id: string }[] }>(
      200,
      'GET /v1/workload-trust',
      tenant.admin,
    );
    await server.call(404, `DELETE /v1/workload-trust/${listed.workload_trust[0]!.id}`, other.admin);
  });

  test.each([
    ['a pull request', { event_name: 'pull_request', ref: 'refs/pull/7/merge', environment: 'production' }],
    ['a pull request of a fork that runs on the main branch', { event_name: 'pull_request_target' }],
    ['a run after one of a fork', { event_name: 'workflow_run' }],
    ['a comment', { event_name: 'issue_comment' }],
    ['a run that does not say why it was started', { event_name: undefined }],
  ])('to write, for %s', async (_, claims) => {
    const own = await server.tenant();
    await trust(server, own, issuer, {
      match: { repository_id: '7001', environment: 'production' },
    });
    await trust(server, own, issuer);
    const subject = () => issuer.sign({ ...run({ ...claims, aud: audienceOf(server, own) }) });
    expect((await exchange(403, await subject(), 'policies:write')).code).toBe('KEY_SCOPE');
    const key = await exchange(200, await subject(), 'policies:read');
    await server.call(403, 'POST /v1/policies', { key: String(key.access_token) }, { id: 'x', dsl_source: READS });
  });

  test('more than is trusted, and a scope that there is not', async () => {
    const own = await server.tenant();
    await trust(server, own, issuer, { scopes: ['policies:read'] });
    const subject = () => issuer.sign(run({ aud: audienceOf(server, own) }));
    expect((await exchange(403, await subject(), 'policies:read policies:write')).code).toBe('KEY_SCOPE');
    for (const scope of ['admin', 'pipeline', 'policies:read proxy']) await exchange(400, await subject(), scope);
    const { body: log } = await server.call<{ records: { detail: string }[] }>(
      200,
      'GET /v1/audit?action=workload_token.refused',
      own.admin,
    );
    expect(log.records[0]!.detail).toContain('repo:acme/policies');
  });
});

describe('what it was exchanged for', () => {
  test('reaches no policy outside its glob, in any way', async () => {
    const own = await server.tenant();
    await deploy(server, own.admin, 'pay-refunds', READS);
    await deploy(server, own.admin, 'hr-files', READS);
    await trust(server, own, issuer, { policies: 'pay-*' });
    const token = await workloadToken(server, own, issuer, ALL);
    const listed = await server.call<{ policies: { id: string }[]; total: number }>(200, 'GET /v1/policies', token);
    expect([listed.body.total, listed.body.policies.map(({ id }) => id)]).toEqual([1, ['pay-refunds']]);
    await server.call(200, 'PUT /v1/policies/pay-refunds', token, { dsl_source: `${READS}\n` });
    const text = { dsl_source: READS };
    for (const [line, body] of [
      ['GET /v1/policies/hr-files', undefined],
      ['GET /v1/policies/hr-files/versions/1', undefined],
      ['GET /v1/policies/hr-files/diff?from=1&to=1', undefined],
      ['PUT /v1/policies/hr-files', text],
      ['DELETE /v1/policies/hr-files', {}],
      ['POST /v1/policies/hr-files/submit', {}],
      ['POST /v1/policies/hr-files/test', {}],
      ['POST /v1/policies', { id: 'hr-new', ...text }],
      ['POST /v1/policies', text],
      [
        'POST /v1/policies/plan',
        {
          policies: [
            { id: 'pay-refunds', ...text },
            { id: 'hr-files', ...text },
          ],
        },
      ],
    ] as const) {
      expect((await server.call(403, line, token, body)).body.code, line).toBe('KEY_SCOPE');
    }
    const plan = await server.call<{ others: unknown[] }>(200, 'POST /v1/policies/plan', token, { policies: [] });
    expect(plan.body.others).toMatchObject([{ id: 'pay-refunds' }]);
  });

  test.each(['the trust is deleted', 'its maker is an admin no more'])('ends when %s', async (how) => {
    const own = await server.tenant();
    const second = await own.person('admin');
    const third = await own.person('admin');
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/workload-trust', second, {
      ...{ label: 'x', issuer: issuer.issuer, match: GITHUB_MATCH, scopes: ['policies:read'] },
    });
    const token = await workloadToken(server, own, issuer, 'policies:read');
    await server.call(200, 'GET /v1/policies', token);
    if (how === 'the trust is deleted') await server.call(204, `DELETE /v1/workload-trust/${body.id}`, third, {});
    else await server.call(200, `DELETE /v1/users/${second.userId}/roles/admin`, third, {});
    await server.call(401, 'GET /v1/policies', token);
    await exchange(401, await issuer.sign(run({ aud: audienceOf(server, own) })));
    const events = await sql<{ event_type: string }>(
      server,
      `select event_type from event_outbox where tenant_id = $1 and event_type like 'workload%'`,
      [own.id],
    );
    expect(events.map(({ event_type }) => event_type)).toContain('workload_trust.created');
  });

  test('is the author of its drafts, may submit them where it is trusted to, and approves nothing', async () => {
    const own = await server.tenant();
    const id = await trust(server, own, issuer);
    await own.set({ approval_required: true });
    const token = await workloadToken(server, own, issuer, ALL);
    const stated = { repo: 'evil/lies', path: 'policies/p.cedar', actor: '"; approved' };
    await server.call(201, 'POST /v1/policies', token, { id: 'p', dsl_source: READS, source: stated });
    const writing = await workloadToken(server, own, issuer, 'policies:write');
    expect((await server.call(403, 'POST /v1/policies/p/submit', writing, {})).body.code).toBe('KEY_SCOPE');
    expect((await server.call(409, 'POST /v1/policies/p/submit', token, { expected_version: 2 })).body.code).toBe(
      'VERSION_CHANGED',
    );
    const { body } = await server.call(200, 'POST /v1/policies/p/submit', token, { expected_version: 1 });
    expect(body).toMatchObject({ status: 'pending_approval', author_id: id, live_version: null });
    await server.call(403, 'POST /v1/policies/p/approve', token, { version: 1 });
    // what the token proves takes the place of what was stated
    const read = await server.call<{ versions: { source: unknown }[] }>(200, 'GET /v1/policies/p', own.admin);
    expect(read.body.versions[0]!.source).toEqual({
      ...{ repo: 'acme/policies', commit: GITHUB_RUN.sha, ref: 'refs/heads/main', path: 'policies/p.cedar' },
      ...{ actor: 'octocat', proven: ['repo', 'commit', 'ref', 'actor'] },
    });
    const { body: log } = await server.call<{ records: { detail: string }[] }>(
      200,
      'GET /v1/audit?action=policy.created',
      own.admin,
    );
    expect(log.records[0]!.detail).toBe(
      `version 1, source: proven repo "acme/policies", proven commit "${GITHUB_RUN.sha}", ` +
        'proven ref "refs/heads/main", stated path "policies/p.cedar", proven actor "octocat"',
    );
    await server.call(200, 'POST /v1/policies/p/approve', await own.person('approver'), { version: 1 });
  });

  test('an API key still cannot submit where approval is required: its holder could approve alone', async () => {
    const own = await server.tenant();
    await own.set({ approval_required: true });
    await server.call(201, 'POST /v1/policies', own.admin, { id: 'p', dsl_source: READS });
    await server.call(403, 'POST /v1/policies/p/submit', own.operatorKey, {});
  });
});

describe('four eyes', () => {
  const asked = () => ({ label: 'mine', issuer: issuer.issuer, match: GITHUB_MATCH, scopes: ALL.split(' ') });
  const code = async (who: Credential, line: string, body: object = {}) =>
    (await server.call(403, line, who, body)).body.code;

  test('who made a trust is an author of what is written and submitted through it', async () => {
    const own = await server.tenant();
    const [maker, other] = [await own.person('admin'), await own.person('admin')];
    await server.call(201, 'POST /v1/workload-trust', maker, asked());
    await own.set({ approval_required: true, policy_author_may_vote: false });
    const token = await workloadToken(server, own, issuer, ALL);
    const held = `@id("r") @escrow("single") ${READS}`;
    await server.call(201, 'POST /v1/policies', token, { id: 'p', dsl_source: held });
    await server.call(200, 'POST /v1/policies/p/submit', token, {});
    expect(await code(maker, 'POST /v1/policies/p/approve', { version: 1 })).toBe('SELF_APPROVAL');
    await server.call(200, 'POST /v1/policies/p/approve', other, { version: 1 });
    // and of its holds, as of any author
    const agent = await own.agent('bot-1', 'clerk');
    const call = { action_type: 'tool_call', tool_name: 'read' };
    const { body } = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, call);
    const vote = { decision: 'approve', reason: 'fine' };
    expect(await code(maker, `POST /v1/escrow/${body.escrow.id}/vote`, vote)).toBe('FORBIDDEN');
    await server.call(200, `POST /v1/escrow/${body.escrow.id}/vote`, other, vote);
    // it only submits what somebody else wrote
    await server.call(200, 'PUT /v1/policies/p', other, { dsl_source: `${held}\n// more` });
    await server.call(200, 'POST /v1/policies/p/submit', token, {});
    expect(await code(maker, 'POST /v1/policies/p/approve', { version: 2 })).toBe('SELF_APPROVAL');
    await server.call(200, 'POST /v1/policies/p/approve', await own.person('approver'), { version: 2 });
  });

  test('where approval is required, a trust waits for a second person, and still belongs to the first', async () => {
    const own = await server.tenant();
    const [maker, other] = [await own.person('admin'), await own.person('approver')];
    await own.set({ approval_required: true });
    expect(await code(own.admin, 'POST /v1/workload-trust', asked())).toBe('FORBIDDEN');
    const made = await server.call<{ id: string; waiting: string }>(201, 'POST /v1/workload-trust', maker, {
      ...asked(),
      reason: 'our pipeline',
    });
    const { id, waiting } = made.body;
    const listed = async () => {
      const { body } = await server.call<{ workload_trust: object[] }>(200, 'GET /v1/workload-trust', own.admin);
      return body.workload_trust;
    };
    expect(await listed()).toEqual([]);
    await exchange(401, await issuer.sign(run({ aud: audienceOf(server, own) })));
    const approve = `POST /v1/settings/changes/${waiting}/approve`;
    expect(await code(maker, approve)).toBe('SELF_APPROVAL');
    const { body: change } = await server.call(200, approve, other, {});
    expect(change).toMatchObject({ status: 'approved', reason: 'our pipeline', changes: [{ to: { id } }] });
    expect(await listed()).toMatchObject([{ id, created_by: maker.userId }]);
    const token = await workloadToken(server, own, issuer, ALL);
    await server.call(201, 'POST /v1/policies', token, { id: 'p', dsl_source: READS });
    await server.call(200, 'POST /v1/policies/p/submit', token, {});
    expect(await code(maker, 'POST /v1/policies/p/approve', { version: 1 })).toBe('SELF_APPROVAL');
    // the trust that waits ends with the role of who asked for it
    const { body: again } = await server.call<{ waiting: string }>(201, 'POST /v1/workload-trust', maker, asked());
    await server.call(200, `DELETE /v1/users/${maker.userId}/roles/admin`, own.admin);
    await server.call(409, `POST /v1/settings/changes/${again.waiting}/approve`, other, {});
    expect(await listed()).toEqual([]);
  });

  test('and so does a token issuer that is added or changed, while one is removed at once', async () => {
    const own = await server.tenant();
    const [maker, other] = [await own.person('admin'), await own.person('admin')];
    const names = { agent_id_claim: 'sub', agent_role_claim: 'role', agent_ids: ['bot-*'], agent_roles: ['clerk'] };
    const list = (more: object = {}) => ({
      token_issuers: [{ issuer: issuer.issuer, audience: 'us', ...names, ...more }],
    });
    const put = async (who: Credential, body: object) =>
      (await server.call<Issuers>(200, 'PUT /v1/settings/token-issuers', who, body)).body;
    type Issuers = { token_issuers: object[]; changed_by: Record<string, string[]>; waiting: string | null };
    await own.set({ approval_required: true });
    expect(await code(own.admin, 'PUT /v1/settings/token-issuers', list())).toBe('FORBIDDEN');
    const first = await put(maker, list());
    expect(first).toEqual({ token_issuers: [], changed_by: {}, waiting: expect.any(String) });
    expect(await code(maker, `POST /v1/settings/changes/${first.waiting}/approve`)).toBe('SELF_APPROVAL');
    await server.call(200, `POST /v1/settings/changes/${first.waiting}/approve`, other, {});
    // the same list again changes nothing, and needs nobody
    const by = (...people: { userId: string }[]) => ({ [issuer.issuer]: people.map(({ userId }) => userId) });
    expect(await put(other, list())).toMatchObject({ changed_by: by(maker), waiting: null });
    const [changed, stale] = [
      await put(other, list({ audience: 'them' })),
      await put(maker, list({ audience: 'you' })),
    ];
    expect(changed.token_issuers).toMatchObject([{ audience: 'us' }]);
    await server.call(200, `POST /v1/settings/changes/${changed.waiting}/approve`, maker, {});
    expect((await server.call(409, `POST /v1/settings/changes/${stale.waiting}/approve`, other, {})).body.code).toBe(
      'CONFLICT',
    );
    const { body: now } = await server.call<Issuers>(200, 'GET /v1/settings/token-issuers', own.admin);
    expect(now).toMatchObject({ token_issuers: [{ audience: 'them' }], changed_by: by(maker, other) });
    expect(await put(own.admin, { token_issuers: [] })).toEqual({ token_issuers: [], changed_by: {}, waiting: null });
  });

  test('who made or changed an issuer that may name an agent does not vote on its holds', async () => {
    const own = await server.tenant();
    const [maker, changer, third] = [
      await own.person('admin'),
      await own.person('admin'),
      await own.person('approver'),
    ];
    const names = { agent_id_claim: 'sub', agent_role_claim: 'role', agent_ids: ['bot-*'], agent_roles: ['clerk'] };
    const opener = await own.key('proxy');
    const open = async (agent_id: string, agent_role: string) => {
      const { body } = await server.call<{ id: string; barred_voters: string[] }>(201, 'POST /v1/escrow', opener, {
        ...{ action_hash: `sha256:${'a'.repeat(64)}`, agent_id, agent_role, action_type: 'tool_call' },
        ...{ action_summary: 'pays', hold_type: 'single', ttl_seconds: 600 },
      });
      return body;
    };
    const before = await open('bot-1', 'clerk');
    for (const [who, audience] of [
      [maker, 'us'],
      [changer, 'them'],
    ] as const) {
      const token_issuers = [{ issuer: issuer.issuer, audience, ...names }];
      await server.call(200, 'PUT /v1/settings/token-issuers', who, { token_issuers });
    }
    // what the issuer could do until it was changed or removed stays theirs
    for (const token_issuers of [
      [{ ...{ issuer: issuer.issuer, audience: 'us', ...names }, agent_ids: ['elsewhere'] }],
      [],
    ]) {
      await server.call(200, 'PUT /v1/settings/token-issuers', maker, { token_issuers });
    }
    const after = await open('bot-2', 'clerk');
    expect(after.barred_voters).toEqual(expect.arrayContaining([maker.userId, changer.userId]));
    const vote = { decision: 'approve', reason: 'fine' };
    for (const hold of [before, after]) {
      for (const who of [maker, changer]) {
        expect(await code(who, `POST /v1/escrow/${hold.id}/vote`, vote)).toBe('FORBIDDEN');
      }
      await server.call(200, `POST /v1/escrow/${hold.id}/vote`, third, vote);
    }
    // an agent that it cannot name, or not in this role
    for (const [id, role] of [
      ['other', 'clerk'],
      ['bot-1', 'boss'],
    ] as const) {
      await server.call(200, `POST /v1/escrow/${(await open(id, role)).id}/vote`, maker, vote);
    }
  });
});

describe('what a former admin set up', () => {
  const names = { agent_id_claim: 'sub', agent_role_claim: 'role', agent_ids: ['bot-*'], agent_roles: ['clerk'] };
  const hook = {
    ...{ url: 'https://hooks.example.invalid/in', secret: 'a signing secret', destination_type: 'webhook' },
    ...{ event_types: [], active: true },
  };
  type Sub = { id: string; active: boolean; created_by: string; owner_id: string };

  async function setUp() {
    const own = await server.tenant();
    const [former, other] = [await own.person('admin'), await own.person('admin')];
    const key = await server.call<{ key: string; id: string }>(201, 'POST /v1/keys', former, {
      ...{ label: 'theirs', scopes: ['admin'] },
    });
    const make = async (who: Credential) =>
      (await server.call<Sub>(201, 'POST /v1/subscriptions', who, { ...hook, destination_config: {} })).body;
    // by hand, with a key, and another's that sends where the former admin chose since
    const [mine, byKey, theirs, moved] = [
      await make(former),
      await make({ key: key.body.key }),
      await make(other),
      await make(other),
    ];
    expect(byKey).toMatchObject({ created_by: key.body.id, owner_id: key.body.id });
    await server.call(200, `PATCH /v1/subscriptions/${moved.id}`, former, { url: 'https://former.example.invalid/' });
    const issuers = [issuer.issuer, 'https://other.example'].map((name) => ({
      ...{ issuer: name, audience: 'us', jwks_uri: `${issuer.issuer}/jwks`, ...names },
    }));
    const put = (who: Credential, token_issuers: object[]) =>
      server.call(200, 'PUT /v1/settings/token-issuers', who, { token_issuers });
    await put(former, issuers.slice(0, 1));
    await put(other, issuers);
    const trusted = await server.call<{ id: string }>(201, 'POST /v1/workload-trust', former, {
      ...{ label: 'mine', issuer: issuer.issuer, match: GITHUB_MATCH, scopes: ['policies:read'] },
    });
    const read = async () => {
      const { body: subs } = await server.call<{ subscriptions: Sub[] }>(200, 'GET /v1/subscriptions', other);
      const { body: list } = await server.call<{ changed_by: Record<string, string[]> }>(
        200,
        'GET /v1/settings/token-issuers',
        other,
      );
      return {
        active: subs.subscriptions.filter(({ active }) => active).map(({ id }) => id),
        owners: Object.fromEntries(subs.subscriptions.map(({ id, owner_id }) => [id, owner_id])),
        issuers: list.changed_by,
      };
    };
    const { body: left } = await server.call(200, `GET /v1/users/${former.userId}/left-behind`, other);
    expect(left).toEqual({
      workload_trust: [{ id: trusted.body.id, label: 'mine' }],
      token_issuers: [issuer.issuer],
      subscriptions: [mine, byKey, moved].map(({ id }) => ({ id, destination_type: 'webhook', active: true })),
      releases: [],
    });
    return { own, former, other, subs: [mine, byKey, moved], theirs, read };
  }

  test.each(['removed', 'admin no more'])('ends or pauses, for one who is %s', async (how) => {
    const { own, former, other, subs, theirs, read } = await setUp();
    if (how === 'removed') await server.call(204, `DELETE /v1/team/${former.userId}`, other);
    else await server.call(200, `DELETE /v1/users/${former.userId}/roles/admin`, other);
    expect(await read()).toMatchObject({ active: [theirs.id], issuers: { 'https://other.example': [other.userId] } });
    expect((await read()).issuers).not.toHaveProperty(issuer.issuer);
    const action = how === 'removed' ? 'member.removed' : 'role.revoked';
    const { body: log } = await server.call<{ records: { detail: string }[] }>(
      200,
      `GET /v1/audit?action=${action}&limit=1`,
      other,
    );
    for (const said of [...subs.map(({ id }) => id), issuer.issuer]) expect(log.records[0]!.detail).toContain(said);
    // nothing is sent to a former admin; whoever resumes it answers for it from then on
    expect(
      await sql(server, `select 1 from delivery_lane where tenant_id = $1 and leased_until is not null`, [own.id]),
    ).toEqual([]);
    const { body: resumed } = await server.call<Sub>(200, `PATCH /v1/subscriptions/${subs[0]!.id}`, other, {
      active: true,
    });
    expect(resumed).toMatchObject({ active: true, created_by: former.userId, owner_id: other.userId });
  });

  test('goes on where another admin takes it over', async () => {
    const { former, other, subs, theirs, read } = await setUp();
    await server.call(204, `DELETE /v1/team/${former.userId}?take_over=true`, other);
    const { active, owners, issuers } = await read();
    expect(active.sort()).toEqual([...subs, theirs].map(({ id }) => id).sort());
    expect(new Set(Object.values(owners))).toEqual(new Set([other.userId]));
    expect(issuers).toEqual({
      [issuer.issuer]: [former.userId, other.userId],
      'https://other.example': [other.userId],
    });
  });
});

test('nothing is trusted for somebody who ceased to be an admin while it was fetched', async () => {
  const owner = await server.tenant();
  const slow = await TokenIssuer.start();
  let reached = () => {};
  let release = () => {};
  slow.answer['/jwks'] = (_, response) => {
    release = () =>
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ keys: [slow.publicKey] }));
    reached();
  };
  /** Sends the change, ends its right while the keys are fetched, and resolves to the answer's status. */
  const meanwhile = async (line: string, who: Credential, body: object, end: () => Promise<unknown>) => {
    const fetched = new Promise<void>((resolve) => {
      reached = resolve;
    });
    const answer = server.call(403, line, who, body);
    await fetched;
    await end();
    release();
    return (await answer).body.code;
  };
  const jwks_uri = `${slow.issuer}/jwks`;
  const agents = { agent_id_claim: 'sub', agent_role_claim: 'role', agent_ids: ['*'], agent_roles: ['*'] };
  const issuers = { token_issuers: [{ issuer: 'https://late.test', audience: 'a', jwks_uri, ...agents }] };
  const person = await owner.person('admin');
  const demote = () => server.call(200, `DELETE /v1/users/${person.userId}/roles/admin`, owner.admin);
  expect(await meanwhile('PUT /v1/settings/token-issuers', person, issuers, demote)).toBe('FORBIDDEN');
  const trusted = { label: 'late', issuer: slow.issuer, jwks_uri, match: GITHUB_MATCH, scopes: ['policies:read'] };
  for (const [line, body] of [
    ['PUT /v1/settings/token-issuers', issuers],
    ['POST /v1/workload-trust', trusted],
  ] as const) {
    const { body: made } = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', owner.operatorKey, {
      label: 'late',
      scopes: ['admin'],
    });
    const revoke = () => server.call(204, `DELETE /v1/keys/${made.id}`, owner.admin);
    expect(await meanwhile(line, { key: made.key }, body, revoke)).toBe('FORBIDDEN');
  }
  expect((await server.call(200, 'GET /v1/settings/token-issuers', owner.admin)).body.token_issuers).toEqual([]);
  expect((await server.call(200, 'GET /v1/workload-trust', owner.admin)).text).not.toContain(slow.issuer);
});

describe('what may be trusted', () => {
  const write = ['policies:read', 'policies:write'] as const;
  test.each<[object, readonly ('policies:read' | 'policies:write')[], string | undefined]>([
    [GITHUB_MATCH, write, undefined],
    [{ project_id: '7', ref: 'main', ref_protected: 'true' }, write, undefined],
    [{ sub: 'system:serviceaccount:ci:policies' }, write, undefined],
    [{ sub: 'spiffe://acme.example/ci/policies' }, write, undefined],
    [{ sub: '104212345678901234567' }, write, undefined],
    [{ sub: '0b7cbcf4-6b0e-4f5b-9a0d-3d1a2b3c4d5e' }, write, undefined],
    [{ sub: '0oa8k2xq7vGq1RZxQ5d7' }, write, undefined],
    [{ sub: 'repo:acme/policies:pull_request', repository_id: '7001' }, ['policies:read'], undefined],
    [{ sub: 'repo:acme/policies:ref:refs/heads/main', repository_id: '7001' }, write, 'needs ref, ref_path'],
    [{ repository_id: '1', ref: 'refs/heads/release/*' }, write, undefined],
    [{ repository_id: '1', job_workflow_ref: 'a/b/.github/workflows/p.yml@*', environment: 'prod' }, write, undefined],
    [{ repository_owner_id: '42' }, ['policies:read'], undefined],
    [{ repository_owner_id: '42', ref: 'refs/heads/main' }, write, 'one repository or project'],
    [{ repository: 'acme/policies', ref: 'refs/heads/main' }, write, 'also match repository_id'],
    [{ sub: 'repo:acme/policies:ref:refs/heads/main' }, write, 'must say whose token it is'],
    [{ sub: 'system:*' }, write, 'must be exact'],
    [{ repository_id: '70*' }, write, 'must be exact'],
    [{ repository_id: '1', ref: '*' }, write, 'needs a prefix'],
    [{ repository_id: '1', ref: 'refs/heads/main*' }, write, 'needs a prefix'],
    [{ repository_id: '1', ref: 'refs/*' }, write, 'pull requests'],
    [{ repository_id: '1', ref: 'refs/*/main' }, write, 'at its end'],
    [{ repository_id: '1' }, write, 'needs ref, ref_path or environment'],
    [{ repository_id: '1', aud: 'x' }, ['policies:read'], 'cannot be matched'],
    [{ actor: 'octocat', repository_id: '1' }, ['policies:read'], 'also match actor_id'],
  ])('%j with %j: %s', (match, scopes, fault) => {
    const faults = faultsOfMatch(match as never, scopes).map(({ message }) => message);
    if (fault === undefined) expect(faults).toEqual([]);
    else expect(faults.join()).toContain(fault);
  });

  // what the template of a repository can make of GitHub's claims, GitLab's project settings, and other shared issuers
  test.each([
    'repo:acme/policies',
    'repo:acme/policies:ref:refs/heads/main',
    'repo:acme/policies:environment:production',
    'repo:acme@42/policies@7001:ref:refs/heads/main',
    'repo:acme@42/policies@7001',
    'repository:acme/policies',
    'repository_id:7001',
    'repository_id:7001:ref:refs/heads/main',
    'repository_owner:acme',
    'repository_owner:acme:repository_visibility:private',
    'repository_owner_id:42',
    'repository_visibility:private',
    'enterprise:acme',
    'enterprise_id:3',
    'actor:octocat',
    'actor_id:5',
    'job_workflow_ref:acme/shared/.github/workflows/policies.yml@refs/heads/main',
    'workflow_ref:acme/policies/.github/workflows/p.yml@refs/heads/main',
    'workflow:policies',
    'environment:production',
    'environment:production:repository_id:7001',
    'ref:refs/heads/main',
    'ref_type:branch',
    'event_name:push',
    'pull_request',
    'runner_environment:self-hosted',
    'run_id:991',
    'sha:0123456789abcdef0123456789abcdef01234567',
    'repo_property_team:payments',
    'REPO:acme/policies',
    ' repo:acme/policies',
    'repo%3Aacme/policies',
    'project_path:acme/policies:ref_type:branch:ref:main',
    'project_path:acme/policies',
    'organization:acme:project:policies:workspace:main:run_phase:apply',
    'owner:acme:project:policies:environment:production',
    'policies@acme.example',
    'policies',
    'octocat',
    'abcdefghijklmnopqrstuvwxyz',
    'system:serviceaccount:ci',
    'system:serviceaccount:ci:policies:x',
    'system:node:worker-1',
    'xsystem:serviceaccount:ci:policies',
    'spiffe://acme.example',
    'spiffe:acme',
    'spiffe://acme.example/ci:x',
    '104212345678901234567\n',
  ])('a sub that a stranger may have says of nobody whose token it is: %j', (sub) => {
    for (const scopes of [['policies:read'], write] as const) {
      const faults = faultsOfMatch({ sub, ref: 'refs/heads/main' }, scopes);
      expect(faults[0]).toEqual({ claim: '', message: expect.stringContaining('must say whose token it is') });
    }
    expect(faultsOfMatch({ sub, ref: 'refs/heads/main', repository_id: '7001' }, write)).toEqual([]);
  });

  test('so the run of a stranger who gave it the same sub gets nothing, whoever trusts that sub', async () => {
    const own = await server.tenant();
    const sub = 'job_workflow_ref:acme/shared/.github/workflows/policies.yml@refs/heads/main';
    const body = { label: 'x', issuer: issuer.issuer, match: { sub } as object, scopes: ['policies:write'] };
    const refused = await server.call(400, 'POST /v1/workload-trust', own.admin, body);
    expect(JSON.stringify(refused.body)).toContain('must say whose token it is');
    const match = { sub, repository_id: '7001', ref: 'refs/heads/main' };
    await server.call(201, 'POST /v1/workload-trust', own.admin, { ...body, match });
    const ours = { ...GITHUB_RUN, sub, aud: audienceOf(server, own) };
    // a template and a call of the public workflow: every claim but the ids can be had
    const stranger = { ...ours, repository: 'evil/fork', repository_id: '666', repository_owner_id: '13' };
    await exchange(401, await issuer.sign(stranger), 'policies:write');
    await exchange(200, await issuer.sign(ours), 'policies:write');
  });

  test('is refused with the place of each fault', async () => {
    const body = { label: 'x', issuer: issuer.issuer, match: { repository: 'a/b' }, scopes: ['policies:write'] };
    const refused = await server.call<{ errors: { pointer: string }[] }>(
      400,
      'POST /v1/workload-trust',
      tenant.admin,
      body,
    );
    expect(refused.body.errors.map(({ pointer }) => pointer)).toEqual([
      '/match/repository',
      '/match',
      '/match',
      '/match',
    ]);
  });

  test('a claim of the prototype is none, and an empty match fits nothing', () => {
    expect(matches({ constructor: 'x' }, {})).toBe(false);
    expect(matches({}, { sub: 'x' })).toBe(false);
    expect(matches({ ref: 'refs/heads/release/*' }, { ref: 'refs/heads/release/' })).toBe(false);
    expect(matches({ ref: 'refs/heads/release/*' }, { ref: 'refs/heads/release/1' })).toBe(true);
  });

  test('a merge request of GitLab does not write, a push does', () => {
    const job = { project_id: '7', pipeline_source: 'push', ref: 'main', ref_path: 'refs/heads/main' };
    expect(writingRefused(job)).toBeUndefined();
    for (const pipeline_source of ['merge_request_event', 'external_pull_request_event', 'parent_pipeline', 7]) {
      expect(writingRefused({ ...job, pipeline_source })).toBeDefined();
    }
    expect(writingRefused({ ...job, ref_path: 'refs/merge-requests/1/head' })).toBeDefined();
  });

  test('what a token says is taken over only where it is plain', () => {
    const github = 'https://token.actions.githubusercontent.com';
    expect(provenSource(github, GITHUB_RUN)).toMatchObject({
      run_url: 'https://github.com/acme/policies/actions/runs/991',
    });
    expect(provenSource('https://git.example/_services/token', GITHUB_RUN).run_url).toMatch(
      /^https:\/\/git\.example\//,
    );
    expect(
      provenSource('https://gitlab.example', {
        ...{ project_path: 'g/sub/p', job_id: '5', user_login: 'ann', sha: 'ab12cd34', ref: 'main' },
      }),
    ).toEqual({
      ...{ repo: 'g/sub/p', commit: 'ab12cd34', ref: 'main', actor: 'ann' },
      run_url: 'https://gitlab.example/g/sub/p/-/jobs/5',
    });
    const hostile = { ...GITHUB_RUN, repository: 'acme/p"><script>', run_id: '1/../..', actor: 'a\u202eb', sub: 'x y' };
    expect(provenSource(github, hostile)).toEqual({ commit: GITHUB_RUN.sha, ref: 'refs/heads/main' });
  });
});
