import { z } from 'zod';
import { reason, text } from '../rpc/fields.ts';
import { route } from '../rpc/procedure.ts';
import type { Policies } from './policies.ts';
import { by, within } from './reach.ts';
import { CommentIn, Id, PendingIds, PolicyOut, Version } from './shapes.ts';

const tag = 'policies';

/** The review of a version: requesting it, commenting on it and deciding it. */
export function reviewRoutes(policies: Policies) {
  return {
    submit: route(
      'POST /v1/policies/{id}/submit',
      { keys: [], role: 'author', workload: 'policies:submit' },
      {
        summary: 'Submit a draft for review',
        description:
          'If the tenant requires approval, this needs a signed-in person, or a workload that is trusted to submit.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'VERSION_CHANGED'],
      },
    )
      .input(z.strictObject({ ...Id, note: text(2000).optional(), expected_version: Version.optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, note, expected_version: expected } }) =>
        policies.submit(within(ctx, id), id, { note, expected }, by(ctx)),
      ),

    approve: route(
      'POST /v1/policies/{id}/approve',
      { keys: [], role: 'approver' },
      {
        summary: 'Approve a version, which is then enforced',
        description:
          'If the tenant requires approval, this needs a signed-in person who did not submit the version and wrote none of it since a version was last enforced. With the version of an open review (`open_review`) it closes that review, whatever the current state of the policy: this needs a signed-in person other than the one who used break glass, and does not change what is enforced.',
        tag,
        problems: [
          ...(['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'SELF_APPROVAL', 'POLICY_INVALID'] as const),
          'SIMULATION_REQUIRED',
          'CONFLICT',
        ],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          version: Version,
          comment: text(2000).optional(),
          pending: PendingIds.optional(),
          simulation_id: text(64).optional().describe('the simulation that was read; default: the newest that fits'),
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...decision } }) => policies.approve(ctx.tenantId, id, decision, by(ctx))),

    reject: route(
      'POST /v1/policies/{id}/reject',
      { keys: [], role: 'approver' },
      {
        summary: 'Reject a version under review',
        tag,
        problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'CONFLICT'],
      },
    )
      .input(z.strictObject({ ...Id, version: Version, reason, pending: PendingIds.optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...decision } }) => policies.reject(ctx.tenantId, id, decision, by(ctx))),

    requestChanges: route(
      'POST /v1/policies/{id}/request-changes',
      { keys: [], role: 'approver' },
      {
        summary: 'Send a version back to its author',
        tag,
        problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'CONFLICT'],
      },
    )
      .input(z.strictObject({ ...Id, version: Version, comment: text(2000), pending: PendingIds.optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...decision } }) => policies.requestChanges(ctx.tenantId, id, decision, by(ctx))),

    comment: route(
      'POST /v1/policies/{id}/comments',
      { keys: [], role: 'author' },
      {
        summary: 'Comment on the newest version without deciding',
        description:
          'A comment begins a thread, or answers one. On lines of the newest version it may suggest what should stand there instead; nothing changes until somebody saves a version with it. Threads that nobody has resolved do not keep a version from being approved; its approval says in the audit log how many there were.',
        tag,
        problems: ['NOT_FOUND', 'VERSION_CHANGED', 'CONFLICT'],
      },
    )
      .input(CommentIn)
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...comment } }) => policies.comment(ctx.tenantId, id, comment, by(ctx))),

    resolve: route(
      'POST /v1/policies/{id}/comments/{comment_id}/resolve',
      { keys: [], role: 'author' },
      { summary: 'Resolve a thread, or open it again', tag, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ ...Id, comment_id: text(64), version: Version, resolved: z.boolean().default(true) }))
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...thread } }) => policies.resolve(ctx.tenantId, id, thread, by(ctx))),
  };
}
