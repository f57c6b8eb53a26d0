import { describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';

const server = useServer();
const PERMIT = 'permit(principal in AgentRole::"support", action, resource);';
const FORBID = 'forbid(principal, action, resource == Tool::"wipe");';

interface PolicyAnswer {
  id: string;
  status: string;
  version: number;
  live_version: number | null;
  versions: {
    version: number;
    change: string;
    live: boolean;
    rolled_back_from?: number;
    review?: { status: string };
  }[];
}

describe('without required approval', () => {
  test('a draft is approved at once, a change is enforced at once, and a rollback is a new version', async () => {
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

describe('with required approval', () => {
  test('only another person approves, only the version that they saw, and until then the old one is enforced', async () => {
    const tenant = await server.tenant();
    await server.call(200, 'PATCH /v1/settings', tenant.admin, { approval_required: true });
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
    const glass = await server.call<PolicyAnswer>(200, 'POST /v1/policies/p/break-glass', chief, {
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
    await server.call(200, 'POST /v1/policies/p/break-glass', chief, { reason: 'incident' });
    await server.call(403, 'POST /v1/policies/p/approve', chief, { version: 5 });
    await server.call(200, 'POST /v1/policies/p/approve', approver, { version: 5 });
    expect(await toReview('break_glass')).toMatchObject({ ids: [], total: 0 });
    await server.call(200, 'DELETE /v1/policies/p', chief, { reason: 'over' });
    const audit = await server.call<{
      records: { action: string; severity: string; reason?: string; detail: string }[];
    }>(200, 'GET /v1/audit?target_id=p', chief);
    expect(audit.body.records.map((r) => r.action)).toEqual([
      'policy.revoked',
      'policy.approved',
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
    expect(audit.body.records[2]).toMatchObject({
      severity: 'critical',
      reason: 'incident',
      detail: 'version 5, in place of version 3',
    });
    expect(audit.body.records.slice(0, 5).map(({ detail }) => detail)).toEqual([
      'version 5',
      'version 5',
      'version 5, in place of version 3',
      'version 5, from version 3',
      'version 4',
    ]);
  });
});
