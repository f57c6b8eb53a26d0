import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readdir } from 'node:fs/promises';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { createGunzip } from 'node:zlib';
import pg from 'pg';
import type { z } from 'zod';
import { claimDatabase } from '../../db/claim.ts';
import { COLUMN_TYPES } from '../../db/client.ts';
import { migrationChecksums } from '../../db/migrations/index.ts';
import { departures, hasLeftWith } from '../../db/moves.ts';
import { PrimaryClient } from '../../db/primary.ts';
import type { LossWithin } from '../chain/accept-loss.ts';
import { chainOfFile, highestInFile } from '../chain/checkpoint-file.ts';
import type { KeysOf } from '../chain/standing.ts';
import { readConfig } from '../config.ts';
import { type AuditEntry, OPERATOR } from '../domain/audit.ts';
import { type FormerKeyRow, keysOfChain, openFormerKey, openSigningKey, type SigningKeyRow } from '../keys/keyring.ts';
import { systemClock } from '../lib/clock.ts';
import { SecretBox, sha256 } from '../lib/crypto.ts';
import { createLog } from '../lib/log.ts';
import { ArchiveError } from '../lib/tar.ts';
import { ArchiveReader } from './archive-reader.ts';
import { assertOpens, copyTarget, Header, listTables, Manifest, partName, SEAL_PLACE } from './backup-format.ts';
import { CommandError, columns, command, JSON_FLAG } from './command.ts';
import { copyIn } from './copy-in.ts';
import {
  assertOneServer,
  type Installation,
  readState,
  requireMasterKey,
  withClient,
  withInstallation,
} from './installation.ts';

/** Tables that are filled when a database is first opened; they do not count against it being empty. */
const OWN_ROWS = ['signing_key', 'instance'];

export const restore = command({
  name: 'restore',
  summary: 'Restore a backup into an empty database, completely or not at all',
  more:
    'The database must have no tenants, and the master key of the backup must be configured (SVC_MASTER_KEY, or master.key\n' +
    'in the data directory). The schema versions must match. The server must not be running. What may have ended since the\n' +
    'backup is ended: sessions, links and invitations end, open and released holds are cancelled, and keys are inactive\n' +
    'until "svc key confirm". People and roles are as of the backup: look them through first. See docs/restore.md.',
  args: [{ name: 'FILE', help: 'a file created by "svc backup"' }],
  flags: {
    'behind-checkpoints': {
      help: 'restore even if newer records are known to exist; their loss is recorded in each chain',
    },
    'may-lack-records': {
      help: 'restore without the checkpoint files: acknowledged records may be missing, and nothing shows it',
    },
    check: { help: 'only read the file and check all of it: needs the master key, and no database' },
    ...JSON_FLAG,
  },
  async run({ args, flags, print }) {
    const file = path.resolve(args[0]!);
    const handle = await open(file, 'r');
    await handle.close();
    if (flags.check) {
      const { header, manifest } = await check(file, new SecretBox(requireMasterKey(readConfig())));
      print({ file, ...header, tables: manifest.tables }, [
        ...columns(manifest.tables.map((table) => [table.name, `${table.rows} rows`])),
        `The backup of ${header.created_at} is complete and unchanged, and this program and master key can restore it.`,
        'Records acknowledged since then are not in it: a restore compares it with the checkpoint files.',
      ]);
      return 0;
    }
    const behind = flags['behind-checkpoints'];
    const unknowing = flags['may-lack-records'];
    const { header, manifest, ended, people } = await withInstallation({ create: true }, async (installation) => {
      const { config, sessionUrl } = installation;
      const box = new SecretBox(requireMasterKey(config));
      const { migrate } = await import('../../db/index.ts');
      // a running server would keep using the replaced keys
      const claim = await claimDatabase(sessionUrl, { alone: true, onConflict: () => undefined });
      try {
        await migrate(sessionUrl);
        const checkpoints = path.join(config.dataDir, 'checkpoints');
        return await withClient(sessionUrl, { types: COLUMN_TYPES }, async (client) => {
          await assertOneServer(client);
          return load(client, file, box, { ...installation, checkpoints, behind, unknowing });
        });
      } finally {
        await claim.release();
      }
    });
    print({ file, ...header, tables: manifest.tables, ended, people }, [
      ...columns(manifest.tables.map((table) => [table.name, `${table.rows} rows`])),
      `Restored the state of ${header.created_at}.`,
      endedWords(ended),
      'All keys of people and agents are inactive: look at "svc key list", revoke those that you do not recognize, then run',
      '"svc key confirm".',
      'People, roles, stops and policies are as of the backup. Before the server starts, remove whoever was removed since:',
      ...columns(
        people.map(({ tenant_id, members, admins }) => [
          tenant_id,
          `${members} ${members === 1 ? 'member' : 'members'}`,
          `admins ${admins.join(', ') || 'none'}`,
        ]),
      ),
      'Verify the chains of each tenant: GET /v1/forensics/verify and /v1/audit/verify.',
    ]);
    return 0;
  },
});

/** Loads the file in one transaction, which commits only if the file is complete and matches its manifest. */
async function load(
  client: pg.Client,
  file: string,
  box: SecretBox,
  options: Installation & { checkpoints: string; behind: boolean; unknowing: boolean },
): Promise<Restored> {
  return reading(file, async (reader) => {
    await client.query('begin');
    const tables = await listTables(client);
    await assertEmpty(client, tables);
    const { done } = await readState(client);
    const { header, manifest } = await readAll(reader, box, {
      fits: (header) => assertFits(header, tables, done, box),
      take: (table, bytes) => copyIn(client, `copy ${copyTarget(table)} from stdin (format binary)`, bytes),
    });
    await assertOpens(client, box);
    const { keys, keysOf } = await readSigningKeys(client, box);
    const { beyond, unknown } = await recordsBeyond(client, options.checkpoints, keysOf, box);
    if (beyond.length > 0 && !options.behind) {
      throw new CommandError(
        `the backup lacks records that are known to exist:\n  ${beyond.join('\n  ')}\n` +
          'Restore a newer backup, or use --behind-checkpoints to give up those records. Nothing was restored.',
      );
    }
    if (unknown.length > 0 && !options.unknowing) {
      throw new CommandError(
        `nothing here shows whether the backup lacks acknowledged records:\n  ${unknown.join('\n  ')}\n` +
          `Put the newest checkpoint files into ${options.checkpoints}, those of all processes (append files of the same ` +
          'name to each other), or use --may-lack-records to restore without knowing. Nothing was restored.',
      );
    }
    const { cancelled, ...ended } = await endWhatWasAlive(client);
    await recordRestore(client, { header, beyond, unknown, ended, cancelled });
    const people = await peopleOf(client);
    const losses = lossesOf(options, keys, keysOf);
    try {
      const accepted = await losses.accept(client, beyond, reasonOf(header));
      await client.query('commit');
      for (const { publish } of accepted) await publish();
    } finally {
      await losses.close();
    }
    await client.query('analyze');
    return { header, manifest, ended, people };
  });
}

/** Reads the whole file, and nothing else. Throws a CommandError if a restore would refuse it. */
function check(file: string, box: SecretBox): Promise<{ header: Header; manifest: Manifest }> {
  const done = [...migrationChecksums().keys()];
  return reading(file, (reader) =>
    readAll(reader, box, {
      fits: (header) => assertFits(header, header.tables, done, box),
      async take(_table, bytes) {
        for await (const _ of bytes);
        return undefined;
      },
    }),
  );
}

async function reading<T>(file: string, work: (reader: ArchiveReader) => Promise<T>): Promise<T> {
  const source = createReadStream(file);
  const unzipped = source.on('error', (error) => unzipped.destroy(error)).pipe(createGunzip());
  // errors surface when it is read, which may start later
  unzipped.on('error', () => undefined);
  try {
    return await work(new ArchiveReader(unzipped));
  } catch (error) {
    throw damaged(error);
  } finally {
    source.destroy();
    unzipped.destroy();
  }
}

/**
 * Reads every member and compares it with the sealed manifest. `take` gets the bytes of each table, and resolves to how many rows
 * they were, if it knows.
 */
async function readAll(
  reader: ArchiveReader,
  box: SecretBox,
  {
    fits,
    take,
  }: {
    fits(header: Header): void;
    take(table: Header['tables'][number], bytes: AsyncGenerator<Buffer>): Promise<number | undefined>;
  },
): Promise<{ header: Header; manifest: Manifest }> {
  const headerText = await reader.text('backup.json');
  const header = parse(Header, headerText, 'backup.json');
  fits(header);
  const found: Found = { header_sha256: sha256(headerText).toString('hex'), tables: [] };
  for (const table of header.tables) {
    const sum = createHash('sha256');
    const entry = { name: table.name, bytes: 0, parts: 0 };
    const bytes = reader.parts(
      () => partName(table.name, entry.parts),
      () => entry.parts++,
      (chunk) => {
        sum.update(chunk);
        entry.bytes += chunk.length;
      },
    );
    const rows = await take(table, bytes);
    found.tables.push({ ...entry, rows, sha256: sum.digest('hex') });
  }
  const manifestText = await reader.text('manifest.json');
  const manifest = parse(Manifest, manifestText, 'manifest.json');
  const seal = await reader.text('manifest.seal');
  await reader.end();
  compare(manifest, found);
  assertSealed(manifestText, seal, box);
  return { header, manifest };
}

/** What was read, as far as it is known. */
interface Found {
  header_sha256: string;
  tables: (Omit<Manifest['tables'][number], 'rows'> & { rows: number | undefined })[];
}

interface Restored {
  header: Header;
  manifest: Manifest;
  ended: Ended;
  people: PeopleOfTenant[];
}

/** Who can act again: the backup does not know who has been removed or demoted since. */
interface PeopleOfTenant {
  tenant_id: string;
  members: number;
  admins: string[];
}

async function peopleOf(client: pg.Client): Promise<PeopleOfTenant[]> {
  const { rows } = await client.query<PeopleOfTenant>(
    `select tenant_id, count(*)::int as members,
       coalesce(json_agg(email order by email) filter (where 'admin' = any(roles)), '[]') as admins
     from member where removed_at is null group by tenant_id order by tenant_id`,
  );
  return rows;
}

interface Ended {
  sessions: number;
  links: number;
  invitations: number;
  /** Settings changes that were waiting for a second person. */
  changes: number;
  holds: number;
  keys: number;
}

const endedWords = ({ sessions, links, invitations, changes, holds, keys }: Ended) =>
  `Ended: ${sessions} sessions, ${links} sign-in links, ${invitations} invitations, ${changes} pending settings ` +
  `changes. Cancelled: ${holds} holds. ` +
  `Waiting for confirmation: ${keys} keys.`;

/**
 * Within the restoring transaction, ends everything that may have ended since the backup: a person signed out, a link or
 * a release was used, a key was revoked. The backup cannot tell, so all of it is ended.
 */
async function endWhatWasAlive(client: pg.Client): Promise<Ended & { cancelled: CancelledHold[] }> {
  const run = async (sql: string) => (await client.query(sql)).rowCount ?? 0;
  await run(`delete from credential where kind in ('sign_in_link', 'invitation', 'workload_token')`);
  // unsent mails contain links; people can request new ones
  await run('delete from mail_message');
  await run('delete from mail_notice');
  await run('delete from escrow_aside');
  await run('delete from sign_in_request');
  // the rows stay: a platform's token that was used is still refused
  await run('update workload_token set revoked_at = now() where revoked_at is null');
  const sessions = await run('delete from session');
  const links = await run('delete from sign_in_link');
  const invitations = await run(
    'update invitation set revoked_at = now() where accepted_at is null and revoked_at is null',
  );
  // otherwise a change withdrawn or rejected since would be pending again
  const changes = await run(
    `update settings_change set status = 'superseded', decided_at = now() where status = 'pending'`,
  );
  const { rows: cancelled } = await client.query<CancelledHold>(
    `update escrow_hold set status = 'cancelled', releases_at = null, ends_at = null, wake_at = null,
       machine_context = jsonb_set(machine_context, '{endedAt}', to_jsonb(floor(extract(epoch from now()) * 1000)::bigint)),
       row_version = row_version + 1
     where status in ('held', 'released') returning tenant_id, id`,
  );
  const unconfirmed = (table: string) => run(`update ${table} set unconfirmed_since = now() where revoked_at is null`);
  return {
    sessions,
    links,
    invitations,
    changes,
    holds: cancelled.length,
    cancelled,
    keys: (await unconfirmed('api_key')) + (await unconfirmed('agent_key')) + (await unconfirmed('workload_trust')),
  };
}

/** A hold cancelled by the restore. */
interface CancelledHold {
  tenant_id: string;
  id: string;
}

type OpenKey = ReturnType<typeof openSigningKey>;

/** The signing keys of the backup, each verified under the master key. */
async function readSigningKeys(client: pg.Client, box: SecretBox): Promise<{ keys: OpenKey[]; keysOf: KeysOf }> {
  const { rows } = await client.query<SigningKeyRow>('select * from signing_key order by created_at desc, kid');
  const keys = rows.map((row) => openSigningKey(box, row));
  const { rows: formerRows } = await client.query<FormerKeyRow>('select * from former_key');
  const former = formerRows.map((row) => openFormerKey(box, row));
  const own = keys.map(({ publicKey }) => publicKey);
  return { keys, keysOf: (tenantId, chain) => keysOfChain(own, former, tenantId, chain) };
}

/**
 * `beyond`: records in the checkpoint files that the restored chains lack or have with another hash. `unknown`: chains of which no
 * file shows what came after the backup, because there is none, or it ends before the backup's own checkpoints.
 */
async function recordsBeyond(
  client: pg.Client,
  directory: string,
  keysOf: KeysOf,
  box: SecretBox,
): Promise<{ beyond: string[]; unknown: string[] }> {
  const { rows: tenants } = await client.query<{ tenant_id: string }>('select tenant_id from tenant order by 1');
  const found: string[] = [];
  const unknown: string[] = [];
  for (const { tenant_id } of tenants) {
    for (const [chain, table] of [
      ['forensics', 'forensic_record'],
      ['audit', 'audit_record'],
    ] as const) {
      try {
        const filed = await highestInFile(directory, tenant_id, chain, keysOf(tenant_id, chain));
        const newest = filed.toSorted((a, b) => (b.generation ?? 0) - (a.generation ?? 0) || b.seq - a.seq)[0];
        const { rows: known } = await client.query<{ head: number; signed: number }>(
          `select coalesce((select seq from chain_head where tenant_id = $1 and chain = $2), 0)::float8 as head,
             coalesce((select max(seq) from chain_checkpoint where tenant_id = $1 and chain = $2), 0)::float8 as signed`,
          [tenant_id, chain],
        );
        const { head, signed } = known[0]!;
        if (!newest) {
          if (head > 0) unknown.push(`tenant ${tenant_id}, ${chain}: there is no checkpoint file`);
          continue;
        }
        const { rows } = await client.query<{ hash: string }>(
          `select encode(hash, 'hex') as hash from ${table} where tenant_id = $1 and seq = $2`,
          [tenant_id, newest.seq],
        );
        if (rows[0]?.hash === newest.hash) {
          if (newest.seq < signed) {
            unknown.push(
              `tenant ${tenant_id}, ${chain}: the checkpoint file ends at record ${newest.seq}, and record ${signed} was signed`,
            );
          }
          continue;
        }
        const what = rows[0] ? 'differs' : `is missing; the last record is ${head}`;
        found.push(`tenant ${tenant_id}, ${chain}: record ${newest.seq} was signed and ${what}`);
      } catch (error) {
        found.push(`tenant ${tenant_id}, ${chain}: the checkpoint file cannot be read: ${(error as Error).message}`);
      }
    }
  }
  // a tenant that the backup lacks has only its checkpoint files left, and so does one that had moved away
  const left = await departures(client, box);
  const held = new Set(tenants.map(({ tenant_id }) => tenant_id));
  for (const name of await filesOf(directory)) {
    const of = chainOfFile(name);
    if (!of || held.has(of.tenantId)) continue;
    try {
      const heads = await highestInFile(directory, of.tenantId, of.chain, keysOf(of.tenantId, of.chain));
      const seqs = heads.filter((head) => !hasLeftWith(left.get(of.tenantId), of.chain, head)).map(({ seq }) => seq);
      if (seqs.length === 0) continue;
      found.push(
        `tenant ${of.tenantId}, ${of.chain}: record ${Math.max(...seqs)} was signed and the tenant is missing`,
      );
    } catch (error) {
      found.push(`tenant ${of.tenantId}, ${of.chain}: the checkpoint file cannot be read: ${(error as Error).message}`);
    }
  }
  return { beyond: found, unknown };
}

async function filesOf(directory: string): Promise<string[]> {
  try {
    return (await readdir(directory)).sort();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

/**
 * Records the restore in each audit log, within the restoring transaction: even after a crash, the old state is never
 * there without the record.
 */
async function recordRestore(
  client: pg.Client,
  restored: { header: Header; beyond: string[]; unknown: string[]; ended: Ended; cancelled: CancelledHold[] },
): Promise<void> {
  const { addAudit } = await import('../chain/audit.ts');
  const { header, beyond, unknown, ended, cancelled } = restored;
  const execute = async (sql: string, values: unknown[]) => (await client.query(sql, values)).rows as never;
  const { rows: tenants } = await client.query<{ tenant_id: string }>(
    `select tenant_id from chain_head where chain = 'audit' and seq > 0 order by tenant_id`,
  );
  for (const { tenant_id: tenantId } of tenants) {
    const lost = lostBy(tenantId, beyond);
    const unseen = lostBy(tenantId, unknown);
    const found = [
      ...(lost.length > 0 ? [`Lost: ${lost.join('; ')}`] : []),
      ...(unseen.length > 0 ? [`Not known whether later records are lost: ${unseen.join('; ')}`] : []),
    ];
    const add = (entry: AuditEntry) =>
      addAudit(execute, tenantId, entry, {
        now: Date.now(),
        fingerprint: () => {
          throw new Error('the chain already has records');
        },
      });
    await add({
      actor: OPERATOR,
      action: 'database.restored',
      target: { type: 'database', id: header.master_key_id },
      severity: 'critical',
      reason: reasonOf(header),
      detail: [endedWords(ended), ...(found.length > 0 ? found : ['No later records are known.'])].join(' '),
    });
    for (const { id } of cancelled.filter((hold) => hold.tenant_id === tenantId)) {
      await add({
        actor: OPERATOR,
        action: 'escrow.cancelled',
        target: { type: 'escrow', id },
        reason: reasonOf(header),
      });
    }
  }
}

/**
 * Accepts the loss in each chain with missing records, within the restoring transaction: no crash can leave the chains
 * restored but closed.
 */
function lossesOf(
  { config, sessionUrl, checkpoints: directory }: Installation & { checkpoints: string },
  keys: OpenKey[],
  keysOf: KeysOf,
) {
  const owner = new pg.Pool({ connectionString: sessionUrl, Client: PrimaryClient, max: 1, types: COLUMN_TYPES });
  const signer = () => {
    const current = keys.find(({ retiredAt }) => !retiredAt);
    if (!current) throw new CommandError('the backup has no current signing key');
    return current;
  };
  return {
    async accept(client: pg.Client, beyond: readonly string[], reason: string): Promise<LossWithin[]> {
      if (beyond.length === 0) return [];
      const [{ acceptLossWithin }, { Checkpoints }] = await Promise.all([
        import('../chain/accept-loss.ts'),
        import('../chain/checkpoint.ts'),
      ]);
      const common = { clock: systemClock, host: new URL(config.baseUrl).host, signer, keys: keysOf, directory };
      const checkpoints = new Checkpoints({
        ...common,
        db: { owner, search: owner, citus: undefined, asideOf: () => owner, nearOf: () => owner },
        log: createLog('silent', { write: () => true }),
      });
      const { rows: tenants } = await client.query<{ tenant_id: string }>('select tenant_id from tenant order by 1');
      const accepted: LossWithin[] = [];
      for (const { tenant_id: tenantId } of tenants) {
        const lost = lostBy(tenantId, beyond);
        // the audit chain comes first, because audit records cannot be written while it is closed
        for (const chain of ['audit', 'forensics'] as const) {
          if (!lost.some((words) => words.includes(`, ${chain}: `))) continue;
          const parts = { ...common, checkpoints };
          accepted.push(await acceptLossWithin(client, parts, tenantId, chain, reason, { actor: OPERATOR }));
        }
      }
      return accepted;
    },
    close: () => owner.end(),
  };
}

const lostBy = (tenantId: string, beyond: readonly string[]) =>
  beyond.filter((words) => words.startsWith(`tenant ${tenantId}, `));
const reasonOf = (header: Header) => `restored from a backup of ${header.created_at}`;

/** Turns errors of the reader, of zlib and of PostgreSQL's data parser into "the backup is damaged". */
function damaged(error: unknown): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  // values that violate a type, a constraint or, if a length is damaged, a limit
  const ofData = /^(22|23|54)/.test(code ?? '');
  if (!(error instanceof ArchiveError) && !code?.startsWith('Z_') && !ofData) return error;
  return new CommandError(`the backup is damaged: ${message}. Nothing was restored.`);
}

async function assertEmpty(client: pg.Client, tables: Header['tables']): Promise<void> {
  // so that no tenant is added between this check and the commit
  await client.query('lock table tenant in share row exclusive mode');
  for (const { name } of tables) {
    if (OWN_ROWS.includes(name)) continue;
    const { rowCount } = await client.query(`select 1 from ${pg.escapeIdentifier(name)} limit 1`);
    if (rowCount)
      throw new CommandError(`the database is not empty (${name}): restore never overwrites data; use a new database`);
  }
  for (const name of OWN_ROWS) await client.query(`delete from ${pg.escapeIdentifier(name)}`);
}

function assertFits(header: Header, tables: Header['tables'], done: readonly string[], box: SecretBox): void {
  const newer = header.migrations.filter((name) => !done.includes(name));
  if (newer.length > 0) {
    throw new CommandError(
      `the backup was made by a newer version (${newer.join(', ')}): update this installation first`,
    );
  }
  const older = done.filter((name) => !header.migrations.includes(name));
  if (older.length > 0) {
    throw new CommandError(
      `the backup was made by an older version (${header.program}, before ${older[0]}): restore it with that version, then start this one`,
    );
  }
  if (JSON.stringify(header.tables) !== JSON.stringify(tables)) {
    throw new CommandError('the tables of the backup differ from those of this version');
  }
  const id = box.keyId.toString('hex');
  if (header.master_key_id !== id) {
    throw new CommandError(`the backup needs the master key ${header.master_key_id}, but ${id} is configured`);
  }
}

function compare(manifest: Manifest, found: Found): void {
  if (manifest.header_sha256 !== found.header_sha256) throw new ArchiveError('backup.json does not match the manifest');
  for (const [i, table] of found.tables.entries()) {
    const stated = manifest.tables[i];
    if (!isDeepStrictEqual(stated, { ...table, rows: table.rows ?? stated?.rows })) {
      throw new ArchiveError(`the table ${table.name} does not match the manifest`);
    }
  }
  if (manifest.tables.length !== found.tables.length) throw new ArchiveError('the manifest lists different tables');
}

function assertSealed(manifestText: Buffer, seal: Buffer, box: SecretBox): void {
  let sealed: Buffer;
  try {
    sealed = box.open(seal, SEAL_PLACE);
  } catch {
    throw new ArchiveError('the seal of the manifest cannot be opened');
  }
  if (!sealed.equals(sha256(manifestText))) throw new ArchiveError('the manifest was changed after it was sealed');
}

function parse<T>(schema: z.ZodType<T>, text: Buffer, name: string): T {
  try {
    return schema.parse(JSON.parse(text.toString()));
  } catch {
    throw new ArchiveError(`${name} is malformed, or from another version of the backup format`);
  }
}
