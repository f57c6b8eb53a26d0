import type pg from 'pg';
import { addEventBy } from '../../../db/outbox.ts';
import type { Core } from '../../app.ts';
import { checkpointEvent } from '../../chain/checkpoint.ts';
import { isOriginOf, isSuperseded, RECORDS, readLosses } from '../../chain/loss.ts';
import { openHead } from '../../chain/note.ts';
import type { ChainName } from '../../chain/record.ts';
import type { ChainPosition } from '../../chain/verify.ts';
import { type FormerKey, type FormerLimits, keysOfChain, openFormerKey, sealFormerKey } from '../../keys/keyring.ts';
import { CommandError } from '../command.ts';
import { bytesOf } from './secrets.ts';
import { type Side, transaction } from './side.ts';

/* What the source signed for a tenant is trusted at the target within the limits of these keys. */

/** Checkpoints read by one statement. */
const PAGE = 500;

/**
 * Adds the keys that verify what the source, and those before it, signed for the tenant. They are added before the tenant is, so
 * that every process of the target has them when it opens a chain.
 */
export async function addFormerKeys(
  source: Side,
  target: Side,
  tenantId: string,
  heads: ReadonlyMap<ChainName, ChainPosition>,
): Promise<FormerKey[]> {
  const { rows } = await source.client.query<{ bundles: number }>(
    `select greatest(
       (select max((content->>'seq')::bigint) from tenant_parcel where tenant_id = $1 and source = 'policy_bundle'),
       (select (content->>'bundle_floor')::bigint from tenant_parcel where tenant_id = $1 and source = 'tenant'), 0
     ) as bundles`,
    [tenantId],
  );
  const { rows: earlier } = await source.client.query<{ kid: string; sealed: string }>(
    `select content->>'kid' as kid, content->>'sealed' as sealed from tenant_parcel
     where tenant_id = $1 and source = 'former_key'`,
    [tenantId],
  );
  const before = earlier.map(({ kid, sealed }) =>
    openFormerKey(source.core.box, { tenant_id: tenantId, kid, sealed: bytesOf(sealed) }),
  );
  const limit = async (chain: ChainName) => {
    const losses = await readLosses(source.client, tenantId, chain, keysHere(source.core, before, tenantId, chain));
    return { seq: heads.get(chain)?.seq ?? 0, generation: losses.at(-1)?.generation ?? 0 };
  };
  const upTo: FormerLimits = {
    forensics: await limit('forensics'),
    audit: await limit('audit'),
    bundles: rows[0]!.bundles,
  };
  const own = target.core.keyring.all.map(({ kid }) => kid);
  const former = [
    ...source.core.keyring.all.map(({ kid, publicKey }): FormerKey => ({ tenantId, kid, publicKey, upTo })),
    ...before,
  ].filter((key) => !own.includes(key.kid));
  // every Citus server has a copy of them
  target.core.db.replication?.assertEverywhere();
  await transaction(target, tenantId, async (client) => {
    await client.query('delete from former_key where tenant_id = $1', [tenantId]);
    for (const key of former) {
      const row = sealFormerKey(target.core.box, key);
      await client.query('insert into former_key (tenant_id, kid, sealed) values ($1, $2, $3) on conflict do nothing', [
        row.tenant_id,
        row.kid,
        row.sealed,
      ]);
    }
    await client.query(`select pg_notify('svc_notice', 'signing_keys * ')`);
  });
  return former;
}

export function keysHere({ keyring }: Core, former: readonly FormerKey[], tenantId: string, chain: ChainName) {
  const own = keyring.all.map(({ publicKey }) => publicKey);
  return keysOfChain(own, former, tenantId, chain);
}

/** Signs a chain's head with this side's key, in the caller's transaction. */
export async function signHere(
  { core }: Side,
  client: pg.Client,
  tenantId: string,
  chain: ChainName,
  head: ChainPosition & { generation: number },
): Promise<void> {
  const checkpoint = core.checkpoints.sign(tenantId, chain, { ...head, hash: Buffer.from(head.hash, 'hex') });
  if (!checkpoint) throw new CommandError('there is no key to sign with');
  await client.query(
    'insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at) values ($1, $2, $3, $4, $5, $6)',
    [tenantId, chain, checkpoint.seq, checkpoint.kid, checkpoint.note, checkpoint.createdAt],
  );
  await addEventBy(client, tenantId, checkpointEvent(checkpoint));
  await client.query('update chain_head set unsigned = false where tenant_id = $1 and chain = $2', [tenantId, chain]);
}

/** Asserts that every checkpoint that came along verifies with the keys known here, and matches the record here. */
export async function assertCheckpoints(
  client: pg.Client,
  core: Core,
  tenantId: string,
  chain: ChainName,
  former: readonly FormerKey[],
): Promise<void> {
  const keys = keysHere(core, former, tenantId, chain);
  const losses = await readLosses(client, tenantId, chain, keys);
  for (let after = 0; ; ) {
    const { rows } = await client.query<{ seq: number; note: string; hash: Buffer | null }>(
      `select c.seq, c.note, r.hash from chain_checkpoint c
       left join ${RECORDS[chain].table} r on r.tenant_id = $1 and r.seq = c.seq
       where c.tenant_id = $1 and c.chain = $2 and c.seq > $3 order by c.seq limit ${PAGE}`,
      [tenantId, chain, after],
    );
    if (rows.length === 0) return;
    for (const { seq, note, hash } of rows) {
      const head = openHead(note, keys);
      const agrees = head.hash === hash?.toString('hex') || isSuperseded(losses, head);
      if (head.seq !== seq || !isOriginOf(head.origin, tenantId, chain) || !agrees) {
        throw new CommandError(`checkpoint ${seq} of the ${chain} chain does not state what was copied`);
      }
    }
    after = rows.at(-1)!.seq;
  }
}
