import type pg from 'pg';
import type { SecretBox } from '../server/lib/crypto.ts';

/*
 * Where a departing tenant went, see server/cli/tenant-move.ts: a row of `tenant_move` in the direction `out`.
 */

export interface Departure {
  readonly id: string;
  /** `fencing`: its rows are still here, but no request may change them anymore. */
  readonly state: 'fencing' | 'fenced' | 'moved';
  /** The destination installation. */
  readonly other: string;
  /** Its public address. */
  readonly address: string;
  /** The last record of each chain here; empty while `fencing`. */
  readonly heads: Readonly<Partial<Record<'audit' | 'forensics', DepartingHead>>>;
}

interface DepartingHead {
  readonly seq: number;
  /** BLAKE3 in hex. */
  readonly hash: string;
}

const place = (tenantId: string) => `${tenantId}/tenant_move/out/sealed`;

/** A seal that proves that this installation wrote the row. */
export function sealDeparture(box: SecretBox, tenantId: string, departure: Departure): Buffer {
  return box.seal(JSON.stringify(departure), place(tenantId));
}

/**
 * Whether a tenant is leaving or has left, and where to.
 *
 * INVARIANT: a row that was not sealed with the master key, or does not match its seal, counts as absent: someone who can write
 * to the table can neither send a tenant's people to another address nor pass off a lost chain as one that has left.
 */
export async function departureOf(
  owner: Pick<pg.ClientBase, 'query'>,
  box: SecretBox,
  tenantId: string,
): Promise<Departure | undefined> {
  return (await departures(owner, box, tenantId)).get(tenantId);
}

/** All tenants that are leaving or have left, or one of them; undefined for a row that counts as absent. */
export async function departures(
  client: Pick<pg.ClientBase, 'query'>,
  box: SecretBox,
  tenantId: string | null = null,
): Promise<Map<string, Departure | undefined>> {
  const { rows } = await client.query<DepartureRow>(
    `select tenant_id, id, state, other, address, sealed from tenant_move
     where direction = 'out' and ($1::text is null or tenant_id = $1) order by tenant_id`,
    [tenantId],
  );
  return new Map(rows.map((row) => [row.tenant_id, opened(box, row)]));
}

interface DepartureRow extends Omit<Departure, 'heads'> {
  readonly tenant_id: string;
  readonly sealed: Buffer;
}

function opened(box: SecretBox, row: DepartureRow): Departure | undefined {
  try {
    const departure = JSON.parse(box.open(row.sealed, place(row.tenant_id)).toString()) as Departure;
    const same = (['id', 'state', 'other', 'address'] as const).every((name) => departure[name] === row[name]);
    return same ? departure : undefined;
  } catch {
    return undefined;
  }
}

/** Whether a departed tenant had this record of a chain, as far as its heads here show. */
export function hasLeftWith(
  departure: Departure | undefined,
  chain: 'audit' | 'forensics',
  known: DepartingHead,
): boolean {
  const head = departure?.heads[chain];
  return head !== undefined && (known.seq < head.seq || (known.seq === head.seq && known.hash === head.hash));
}

/** Whether any row says that a tenant is leaving or has left; only for messages. */
export async function isLeaving(owner: Pick<pg.Pool, 'query'>, tenantId: string): Promise<boolean> {
  const { rowCount } = await owner.query(`select 1 from tenant_move where tenant_id = $1 and direction = 'out'`, [
    tenantId,
  ]);
  return rowCount === 1;
}

/**
 * The direction of a move that rules out creating the tenant here: it is leaving or has left, or its copy is on its way here, or
 * was and is not deleted yet.
 */
export async function isMoving(owner: Pick<pg.Pool, 'query'>, tenantId: string): Promise<'in' | 'out' | undefined> {
  const { rows } = await owner.query<{ direction: 'in' | 'out' }>(
    `select direction from tenant_move
     where tenant_id = $1 and (direction = 'out' or state = 'copying' or state = 'cancelled' and (
       exists (select from forensic_record where tenant_id = $1) or exists (select from audit_record where tenant_id = $1)
       or exists (select from decision_input where tenant_id = $1) or exists (select from former_key where tenant_id = $1)))
     order by direction desc`,
    [tenantId],
  );
  return rows[0]?.direction;
}

/**
 * Until when, in milliseconds, a secret with this hash is a valid credential of a tenant whose rows have been removed from their
 * tables, as far as is known here; undefined if it was invalid by then, or has expired since. The rules are those of
 * Authenticator and of Sessions.
 */
export async function validUntil(
  owner: Pick<pg.Pool, 'query'>,
  tenantId: string,
  hash: Buffer,
  now: Date,
): Promise<number | undefined> {
  const { rows } = await owner.query<{ until: Date | null }>(
    `select (p.content->>'expires_at')::timestamptz as until
     from tenant_parcel p
     where p.tenant_id = $1 and p.source in ('session', 'api_key', 'agent_key', 'workload_token')
       and p.content->>'id' in ($3, (
         select c.content->>'id' from tenant_parcel c
         where c.tenant_id = $1 and c.source = 'credential' and c.content->>'hash' = $4))
       and (p.source = 'session') = (p.content->>'id' = $3)
       and (p.source <> 'workload_token' or exists (
         select from tenant_parcel t where t.tenant_id = $1 and t.source = 'workload_trust'
           and t.content->>'id' = p.content->>'trust_id'
           and t.content->>'revoked_at' is null and t.content->>'unconfirmed_since' is null))
       -- a key, and a trust in workloads, count as long as whoever made them is an admin
       and not exists (
         select from tenant_parcel m where m.tenant_id = $1 and m.source = 'member'
           and m.content->>'id' = case p.source when 'api_key' then p.content->>'created_by'
             when 'workload_token' then (
               select t.content->>'created_by' from tenant_parcel t where t.tenant_id = $1
                 and t.source = 'workload_trust' and t.content->>'id' = p.content->>'trust_id') end
           and (m.content->>'removed_at' is not null or not m.content->'roles' ? 'admin'))
       and p.content->>'revoked_at' is null
       and p.content->>'unconfirmed_since' is null
       and coalesce((p.content->>'expires_at')::timestamptz > $2, true)
     limit 1`,
    [tenantId, now, hash.toString('hex'), `\\x${hash.toString('hex')}`],
  );
  return rows[0] && (rows[0].until?.getTime() ?? Number.MAX_SAFE_INTEGER);
}
