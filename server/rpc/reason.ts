import { AppError } from '../errors.ts';
import { REASON_MISSING } from './fields.ts';
import type { Context } from './procedure.ts';

/** What the audit log says where no reason was given. */
const NO_REASON = 'none was given';

/**
 * The reason for the audit log of a change that may go without one. VALIDATION_FAILED if none was given and the tenant requires
 * them (`reasons_required`), of people and keys alike.
 */
export async function reasonFor(
  ctx: Pick<Context, 'reasonsRequired' | 'method'>,
  given: string | undefined,
): Promise<string> {
  if (given !== undefined) return given;
  if (!(await ctx.reasonsRequired())) return NO_REASON;
  const pointer = ctx.method === 'DELETE' ? '?reason' : '/reason';
  throw new AppError('VALIDATION_FAILED', undefined, { faults: [{ pointer, message: REASON_MISSING }] });
}
