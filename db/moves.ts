import type pg from 'pg';

/*
 * Where a tenant went that leaves this installation, see server/cli/tenant-move.ts: a row of `tenant_move` in the direction `out`.
 */

/** Of a row of `tenant_move`: the tenant's rows are not in their tables any more. */
export const AWAY = `direction = 'out' and state in ('fenced', 'moved')`;

export interface Departure {
  /** `fencing`: its rows are still here, and no request may change them any more. */
  readonly state: 'fencing' | 'fenced' | 'moved';
  /** The public address of the installation that it goes to. */
  readonly address: string;
}

/** Whether a tenant leaves or has left, and where to. */
export async function departureOf(owner: Pick<pg.Pool, 'query'>, tenantId: string): Promise<Departure | undefined> {
  const { rows } = await owner.query<Departure>(
    `select state, address from tenant_move where tenant_id = $1 and direction = 'out'`,
    [tenantId],
  );
  return rows[0];
}

/**
 * Whether a secret with this hash was a valid credential of a tenant when its rows were lifted out of their tables, and has not
 * ended since.
 */
export async function wasValid(
  owner: Pick<pg.Pool, 'query'>,
  tenantId: string,
  hash: Buffer,
  now: Date,
): Promise<boolean> {
  const { rows } = await owner.query<{ valid: boolean }>(
    `select exists (
       select from tenant_parcel p
       where p.tenant_id = $1 and p.source in ('session', 'api_key', 'agent_key', 'workload_token')
         and p.content->>'id' in ($3, (
           select c.content->>'id' from tenant_parcel c
           where c.tenant_id = $1 and c.source = 'credential' and c.content->>'hash' = $4))
         and (p.source = 'session') = (p.content->>'id' = $3)
         and not exists (
           select from tenant_parcel m where m.tenant_id = $1 and m.source = 'member' and p.source = 'api_key'
             and m.content->>'id' = p.content->>'created_by'
             and (m.content->>'removed_at' is not null or not m.content->'roles' ? 'admin'))
         and p.content->>'revoked_at' is null
         and p.content->>'unconfirmed_since' is null
         and coalesce((p.content->>'expires_at')::timestamptz > $2, true)) as valid`,
    [tenantId, now, hash.toString('hex'), `\\x${hash.toString('hex')}`],
  );
  return rows[0]!.valid;
}
