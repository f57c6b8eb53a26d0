import { UniqueConstraintViolationException } from '@mikro-orm/postgresql';
import { z } from 'zod';
import type { Database, WriteAudit } from '../../db/index.ts';
import { lockTenant } from '../../db/locks.ts';
import { type Doer, doerOf } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { firstHidden } from '../lib/visible.ts';
import { text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { TrialRequest } from './authoring/suite.ts';

/** Maximum number of questions per tenant. */
const MOST = 100;
/** Maximum size of a request, as canonical JSON. */
const MOST_BYTES = 16 * 1024;

const QuestionOut = z
  .object({
    id: z.string(),
    name: z.string(),
    request: TrialRequest,
    created_by: z.string(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'SavedQuestion' });
type Question = z.output<typeof QuestionOut>;

/** Named requests that a tenant's authors try their drafts on. Trying one decides and records nothing. */
export class Questions {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
  }

  /** Ordered by name. */
  async list(tenantId: string): Promise<Question[]> {
    const rows = await this.#db.query<Omit<Question, 'created_at'> & { created_at: Date }>(
      tenantId,
      `select id, name, request, created_by, created_at from saved_question where tenant_id = $1 order by name limit ${MOST}`,
      [tenantId],
    );
    return rows.map((row) => ({ ...row, created_at: row.created_at.toISOString() }));
  }

  /** CONFLICT if the name is taken, or the tenant has reached its limit. */
  async save(tenantId: string, name: string, request: z.output<typeof TrialRequest>, by: Doer): Promise<Question> {
    const now = this.#clock.now();
    const question = { id: newId('qst', now), name, request, created_by: by.actor.id };
    const json = canonicalJson(request);
    if (Buffer.byteLength(json) > MOST_BYTES) {
      throw new AppError('VALIDATION_FAILED', undefined, {
        faults: [{ pointer: '/request', message: `must be at most ${MOST_BYTES} bytes` }],
      });
    }
    try {
      await this.#db.transaction(tenantId, async (em) => {
        // of two concurrent calls the second counts the first's question
        await lockTenant(em, tenantId);
        const [count] = await em.execute<{ n: number }[]>(
          'select count(*)::int as n from saved_question where tenant_id = ?',
          [tenantId],
        );
        if (count!.n >= MOST) throw new AppError('CONFLICT', `there are ${MOST} saved questions: delete one first`);
        await em.execute(
          `insert into saved_question (tenant_id, id, name, request, created_by, created_at) values (?, ?, ?, ?::jsonb, ?, ?)`,
          [tenantId, question.id, name, json, by.actor.id, new Date(now)],
        );
        const target = { type: 'question', id: question.id };
        await this.#audit(em, tenantId, { ...by, action: 'saved_question.created', target, detail: name });
      });
    } catch (error) {
      if (!(error instanceof UniqueConstraintViolationException)) throw error;
      throw new AppError('CONFLICT', 'a question with this name already exists');
    }
    return { ...question, created_at: new Date(now).toISOString() };
  }

  async delete(tenantId: string, id: string, by: Doer): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      const [gone] = await em.execute<{ name: string }[]>(
        'delete from saved_question where tenant_id = ? and id = ? returning name',
        [tenantId, id],
      );
      if (!gone) throw new AppError('NOT_FOUND', 'there is no such question');
      const target = { type: 'question', id };
      await this.#audit(em, tenantId, { ...by, action: 'saved_question.deleted', target, detail: gone.name });
    });
  }
}

const Name = text(60).refine((name) => name.trim() === name && !/[\t\n\r]/.test(name) && !firstHidden(name), {
  error: 'must be one line without invisible characters, and without white space around it',
});

/** For people only: what authors type into a request may be something that a key should not read. */
export function questionsRouter(questions: Questions) {
  const tag = 'policies';
  return trpc.router({
    list: route('GET /v1/questions', { role: 'author' }, { summary: 'List the saved questions of “Try it”', tag })
      .input(z.strictObject({}))
      .output(z.object({ questions: z.array(QuestionOut) }))
      .query(async ({ ctx }) => ({ questions: await questions.list(ctx.tenantId) })),

    save: route(
      'POST /v1/questions',
      { role: 'author' },
      {
        summary: 'Save a request under a name, to try policies on',
        description: `All authors of the tenant can read it, until somebody deletes it. At most ${MOST}.`,
        tag,
        status: 201,
        problems: ['CONFLICT'],
      },
    )
      .input(z.strictObject({ name: Name, request: TrialRequest }))
      .output(QuestionOut)
      .mutation(({ ctx, input }) => questions.save(ctx.tenantId, input.name, input.request, doerOf(ctx))),

    delete: route(
      'DELETE /v1/questions/{id}',
      { role: 'author' },
      { summary: 'Delete a saved question', tag, status: 204, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(100) }))
      .output(z.void())
      .mutation(({ ctx, input }) => questions.delete(ctx.tenantId, input.id, doerOf(ctx))),
  });
}
