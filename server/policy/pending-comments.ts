import type { EntityManager } from '@mikro-orm/postgresql';
import { z } from 'zod';
import { type CommentPlace, Policy, type PolicyRow, type ReviewRecord } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import { type Principal, personOf } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { text } from '../rpc/fields.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import type { Policies } from './policies.ts';
import { by } from './reach.ts';
import { assertThread, type NewComment, placeIn } from './review-records.ts';
import { CommentIn, CommentWords, Id, MOST_PENDING, PendingIds, PlaceOut, PolicyOut, Version } from './shapes.ts';

const PendingOut = z
  .object({
    id: z.string().describe('also of the comment that it becomes'),
    comment: z.string().optional(),
    thread: z.string().optional().describe('the comment that began the thread which it answers'),
    place: PlaceOut.optional(),
    suggestion: z.string().optional(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'PendingComment' });
type Pending = z.output<typeof PendingOut>;

interface Row {
  id: string;
  comment: string | null;
  thread: string | null;
  place: CommentPlace | null;
  suggestion: string | null;
  created_at: Date | string;
}

const FIELDS = 'id, comment, thread, place, suggestion, created_at';

const saidIn = ({ id, comment, thread, place, suggestion }: Row) => ({
  id,
  ...(comment !== null && { comment }),
  ...(thread !== null && { thread }),
  ...(place !== null && { place }),
  ...(suggestion !== null && { suggestion }),
});
const pendingOf = (row: Row): Pending => ({ ...saidIn(row), created_at: new Date(row.created_at).toISOString() });

/**
 * Comments that a reviewer keeps until sending them all together, with a decision or without one.
 *
 * INVARIANT: no one but its writer ever reads a pending comment, here or through traces elsewhere: nothing is audited,
 * notified or hinted at before it is sent, and every statement names the person. Events that end a review leave them in
 * place.
 */
export class PendingComments {
  readonly #db: Database;
  readonly #clock: Clock;

  constructor(db: Database, clock: Clock) {
    this.#db = db;
    this.#clock = clock;
  }

  /** One person's pending comments on a policy, oldest first. NOT_FOUND if the tenant has no such policy. */
  async list(tenantId: string, userId: string, policyId: string): Promise<Pending[]> {
    if ((await this.#db.reader(tenantId).count(Policy, { id: policyId })) === 0) throw noPolicy();
    const rows = await this.#db.query<Row>(
      tenantId,
      `select ${FIELDS} from pending_comment where tenant_id = $1 and user_id = $2 and policy_id = $3
       order by created_at, id`,
      [tenantId, userId, policyId],
    );
    return rows.map(pendingOf);
  }

  /**
   * Keeps a comment. CONFLICT if the person has reached the limit for this policy; NOT_FOUND if there are no such lines or
   * thread.
   */
  add(tenantId: string, userId: string, policyId: string, one: NewComment): Promise<Pending> {
    return this.#db.transaction(tenantId, async (em) => {
      // of two concurrent calls the second counts the first's comment, and no comment outlives the removal of its writer
      const people = await em.execute(
        'select 1 from member where tenant_id = ? and id = ? and removed_at is null for no key update',
        [tenantId, userId],
      );
      if (people.length === 0) throw new AppError('FORBIDDEN');
      const policy = await em.findOne(Policy, { id: policyId });
      if (!policy) throw noPolicy();
      if (one.version > policy.version) throw new AppError('NOT_FOUND', 'the policy has no such version');
      const [count] = await em.execute<{ n: number }[]>(
        'select count(*)::int as n from pending_comment where tenant_id = ? and user_id = ? and policy_id = ?',
        [tenantId, userId, policyId],
      );
      if (count!.n >= MOST_PENDING) {
        throw new AppError('CONFLICT', `you have ${MOST_PENDING} pending comments on this policy: send or delete some`);
      }
      const place = one.place && (await placeIn(em, policyId, one.version, one.place));
      if (one.reply_to !== undefined) await assertThread(em, policy, one.reply_to);
      const now = this.#clock.now();
      const row: Row = {
        id: newId('cmt', now),
        comment: one.comment ?? null,
        thread: one.reply_to ?? null,
        place: place ?? null,
        suggestion: one.suggestion ?? null,
        created_at: new Date(now),
      };
      await em.execute(
        `insert into pending_comment (tenant_id, user_id, policy_id, ${FIELDS}) values (?, ?, ?, ?, ?, ?, ?::jsonb, ?, ?)`,
        [
          ...[tenantId, userId, policyId, row.id, row.comment, row.thread],
          ...[place ? JSON.stringify(place) : null, row.suggestion, row.created_at],
        ],
      );
      return pendingOf(row);
    });
  }

  /** Changes the words and the suggestion of one of their own. A comment without lines has no suggestion. */
  change(
    tenantId: string,
    userId: string,
    policyId: string,
    { id, comment, suggestion }: { id: string; comment?: string | undefined; suggestion?: string | undefined },
  ): Promise<Pending> {
    return this.#db.transaction(tenantId, async (em) => {
      const [row] = await em.execute<Row[]>(
        `update pending_comment set comment = ?, suggestion = ?
         where tenant_id = ? and user_id = ? and policy_id = ? and id = ? and (?::text is null or place is not null)
         returning ${FIELDS}`,
        [comment ?? null, suggestion ?? null, tenantId, userId, policyId, id, suggestion ?? null],
      );
      if (!row) throw new AppError('NOT_FOUND', 'you have no such pending comment');
      return pendingOf(row);
    });
  }

  /** Deletes one of the person's own. */
  async delete(tenantId: string, userId: string, policyId: string, id: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      const gone = await em.execute<unknown[]>(
        'delete from pending_comment where tenant_id = ? and user_id = ? and policy_id = ? and id = ? returning id',
        [tenantId, userId, policyId, id],
      );
      if (gone.length === 0) throw new AppError('NOT_FOUND', 'you have no such pending comment');
    });
  }
}

const noPolicy = () => new AppError('NOT_FOUND', 'the policy does not exist');

/**
 * Turns pending comments of a person into comments of the review that they are sent with. CONFLICT unless all of them are
 * still pending: of two calls that send the same ones, the second changes nothing.
 */
export async function takePending(
  em: EntityManager,
  { tenantId, id: policyId }: PolicyRow,
  userId: string,
  ids: readonly string[],
  decided_at: string,
): Promise<ReviewRecord[]> {
  const rows = await em.execute<Row[]>(
    `delete from pending_comment where tenant_id = ? and user_id = ? and policy_id = ? and id in (${ids.map(() => '?').join(', ')})
     returning ${FIELDS}`,
    [tenantId, userId, policyId, ...ids],
  );
  if (rows.length !== new Set(ids).size) {
    throw new AppError('CONFLICT', 'some of these pending comments were sent or deleted meanwhile: read them again');
  }
  const order = (row: Row) => `${new Date(row.created_at).toISOString()} ${row.id}`;
  return rows
    .sort((a, b) => (order(a) < order(b) ? -1 : 1))
    .map((row) => ({ status: 'commented', decided_by: userId, decided_at, ...saidIn(row) }));
}

/** Deletes what a person has not sent, in the transaction that removes them. */
export async function forgetPendingOf(em: EntityManager, tenantId: string, userId: string): Promise<void> {
  await em.execute('delete from pending_comment where tenant_id = ? and user_id = ?', [tenantId, userId]);
}

/** For people only: a key, even one that a person owns, cannot read what its owner has not sent. */
export function pendingCommentsRouter(pending: PendingComments, policies: Policies) {
  const tag = 'policies';
  const problems = ['NOT_FOUND'] as const;
  const person = { role: 'author' } as const;
  const of = ({ tenantId, principal }: Context & { tenantId: string; principal: Principal }) =>
    [tenantId, personOf(principal)] as const;
  return trpc.router({
    list: route('GET /v1/policies/{id}/pending-comments', person, {
      summary: 'List your pending comments on a policy',
      description: 'Nobody else can read them before they are sent.',
      ...{ tag, problems },
    })
      .input(z.strictObject(Id))
      .output(z.object({ comments: z.array(PendingOut) }))
      .query(async ({ ctx, input }) => ({ comments: await pending.list(...of(ctx), input.id) })),

    add: route('POST /v1/policies/{id}/pending-comments', person, {
      summary: 'Keep a comment until you send your review',
      description: `As for a comment, but \`version\` may be an older one by now. At most ${MOST_PENDING} per person and policy. It stays until it is sent or deleted, also when the review ends or a newer version is saved.`,
      ...{ tag, status: 201 as const, problems: ['NOT_FOUND', 'CONFLICT'] as const },
    })
      .input(CommentIn)
      .output(PendingOut)
      .mutation(({ ctx, input: { id, ...one } }) => pending.add(...of(ctx), id, one)),

    change: route('PUT /v1/policies/{id}/pending-comments/{comment_id}', person, {
      summary: 'Change a pending comment',
      ...{ tag, problems },
    })
      .input(
        z
          .strictObject({ ...Id, comment_id: text(64), ...CommentWords })
          .refine(({ comment, suggestion }) => comment !== undefined || suggestion !== undefined, {
            path: ['comment'],
            message: 'is required without a suggestion',
          }),
      )
      .output(PendingOut)
      .mutation(({ ctx, input: { id, comment_id, ...words } }) =>
        pending.change(...of(ctx), id, { id: comment_id, ...words }),
      ),

    delete: route('DELETE /v1/policies/{id}/pending-comments/{comment_id}', person, {
      summary: 'Delete a pending comment',
      ...{ tag, status: 204 as const, problems },
    })
      .input(z.strictObject({ ...Id, comment_id: text(64) }))
      .output(z.void())
      .mutation(({ ctx, input }) => pending.delete(...of(ctx), input.id, input.comment_id)),

    send: route('POST /v1/policies/{id}/pending-comments/send', person, {
      summary: 'Send your pending comments without deciding',
      description:
        'All become comments of the newest version at once, with one record in the audit log. To send them with a decision, name them in `pending` of approve, request-changes or reject.',
      ...{ tag, problems: ['NOT_FOUND', 'VERSION_CHANGED', 'CONFLICT'] as const },
    })
      .input(
        z.strictObject({
          ...Id,
          version: Version,
          pending: PendingIds,
          comment: text(2000).optional().describe('begins a thread of its own'),
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...comments } }) => policies.send(ctx.tenantId, id, comments, by(ctx))),
  });
}
