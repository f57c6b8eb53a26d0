import { describe, expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({ SVC_LIVE_STATEMENTS: '6' });
const PERMIT = 'permit(principal in AgentRole::"support", action, resource);';
const FORBID = 'forbid(principal, action, resource == Tool::"wipe");';

interface PolicyAnswer {
  id: string;
  status: string;
  version: number;
  content_hash: string;
  live_version: number | null;
  versions: {
    version: number;
    change: string;
    live: boolean;
    rolled_back_from?: number;
    review?: { status: string };
  }[];
}

test('line ends and a byte order mark change neither a text nor its hash', async () => {
  const { admin } = await server.tenant();
  const text = `// one\n${PERMIT}\n`;
  const suite =
    'format: svc-tests/1\ntests:\n  - name: "it"\n    request: { agent_role: support, action_type: tool_call, tool_name: b }\n    expect: { decision: allow }\n';
  const elsewhere = (lines: string) => `\uFEFF${lines.replaceAll('\n', '\r\n')}`;
  const made = { dsl_source: text, tests_source: suite };
  const { body } = await server.call<PolicyAnswer>(201, 'POST /v1/policies', admin, { id: 'p', ...made });
  const other = { dsl_source: elsewhere(text), tests_source: elsewhere(suite) };
  const planned = await server.call(200, 'POST /v1/policies/plan', admin, { policies: [{ id: 'p', ...other }] });
  expect(planned.body).toMatchObject({ policies: [{ content_hash: body.content_hash }] });
  const saved = await server.call<PolicyAnswer>(200, 'PUT /v1/policies/p', admin, other);
  expect(saved.body).toMatchObject({ ...made, content_hash: body.content_hash });
  const validated = await server.call(200, 'POST /v1/policies/validate', admin, { dsl_source: elsewhere(text) });
  expect(validated.body).toMatchObject({ valid: true });
});

describe('without required approval', () => {
  test('a draft is approved directly, a change is enforced directly, and a rollback is a new version', async () => {
    const tenant = await server.tenant();
    const { admin } = tenant;
    const draft = await server.call<PolicyAnswer>(201, 'POST /v1/policies', admin, { id: 'p', dsl_source: PERMIT });
    expect(draft.body).toMatchObject({ id: 'p', status: 'draft', version: 1, live_version: null });
    await server.call(409, 'POST /v1/policies', admin, { id: 'p', dsl_source: PERMIT });
    const live = await server.call<PolicyAnswer>(200, 'POST /v1/policies/p/approve', admin, { version: 1 });
    expect(live.body).toMatchObject({ status: 'deployed', live_version: 1 });
    const changed = await server.call<PolicyAnswer>(200, 'PUT /v1/policies/p', admin, { dsl_source: FORBID });
    expect(changed.body).toMatchObject({ status: 'deployed', version: 2, live_version: 2 });
    const back = await server.call<PolicyAnswer>(200, 'POST /v1/policies/p/rollback', admin, { target_version: 1 });
    expect(back.body).toMatchObject({ status: 'deployed', version: 3, live_version: 3 });
    const got = await server.call<PolicyAnswer>(200, 'GET /v1/policies/p', admin);
    expect(got.body.versions.map((v) => [v.version, v.change, v.live])).toEqual([
      [3, 'rollback', true],
      [2, 'update', false],
      [1, 'create', false],
    ]);
    expect(got.body.versions[0]!.rolled_back_from).toBe(1);
    const revoked = await server.call<PolicyAnswer>(200, 'DELETE /v1/policies/p?reason=done', admin);
    expect(revoked.body).toMatchObject({ status: 'revoked', live_version: null });
    await server.call(409, 'DELETE /v1/policies/p', admin);
    const again = await server.call<PolicyAnswer>(200, 'PUT /v1/policies/p', admin, { dsl_source: PERMIT });
    expect(again.body).toMatchObject({ status: 'draft', version: 4, live_version: null });
  });
});

/** Sends a request of which the answer's status is what is asked. */
async function ask<T = Record<string, unknown>>(line: string, { key }: { key: string }, body: unknown) {
  const [method, path] = line.split(' ') as [string, string];
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const answer = await fetch(server.url + path, { method, headers, body: JSON.stringify(body) });
  return { status: answer.status, headers: answer.headers, body: (await answer.json()) as T };
}

test('policies are found by a part of their id or text, and sorted', async () => {
  const { admin } = await server.tenant();
  for (const [id, source] of [
    ['zeta', PERMIT],
    ['alpha', `// 100% off\n${FORBID}`],
    ['Beta', PERMIT],
  ]) {
    await server.call(201, 'POST /v1/policies', admin, { id, dsl_source: source });
  }
  const found = async (query: string, who = admin) => {
    const { body } = await server.call<{ policies: { id: string }[]; total: number }>(
      200,
      `GET /v1/policies?${query}`,
      who,
    );
    expect(body.total).toBe(body.policies.length);
    return body.policies.map(({ id }) => id);
  };
  expect(await found('q=ETA&order=id')).toEqual(['Beta', 'zeta']);
  expect(await found('q=WIPE')).toEqual(['alpha']);
  expect(await found('q=100%25')).toEqual(['alpha']);
  expect(await found('q=1_0%25')).toEqual([]);
  expect(await found('q=permit&status=deployed')).toEqual([]);
  expect(await found('q=a', (await server.tenant()).admin)).toEqual([]);
});

test('policies in force are found whatever the status of their newest version', async () => {
  const tenant = await server.tenant();
  const { admin } = tenant;
  await deploy(server, admin, 'changing', PERMIT);
  await deploy(server, admin, 'settled', PERMIT);
  await tenant.set({ approval_required: true });
  await server.call(201, 'POST /v1/policies', admin, { id: 'idea', dsl_source: PERMIT });
  await server.call(200, 'PUT /v1/policies/changing', admin, { dsl_source: FORBID });
  const found = async (query: string) => {
    const { body } = await server.call<{ policies: { id: string }[]; total: number }>(
      200,
      `GET /v1/policies?order=id&${query}`,
      admin,
    );
    expect(body.total).toBe(body.policies.length);
    return body.policies.map(({ id }) => id);
  };
  expect(await found('enforced=true')).toEqual(['changing', 'settled']);
  expect(await found('enforced=false')).toEqual(['idea']);
  expect(await found('status=deployed')).toEqual(['settled']);
  expect(await found('status=draft&enforced=true')).toEqual(['changing']);
  await server.call(200, 'POST /v1/policies/changing/submit', await tenant.person('author'), {});
  expect(await found('status=pending_approval&enforced=true')).toEqual(['changing']);
  await server.call(400, 'GET /v1/policies?enforced=maybe', admin);

  const taken = await server.call(409, 'POST /v1/policies', admin, { id: 'idea', dsl_source: PERMIT });
  expect(taken.body).toMatchObject({ code: 'CONFLICT', errors: [{ pointer: '/id' }] });
});

describe('a rollback', () => {
  test('to a text that no longer compiles is refused, and changes nothing', async () => {
    const tenant = await server.tenant();
    const { admin } = tenant;
    await tenant.set({ action_types: { read: [], write: ['wire'] } });
    await deploy(server, admin, 'p', 'permit(principal, action == Action::"wire", resource);');
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: PERMIT });
    await tenant.set({ action_types: { read: [], write: [] } });
    const before = await server.call(200, 'GET /v1/policies/p', admin);
    const bundle = await server.call(200, 'GET /v1/policies/bundle', admin);
    const refused = await server.call(422, 'POST /v1/policies/p/rollback', admin, { target_version: 1 });
    expect(refused.body).toMatchObject({ code: 'POLICY_INVALID', errors: [{ line: 1, pointer: '/dsl_source' }] });
    expect((await server.call(200, 'GET /v1/policies/p', admin)).body).toEqual(before.body);
    const after = await server.call(200, 'GET /v1/policies/bundle', admin);
    expect(after.headers.get('x-svc-bundle-hash')).toBe(bundle.headers.get('x-svc-bundle-hash'));
  });
});

describe('a rule that can never apply', () => {
  const NEVER = `${PERMIT}\n@id("never") forbid(principal, action == Action::"write", resource);`;
  const refused = {
    code: 'POLICY_INVALID',
    errors: [
      {
        pointer: '/dsl_source',
        line: 2,
        column: 32,
        message: expect.stringContaining('write action in Action::"write"'),
      },
    ],
  };

  test('is refused in a new policy, in a new version and by validation', async () => {
    const { admin } = await server.tenant();
    expect((await server.call(422, 'POST /v1/policies', admin, { id: 'p', dsl_source: NEVER })).body).toMatchObject(
      refused,
    );
    await server.call(201, 'POST /v1/policies', admin, { id: 'p', dsl_source: PERMIT });
    expect((await server.call(422, 'PUT /v1/policies/p', admin, { dsl_source: NEVER })).body).toMatchObject(refused);
    const answer = await server.call(200, 'POST /v1/policies/validate', admin, { dsl_source: NEVER });
    expect(answer.body).toMatchObject({ valid: false, errors: [{ line: 2, column: 32 }], warnings: [] });
  });

  test('is not approved or enforced in an emergency either, if the action types changed after the draft was saved', async () => {
    const tenant = await server.tenant();
    const { admin } = tenant;
    await tenant.set({ action_types: { read: [], write: ['wire'] } });
    const moved = 'permit(principal, action == Action::"wire", resource) when { action in Action::"write" };';
    await server.call(201, 'POST /v1/policies', admin, { id: 'p', dsl_source: moved });
    await tenant.set({ action_types: { read: ['wire'], write: [] } });
    const answer = await server.call(422, 'POST /v1/policies/p/approve', admin, { version: 1 });
    expect(answer.body).toMatchObject({ code: 'POLICY_INVALID', errors: [{ line: 1, column: 55 }] });
    // nor enforced in an emergency, where it would help nobody
    const person = await tenant.person('admin');
    const broken = await server.call(422, 'POST /v1/policies/p/break-glass', person, {
      version: 1,
      reason: 'an incident',
    });
    expect(broken.body).toMatchObject({ code: 'POLICY_INVALID', errors: [{ line: 1, column: 55 }] });
    expect((await server.call(200, 'GET /v1/policies/p', admin)).body).toMatchObject({
      status: 'draft',
      live_version: null,
    });
    await tenant.set({ action_types: { read: [], write: ['wire'] } });
    await server.call(200, 'POST /v1/policies/p/approve', admin, { version: 1 });
  });
});

describe('what a tenant can use up is bounded', () => {
  test('live statements, by a quota that the error names; removing some is never refused', async () => {
    const { admin } = await server.tenant();
    await deploy(server, admin, 'a', PERMIT.repeat(4));
    await deploy(server, admin, 'b', PERMIT.repeat(2));
    const refused = await server.call(409, 'PUT /v1/policies/b', admin, { dsl_source: PERMIT.repeat(3) });
    expect(refused.body).toMatchObject({
      code: 'CONFLICT',
      detail: expect.stringMatching(/^quota live_statements: .* 7 .* 6 \(SVC_LIVE_STATEMENTS\)$/),
    });
    expect((await server.call(200, 'GET /v1/policies/b', admin)).body).toMatchObject({ version: 1, live_version: 1 });
    // a draft enforces nothing
    await server.call(201, 'POST /v1/policies', admin, { id: 'c', dsl_source: PERMIT });
    await server.call(409, 'POST /v1/policies/c/approve', admin, { version: 1 });
    await server.call(200, 'PUT /v1/policies/a', admin, { dsl_source: PERMIT.repeat(3) });
    // one of two at once
    await server.call(201, 'POST /v1/policies', admin, { id: 'd', dsl_source: PERMIT });
    const answers = await Promise.all(
      ['c', 'd'].map((id) => ask(`POST /v1/policies/${id}/approve`, admin, { version: 1 })),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 409]);
    await sql(server, 'update policy_revision set statement_count = 100 where policy_id = $1', ['b']);
    await server.call(200, 'DELETE /v1/policies/a', admin);
  });

  test('texts waiting to be checked: a tenant with too many gets an error, and no other tenant waits behind it', async () => {
    const [greedy, other] = [await server.tenant(), await server.tenant()];
    const large = Array.from({ length: 150 }, (_, n) => `permit(principal, action, resource == Tool::"t${n}");`).join(
      '\n',
    );
    const flood = Promise.all(
      Array.from({ length: 40 }, () =>
        ask<{ valid: boolean }>('POST /v1/policies/validate', greedy.admin, { dsl_source: large }),
      ),
    );
    const mine = server.call(200, 'POST /v1/policies/validate', other.admin, { dsl_source: PERMIT });
    expect((await mine).body).toMatchObject({ valid: true });
    const answers = await flood;
    const refused = answers.filter(({ status }) => status === 503);
    expect(refused.length).toBeGreaterThan(0);
    for (const { headers, body } of refused) {
      expect(headers.get('retry-after')).toBe('2');
      expect(body).toMatchObject({ code: 'UNAVAILABLE' });
    }
    expect(answers.filter(({ status }) => status === 200).every(({ body }) => body.valid)).toBe(true);
    expect(answers.every(({ status }) => status === 200 || status === 503)).toBe(true);
  });

  test('the comparison of two texts that have nothing in common', async () => {
    const { admin } = await server.tenant();
    const text = (name: string, policy: string) =>
      `${Array.from({ length: 1_900 }, (_, n) => `// ${name} ${n} of what somebody wrote`).join('\n')}\n${policy}\n`;
    await server.call(201, 'POST /v1/policies', admin, { id: 'p', dsl_source: text('old', PERMIT) });
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: text('new', `${PERMIT}\n${FORBID}`) });
    const { body } = await server.call(200, 'GET /v1/policies/p/diff?from=1&to=2', admin);
    expect(body).toMatchObject({
      lines_removed: 1_901,
      lines_added: 1_902,
      rules_added: ['p#1'],
      rules_removed: [],
      rules_changed: [],
    });
    expect(body.unified).toMatch(/^={67}\n--- version 1\n\+\+\+ version 2\n@@ -1,1901 \+1,1902 @@\n-\/\/ old 0 /);
  });
});

describe('with required approval', () => {
  test('only another person approves, only the version that they saw, and until then the old one is enforced', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [author, approver, chief] = [
      await tenant.person('author', 'approver'),
      await tenant.person('approver'),
      await tenant.person('admin'),
    ];
    const pipeline = await tenant.key('pipeline');
    await server.call(201, 'POST /v1/policies', author, { id: 'p', dsl_source: PERMIT });
    const early = await server.call(409, 'POST /v1/policies/p/approve', approver, { version: 1 });
    expect(early.body.code).toBe('INVALID_STATUS');
    await server.call(200, 'POST /v1/policies/p/submit', author, { note: 'please' });
    expect((await server.call(403, 'POST /v1/policies/p/approve', author, { version: 1 })).body.code).toBe(
      'SELF_APPROVAL',
    );
    await server.call(403, 'POST /v1/policies/p/approve', tenant.admin, { version: 1 });
    expect((await server.call(409, 'POST /v1/policies/p/approve', approver, { version: 2 })).body.code).toBe(
      'VERSION_CHANGED',
    );
    await server.call(200, 'POST /v1/policies/p/approve', approver, { version: 1 });
    const draft = await server.call<PolicyAnswer>(200, 'PUT /v1/policies/p', pipeline, { dsl_source: FORBID });
    expect(draft.body).toMatchObject({ status: 'draft', version: 2, live_version: 1 });
    await server.call(200, 'POST /v1/policies/p/submit', author, {});
    const sent = await server.call<PolicyAnswer>(200, 'POST /v1/policies/p/request-changes', approver, {
      version: 2,
      comment: 'too broad',
    });
    expect(sent.body).toMatchObject({ status: 'draft', live_version: 1 });
    await server.call(200, 'POST /v1/policies/p/submit', author, {});
    await server.call(200, 'PUT /v1/policies/p', author, { dsl_source: PERMIT });
    const stale = await server.call(409, 'POST /v1/policies/p/approve', approver, { version: 2 });
    expect(stale.body.code).toBe('VERSION_CHANGED');
    // a key cannot revoke here, nor a person below admin
    await server.call(403, 'DELETE /v1/policies/p', pipeline);
    await server.call(403, 'DELETE /v1/policies/p', author);
    const unread = await server.call(409, 'POST /v1/policies/p/break-glass', chief, { version: 2, reason: 'incident' });
    expect(unread.body.code).toBe('VERSION_CHANGED');
    const glass = await server.call<PolicyAnswer>(200, 'POST /v1/policies/p/break-glass', chief, {
      version: 3,
      reason: 'incident',
    });
    expect(glass.body).toMatchObject({ status: 'deployed', version: 3, live_version: 3 });
    // what somebody must decide on: the broken glass first, though another policy was changed later
    await server.call(201, 'POST /v1/policies', author, { id: 'q', dsl_source: PERMIT });
    await server.call(200, 'POST /v1/policies/q/submit', author, {});
    await server.call(201, 'POST /v1/policies', author, { id: 'r', dsl_source: PERMIT });
    const toReview = async (review: string, more = '') => {
      const { body } = await server.call<{ policies: PolicyAnswer[]; total: number }>(
        200,
        `GET /v1/policies?review=${review}${more}`,
        approver,
      );
      return { ids: body.policies.map(({ id }) => id), total: body.total, first: body.policies[0] };
    };
    const opened = { version: 3, actor: chief.userId, reason: 'incident', opened_at: expect.any(String) };
    expect(await toReview('open')).toMatchObject({ ids: ['p', 'q'], total: 2, first: { open_review: opened } });
    expect(await toReview('open', '&limit=1&offset=1')).toMatchObject({ ids: ['q'], total: 2 });
    expect(await toReview('break_glass')).toMatchObject({ ids: ['p'], total: 1 });
    expect(await toReview('break_glass', '&status=draft')).toMatchObject({ ids: [], total: 0 });
    // a newer draft does not close it, and its reason stays with the version that it was given for
    await server.call(200, 'PUT /v1/policies/p', author, { dsl_source: FORBID });
    expect(await toReview('break_glass')).toMatchObject({
      first: { status: 'draft', version: 4, open_review: opened },
    });
    await server.call(200, 'POST /v1/policies/p/rollback', author, { target_version: 3 });
    await server.call(200, 'POST /v1/policies/p/break-glass', chief, { version: 5, reason: 'incident' });
    // the end of the policy is not the end of its reviews: another person closes each, by its version
    await server.call(200, 'DELETE /v1/policies/p', chief, { reason: 'over' });
    expect(await toReview('break_glass')).toMatchObject({ ids: ['p'], first: { open_review: opened } });
    for (const version of [3, 5]) {
      const own = await server.call(403, 'POST /v1/policies/p/approve', chief, { version });
      expect(own.body.code).toBe('SELF_APPROVAL');
      await server.call(403, 'POST /v1/policies/p/approve', tenant.operatorKey, { version });
      const closed = await server.call(200, 'POST /v1/policies/p/approve', approver, { version, comment: 'seen' });
      expect(closed.body).toMatchObject({ status: 'revoked', version: 5, live_version: null });
    }
    expect(await toReview('break_glass')).toMatchObject({ ids: [], total: 0 });
    await server.call(409, 'POST /v1/policies/p/approve', approver, { version: 5 });
    const { body: after } = await server.call<PolicyAnswer>(200, 'GET /v1/policies/p', chief);
    expect(after.versions.map(({ version, review }) => [version, review?.status])).toEqual([
      [5, 'approved'],
      [4, undefined],
      [3, 'approved'],
      [2, 'dismissed'],
      [1, 'approved'],
    ]);
    const audit = await server.call<{
      records: { action: string; severity: string; reason?: string; detail: string }[];
    }>(200, 'GET /v1/audit?target_id=p', chief);
    expect(audit.body.records.map((r) => r.action)).toEqual([
      'policy.review_closed',
      'policy.review_closed',
      'policy.revoked',
      'policy.break_glass',
      'policy.rolled_back',
      'policy.updated',
      'policy.break_glass',
      'policy.updated',
      'policy.submitted',
      'policy.changes_requested',
      'policy.submitted',
      'policy.updated',
      'policy.approved',
      'policy.submitted',
      'policy.created',
    ]);
    // the simulation of the draft is named where it has ended by then
    const enforced = expect.stringMatching(/^version 5, in place of version 3, (simulation .*, )?enforced$/);
    expect(audit.body.records[3]).toMatchObject({ severity: 'critical', reason: 'incident', detail: enforced });
    expect(audit.body.records.slice(0, 6).map(({ detail }) => detail)).toEqual([
      'version 5',
      'version 3',
      'version 5',
      enforced,
      'version 5, from version 3',
      'version 4',
    ]);
  });
});

describe('one person alone', () => {
  test('has no version enforced, whichever keys, drafts and settings they combine', async () => {
    const tenant = await server.tenant();
    const [admin, other] = [await tenant.person('admin'), await tenant.person('approver')];
    await tenant.set({ approval_required: true });
    const own = {
      key: (await server.call<{ key: string }>(201, 'POST /v1/keys', admin, { label: 'k', scopes: ['admin'] })).body
        .key,
    };
    const status = async () => (await server.call<PolicyAnswer>(200, 'GET /v1/policies/p', admin)).body;
    const approve = (code: number, who: object, version: number) =>
      server.call(code, 'POST /v1/policies/p/approve', who, { version });
    // written by a key of nobody, which the first admin holds as well
    await server.call(201, 'POST /v1/policies', tenant.operatorKey, { id: 'p', dsl_source: PERMIT });
    await server.call(403, 'POST /v1/policies/p/submit', own, {});
    await server.call(200, 'POST /v1/policies/p/submit', admin, {});
    expect((await approve(403, admin, 1)).body.code).toBe('SELF_APPROVAL');
    for (const key of [own, tenant.operatorKey]) expect((await approve(403, key, 1)).body.code).toBe('FORBIDDEN');
    // sent back by themselves and submitted again: still theirs
    await server.call(200, 'POST /v1/policies/p/request-changes', admin, { version: 1, comment: 'x' });
    await server.call(200, 'POST /v1/policies/p/submit', admin, {});
    await approve(403, admin, 1);
    // a settings change that would let them waits for somebody else
    const patch = (body: object) =>
      server.call<{ waiting: object }>(200, 'PATCH /v1/settings', admin, { ...body, reason: 'x' });
    expect((await patch({ self_approval: true })).body.waiting).toMatchObject({ status: 'pending' });
    expect((await patch({ approval_required: null })).body.waiting).toMatchObject({ status: 'pending' });
    await approve(403, admin, 1);
    expect(await status()).toMatchObject({ status: 'pending_approval', live_version: null });
    await approve(200, other, 1);
    expect(await status()).toMatchObject({ live_version: 1 });
  });

  test('never gets a draft of their own live while approval is being switched off', async () => {
    for (let round = 0; round < 5; round++) {
      const tenant = await server.tenant();
      const admin = await tenant.person('admin');
      await server.call(201, 'POST /v1/policies', admin, { id: 'p', dsl_source: PERMIT });
      const headers = { cookie: admin.cookie!, origin: server.origin, 'content-type': 'application/json' };
      const ask = (path: string, method: string, body: object) =>
        fetch(server.url + path, { method, headers, body: JSON.stringify(body) });
      // approved at once while the setting changes: whichever commits first, the audit log tells the same story
      const [approval] = await Promise.all([
        ask('/v1/policies/p/approve', 'POST', { version: 1 }),
        ask('/v1/settings', 'PATCH', { approval_required: true, reason: 'from now on' }),
      ]);
      const { body } = await server.call<{ records: { action: string }[] }>(200, 'GET /v1/audit?limit=2', admin);
      const actions = body.records.map(({ action }) => action);
      expect(actions).toEqual(
        approval!.status === 200 ? ['settings.changed', 'policy.approved'] : ['settings.changed', 'policy.created'],
      );
      expect([200, 409]).toContain(approval!.status);
    }
  });
});

describe('a review', () => {
  interface Comment {
    id: string;
    thread?: string;
    place?: object;
    comment: string;
    decided_by: string;
    resolved?: { by: string };
  }

  test('has threads on lines, which people resolve and open again, and which its approval names', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author');
    const approver = await tenant.person('approver');
    const write = async (dsl_source: string) => {
      await server.call(200, 'PUT /v1/policies/p', author, { dsl_source });
      await server.call(200, 'POST /v1/policies/p/submit', author, {});
    };
    const say = (status: number, body: object, who = approver) =>
      server.call(status, 'POST /v1/policies/p/comments', who, body);
    const comments = async (version: number) => {
      const { body } = await server.call<{ reviews?: Comment[] }>(
        200,
        `GET /v1/policies/p/versions/${version}`,
        author,
      );
      return body.reviews ?? [];
    };
    await server.call(201, 'POST /v1/policies', author, { id: 'p', dsl_source: `// who\n${PERMIT}` });
    await write(`${PERMIT}\n${FORBID}`);

    const at = (line: number, more: object = {}) => ({ part: 'text', line, ...more });
    await say(200, { version: 2, comment: 'why wipe?', place: at(2) });
    await say(200, { version: 2, comment: 'keep this line', place: at(1, { version: 1 }) });
    await say(404, { version: 2, comment: 'x', place: at(3) });
    await say(404, { version: 2, comment: 'x', place: at(1, { version: 3 }) });
    await say(404, { version: 2, comment: 'x', place: { part: 'tests', line: 1 } });
    await say(404, { version: 2, comment: 'x', reply_to: 'cmt_none' });
    await say(409, { version: 1, comment: 'x' });
    const [first, second] = (await comments(2)) as [Comment, Comment];
    expect(first).toMatchObject({
      ...{ comment: 'why wipe?', decided_by: approver.userId },
      place: { part: 'text', version: 2, line: 2, quote: FORBID },
    });
    expect(second.place).toMatchObject({ version: 1, line: 1, quote: '// who' });
    await say(200, { version: 2, comment: 'nobody wipes', reply_to: first.id }, author);
    const answer = (await comments(2)).at(-1)!;
    expect(answer).toMatchObject({ thread: first.id, decided_by: author.userId });
    // an answer begins no thread
    await say(404, { version: 2, comment: 'x', reply_to: answer.id });
    await say(400, { version: 2, comment: 'x', reply_to: first.id, place: at(1) });

    const resolve = (status: number, id: string, resolved: boolean, who = author, version = 2) =>
      server.call(status, `POST /v1/policies/p/comments/${id}/resolve`, who, { version, resolved });
    await resolve(200, first.id, true);
    await resolve(200, first.id, true, approver);
    expect((await comments(2))[0]!.resolved).toMatchObject({ by: author.userId });
    await resolve(200, first.id, false, approver);
    expect((await comments(2))[0]!.resolved).toBeUndefined();
    await resolve(404, answer.id, true);
    await resolve(404, first.id, true, author, 1);
    await resolve(200, second.id, true);
    // another tenant's people find neither the policy nor the thread
    const stranger = await (await server.tenant()).person('admin');
    await resolve(404, first.id, true, stranger);

    // a newer version keeps what is open
    await server.call(200, 'POST /v1/policies/p/request-changes', approver, { version: 2, comment: 'see above' });
    await write(PERMIT);
    await say(200, { version: 3, comment: 'wipe is gone', reply_to: first.id }, author);
    expect(await comments(3)).toMatchObject([{ thread: first.id, comment: 'wipe is gone' }]);
    await server.call(200, 'POST /v1/policies/p/approve', approver, { version: 3 });
    const { body } = await server.call<{ records: { action: string; detail: string }[] }>(
      200,
      'GET /v1/audit?target_id=p&limit=12',
      author,
    );
    const said = body.records.map(({ action, detail }) => `${action}: ${detail}`);
    expect(said[0]).toMatch(/^policy.approved: version 3, with 1 unresolved thread,/);
    const of = (action: string) => said.filter((line) => line.startsWith(`policy.${action}:`));
    expect(of('thread_resolved')).toHaveLength(2);
    expect(of('thread_reopened')).toEqual([
      `policy.thread_reopened: version 2, comment ${first.id} on line 2 of the text of version 2`,
    ]);
    expect(of('commented').at(-1)).toBe(
      `policy.commented: version 2, comment ${first.id} on line 2 of the text of version 2`,
    );
  });

  test('keeps what a comment suggests in place of a line, character by character, and changes nothing by it', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author');
    const approver = await tenant.person('approver');
    const dsl_source = `${PERMIT}\n${FORBID}`;
    await server.call(201, 'POST /v1/policies', author, { id: 'p', dsl_source });
    await server.call(200, 'PUT /v1/policies/p', author, { dsl_source: `${dsl_source}\n// more` });
    const say = (status: number, body: object, version = 2) =>
      server.call<{ status: string }>(status, 'POST /v1/policies/p/comments', approver, { version, ...body });
    const place = { part: 'text', line: 2 };
    const suggestion = '\t forbid(principal, action, resource);  \n';
    const { body } = await say(200, { place, suggestion });
    expect(body).toMatchObject({ version: 2, dsl_source: `${dsl_source}\n// more` });
    await say(200, { place, suggestion: '', comment: 'it is not needed' });
    await say(400, { place });
    await say(400, { suggestion });
    await say(400, { suggestion: 'a\0b', place });
    await say(400, { suggestion, place: { ...place, version: 1 } });
    await say(409, { suggestion, place }, 1);
    // of several lines
    const two = { part: 'text', line: 1, end_line: 2 };
    for (const end_line of [0, 1, 102]) await say(400, { comment: 'x', place: { ...place, end_line } });
    await say(404, { comment: 'x', place: { ...two, end_line: 4 } });
    await say(200, { place: two, suggestion: '// none' });
    const read = await server.call<{ reviews: object[] }>(200, 'GET /v1/policies/p/versions/2', author);
    expect(read.body.reviews).toEqual([
      expect.objectContaining({ suggestion, place: { ...place, version: 2, quote: FORBID } }),
      expect.objectContaining({ suggestion: '', comment: 'it is not needed' }),
      expect.objectContaining({
        suggestion: '// none',
        place: { ...two, version: 2, quote: `${PERMIT}\n${FORBID}` },
      }),
    ]);
    expect(read.body.reviews[0]).not.toHaveProperty('comment');
    const log = await server.call<{ records: { detail: string }[] }>(
      200,
      'GET /v1/audit?action=policy.commented&limit=1',
      author,
    );
    expect(log.body.records[0]!.detail).toMatch(
      /^version 2, comment cmt_\S+ with a suggestion on lines 1 to 2 of the text/,
    );
  });

  test('counts everyone who wrote any of a draft as its author, also who suggested a line that another person applied', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [ann, ben, cleo, dan] = [
      await tenant.person('author', 'approver'),
      await tenant.person('author', 'approver'),
      await tenant.person('approver'),
      await tenant.person('approver'),
    ];
    const put = (status: number, who: object, body: object) =>
      server.call<PolicyAnswer>(status, 'PUT /v1/policies/p', who, body);
    const approve = (status: number, who: object, version: number) =>
      server.call(status, 'POST /v1/policies/p/approve', who, { version });
    const suggest = async (version: number, line: number, suggestion: string, who: object) => {
      const place = { part: 'text', line };
      await server.call(200, 'POST /v1/policies/p/comments', who, { version, place, suggestion });
      const path = `GET /v1/policies/p/versions/${version}`;
      return (await server.call<{ reviews: Comment[] }>(200, path, ann)).body.reviews.at(-1)!.id;
    };
    await server.call(201, 'POST /v1/policies', ann, { id: 'p', dsl_source: FORBID });
    await server.call(200, 'POST /v1/policies/p/submit', ann, {});
    await approve(200, ben, 1);

    // the dangerous line is ann's; ben applies harmless ones of hers and of cleo's, and asks for a review
    // a rule with an id is followed into newer versions
    const [B, D] = [`@id("b") ${PERMIT}`, `@id("d") ${PERMIT}`];
    const lines = (...more: string[]) => [PERMIT, ...more].join('\n');
    await put(200, ann, { dsl_source: lines('// a', B) });
    await server.call(200, 'POST /v1/policies/p/submit', ann, {});
    const hers = await suggest(2, 2, '// c', ann);
    const cleos = await suggest(2, 3, D, cleo);
    const dsl_source = lines('// c', B);
    // by somebody who is signed in, on this policy, with what suggests something
    await put(403, await tenant.key('pipeline'), { dsl_source, applies: hers });
    await put(404, ben, { dsl_source, applies: 'cmt_none' });
    await server.call(200, 'POST /v1/policies/p/comments', cleo, { version: 2, comment: 'no suggestion' });
    const plain = (await server.call<{ reviews: Comment[] }>(200, 'GET /v1/policies/p/versions/2', ann)).body;
    await put(404, ben, { dsl_source, applies: plain.reviews.at(-1)!.id });
    await server.call(201, 'POST /v1/policies', ann, { id: 'other', dsl_source: FORBID });
    await server.call(404, 'PUT /v1/policies/other', ben, { dsl_source, applies: hers });
    await put(409, ben, { dsl_source, applies: hers, expected_version: 1 });
    // the version is under review, which ends by it
    expect((await put(200, ben, { dsl_source, applies: hers, expected_version: 2 })).body.version).toBe(3);
    // nothing else may change with it, and nothing but it be said to be hers
    const conflict = async (body: object, detail: RegExp) => {
      expect((await put(409, ben, { applies: cleos, ...body })).body).toMatchObject({
        ...{ code: 'CONFLICT', detail: expect.stringMatching(detail) },
      });
    };
    const tests_source = 'tests: []\n';
    for (const other of [dsl_source, FORBID, lines('// c', D, '// e'), lines('// c', ` ${D}`)]) {
      await conflict({ dsl_source: other }, /more or less than this suggestion/);
    }
    await conflict({ dsl_source: lines('// c', D), tests_source }, /more or less than this suggestion/);
    await conflict({ dsl_source: lines(D, B), applies: hers }, /is resolved/);
    await server.call(200, 'POST /v1/policies/p/comments', cleo, {
      ...{ version: 3, place: { part: 'text', line: 3 }, suggestion: B },
    });
    const same = (await server.call<{ reviews: Comment[] }>(200, 'GET /v1/policies/p/versions/3', ann)).body;
    await conflict({ dsl_source, applies: same.reviews.at(-1)!.id }, /changes nothing/);
    await put(200, ben, { dsl_source: lines('// c', `${B} // x`) });
    await conflict({ dsl_source: lines('// c', D) }, /have changed since/);
    await put(200, ben, { dsl_source });
    await put(200, ben, { dsl_source: lines('// c', D), applies: cleos });
    await server.call(200, 'POST /v1/policies/p/submit', ben, {});
    for (const who of [ann, ben, cleo]) expect((await approve(403, who, 6)).body.code).toBe('SELF_APPROVAL');
    await approve(200, dan, 6);

    // each thread was resolved by applying it; the log names who applied and who suggested
    const { reviews } = (await server.call<{ reviews: Comment[] }>(200, 'GET /v1/policies/p/versions/2', ann)).body;
    const resolvedBy = (id: string) => reviews.find((one) => one.id === id)?.resolved?.by;
    expect([hers, cleos].map(resolvedBy)).toEqual([ben.userId, ben.userId]);
    const { body } = await server.call<{ records: { action: string; detail: string; actor: { id: string } }[] }>(
      200,
      'GET /v1/audit?target_id=p&limit=9',
      ann,
    );
    const of = (action: string) => body.records.filter((record) => record.action === `policy.${action}`);
    expect(of('updated')[0]).toMatchObject({
      actor: { id: ben.userId },
      detail: `version 6, with the suggestion of ${cleo.userId}, comment ${cleos} on line 3 of the text of version 2`,
    });
    expect(of('thread_resolved').map(({ detail }) => detail)).toEqual([
      `version 2, comment ${cleos} with a suggestion on line 3 of the text of version 2, applied in version 6`,
      `version 2, comment ${hers} with a suggestion on line 2 of the text of version 2, applied in version 3`,
    ]);
    // what is enforced was approved: ann may approve what others write after it
    await put(200, ben, { dsl_source: FORBID });
    await server.call(200, 'POST /v1/policies/p/submit', ben, {});
    await approve(200, ann, 7);
  });

  test('counts who wrote a draft as its author again, in whatever way its text comes back', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [ann, ben, cleo, dan] = [
      await tenant.person('author', 'approver'),
      await tenant.person('author', 'approver'),
      await tenant.person('author', 'approver'),
      await tenant.person('approver'),
    ];
    const put = (who: object, dsl_source: string) => server.call(200, 'PUT /v1/policies/p', who, { dsl_source });
    const back = (who: object, target_version: number) =>
      server.call(200, 'POST /v1/policies/p/rollback', who, { target_version, reason: 'as it was' });
    const submit = (who: object) => server.call(200, 'POST /v1/policies/p/submit', who, {});
    const approve = (status: number, who: object, version: number) =>
      server.call(status, 'POST /v1/policies/p/approve', who, { version });
    await server.call(201, 'POST /v1/policies', ann, { id: 'p', dsl_source: FORBID });
    await submit(ann);
    await approve(200, ben, 1);
    // ann's second version is never live; ben's third one is
    await put(ann, PERMIT);
    await put(ben, `${FORBID}\n// three`);
    await submit(ben);
    await approve(200, dan, 3);

    await back(cleo, 2);
    await submit(cleo);
    for (const who of [ann, cleo]) expect((await approve(403, who, 4)).body.code).toBe('SELF_APPROVAL');
    // nor by hand, saved by somebody else and formatted in another way
    await put(ben, FORBID);
    await put(ben, `${PERMIT.replaceAll(', ', ',\n    ')}\n`);
    await submit(ben);
    expect((await approve(403, ann, 6)).body.code).toBe('SELF_APPROVAL');
    await approve(200, dan, 6);

    // ben approved the first version: going back to it needs one other person, who may be its author
    await back(ben, 1);
    await submit(ben);
    expect((await approve(403, ben, 7)).body.code).toBe('SELF_APPROVAL');
    await approve(200, ann, 7);
  });

  test('counts who suggested a change as an author where somebody types it by hand', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [ann, ben, dan] = [
      await tenant.person('author'),
      await tenant.person('author', 'approver'),
      await tenant.person('approver'),
    ];
    const put = (dsl_source: string) => server.call(200, 'PUT /v1/policies/p', ann, { dsl_source });
    const suggest = (version: number, line: number, suggestion: string) =>
      server.call(200, 'POST /v1/policies/p/comments', ben, { version, place: { part: 'text', line }, suggestion });
    const approve = async (status: number, who: object, version: number) => {
      await server.call(200, 'POST /v1/policies/p/submit', ann, {});
      return server.call(status, 'POST /v1/policies/p/approve', who, { version });
    };
    const text = (...lines: string[]) => [PERMIT, ...lines].join('\n');
    await server.call(201, 'POST /v1/policies', ann, { id: 'p', dsl_source: text('// a', '// b') });
    await suggest(1, 2, '  // c');
    // it is not taken up by what only resembles it, nor by what stood there before
    await put(text('// a', '// c and more'));
    await approve(200, ben, 2);
    await put(text('// b'));
    await suggest(3, 2, '// c\n// d');
    await put(text('  // c', '', '// d'));
    expect((await approve(403, ben, 4)).body.code).toBe('SELF_APPROVAL');
    await server.call(200, 'POST /v1/policies/p/approve', dan, { version: 4 });
    // nor is a line that was to go
    await suggest(4, 1, '');
    await put(`// c\n// d\n${FORBID}`);
    expect((await approve(403, ben, 5)).body.code).toBe('SELF_APPROVAL');
  });

  test('counts who suggested a change to a text long ago only where a version has it', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [ann, ben, dan] = [
      await tenant.person('author'),
      await tenant.person('approver'),
      await tenant.person('approver'),
    ];
    const text = (...lines: string[]) => [PERMIT, ...lines, FORBID].join('\n');
    const suggest = (version: number, who: object, suggestion: string) =>
      server.call(200, 'POST /v1/policies/p/comments', who, {
        ...{ version, place: { part: 'text', line: 2 }, suggestion },
      });
    await server.call(201, 'POST /v1/policies', ann, { id: 'p', dsl_source: text('// version 1') });
    for (let version = 1; version < 9; version++) {
      await suggest(version, ben, `// of Ben ${version}`);
      if (version === 1) await suggest(version, dan, '// of Dan');
      await server.call(200, 'PUT /v1/policies/p', ann, { dsl_source: text(`// version ${version + 1}`) });
    }
    await server.call(200, 'PUT /v1/policies/p', ann, { dsl_source: text('// of Dan') });
    await server.call(200, 'POST /v1/policies/p/submit', ann, {});
    const { body } = await server.call<{ code: string }>(403, 'POST /v1/policies/p/approve', dan, { version: 10 });
    expect(body.code).toBe('SELF_APPROVAL');
    await server.call(200, 'POST /v1/policies/p/approve', ben, { version: 10 });
  });

  test('counts who suggested a change to a draft before one was enforced, where a later version has it', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [ann, ben, cleo] = [
      await tenant.person('author'),
      await tenant.person('approver'),
      await tenant.person('approver'),
    ];
    const text = (line: string) => [PERMIT, line, FORBID].join('\n');
    const save = (line: string) => server.call(200, 'PUT /v1/policies/p', ann, { dsl_source: text(line) });
    const approve = async (status: number, who: object, version: number) => {
      await server.call(200, 'POST /v1/policies/p/submit', ann, {});
      return server.call(status, 'POST /v1/policies/p/approve', who, { version });
    };
    await server.call(201, 'POST /v1/policies', ann, { id: 'p', dsl_source: text('// version 1') });
    await server.call(200, 'POST /v1/policies/p/comments', ben, {
      ...{ version: 1, place: { part: 'text', line: 2 }, suggestion: '// of Ben' },
    });
    await save('// version 2');
    await approve(200, cleo, 2);
    await save('// of Ben');
    expect((await approve(403, ben, 3)).body.code).toBe('SELF_APPROVAL');
    await server.call(200, 'POST /v1/policies/p/approve', cleo, { version: 3 });
    // what is enforced by now makes nobody an author of what comes after it
    await server.call(200, 'PUT /v1/policies/p', ann, { dsl_source: `${text('// of Ben')}\n// more` });
    await approve(200, ben, 4);
  });

  test('makes nobody an author by a copy of little that they suggested, or of it in another place', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const [ann, ben] = [await tenant.person('author'), await tenant.person('approver')];
    const text = (...lines: string[]) => [PERMIT, ...lines, FORBID].join('\n');
    await server.call(201, 'POST /v1/policies', ann, { id: 'p', dsl_source: text('// a', '//', '// b') });
    const suggest = (line: number, suggestion: string) =>
      server.call(200, 'POST /v1/policies/p/comments', ben, {
        ...{ version: 1, place: { part: 'text', line }, suggestion },
      });
    await suggest(2, '// c');
    await suggest(3, '');
    await suggest(3, '  ');
    // brackets alone, a line beside those that it was to replace, one elsewhere, and another one where a line was to go
    await server.call(200, 'PUT /v1/policies/p', ann, {
      dsl_source: text('// a', '// c', '', '// b', '// c'),
    });
    await server.call(200, 'POST /v1/policies/p/submit', ann, {});
    await server.call(200, 'POST /v1/policies/p/approve', ben, { version: 2 });
  });

  test('says in words what each changed rule does, before and after', async () => {
    const { admin } = await server.tenant();
    const rule = (limit: string) =>
      `@id("small") permit(principal, action, resource == Tool::"refund")\nwhen { context.num.hasTag("amount") && context.num.getTag("amount").lessThan(decimal("${limit}")) };`;
    await server.call(201, 'POST /v1/policies', admin, {
      id: 'p',
      dsl_source: `${rule('50.0')}\n@id("gone") ${FORBID}`,
    });
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: `${rule('75.0')}\n@id("new") ${PERMIT}` });
    const { body } = await server.call<{ rules: object[] }>(200, 'GET /v1/policies/p/diff?from=1&to=2', admin);
    expect(body.rules).toEqual([
      {
        ...{ rule_id: 'p#small', change: 'changed' },
        was: expect.stringContaining('when the argument `amount` is less than 50.'),
        now: expect.stringMatching(
          /^Permits any agent: any action with the tool "refund", when the argument `amount` is less than 75\./,
        ),
      },
      { rule_id: 'p#new', change: 'added', was: null, now: expect.stringContaining('in the role "support"') },
      { rule_id: 'p#gone', change: 'removed', was: expect.stringMatching(/^Denies/), now: null },
    ]);
    // a first version is compared with nothing
    const first = await server.call<{ rules: object[] }>(200, 'GET /v1/policies/p/diff?from=0&to=1', admin);
    expect(first.body.rules).toEqual(
      ['small', 'gone'].map((id) => ({
        ...{ rule_id: `p#${id}`, change: 'added', was: null },
        now: expect.stringMatching(/^(Permits|Denies)/),
      })),
    );
  });

  test('tells an author what obviously fixes a text', async () => {
    const { admin } = await server.tenant();
    const { body } = await server.call(200, 'POST /v1/policies/validate', admin, {
      dsl_source: 'permit(principal, action resource);',
    });
    expect(body.errors).toEqual([
      {
        ...{ line: 1, column: 26, message: 'a comma is missing before `resource`' },
        fix: { title: 'Insert ,', line: 1, column: 25, length: 0, text: ',' },
      },
    ]);
  });
});
