import { actorOf } from '../domain/audit.ts';
import type { Principal } from '../domain/principal.ts';
import { coversPolicy } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import type { Context } from '../rpc/procedure.ts';
import type { By } from './policies.ts';
import { whoOf } from './queries.ts';

/* Who may use the policy routes. */

/** Pipeline keys and authors may write policies. */
export const write = { keys: ['pipeline'], role: 'author' } as const;
export const read = { keys: ['pipeline'], role: 'viewer' } as const;
/** The same for workload tokens, whose trust may be limited to some policies: each handler asks `within`. */
export const writes = { ...write, workload: 'policies:write' } as const;
export const reads = { ...read, workload: 'policies:read' } as const;

/** KEY_SCOPE unless the caller's credential covers the policy. Without an id, it must cover all policies. */
export function within<T extends { principal: Principal; tenantId: string }>(
  { principal, tenantId }: T,
  id: string | undefined,
) {
  if (principal.kind === 'workload_token' && !coversPolicy(principal.policies, id ?? '*')) {
    throw new AppError('KEY_SCOPE', `the token reaches only the policies ${principal.policies}`);
  }
  return tenantId;
}

/** The policies that the caller's credential covers; null for all. */
export const globOf = ({ principal }: { principal: Principal }) =>
  principal.kind === 'workload_token' ? principal.policies : null;

export function by(ctx: Context & { principal: Principal }): By {
  const { principal } = ctx;
  const proven = principal.kind === 'workload_token' ? principal.source : undefined;
  return { ...whoOf(principal), actor: actorOf(principal, ctx.ip), requestId: ctx.requestId, proven };
}
