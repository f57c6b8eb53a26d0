import { describe, expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });
const PERMIT = 'permit(principal in AgentRole::"support", action, resource);';
const FORBID = 'forbid(principal, action, resource == Tool::"wipe");';
const SECRET = 'not-yet-said';

interface Pending {
  id: string;
  comment?: string;
}
interface Version {
  reviews?: { id?: string; status: string; comment?: string; decided_by: string; thread?: string; place?: object }[];
}
interface Audited {
  records: { action: string; detail: string }[];
}

/** A policy `p` whose second version is under review, and its people. */
async function review() {
  const tenant = await server.tenant();
  await tenant.set({ approval_required: true });
  const author = await tenant.person('author');
  const approver = await tenant.person('approver');
  const other = await tenant.person('approver');
  const save = async (dsl_source: string) => {
    await server.call(200, 'PUT /v1/policies/p', author, { dsl_source });
    await server.call(200, 'POST /v1/policies/p/submit', author, {});
  };
  await server.call(201, 'POST /v1/policies', author, { id: 'p', dsl_source: PERMIT });
  await save(`${PERMIT}\n${FORBID}`);
  const keep = async (status: number, body: object, who: Credential = approver) =>
    (await server.call<Pending>(status, 'POST /v1/policies/p/pending-comments', who, body)).body;
  const kept = async (who: Credential = approver) =>
    (await server.call<{ comments: Pending[] }>(200, 'GET /v1/policies/p/pending-comments', who)).body.comments;
  const reviews = async (version = 2) =>
    (await server.call<Version>(200, `GET /v1/policies/p/versions/${version}`, author)).body.reviews ?? [];
  const audited = async (limit = 50) =>
    (await server.call<Audited>(200, `GET /v1/audit?target_id=p&limit=${limit}`, author)).body.records;
  const events = async () =>
    (
      await sql<{ payload: Record<string, unknown> }>(
        server,
        `select payload from event_outbox where tenant_id = $1 and event_type like 'policy.%' order by id`,
        [tenant.id],
      )
    ).map(({ payload }) => payload);
  return { tenant, author, approver, other, save, keep, kept, reviews, audited, events };
}

describe('a pending comment', () => {
  test('is its writer’s alone: nobody reads, changes, deletes or sends it, and nothing else tells of it', async () => {
    const { tenant, author, approver, other, keep, kept, audited, events } = await review();
    const before = [await audited(), await events()];
    const one = await keep(201, { version: 2, comment: SECRET, place: { part: 'text', line: 2 } });
    expect(await kept()).toMatchObject([
      { id: one.id, comment: SECRET, place: { version: 2, line: 2, quote: FORBID } },
    ]);
    const path = `/v1/policies/p/pending-comments/${one.id}`;
    const admin = await tenant.person('admin');
    const stranger = await (await server.tenant()).person('admin');
    for (const who of [author, other, admin]) {
      expect(await kept(who)).toEqual([]);
      await server.call(404, `PUT ${path}`, who, { comment: 'mine now' });
      await server.call(404, `DELETE ${path}`, who);
      const send = { version: 2, pending: [one.id] };
      await server.call(409, 'POST /v1/policies/p/pending-comments/send', who, send);
    }
    for (const who of [other, admin]) {
      await server.call(409, 'POST /v1/policies/p/approve', who, { version: 2, pending: [one.id] });
    }
    await server.call(404, 'GET /v1/policies/p/pending-comments', stranger);
    await server.call(404, `DELETE ${path}`, stranger);
    // nor does a key, also one that the person answers for
    await server.call(403, 'GET /v1/policies/p/pending-comments', tenant.admin);
    for (const where of [
      ...['/v1/policies/p', '/v1/policies/p/versions/2', '/v1/policies?q=not-yet', '/v1/audit', '/v1/events'],
      '/v1/find?q=not-yet-said',
    ]) {
      const { text } = await server.call(200, `GET ${where}`, admin);
      expect(text, where).not.toContain(SECRET);
    }
    expect([await audited(), await events()]).toEqual(before);

    await server.call(200, `PUT ${path}`, approver, { comment: 'said better', suggestion: '' });
    expect(await kept()).toMatchObject([{ comment: 'said better', suggestion: '' }]);
    await server.call(400, `PUT ${path}`, approver, {});
    await server.call(204, `DELETE ${path}`, approver);
    await server.call(404, `DELETE ${path}`, approver);
    expect(await kept()).toEqual([]);
    expect(await audited()).toEqual(before[0]);
  });

  test('is on lines, answers a thread of the policy, and there are not too many of them', async () => {
    const { keep, kept, approver, author, reviews } = await review();
    await keep(404, { version: 2, comment: 'x', place: { part: 'text', line: 3 } });
    await keep(404, { version: 3, comment: 'x' });
    await keep(404, { version: 2, comment: 'x', reply_to: 'cmt_none' });
    await keep(400, { version: 2 });
    await keep(400, { version: 2, suggestion: 'x' });
    await server.call(200, 'POST /v1/policies/p/comments', author, { version: 2, comment: 'look' });
    const [thread] = await reviews();
    await keep(201, { version: 2, comment: 'seen', reply_to: thread!.id });
    // a suggestion is for lines
    const [answer] = await kept();
    await server.call(404, `PUT /v1/policies/p/pending-comments/${answer!.id}`, approver, { suggestion: 'x' });
    for (let n = 1; n < 50; n++) await keep(201, { version: 2, comment: `${n}` });
    await keep(409, { version: 2, comment: 'one more' });
  });

  test('of a removed person is forgotten', async () => {
    const { tenant, approver, keep } = await review();
    await keep(201, { version: 2, comment: SECRET });
    const admin = await tenant.person('admin');
    await server.call(204, `DELETE /v1/team/${approver.userId}?reason=left`, admin);
    const rows = await sql(server, 'select 1 from pending_comment where tenant_id = $1', [tenant.id]);
    expect(rows).toEqual([]);
  });
});

describe('a review', () => {
  test('is sent in one piece: all comments with the decision, one record and one event', async () => {
    const { author, approver, keep, kept, reviews, audited, events } = await review();
    const first = await keep(201, {
      ...{ version: 2, comment: 'both?', suggestion: FORBID },
      place: { part: 'text', line: 1, end_line: 2 },
    });
    const second = await keep(201, { version: 2, comment: 'in general' });
    const [records, sent] = [(await audited()).length, (await events()).length];
    await server.call(200, 'POST /v1/policies/p/request-changes', approver, {
      ...{ version: 2, comment: 'see there', pending: [first.id, second.id] },
    });
    expect(await kept()).toEqual([]);
    expect(await reviews()).toMatchObject([
      { status: 'changes_requested', comment: 'see there' },
      {
        ...{ status: 'commented', id: first.id, comment: 'both?', suggestion: FORBID, decided_by: approver.userId },
        place: { line: 1, end_line: 2, quote: `${PERMIT}\n${FORBID}` },
      },
      { status: 'commented', id: second.id, comment: 'in general' },
    ]);
    const now = await audited();
    expect(now).toHaveLength(records + 1);
    expect(now[0]).toMatchObject({
      action: 'policy.changes_requested',
      detail: `version 2, comment ${first.id} with a suggestion on lines 1 to 2 of the text of version 2, comment ${second.id}`,
    });
    expect(await events()).toHaveLength(sent + 1);
    expect((await events()).at(-1)).toMatchObject({ comments: 2, reason: 'see there' });
    // they are comments as all others
    await server.call(200, `POST /v1/policies/p/comments/${first.id}/resolve`, author, { version: 2 });
  });

  test('sent without a decision is comments alone, on whatever the policy is by then', async () => {
    const { tenant, approver, other, keep, kept, reviews, audited, save } = await review();
    const one = await keep(201, { version: 2, comment: 'late', place: { part: 'text', line: 2 } });
    const send = (status: number, body: object) =>
      server.call(status, 'POST /v1/policies/p/pending-comments/send', approver, { pending: [one.id], ...body });
    // the draft changes under it, and its review ends: nothing is lost
    await save(`${PERMIT}\n// without`);
    await send(409, { version: 2 });
    await server.call(200, 'POST /v1/policies/p/approve', other, { version: 3 });
    await server.call(409, 'POST /v1/policies/p/reject', approver, { version: 3, reason: 'no', pending: [one.id] });
    expect(await kept()).toMatchObject([{ id: one.id, comment: 'late' }]);
    const records = (await audited()).length;
    await send(200, { version: 3, comment: 'for the next one' });
    expect((await reviews(3)).slice(1)).toMatchObject([
      { status: 'commented', comment: 'for the next one' },
      { status: 'commented', id: one.id, place: { version: 2, line: 2, quote: FORBID } },
    ]);
    expect(await audited()).toHaveLength(records + 1);
    expect((await audited(1))[0]!.action).toBe('policy.commented');
    await send(409, { version: 3 });
    const alone = await keep(201, { version: 3, comment: 'alone' });
    await server.call(200, 'POST /v1/policies/p/pending-comments/send', approver, { version: 3, pending: [alone.id] });
    expect(await reviews(3)).toHaveLength(4);
    // also of a revoked one
    const last = await keep(201, { version: 3, comment: 'goodbye' });
    await server.call(200, 'DELETE /v1/policies/p?reason=over', await tenant.person('admin'));
    expect(await kept()).toMatchObject([{ id: last.id }]);
    await server.call(200, 'POST /v1/policies/p/pending-comments/send', approver, { version: 3, pending: [last.id] });
  });

  test('submitted from two tabs at once counts once, and one that fails changes nothing', async () => {
    const { approver, keep, kept, reviews, audited } = await review();
    const ids = [];
    for (const comment of ['a', 'b', 'c']) ids.push((await keep(201, { version: 2, comment })).id);
    const records = (await audited()).length;
    const send = (pending: string[]) =>
      fetch(`${server.url}/v1/policies/p/pending-comments/send`, {
        method: 'POST',
        headers: { cookie: approver.cookie!, origin: server.origin, 'content-type': 'application/json' },
        body: JSON.stringify({ version: 2, pending }),
      });
    const both = await Promise.all([send(ids), send(ids)]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 409]);
    expect(await reviews()).toHaveLength(3);
    expect(await audited()).toHaveLength(records + 1);

    // what fails late in the transaction takes nothing with it: there is no room for one more
    const more = await keep(201, { version: 2, comment: 'd' });
    await sql(
      server,
      `update policy_revision set reviews = (select jsonb_agg(jsonb_build_object('status', 'commented', 'id', 'x' || n,
         'decided_by', 'x', 'decided_at', '2026-01-01T00:00:00.000Z')) from generate_series(1, 499) n)
       where policy_id = 'p' and version = 2 and reviews @> $1::jsonb`,
      [JSON.stringify([{ id: ids[0] }])],
    );
    const decided = { version: 2, reason: 'no', pending: [more.id] };
    await server.call(409, 'POST /v1/policies/p/reject', approver, decided);
    expect(await kept()).toMatchObject([{ id: more.id }]);
    expect(await audited()).toHaveLength(records + 1);
  });

  test('does not let an author approve what they wrote, with whatever comments', async () => {
    const { tenant, author, keep } = await review();
    await sql(server, `update member set roles = '{author,approver}' where tenant_id = $1 and id = $2`, [
      tenant.id,
      author.userId,
    ]);
    const own = await tenant.enter(author.userId);
    const one = await keep(201, { version: 2, comment: 'fine by me' }, own);
    const approve = { version: 2, pending: [one.id] };
    const { body } = await server.call(403, 'POST /v1/policies/p/approve', own, approve);
    expect(body.code).toBe('SELF_APPROVAL');
  });
});
