import { z } from 'zod';
import { doerOf } from '../domain/audit.ts';
import { MAIL_KINDS, MAIL_PACES } from '../domain/mail.ts';
import type { Principal } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { route, trpc } from '../rpc/procedure.ts';
import type { PersonMail } from './person-mail.ts';

const fields = {
  pace: z
    .enum(['none', ...MAIL_PACES])
    .describe('each: one mail for each, at most 10 of a kind an hour; hourly, daily: one mail with all that waits'),
  kinds: z.array(z.enum(MAIL_KINDS)).min(1).max(MAIL_KINDS.length),
  daily_hour: z.int().min(0).max(23).describe('the hour of a daily mail, in UTC'),
};

/** The caller's own preferences: no one sets those of others. */
export function mailPreferencesRouter(mail: PersonMail) {
  const tag = 'people';
  const own = (principal: Principal) => {
    if (principal.kind !== 'session') throw new AppError('FORBIDDEN', 'only people are mailed');
    return principal.userId;
  };
  return trpc.router({
    get: route(
      'GET /v1/mail-preferences',
      { role: 'any' },
      { summary: 'Read what you are mailed about held actions and reviews', tag },
    )
      .input(z.strictObject({}))
      .output(z.object({ ...fields, available: z.boolean().describe('whether the server has a mail server') }))
      .query(async ({ ctx }) => ({
        ...(await mail.preference(ctx.tenantId, own(ctx.principal))),
        available: mail.available,
      })),

    set: route(
      'PUT /v1/mail-preferences',
      { role: 'any' },
      {
        summary: 'Set what you are mailed about held actions and reviews',
        description:
          'Approvers are mailed about what waits for them: holds without their vote, and versions of others.',
        tag,
        status: 204,
      },
    )
      .input(z.strictObject({ ...fields, daily_hour: fields.daily_hour.default(7) }))
      .output(z.void())
      .mutation(({ ctx, input }) =>
        mail.prefer(ctx.tenantId, own(ctx.principal), { ...input, kinds: [...new Set(input.kinds)] }, doerOf(ctx)),
      ),
  });
}
