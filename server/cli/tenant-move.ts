import { randomUUID } from 'node:crypto';
import path from 'node:path';
import type { Departure } from '../../db/moves.ts';
import type { ChainName } from '../chain/record.ts';
import { verifyChain } from '../chain/verification.ts';
import { CommandError } from './command.ts';
import { addFormerKeys } from './tenant-move/keys.ts';
import { fence, lift, putBack, unpack } from './tenant-move/parcel.ts';
import { Copy, copyInputs } from './tenant-move/records.ts';
import { arriving, CHAINS, depart, hasTenant, headsOf, leaving, type Move, type Side } from './tenant-move/side.ts';
import { COPIED, forgetRecords, tablesOf } from './tenant-move/tables.ts';

/*
 * How a tenant moves from one installation to another, each with a database, keys and an address of its own:
 *
 *   1. the source's chains are verified; records are copied while requests continue
 *   2. the fence: every process of the source refuses the tenant's credentials (UNAVAILABLE). Then, in one transaction, all
 *      rows of the tenant, except its records and what is derived from them, are lifted out of their tables into a parcel: no
 *      request, job or timer finds them
 *   3. the rest of the records is copied, and both chains are hashed again, in full, from what the target stored
 *   4. the flip: one transaction at the target unpacks the parcel and states that the tenant has arrived
 *   5. the source records where the tenant is, and tells anyone who has a valid credential
 *
 * INVARIANT: the row `in` of `tenant_move` at the target decides. The flip turns it from `copying` to `arrived`, undoing turns it
 * to `cancelled`: only one of the two succeeds, so the tenant is never in both places, wherever a run was killed. Each step
 * checks the current state: a killed run is simply run again.
 */

/** The maximum number of copying rounds before the fence; a round that copies no more than LITTLE is the last one. */
const ROUNDS = 10;
const LITTLE = 2000;

export interface Moved {
  tenant_id: string;
  address: string;
  /** The last records that the source wrote; 0 for a chain without one. */
  forensics_seq: number;
  audit_seq: number;
}

/** Moves a tenant, or continues where a run was killed. Resolves when the tenant is at the target and the source says so. */
export async function moveTenant(move: Move): Promise<Moved> {
  const { source, target, tenantId, tell = () => undefined } = move;
  const begun = await begin(move);
  if (begun.state === 'copying') {
    if (begun.out === undefined) {
      await tell('verifying the chains at the source');
      for (const chain of CHAINS) await assertVerified(source, tenantId, chain);
    }
    await tell('copying records');
    const copies = new Map<ChainName, Copy>();
    for (const chain of CHAINS) copies.set(chain, new Copy(source, target, tenantId, chain));
    // copy what arrived while the rest was copied, until little is left for the fence
    for (let round = 0; round < ROUNDS; round++) {
      let copied = 0;
      for (const copy of copies.values()) copied += await copy.upToLast();
      await copyInputs(source, target, tenantId);
      if (copied <= LITTLE) break;
    }
    if (begun.out === undefined) {
      await tell('fencing');
      await fence(source, target, tenantId, begun.id);
    }
    await tell('lifting the tenant out');
    await lift(source, tenantId);
    await tell('copying the rest');
    const heads = await headsOf(source, tenantId);
    for (const chain of CHAINS) {
      await copies.get(chain)!.upTo(heads.get(chain)?.seq ?? 0);
      copies.get(chain)!.finish(heads.get(chain));
    }
    await copyInputs(source, target, tenantId);
    await tell('adding the keys of the source');
    const former = await addFormerKeys(source, target, tenantId, heads);
    await tell('unpacking at the target');
    await unpack(move, begun.id, heads, former, tell);
  }
  await tell('flipped');
  const departure = (await leaving(source, tenantId))!;
  if (departure.state === 'fenced') {
    // check regardless of the row there: the source must not point to a place where the tenant is not
    const there = (await hasTenant(target, tenantId)) || (await leaving(target, tenantId));
    if (!there) throw new CommandError(`${tenantId} has not arrived`);
    await depart(source, source.client, tenantId, { ...departure, state: 'moved' });
  }
  // nothing erases them here anymore once they expire; the target does
  await forgetRecords(source, tenantId, ['decision_input']);
  const { heads } = departure;
  return {
    tenant_id: tenantId,
    address: target.config.baseUrl,
    forensics_seq: heads.forensics?.seq ?? 0,
    audit_seq: heads.audit?.seq ?? 0,
  };
}

/** Finds out where an earlier run ended, or starts a move. */
async function begin({
  source,
  target,
  tenantId,
}: Move): Promise<{ id: string; state: 'copying' | 'arrived'; out?: Departure }> {
  if (source.installation === target.installation)
    throw new CommandError('source and target are the same installation');
  const out = await leaving(source, tenantId);
  const into = await arriving(target, tenantId);
  if (out && out.other !== target.installation) {
    throw new CommandError(`${tenantId} ${out.state === 'moved' ? 'has moved' : 'is moving'} to ${out.address}`);
  }
  if (out && into?.id === out.id) {
    if (into.state === 'cancelled') throw new CommandError('undoing has begun: finish it with --undo');
    return { id: out.id, state: into.state === 'arrived' ? 'arrived' : 'copying', out };
  }
  if (out?.state === 'moved') throw new CommandError(`${tenantId} has moved to ${out.address}`);
  if (out) throw new CommandError('the target does not know of this move: undo it first');
  if (!(await hasTenant(source, tenantId))) throw new CommandError(`there is no tenant ${tenantId}`);
  if (await hasTenant(target, tenantId)) throw new CommandError(`the target already has a tenant ${tenantId}`);
  if (into?.state === 'copying') {
    if (into.other !== source.installation) throw new CommandError(`${tenantId} is moving there from ${into.address}`);
    return { id: into.id, state: 'copying' };
  }
  if (into?.state === 'cancelled') await forgetCopy(target, tenantId);
  for (const table of COPIED) {
    const { rowCount } = await target.client.query(`select 1 from ${table} where tenant_id = $1 limit 1`, [tenantId]);
    if (rowCount)
      throw new CommandError(`the target has records of ${tenantId} from before: delete them there with --forget`);
  }
  const { rows } = await source.client.query<{ domain: string }>(
    'select domain from verified_domain where tenant_id = $1',
    [tenantId],
  );
  const { rows: taken } = await target.core.db.owner.query<{ domain: string }>(
    'select domain from verified_domain where domain = any($1)',
    [rows.map(({ domain }) => domain)],
  );
  if (taken[0]) throw new CommandError(`another tenant of the target has the verified domain ${taken[0].domain}`);
  const id = randomUUID();
  await target.client.query(
    `insert into tenant_move (tenant_id, direction, id, state, other, address, changed_at)
     values ($1, 'in', $2, 'copying', $3, $4, now())
     on conflict (tenant_id, direction) do update
     set id = excluded.id, state = 'copying', other = excluded.other, address = excluded.address, changed_at = now()`,
    [tenantId, id, source.installation, source.config.baseUrl],
  );
  return { id, state: 'copying' };
}

/** Verifies the whole chain, with everything known about it. A loss that an operator has accepted does not block the move. */
async function assertVerified({ core, config, sessionUrl }: Side, tenantId: string, chain: ChainName): Promise<void> {
  // raises the alarm if it is due
  await core.checkpoints.inspect(tenantId, chain);
  const verdict = await verifyChain(sessionUrl, tenantId, chain, {
    keys: core.keyring.ofChain(tenantId, chain),
    directory: path.join(config.dataDir, 'checkpoints'),
    acknowledged: (...of) => core.checkpoints.acknowledged.known(...of),
  });
  if (!verdict.verified) throw new CommandError(`the ${chain} chain does not verify: ${verdict.reason}`);
}

/**
 * Ends a move without its target. Only the operator can know that the target has not flipped, or is gone for good: if a flipped
 * target comes back, it has the tenant too.
 */
export async function undoAlone(source: Side, tenantId: string): Promise<void> {
  const out = await leaving(source, tenantId);
  if (!out) throw new CommandError(`${tenantId} is not moving`);
  if (out.state === 'moved') throw new CommandError(`${tenantId} has moved to ${out.address}`);
  await putBack(source, tenantId);
}

/** Ends a move that has not flipped: the tenant continues at the source, and the target deletes its copy. */
export async function undoMove({ source, target, tenantId }: Move): Promise<{ restored: boolean }> {
  const out = await leaving(source, tenantId);
  if (out?.state === 'moved')
    throw new CommandError(`${tenantId} has moved to ${out.address}: move it back from there`);
  const into = await arriving(target, tenantId);
  const id = out?.id ?? (into?.other === source.installation && into.state === 'copying' ? into.id : undefined);
  if (id === undefined) throw new CommandError(`${tenantId} is not moving`);
  if (out && out.other !== target.installation) throw new CommandError(`${tenantId} is moving to ${out.address}`);
  // from here on the flip cannot happen
  await target.client.query(
    `insert into tenant_move (tenant_id, direction, id, state, other, address, changed_at)
     values ($1, 'in', $2, 'cancelled', $3, $4, now())
     on conflict (tenant_id, direction) do update set state = 'cancelled', changed_at = now()
     where tenant_move.id = excluded.id and tenant_move.state = 'copying'`,
    [tenantId, id, source.installation, source.config.baseUrl],
  );
  const now = await arriving(target, tenantId);
  if (now?.id === id && now.state === 'arrived') {
    throw new CommandError(`${tenantId} has arrived: run the move again to finish it, or move it back from there`);
  }
  if (out) await putBack(source, tenantId);
  // a tenant there now was created after the copy was deleted, and is a different one
  if (now?.id === id && !(await hasTenant(target, tenantId))) await forgetCopy(target, tenantId);
  return { restored: out !== undefined };
}

/**
 * Ends a move at its target, without its source: the copy is deleted. From then on the flip cannot happen; if the tenant was
 * already lifted out at the source, it continues there after --undo. `address` is the source's, as stated in the row here.
 */
export async function abandonCopy(target: Side, tenantId: string, address: string): Promise<void> {
  const into = await arriving(target, tenantId);
  if (!into) throw new CommandError(`${tenantId} is not arriving here`);
  if (into.address !== address) throw new CommandError(`${tenantId} is arriving from ${into.address}`);
  const { rowCount } = await target.client.query(
    `update tenant_move set state = 'cancelled', changed_at = now()
     where tenant_id = $1 and direction = 'in' and id = $2 and state in ('copying', 'cancelled')`,
    [tenantId, into.id],
  );
  // the flip decides, even that of a run that began a moment ago
  if (rowCount !== 1) throw new CommandError(`${tenantId} has arrived, so it is no longer a copy`);
  await forgetCopy(target, tenantId);
}

/** Deletes what a cancelled move has copied. */
async function forgetCopy(target: Side, tenantId: string): Promise<void> {
  if (await hasTenant(target, tenantId))
    throw new CommandError(`${tenantId} is a tenant here: nothing of it is deleted`);
  await forgetRecords(target, tenantId);
  await target.client.query('delete from former_key where tenant_id = $1', [tenantId]);
}

/**
 * Deletes what a source still has of a tenant that has moved. The data that tells holders of a valid credential where it went
 * stays.
 */
export async function forgetMoved(source: Side, tenantId: string): Promise<void> {
  const out = await leaving(source, tenantId);
  if (out?.state !== 'moved') throw new CommandError(`${tenantId} has not moved away from here`);
  await forgetRecords(source, tenantId);
  // left by a request in progress, in a table that does not refer to a tenant
  for (const { name } of (await tablesOf(source.client)).toReversed()) {
    await source.client.query(`delete from ${name} where tenant_id = $1`, [tenantId]);
  }
  // a person's key can be judged only as long as the person is known
  await source.client.query(
    `delete from tenant_parcel p using tenant_parcel m
     where p.tenant_id = $1 and p.source = 'api_key' and m.tenant_id = $1 and m.source = 'member'
       and m.content->>'id' = p.content->>'created_by'
       and (m.content->>'removed_at' is not null or not m.content->'roles' ? 'admin')`,
    [tenantId],
  );
  await source.client.query(
    `delete from tenant_parcel where tenant_id = $1 and source not in ('credential', 'api_key', 'agent_key')`,
    [tenantId],
  );
}
