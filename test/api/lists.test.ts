import { beforeAll, describe, expect, test } from 'vitest';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

interface ListAnswer {
  version: number;
  live_version: number | null;
  newest: { count: number; added: number; removed: number; status: string; hash: string };
  versions: { version: number; status: string }[];
  used_by: string[];
  values: string[];
  next: string | null;
}

const POLICY =
  '@id("known") permit(principal, action, resource == Tool::"pay") when { context.facts.hasTag("to in known") };';
const put = (who: Credential, status: number, values: unknown, version: number, name = 'known') =>
  server.call<ListAnswer>(status, `PUT /v1/lists/${name}`, who, { values, version });
const bundleHash = async (who: Credential) =>
  (await server.call(200, 'GET /v1/policies/bundle', who)).headers.get('x-svc-bundle-hash');
const records = async (who: Credential) =>
  (
    await server.call<{ records: { action: string; detail: string; before_hash?: string; after_hash?: string }[] }>(
      200,
      'GET /v1/audit?target_id=known',
      who,
    )
  ).body.records;

describe('a reference list', () => {
  /** Has no list: for what is refused. */
  let none: Credential;
  beforeAll(async () => {
    none = (await server.tenant()).admin;
  });

  test('is normalized and counted, found by a part and by pages, and compared by version', async () => {
    const { admin } = await server.tenant();
    const first = await put(admin, 200, ['b', 'a', 'b', 'Zu\u0308rich', 'Z\u00fcrich'], 0);
    expect(first.body).toMatchObject({ version: 1, live_version: 1, newest: { count: 3, added: 3, removed: 0 } });
    expect(first.body.newest.hash).toBe(sha256Tag(canonicalJson(['Z\u00fcrich', 'a', 'b'])));
    expect((await put(admin, 200, ['Z\u00fcrich', 'b', 'a'], 1)).body.version).toBe(1);
    await put(admin, 200, ['a', 'c'], 1);
    const page = await server.call<ListAnswer>(200, 'GET /v1/lists/known?limit=2&version=1', admin);
    expect(page.body.values).toEqual(['Z\u00fcrich', 'a']);
    const rest = await server.call<ListAnswer>(
      200,
      `GET /v1/lists/known?limit=2&version=1&after=${page.body.next}`,
      admin,
    );
    expect([rest.body.values, rest.body.next]).toEqual([['b'], null]);
    const found = await server.call<ListAnswer>(200, 'GET /v1/lists/known?version=1&q=z%C3%BC', admin);
    expect(found.body.values).toEqual(['Z\u00fcrich']);
    expect((await server.call(200, 'GET /v1/lists/known/diff?from=1&to=2', admin)).body).toMatchObject({
      added: { values: ['c'], total: 1 },
      removed: { values: ['Z\u00fcrich', 'b'], total: 2 },
    });
    const log = await records(admin);
    expect(log.map(({ action, detail }) => [action, detail])).toEqual([
      ['list.changed', 'version 2, 2 values, 1 added, 2 removed, enforced'],
      ['list.changed', 'version 1, 3 values, 3 added, 0 removed, enforced'],
    ]);
    expect(log[0]!.before_hash).toBe(log[1]!.after_hash);
  });

  test('takes no version that the caller has not seen', async () => {
    const { admin } = await server.tenant();
    await put(admin, 409, ['a'], 1);
    await put(admin, 200, ['a'], 0);
    expect((await put(admin, 409, ['b'], 0)).body).toMatchObject({ code: 'VERSION_CHANGED' });
    const both = await Promise.all([1, 2].map((n) => asked(admin, { values: [`b${n}`], version: 1 })));
    expect(both.sort()).toEqual([200, 409]);
  });

  test.each(['known.ibans', 'known:ibans', 'Known', '__proto__', '-a', 'a'.repeat(65)])(
    'cannot be called %s',
    async (name) => {
      await put(none, 400, ['a'], 0, name);
    },
  );

  test('may be called like a property of every object', async () => {
    const { admin } = await server.tenant();
    await put(admin, 200, ['a'], 0, 'constructor');
    const text = POLICY.replace('to in known', 'to in constructor');
    await deploy(server, admin, 'p', text);
    await server.call(422, 'POST /v1/policies', admin, { dsl_source: text.replace('constructor', 'valueof') });
  });

  test.each([['\ud800'], ['a\0'], ['\ufffd'], [''], ['x'.repeat(513)], [1], [null]])(
    'has no value such as %j',
    async (value) => {
      const { body } = await put(none, 400, ['a', value], 0);
      expect(body).toMatchObject({ code: 'VALIDATION_FAILED', errors: [{ pointer: '/values/1' }] });
    },
  );

  test('has at most 50,000 values and 4 MiB, and takes as many as that', async () => {
    const { admin } = await server.tenant();
    const many = Array.from({ length: 50_000 }, (_, n) => `DE${String(n).padStart(30, '0')}`);
    expect((await put(admin, 200, many, 0)).body.newest.count).toBe(50_000);
    await put(admin, 400, [...many, 'one more'], 1);
    await put(
      admin,
      413,
      many.map((value) => value.padEnd(512, 'x')),
      1,
    );
    await put(
      admin,
      400,
      many.slice(0, 8_190).map((value) => value.padEnd(512, 'x')),
      1,
    );
    expect((await server.call<ListAnswer>(200, 'GET /v1/lists/known', admin)).body.version).toBe(1);
  });
});

/** The status of an answer to a change of the list. */
async function asked({ key }: Credential, body: unknown): Promise<number> {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const url = `${server.url}/v1/lists/known`;
  return (await fetch(url, { method: 'PUT', headers, body: JSON.stringify(body) })).status;
}

describe('policies and lists', () => {
  test('a text must name a list that exists, with the place of the name', async () => {
    const { admin } = await server.tenant();
    await put(admin, 200, ['a'], 0);
    const wrong = POLICY.replace('in known', 'in knwon');
    const { body } = await server.call(422, 'POST /v1/policies', admin, { dsl_source: wrong });
    expect(body).toMatchObject({
      code: 'POLICY_INVALID',
      errors: [{ line: 1, column: 93, message: 'there is no list "knwon"; did you mean "known"?' }],
    });
  });

  test('another tenant has other lists', async () => {
    const [one, other] = [await server.tenant(), await server.tenant()];
    await put(one.admin, 200, ['a'], 0);
    await server.call(404, 'GET /v1/lists/known', other.admin);
    expect((await server.call(200, 'GET /v1/lists', other.admin)).body).toEqual({ lists: [] });
    await server.call(422, 'POST /v1/policies', other.admin, { dsl_source: POLICY });
    await put(other.admin, 200, ['b'], 0);
    expect((await server.call<ListAnswer>(200, 'GET /v1/lists/known', one.admin)).body.values).toEqual(['a']);
  });

  test('a list is part of the bundle while a live policy names it, and is not deleted meanwhile', async () => {
    const { admin } = await server.tenant();
    const empty = await bundleHash(admin);
    await put(admin, 200, ['a'], 0);
    expect(await bundleHash(admin)).toBe(empty);
    await deploy(server, admin, 'p', POLICY);
    const with1 = await bundleHash(admin);
    await put(admin, 200, ['a', 'b'], 1);
    expect(await bundleHash(admin)).not.toBe(with1);
    expect((await server.call(200, 'GET /v1/lists', admin)).body).toMatchObject({
      lists: [{ name: 'known', used_by: ['p'] }],
    });
    expect((await server.call(409, 'DELETE /v1/lists/known', admin)).body).toMatchObject({ code: 'CONFLICT' });
    await server.call(200, 'DELETE /v1/policies/p', admin);
    await server.call(204, 'DELETE /v1/lists/known', admin, { reason: 'nothing names it' });
    const { body } = await server.call<{ records: unknown[] }>(200, 'GET /v1/audit?action=list.deleted', admin);
    expect(body.records).toMatchObject([{ reason: 'nothing names it' }]);
    await server.call(404, 'GET /v1/lists/known', admin);
    expect(await bundleHash(admin)).toBe(empty);
    await server.call(422, 'PUT /v1/policies/p', admin, { dsl_source: POLICY });
    // a version is not used twice
    expect((await put(admin, 200, ['c'], 0)).body).toMatchObject({ version: 3, newest: { added: 1, removed: 0 } });
  });

  test('a draft is not enforced once its list is gone', async () => {
    const { admin } = await server.tenant();
    await put(admin, 200, ['a'], 0);
    await server.call(201, 'POST /v1/policies', admin, { id: 'p', dsl_source: POLICY });
    await server.call(204, 'DELETE /v1/lists/known', admin);
    await server.call(422, 'POST /v1/policies/p/approve', admin, { version: 1 });
  });

  test('a text is tried with the lists', async () => {
    const { admin } = await server.tenant();
    await put(admin, 200, ['Z\u00fcrich'], 0);
    const verdict = async (to: string) => {
      const request = { agent_id: 'a', agent_role: 'r', action_type: 'tool_call', tool_name: 'pay', arguments: { to } };
      const { body } = await server.call(200, 'POST /v1/policies/try', admin, { dsl_source: POLICY, request });
      return (body.verdict as { decision: string }).decision;
    };
    expect([await verdict('Zu\u0308rich'), await verdict('Basel')]).toEqual(['allow', 'deny']);
  });

  test('values that were changed in the database are in no bundle', async () => {
    const tenant = await server.tenant();
    const { admin } = tenant;
    await put(admin, 200, ['a'], 0);
    await deploy(server, admin, 'p', POLICY);
    await bundleHash(admin);
    await sql(server, `update reference_list_version set items = '{a,evil}' where tenant_id = $1`, [tenant.id]);
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: `${POLICY}\n` });
    await server.call(503, 'GET /v1/policies/bundle', admin);
  });
});

describe('where approval is required', () => {
  test('a version waits for another person than its author, and the live one is used meanwhile', async () => {
    const tenant = await server.tenant();
    const { admin } = tenant;
    await put(admin, 200, ['a'], 0);
    await deploy(server, admin, 'p', POLICY);
    const before = await bundleHash(admin);
    await tenant.set({ approval_required: true });
    const [author, approver] = [await tenant.person('author', 'approver'), await tenant.person('approver')];
    const waiting = await put(author, 200, ['a', 'b'], 1);
    expect(waiting.body).toMatchObject({ version: 2, live_version: 1, newest: { status: 'pending' } });
    expect(await bundleHash(admin)).toBe(before);
    const own = await server.call(403, 'POST /v1/lists/known/approve', author, { version: 2 });
    expect(own.body).toMatchObject({ code: 'SELF_APPROVAL' });
    await server.call(409, 'POST /v1/lists/known/approve', approver, { version: 1 });
    await server.call(403, 'POST /v1/lists/known/approve', await tenant.person('author'), { version: 2 });
    const approved = await server.call<ListAnswer>(200, 'POST /v1/lists/known/approve', approver, { version: 2 });
    expect(approved.body).toMatchObject({ live_version: 2, newest: { status: 'approved' } });
    expect(await bundleHash(admin)).not.toBe(before);
    await server.call(409, 'POST /v1/lists/known/approve', approver, { version: 2 });
    expect((await records(admin)).map(({ action, detail }) => [action, detail])).toEqual([
      ['list.approved', 'version 2, 2 values, enforced'],
      ['list.approval_refused', 'a person who wrote a version of a list since the last approval cannot approve it'],
      ['list.changed', 'version 2, 2 values, 1 added, 0 removed, waits for approval'],
      ['list.changed', 'version 1, 1 values, 1 added, 0 removed, enforced'],
    ]);
  });

  test('a value is not approved by the person who brought it in, whoever edits the list after that', async () => {
    const tenant = await server.tenant();
    const [author, other] = [await tenant.person('author', 'approver'), await tenant.person('author', 'approver')];
    const approver = await tenant.person('approver');
    const decide = (who: Credential, status: number, verdict: 'approve' | 'reject', version: number) =>
      server.call<ListAnswer>(status, `POST /v1/lists/known/${verdict}`, who, {
        version,
        ...(verdict === 'reject' && { reason: 'not ours' }),
      });
    await tenant.set({ approval_required: true });
    await put(author, 200, ['evil'], 0);
    await put(other, 200, ['evil', 'a'], 1);
    await decide(author, 403, 'approve', 2);
    await decide(approver, 200, 'approve', 2);
    // from then on only what is newer counts
    await put(other, 200, ['a'], 2);
    await decide(author, 200, 'approve', 3);

    await put(author, 200, ['a', 'evil'], 3);
    await decide(other, 200, 'reject', 4);
    expect((await server.call<ListAnswer>(200, 'GET /v1/lists/known', other)).body.values).toEqual(['a']);
    const repeated = await put(other, 200, ['a', 'b', 'evil'], 4);
    expect(repeated.body.newest).toMatchObject({ added: 2, removed: 0 });
    await decide(author, 403, 'approve', 5);
    await decide(approver, 200, 'approve', 5);
  });

  test('a rejected version is never live, and a policy waits for a list without an approved version', async () => {
    const tenant = await server.tenant();
    const [author, approver] = [await tenant.person('author'), await tenant.person('approver')];
    await tenant.set({ approval_required: true });
    await put(author, 200, ['a'], 0);
    await server.call(201, 'POST /v1/policies', author, { id: 'p', dsl_source: POLICY });
    await server.call(200, 'POST /v1/policies/p/submit', author, {});
    const early = await server.call(409, 'POST /v1/policies/p/approve', approver, { version: 1 });
    expect(early.body).toMatchObject({ code: 'CONFLICT', detail: expect.stringContaining('known') });
    const rejected = await server.call<ListAnswer>(200, 'POST /v1/lists/known/reject', approver, {
      version: 1,
      reason: 'not ours',
    });
    expect(rejected.body).toMatchObject({ live_version: null, newest: { status: 'rejected' } });
    await server.call(409, 'POST /v1/lists/known/approve', approver, { version: 1 });
    await put(author, 200, ['a'], 1);
    await server.call(200, 'POST /v1/lists/known/approve', approver, { version: 2 });
    await server.call(200, 'POST /v1/policies/p/approve', approver, { version: 1 });
  });
});
