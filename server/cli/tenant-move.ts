import { randomUUID } from 'node:crypto';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { citusOf } from '../../db/citus.ts';
import { COLUMN_TYPES } from '../../db/client.ts';
import { type Departure, departures, sealDeparture } from '../../db/moves.ts';
import { addEventBy } from '../../db/outbox.ts';
import type { Core } from '../app.ts';
import { secretContext as ssoPlace } from '../auth/sso/connections.ts';
import { addAudit, type Execute } from '../chain/audit.ts';
import { checkpointEvent } from '../chain/checkpoint.ts';
import { isOriginOf, isSuperseded, RECORDS, readLosses } from '../chain/loss.ts';
import { openHead } from '../chain/note.ts';
import type { ChainName } from '../chain/record.ts';
import { verifyChain } from '../chain/verification.ts';
import { type ChainPosition, ChainVerifier } from '../chain/verify.ts';
import type { Config } from '../config.ts';
import { OPERATOR } from '../domain/audit.ts';
import { type FormerKey, type FormerLimits, keysOfChain, openFormerKey, sealFormerKey } from '../keys/keyring.ts';
import { targetPlace } from '../subscriptions/fan-out.ts';
import { sealPlace } from '../subscriptions/subscription-row.ts';
import { secretContext as changePlace } from '../tenants/settings-changes.ts';
import { copyParts } from './backup.ts';
import { copyTarget, listTables } from './backup-format.ts';
import { CommandError } from './command.ts';
import { copyIn } from './copy-in.ts';
import { withClient } from './installation.ts';

/*
 * How a tenant moves from one installation to another, each with a database, keys and an address of its own:
 *
 *   1. the source's chains are verified; records are copied while requests go on
 *   2. the fence: every process of the source refuses the tenant's credentials (UNAVAILABLE). Then, in one transaction, all
 *      rows of the tenant but its records, and what is made from these, are lifted out of their tables into a parcel: no
 *      request, job or timer finds them
 *   3. the rest of the records is copied, and the whole of both chains is hashed again from what the target stored
 *   4. the flip: one transaction at the target unpacks the parcel and states that the tenant has arrived
 *   5. the source notes where the tenant is, and tells it to anyone who has a valid credential
 *
 * INVARIANT: the row `in` of `tenant_move` at the target decides. The flip turns it from `copying` to `arrived` and undoing turns it
 * to `cancelled`: of the two only one succeeds, so that the tenant is never in both places, wherever a run was killed. Each step
 * looks at what is there: a run that was killed is run again.
 */

/** One of the two installations. */
export interface Side {
  readonly core: Core;
  readonly config: Config;
  readonly sessionUrl: string;
  /** The owner's session, which holds the lock of the move. */
  readonly client: pg.Client;
  readonly installation: string;
}

/** Opens an installation's side of a move. Throws a CommandError while another run works on the same tenant there. */
export async function withSide<T>(
  core: Core,
  config: Config,
  sessionUrl: string,
  tenantId: string,
  work: (side: Side) => Promise<T>,
): Promise<T> {
  return withClient(sessionUrl, { types: COLUMN_TYPES }, async (client) => {
    const { rows } = await client.query<{ standby: boolean }>('select pg_is_in_recovery() as standby');
    if (rows[0]!.standby) throw new CommandError('the database is a standby: a move needs the primary');
    // the flip is durable before the source says that the tenant is gone, whatever the server's configuration says
    await client.query(`set synchronous_commit = on; set lock_timeout = '${RUN_MS}'`);
    try {
      // the connection of a run that was killed a moment ago may still be at its last statement
      await client.query('select pg_advisory_lock(hashtextextended($1, 4))', [`move of ${tenantId}`]);
    } catch (error) {
      if ((error as { code?: string }).code !== LOCK_NOT_GRANTED) throw error;
      throw new CommandError(`another run moves ${tenantId}: wait for its end`);
    }
    await client.query('set lock_timeout = 0');
    if ((await citusOf(client))?.spread) {
      throw new CommandError('tenants are on several servers (Citus), between which they move by rebalancing');
    }
    return work({ core, config, sessionUrl, client, installation: await core.db.installation() });
  });
}

export interface Move {
  source: Side;
  target: Side;
  tenantId: string;
  /** Called at the beginning of each step, with words for the operator. */
  tell?: ((step: string) => void | Promise<void>) | undefined;
}

export interface Moved {
  tenant_id: string;
  address: string;
  /** The last records that the source wrote; 0 for a chain without one. */
  forensics_seq: number;
  audit_seq: number;
}

interface MoveRow {
  id: string;
  state: 'copying' | 'arrived' | 'cancelled';
  other: string;
  address: string;
}

const CHAINS = ['audit', 'forensics'] as const;
/** What is copied, and stays where it was until it is forgotten; all else is in the parcel. */
const COPIED = ['forensic_record', 'audit_record', 'decision_input'];
/** What the target makes again from the records, and stays as they do. */
const REMADE = ['forensic_block'];
/** What tells rows of one tenant apart, where it is not `seq`. */
const KEYS: Readonly<Record<string, string>> = { decision_input: 'event_id', forensic_block: 'block' };
const OWN = ['tenant_move', 'tenant_parcel'];
/** What leads to the source's address or is used up there, and former keys, which are sealed again with the others. */
const LEFT_BEHIND = ['session', 'sign_in_link', 'sso_used_state', 'mail_message', 'former_key'];
/** Records copied by one statement. */
const STEP = 50_000;
/** Rows of the parcel that are unpacked together; of those with files in them few. */
const PAGE = 500;
const PAGE_OF_FILES = 4;
const READ_BACK = 5000;
const PAGE_OF_INPUTS = 5000;
/** Rounds of copying before the fence, at most; a round that copies so few records is the last one. */
const ROUNDS = 10;
const LITTLE = 2000;
const FORGET = 10_000;
/** A row that a request holds for longer is waited for in the next attempt: nobody waits for the fence meanwhile. */
const LOCK = `set local lock_timeout = '500ms'`;
const LIFT_ATTEMPTS = 60;
const LOCK_NOT_GRANTED = '55P03';
const RETRIED = new Set([LOCK_NOT_GRANTED, '40P01', '40001', '23503']);
/** How long a run waits for another one's end. */
const RUN_MS = 3000;

/** Moves a tenant, or goes on where a run was killed. Resolves when the tenant is at the target and the source says so. */
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
    // what came while the rest was copied, until little is left for the fence
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
    // whatever the row there says: it is not said here that a tenant is where it is not
    const there = (await hasTenant(target, tenantId)) || (await leaving(target, tenantId));
    if (!there) throw new CommandError(`${tenantId} has not arrived`);
    await depart(source, source.client, tenantId, { ...departure, state: 'moved' });
  }
  // nothing erases them here any more when their time is over; the target does
  await forgetRecords(source, tenantId, ['decision_input']);
  const { heads } = departure;
  return {
    tenant_id: tenantId,
    address: target.config.baseUrl,
    forensics_seq: heads.forensics?.seq ?? 0,
    audit_seq: heads.audit?.seq ?? 0,
  };
}

/** Finds out where an earlier run ended, or begins a move. */
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
  if (into?.state === 'cancelled') await forgetRecords(target, tenantId);
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

/** The whole chain, with everything that is known about it. A loss that an operator has accepted does not stand in the way. */
async function assertVerified({ core, config, sessionUrl }: Side, tenantId: string, chain: ChainName): Promise<void> {
  // raises the alarm where it is due
  await core.checkpoints.inspect(tenantId, chain);
  const verdict = await verifyChain(sessionUrl, tenantId, chain, {
    keys: core.keyring.ofChain(tenantId, chain),
    directory: path.join(config.dataDir, 'checkpoints'),
    acknowledged: (...of) => core.checkpoints.acknowledged.known(...of),
  });
  if (!verdict.verified) throw new CommandError(`the ${chain} chain does not verify: ${verdict.reason}`);
}

/** The records of one chain on their way, hashed again from what the target has stored. */
class Copy {
  readonly #source: Side;
  readonly #target: Side;
  readonly #tenantId: string;
  readonly #chain: ChainName;
  readonly #verifier: ChainVerifier;
  #read = 0;

  constructor(source: Side, target: Side, tenantId: string, chain: ChainName) {
    this.#source = source;
    this.#target = target;
    this.#tenantId = tenantId;
    this.#chain = chain;
    this.#verifier = new ChainVerifier({ tenantId, chain });
  }

  /** Copies what the target lacks up to a record, each step in a transaction of its own. */
  async upTo(last: number): Promise<void> {
    const { table } = RECORDS[this.#chain];
    const tenant = pg.escapeLiteral(this.#tenantId);
    const described = (await listTables(this.#source.client)).find(({ name }) => name === table)!;
    const { rows } = await this.#target.client.query<{ last: number | null }>(
      `select max(seq) as last from ${table} where tenant_id = $1`,
      [this.#tenantId],
    );
    for (let from = rows[0]!.last ?? 0; from < last; from += STEP) {
      const to = Math.min(from + STEP, last);
      const parts = copyParts(
        this.#source.client,
        `copy (select ${described.columns.join(', ')} from ${table}
           where tenant_id = ${tenant} and seq > ${from} and seq <= ${to} order by seq) to stdout (format binary)`,
      );
      await copyOwn(this.#target, this.#tenantId, described, parts);
    }
    while (this.#read < last) {
      const { rows: stored } = await this.#target.client.query<{ seq: number; hash: Buffer; line: string }>(
        `select seq, hash, line from ${table} where tenant_id = $1 and seq > $2 order by seq limit ${READ_BACK}`,
        [this.#tenantId, this.#read],
      );
      if (stored.length === 0) break;
      for (const row of stored) this.#verifier.add(row);
      this.#read = stored.at(-1)!.seq;
    }
  }

  /** Copies up to the last record that is there now. Resolves with how many records that were. */
  async upToLast(): Promise<number> {
    const { rows } = await this.#source.client.query<{ last: number | null }>(
      `select max(seq) as last from ${RECORDS[this.#chain].table} where tenant_id = $1`,
      [this.#tenantId],
    );
    const before = this.#read;
    await this.upTo(rows[0]!.last ?? 0);
    return this.#read - before;
  }

  /** Throws unless what the target has stored is the whole chain up to this head. */
  finish(head: ChainPosition | undefined): void {
    if (!head) return;
    const { verified, reason } = this.#verifier.finish({ head });
    if (!verified) throw new CommandError(`the ${this.#chain} chain at the target does not verify: ${reason}`);
  }
}

/** From here on every process of the source refuses the tenant's credentials. */
async function fence(source: Side, target: Side, tenantId: string, id: string): Promise<void> {
  await transaction(source, tenantId, async (client) => {
    const { installation: other, config } = target;
    await depart(source, client, tenantId, { id, state: 'fencing', other, address: config.baseUrl, heads: {} });
  });
}

/** Lifts the tenant out of its tables, however often what is under way has to be waited for. Nothing to do when it is. */
async function lift(source: Side, tenantId: string): Promise<void> {
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
    // waits for who has added a row of the tenant, and lets nobody add another one
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

/**
 * Makes what is kept of requests at the target what it is at the source: page by page in the order of the ids, and only pages
 * that differ are copied. What was erased at the source meanwhile is erased at the target, too.
 */
async function copyInputs(source: Side, target: Side, tenantId: string): Promise<void> {
  const tenant = pg.escapeLiteral(tenantId);
  const described = (await listTables(source.client)).find(({ name }) => name === 'decision_input')!;
  for (let after = ''; ; ) {
    const { rows: there } = await source.client.query<InputsPage>(inputsPage(`limit ${PAGE_OF_INPUTS}`), [
      tenantId,
      after,
    ]);
    const { last, digest } = there[0]!;
    // beyond the last one nothing may be left at the target
    const upTo = last === null ? 'true' : `event_id <= ${pg.escapeLiteral(last)}`;
    const { rows: here } = await target.client.query<InputsPage>(inputsPage('', upTo), [tenantId, after]);
    if (here[0]!.digest !== digest) {
      await target.client.query(`delete from decision_input where tenant_id = $1 and event_id > $2 and ${upTo}`, [
        tenantId,
        after,
      ]);
      const parts = copyParts(
        source.client,
        `copy (select ${described.columns.join(', ')} from decision_input where tenant_id = ${tenant}
           and event_id > ${pg.escapeLiteral(after)} and ${upTo}) to stdout (format binary)`,
      );
      await copyOwn(target, tenantId, described, parts);
    }
    if (last === null) return;
    after = last;
  }
}

interface InputsPage {
  /** null for no row. */
  last: string | null;
  digest: string | null;
}

/** A salt is drawn again with each text, and goes when the text is erased: two rows with the same salts are the same. */
const inputsPage = (limit: string, upTo = 'true') =>
  `select max(event_id) as last, encode(sha256(convert_to(string_agg(event_id || ' ' || coalesce(encode(salt_a, 'hex'), '')
     || ' ' || coalesce(encode(salt_b, 'hex'), ''), ',' order by event_id), 'UTF8')), 'hex') as digest
   from (select event_id, salt_a, salt_b from decision_input
     where tenant_id = $1 and event_id > $2 and ${upTo} order by event_id ${limit}) p`;

/**
 * Stores rows that another database sent, all or none, and only those of this tenant: whatever that database sends, no other
 * tenant of this one gets a row.
 */
async function copyOwn(
  { client }: Side,
  tenantId: string,
  { name, columns }: Tables[number],
  parts: AsyncIterable<Buffer>,
): Promise<void> {
  const names = columns.map((column) => pg.escapeIdentifier(column)).join(', ');
  await client.query('begin');
  try {
    await client.query(`create temporary table arriving (like ${name}) on commit drop`);
    const sent = await copyIn(
      client,
      `copy ${copyTarget({ name: 'arriving', columns })} from stdin (format binary)`,
      parts,
    );
    const { rowCount } = await client.query(
      `insert into ${name} (${names}) select ${names} from arriving where tenant_id = $1`,
      [tenantId],
    );
    if (rowCount !== sent) throw new CommandError(`the source sent rows of another tenant (${name})`);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback').catch(() => undefined);
    throw error;
  }
}

/**
 * Adds the keys that verify what the source, and those before it, signed of the tenant. They are there before the tenant is, so
 * that every process of the target has them when it opens a chain.
 */
async function addFormerKeys(
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

/** The flip. Either all of it is there or nothing, and the row `in` says which. */
async function unpack(
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
    // what is signed here covers all that came: the source's keys alone can rewrite none of it
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

/** Every checkpoint that came along opens with the keys that are known here, and states what the record here says. */
async function assertCheckpoints(
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

function keysHere({ keyring }: Core, former: readonly FormerKey[], tenantId: string, chain: ChainName) {
  const own = keyring.all.map(({ publicKey }) => publicKey);
  return keysOfChain(own, former, tenantId, chain);
}

/**
 * Ends a move without its target. Only the operator can know that the target has not flipped, or is gone for good: one that
 * has flipped and comes back has the tenant too.
 */
export async function undoAlone(source: Side, tenantId: string): Promise<void> {
  const out = await leaving(source, tenantId);
  if (!out) throw new CommandError(`${tenantId} is not moving`);
  if (out.state === 'moved') throw new CommandError(`${tenantId} has moved to ${out.address}`);
  await putBack(source, tenantId);
}

/** Ends a move that has not flipped: the tenant goes on at the source, and the target forgets what it has copied. */
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
  if (now?.id === id) {
    await forgetRecords(target, tenantId);
    await target.client.query('delete from former_key where tenant_id = $1', [tenantId]);
  }
  return { restored: out !== undefined };
}

async function putBack(source: Side, tenantId: string): Promise<void> {
  await transaction(source, tenantId, async (client) => {
    const tables = await tablesOf(client);
    if ((await leaving(source, tenantId))?.state === 'fenced') {
      // what a request that was under way left in a table that refers to no tenant: what was lifted out counts
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

/** Deletes what a source still has of a tenant that has moved. What tells holders of a valid credential where it is stays. */
export async function forgetMoved(source: Side, tenantId: string): Promise<void> {
  const out = await leaving(source, tenantId);
  if (out?.state !== 'moved') throw new CommandError(`${tenantId} has not moved away from here`);
  await forgetRecords(source, tenantId);
  // what a request that was under way left in a table that refers to no tenant
  for (const { name } of (await tablesOf(source.client)).toReversed()) {
    await source.client.query(`delete from ${name} where tenant_id = $1`, [tenantId]);
  }
  // whether a key of a person counted is known only as long as the person is
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

// --- parts

/** What the source says of a departure. Throws for a row that it did not write: nothing is done on its word. */
async function leaving({ core, client }: Side, tenantId: string): Promise<Departure | undefined> {
  const said = await departures(client, core.box, tenantId);
  if (said.size > 0 && !said.get(tenantId)) {
    throw new CommandError(`what says that ${tenantId} leaves was not written by this installation: see svc doctor`);
  }
  return said.get(tenantId);
}

/** Writes down how far a departure is. */
async function depart({ core }: Side, client: pg.Client, tenantId: string, departure: Departure): Promise<void> {
  const { id, state, other, address } = departure;
  await client.query(
    `insert into tenant_move (tenant_id, direction, id, state, other, address, changed_at, sealed)
     values ($1, 'out', $2, $3, $4, $5, now(), $6)
     on conflict (tenant_id, direction) do update
     set id = excluded.id, state = excluded.state, other = excluded.other, address = excluded.address, changed_at = now(),
       sealed = excluded.sealed`,
    [tenantId, id, state, other, address, sealDeparture(core.box, tenantId, departure)],
  );
}

async function arriving({ client }: Side, tenantId: string): Promise<MoveRow | undefined> {
  const { rows } = await client.query<MoveRow>(
    `select id, state, other, address from tenant_move where tenant_id = $1 and direction = 'in'`,
    [tenantId],
  );
  return rows[0];
}

async function hasTenant({ client }: Side, tenantId: string): Promise<boolean> {
  return (await client.query('select 1 from tenant where tenant_id = $1', [tenantId])).rowCount === 1;
}

/** The tables of which a tenant's rows are in the parcel; what a foreign key leads to comes first. */
async function tablesOf(client: pg.Client) {
  const apart = [...COPIED, ...REMADE, ...OWN];
  return (await listTables(client)).filter(
    ({ name, columns }) => columns.includes('tenant_id') && !apart.includes(name),
  );
}

type Tables = Awaited<ReturnType<typeof listTables>>;

/** Inserts rows of the tenant $1, and no others. */
function insertInto(table: string, columns: readonly string[], from: string, content: string): string {
  const names = columns.map((column) => pg.escapeIdentifier(column));
  return `insert into ${table} (${names.join(', ')}) select ${names.map((name) => `p.${name}`).join(', ')}
    from ${from}, jsonb_populate_record(null::${table}, ${content}) p where p.tenant_id = $1`;
}

async function headsOf(source: Side, tenantId: string): Promise<Map<ChainName, ChainPosition>> {
  return new Map(Object.entries((await leaving(source, tenantId))?.heads ?? {})) as Map<ChainName, ChainPosition>;
}

/**
 * A row of the parcel with its secrets sealed under the target's master key. Throws for a secret whose place is not known:
 * at the target nothing would open it.
 */
function resealed(source: Side, target: Side, table: string, content: string): string {
  const head = Buffer.concat([Buffer.from([1]), source.core.box.keyId]);
  // as bytea, or within jsonb
  const marks = [`\\x${head.toString('hex')}`, head.toString('base64')] as const;
  if (!marks.some((mark) => content.includes(JSON.stringify(mark).slice(1, -1)))) return content;
  const row = JSON.parse(content) as Record<string, unknown>;
  let text = content;
  const visit = (value: unknown, name: string): void => {
    if (typeof value === 'object') for (const [key, one] of Object.entries(value ?? {})) visit(one, `${name}.${key}`);
    const form = typeof value === 'string' ? marks.findIndex((mark) => value.startsWith(mark)) : -1;
    if (typeof value !== 'string' || form < 0) return;
    const place = placeOf(name.replaceAll(/\.\d+/g, '[]'), String(row.tenant_id), String(row.id));
    if (place === undefined) throw new Error(`${name} holds a secret that a move does not know`);
    const secret = source.core.box.open(form === 0 ? bytesOf(value) : Buffer.from(value, 'base64'), place);
    const sealed = target.core.box.seal(secret, place);
    const there = form === 0 ? `\\x${sealed.toString('hex')}` : sealed.toString('base64');
    // the rest of the text stays as it is, numbers above all
    text = text.replaceAll(JSON.stringify(value), () => JSON.stringify(there));
  };
  visit(row, table);
  return text;
}

function placeOf(column: string, tenantId: string, id: string): string | undefined {
  switch (column) {
    case 'sso_connection.client_secret':
      return ssoPlace(tenantId);
    case 'settings_change.secret_sealed':
      return changePlace(tenantId, id);
    case 'delivery_lane.target_sealed':
      return targetPlace(tenantId, id);
    case 'subscription.url_sealed':
      return sealPlace(tenantId, id, 'url');
    case 'subscription.secret_sealed':
      return sealPlace(tenantId, id, 'secret');
    case 'subscription.previous_secret_sealed':
      return sealPlace(tenantId, id, 'previous_secret');
    default:
      return undefined;
  }
}

/** bytea as jsonb has it. */
const bytesOf = (text: string) => Buffer.from(text.slice(2), 'hex');

/** Deletes what was copied and what was made from it, in batches. */
async function forgetRecords({ client }: Side, tenantId: string, tables = [...COPIED, ...REMADE]): Promise<void> {
  for (const table of tables) {
    const key = KEYS[table] ?? 'seq';
    const text = `delete from ${table} where tenant_id = $1 and ${key} in (
      select ${key} from ${table} where tenant_id = $1 limit ${FORGET})`;
    while (((await client.query(text, [tenantId])).rowCount ?? 0) === FORGET);
  }
}

/** Signs a chain's head with this side's key, in the caller's transaction. */
async function signHere(
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

const executeOn =
  (client: pg.Client): Execute =>
  async (sql, values) =>
    (await client.query(sql, values)).rows as never;

/** What processes remember of a tenant; when it moves, none of it counts any more. */
const REMEMBERED = ['settings', 'policies', 'stops', 'destinations', 'members', 'tenant'] as const;

/** A transaction of the owner's, after which every process of that side asks its database about the tenant again. */
async function transaction(
  { core, client }: Side,
  tenantId: string,
  work: (client: pg.Client) => Promise<void>,
): Promise<void> {
  const { notices } = core.db;
  const issued = REMEMBERED.map((topic) => notices.issue(topic, tenantId, ''));
  await client.query('begin');
  try {
    await work(client);
    for (const { notice, sql, params } of issued) {
      let place = 0;
      const { rows } = await client.query<{ xid: string }>(
        sql.replaceAll('?', () => `$${++place}`),
        params,
      );
      notice.xid = Number(rows[0]!.xid);
    }
    await client.query('commit');
  } catch (error) {
    for (const { notice } of issued) notices.drop(notice);
    await client.query('rollback').catch(() => undefined);
    throw error;
  }
  await Promise.all(issued.map(({ notice }) => notices.deliver(notice)));
}
