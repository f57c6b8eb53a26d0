import { setTimeout as delay } from 'node:timers/promises';
import { addAudit } from '../../chain/audit.ts';
import { readLosses } from '../../chain/loss.ts';
import type { ChainName } from '../../chain/record.ts';
import type { ChainPosition } from '../../chain/verify.ts';
import { OPERATOR } from '../../domain/audit.ts';
import type { FormerKey } from '../../keys/keyring.ts';
import { CommandError } from '../command.ts';
import { assertCheckpoints, keysHere, signHere } from './keys.ts';
import { resealed } from './secrets.ts';
import { CHAINS, depart, executeOn, LOCK_NOT_GRANTED, leaving, type Move, type Side, transaction } from './side.ts';
import { insertInto, tablesOf } from './tables.ts';

/* Moves all rows of a tenant, except its records, out of their tables at the source and into those of the target. */

/** What points to the source's address or is used up there, and former keys, which are sealed again with the others. */
const LEFT_BEHIND = ['session', 'sign_in_link', 'sso_used_state', 'mail_message', 'former_key'];
/** Rows of the parcel that are unpacked together; few if they contain files. */
const PAGE = 500;
const PAGE_OF_FILES = 4;
/** If a request holds a row for longer, the lift is retried: in between, no one waits for the locks taken here. */
const LOCK = `set local lock_timeout = '500ms'`;
const LIFT_ATTEMPTS = 60;
const RETRIED = new Set([LOCK_NOT_GRANTED, '40P01', '40001', '23503']);

/** From here on every process of the source refuses the tenant's credentials. */
export async function fence(source: Side, target: Side, tenantId: string, id: string): Promise<void> {
  await transaction(source, tenantId, async (client) => {
    const { installation: other, config } = target;
    await depart(source, client, tenantId, { id, state: 'fencing', other, address: config.baseUrl, heads: {} });
  });
}

/** Lifts the tenant out of its tables, retrying as long as work in progress holds its rows. Does nothing if that is done. */
export async function lift(source: Side, tenantId: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await liftOnce(source, tenantId);
    } catch (error) {
      if (!RETRIED.has((error as { code?: string }).code ?? '')) throw error;
      if (attempt === LIFT_ATTEMPTS) {
        throw new CommandError(
          'a request or a job holds rows of the tenant for too long: run the move again, or undo it',
        );
      }
      await delay(100);
    }
  }
}

async function liftOnce(source: Side, tenantId: string): Promise<void> {
  const { core } = source;
  const { checkpoints, keyring } = core;
  const known = new Map<ChainName, Awaited<ReturnType<typeof checkpoints.comparison.knowledge>>>();
  for (const chain of CHAINS) known.set(chain, await checkpoints.comparison.knowledge(tenantId, chain));
  await transaction(source, tenantId, async (client) => {
    await client.query(LOCK);
    const departure = await leaving(source, tenantId);
    if (departure?.state !== 'fencing') return;
    // waits for transactions that have added a row of the tenant, and prevents new ones
    await client.query('select from tenant where tenant_id = $1 for update', [tenantId]);
    await client.query('select from chain_head where tenant_id = $1 order by chain for update', [tenantId]);
    const { fingerprint, kid } = keyring.current;
    await addAudit(
      executeOn(client),
      tenantId,
      {
        actor: OPERATOR,
        action: 'tenant.departed',
        target: { type: 'tenant', id: tenantId },
        severity: 'critical',
        detail: `to ${departure.address}; the last checkpoints here are signed with ${kid}`,
        beforeHash: fingerprint,
      },
      { now: Date.now(), fingerprint: () => fingerprint },
    );
    const heads: Partial<Record<ChainName, ChainPosition>> = {};
    for (const chain of CHAINS) {
      const standing = await checkpoints.comparison.standing(client, tenantId, chain, known.get(chain)!);
      const { contradiction, unreadable, head, generation, signed } = standing;
      const objection = contradiction?.reason ?? unreadable;
      if (objection !== undefined) throw new CommandError(`the ${chain} chain cannot move: ${objection}`);
      if (head.seq > 0) heads[chain] = head;
      if (head.seq > signed) await signHere(source, client, tenantId, chain, { ...head, generation });
    }
    for (const { name } of (await tablesOf(client)).toReversed()) {
      await client.query(
        `with gone as (delete from ${name} where tenant_id = $1 returning *)
         insert into tenant_parcel (tenant_id, source, place, content)
         select $1, '${name}', row_number() over (), to_jsonb(gone) from gone`,
        [tenantId],
      );
    }
    await depart(source, client, tenantId, { ...departure, state: 'fenced', heads });
  });
}

/** The flip. Either all of it is stored or none, and the row `in` says which. */
export async function unpack(
  { source, target, tenantId }: Move,
  id: string,
  heads: ReadonlyMap<ChainName, ChainPosition>,
  former: readonly FormerKey[],
  tell: (step: string) => void | Promise<void>,
): Promise<void> {
  const { core } = target;
  await transaction(target, tenantId, async (client) => {
    const { rowCount } = await client.query(
      `update tenant_move set state = 'arrived', changed_at = now()
       where tenant_id = $1 and direction = 'in' and id = $2 and state = 'copying'`,
      [tenantId, id],
    );
    if (rowCount !== 1) throw new CommandError('the move was undone');
    for (const { name, columns } of await tablesOf(client)) {
      if (LEFT_BEHIND.includes(name)) continue;
      const many = columns.includes('bytes') ? PAGE_OF_FILES : PAGE;
      for (let place = 0; ; ) {
        const { rows } = await source.client.query<{ place: number; content: string }>(
          `select place, content::text as content from tenant_parcel
           where tenant_id = $1 and source = $2 and place > $3 order by place limit ${many}`,
          [tenantId, name, place],
        );
        if (rows.length === 0) break;
        place = rows.at(-1)!.place;
        const contents = rows.map(({ content }) => resealed(source, target, name, content));
        const insert = insertInto(name, columns, 'unnest($2::text[]) r (content)', 'r.content::jsonb');
        const { rowCount } = await client.query(insert, [tenantId, contents]);
        if (rowCount !== rows.length) throw new CommandError(`the source sent rows of another tenant (${name})`);
      }
    }
    await client.query(`delete from credential where tenant_id = $1 and kind = 'sign_in_link'`, [tenantId]);
    for (const chain of CHAINS) await assertCheckpoints(client, core, tenantId, chain, former);
    await tell('signing at the target');
    const { fingerprint } = core.keyring.current;
    const arrived = await addAudit(
      executeOn(client),
      tenantId,
      {
        actor: OPERATOR,
        action: 'tenant.arrived',
        target: { type: 'tenant', id: tenantId },
        severity: 'critical',
        detail: `from ${source.config.baseUrl}, with ${heads.get('forensics')?.seq ?? 0} decision records and ${heads.get('audit')?.seq ?? 0} audit records`,
        beforeHash: source.core.keyring.current.fingerprint,
        afterHash: fingerprint,
      },
      { now: Date.now(), fingerprint: () => fingerprint },
    );
    await client.query(`update chain_head set unsummarized = true where tenant_id = $1 and chain = 'forensics'`, [
      tenantId,
    ]);
    // what is signed here covers everything that came: the source's keys alone can rewrite none of it
    const decisions = heads.get('forensics');
    for (const [chain, head] of [
      ['audit', arrived.to],
      ['forensics', decisions],
    ] as const) {
      if (!head) continue;
      const losses = await readLosses(client, tenantId, chain, keysHere(core, former, tenantId, chain));
      await client.query('delete from chain_checkpoint where tenant_id = $1 and chain = $2 and seq = $3', [
        tenantId,
        chain,
        head.seq,
      ]);
      await signHere(target, client, tenantId, chain, { ...head, generation: losses.at(-1)?.generation ?? 0 });
    }
    await client.query(`delete from tenant_move where tenant_id = $1 and direction = 'out'`, [tenantId]);
    await client.query('delete from tenant_parcel where tenant_id = $1', [tenantId]);
  });
}

export async function putBack(source: Side, tenantId: string): Promise<void> {
  await transaction(source, tenantId, async (client) => {
    const tables = await tablesOf(client);
    if ((await leaving(source, tenantId))?.state === 'fenced') {
      // left by a request in progress, in a table that does not refer to a tenant: the lifted rows take precedence
      for (const { name } of tables.toReversed()) {
        await client.query(`delete from ${name} where tenant_id = $1`, [tenantId]);
      }
    }
    for (const { name, columns } of tables) {
      const from = `(select content from tenant_parcel where tenant_id = $1 and source = '${name}' order by place) r`;
      await client.query(insertInto(name, columns, from, 'r.content'), [tenantId]);
    }
    await client.query('delete from tenant_parcel where tenant_id = $1', [tenantId]);
    await client.query(`delete from tenant_move where tenant_id = $1 and direction = 'out'`, [tenantId]);
    const { fingerprint } = source.core.keyring.current;
    await addAudit(
      executeOn(client),
      tenantId,
      {
        actor: OPERATOR,
        action: 'tenant.departure_undone',
        target: { type: 'tenant', id: tenantId },
        severity: 'critical',
      },
      { now: Date.now(), fingerprint: () => fingerprint },
    );
  });
}
