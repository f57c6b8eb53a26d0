import { createHash, createPublicKey } from 'node:crypto';
import { createReadStream, createWriteStream, existsSync, readFileSync } from 'node:fs';
import { open, readdir, rename, rm } from 'node:fs/promises';
import type { Socket } from 'node:net';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createGzip } from 'node:zlib';
import pg from 'pg';
import { z } from 'zod';
import { MIGRATION_TABLE } from '../../db/applied.ts';
import { claimDatabase } from '../../db/claim.ts';
import { chainOfFile, highestInFile } from '../chain/checkpoint-file.ts';
import { copyOut } from '../chain/copy.ts';
import type { Config } from '../config.ts';
import { OPERATOR } from '../domain/audit.ts';
import { ArchiveError, readTarHeader, TAR_BLOCK, tarHeader, tarPadding } from '../forensics/archive.ts';
import { SecretBox, sha256 } from '../lib/crypto.ts';
import { createLog } from '../lib/log.ts';
import { CommandError, columns, command, JSON_FLAG } from './command.ts';
import { copyIn } from './copy-in.ts';
import { assertCurrent, cleanups, readState, requireMasterKey, withClient, withPlace } from './place.ts';

/*
 * A backup is a gzip'd ustar archive, so `tar tzf` lists it. Its members, in this order:
 *
 *   backup.json                     what restore must know first (Header), tables in the order in which they load
 *   tables/<table>/<number>.copy    the parts of COPY … TO STDOUT (FORMAT binary) of each table, cut at any byte
 *   manifest.json                   rows, bytes and sha256 of each table, sha256 of backup.json (Manifest)
 *   manifest.seal                   sha256 of manifest.json, sealed under the master key
 *
 * The sums find damage and the seal finds changes: whoever has no master key cannot make a backup that restores.
 * It holds every row of the database, secrets only as they rest there (hashed, or encrypted under the master key). The
 * master key itself is not in it.
 */
const FORMAT = 'svc-backup';
const VERSION = 1;
/** A part is about this long, and this much of a table is in memory at a time. */
const PART_BYTES = 4 * 1024 * 1024;
/** A database that sends nothing for so long while it is read from counts as gone. */
const SILENCE_MS = 60_000;
const MAX_TEXT_BYTES = 16 * 1024 * 1024;
const SEAL_PLACE = 'backup/manifest';
/** Rows that a database gets when it is first opened; they make it no less empty. */
const OWN_ROWS = ['signing_key', 'instance'];

const Header = z.strictObject({
  format: z.literal(FORMAT),
  version: z.literal(VERSION),
  program: z.string(),
  created_at: z.iso.datetime(),
  migrations: z.array(z.string()),
  /** Tells which master key the secrets need; tells nothing about the key. */
  master_key_id: z.string(),
  tables: z.array(z.strictObject({ name: z.string(), columns: z.array(z.string()) })),
});
type Header = z.infer<typeof Header>;

const Manifest = z.strictObject({
  header_sha256: z.string(),
  tables: z.array(
    z.strictObject({ name: z.string(), rows: z.int(), bytes: z.int(), parts: z.int(), sha256: z.string() }),
  ),
});
type Manifest = z.infer<typeof Manifest>;

const backup = command({
  name: 'backup',
  summary: 'Write a consistent snapshot of the database to a file; the server may run',
  more:
    'The master key is not in it: keep a copy of the key in another place. Without the key a backup is of no use.\n' +
    'Keep the files in $SVC_DATA_DIR/checkpoints too: they show later that no record is missing.',
  args: [{ name: 'FILE', help: 'a file that does not exist yet' }],
  flags: JSON_FLAG,
  async run({ args, print }) {
    const file = path.resolve(args[0]!);
    if (existsSync(file)) throw new CommandError(`${file} exists: backups are never overwritten`);
    const partial = `${file}.partial`;
    const { header, manifest } = await withPlace({}, ({ config, databaseUrl }) =>
      withClient(databaseUrl, { query_timeout: SILENCE_MS }, async (client) => {
        assertCurrent(await readState(client));
        const box = new SecretBox(requireMasterKey(config));
        await client.query('begin transaction isolation level repeatable read read only');
        await assertOpens(client, box);
        const header = await describe(client, box);
        let manifest: Manifest | undefined;
        const members = archive(client, header, box, (done) => {
          manifest = done;
        });
        const discard = () => rm(partial, { force: true });
        cleanups.add(discard);
        try {
          await pipeline(members, createGzip(), createWriteStream(partial, { mode: 0o600, flags: 'wx', flush: true }));
          await rename(partial, file);
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code !== 'EEXIST') await discard();
          throw error;
        } finally {
          cleanups.delete(discard);
        }
        await syncDirectory(path.dirname(file));
        return { header, manifest: manifest! };
      }),
    );
    print({ file, ...header, tables: manifest.tables }, [
      ...columns(manifest.tables.map((table) => [table.name, `${table.rows} rows`])),
      `Written to ${file}`,
      `It needs the master key ${header.master_key_id}, which is not in it: keep the key in another place.`,
    ]);
    return 0;
  },
});

const restore = command({
  name: 'restore',
  summary: 'Read a backup into an empty database, all of it or nothing',
  more:
    'The database must have no tenants, and the settings the master key of the backup (SVC_MASTER_KEY or master.key in\n' +
    'the data directory). The program must be of the same version of the schema. The server must not run.\n' +
    'What ended since the backup stays ended: sessions, links and invitations end, holds that were open or released are\n' +
    'cancelled, and keys work again only after "svc key confirm". See docs/restore.md.',
  args: [{ name: 'FILE', help: 'a file that "svc backup" wrote' }],
  flags: {
    'behind-checkpoints': {
      help: 'restore although records are known beyond the backup; they are lost, which is recorded in each chain',
    },
    ...JSON_FLAG,
  },
  async run({ args, flags, print }) {
    const file = path.resolve(args[0]!);
    const handle = await open(file, 'r');
    await handle.close();
    const behind = flags['behind-checkpoints'];
    const { header, manifest, ended } = await withPlace({ create: true }, async ({ config, databaseUrl }) => {
      const box = new SecretBox(requireMasterKey(config));
      const { migrate } = await import('../../db/index.ts');
      // a server would keep the keys that are replaced here
      const claim = await claimDatabase(databaseUrl, { alone: true, onConflict: () => undefined });
      try {
        await migrate(databaseUrl);
        const checkpoints = path.join(config.dataDir, 'checkpoints');
        const loaded = await withClient(databaseUrl, {}, (client) => load(client, file, box, { checkpoints, behind }));
        await acceptLosses({ config, databaseUrl }, loaded);
        return loaded;
      } finally {
        await claim.release();
      }
    });
    print({ file, ...header, tables: manifest.tables, ended }, [
      ...columns(manifest.tables.map((table) => [table.name, `${table.rows} rows`])),
      `Restored the state of ${header.created_at}; the master key opens it.`,
      endedWords(ended),
      'No key works yet: look at "svc key list", revoke what is not known, then run "svc key confirm".',
      'Verify the chains: GET /v1/forensics/verify and /v1/audit/verify of each tenant. They are compared with the files',
      'in $SVC_DATA_DIR/checkpoints, where there are any, so that records made after the backup are missed.',
    ]);
    return 0;
  },
});

export const backupCommands = [backup, restore];

async function describe(client: pg.Client, box: SecretBox): Promise<Header> {
  const { done } = await readState(client);
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
  return {
    format: FORMAT,
    version: VERSION,
    program: version,
    created_at: new Date().toISOString(),
    migrations: [...done],
    master_key_id: box.keyId.toString('hex'),
    tables: await listTables(client),
  };
}

/** Every table with its columns, those first that others refer to. */
async function listTables(client: pg.Client): Promise<Header['tables']> {
  const { rows } = await client.query<{ name: string; columns: string[]; needs: string[] }>(
    `select c.relname::text as name,
       (select array_agg(a.attname::text order by a.attnum) from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') as columns,
       coalesce((select array_agg(distinct t.relname::text) from pg_constraint k join pg_class t on t.oid = k.confrelid
        where k.conrelid = c.oid and k.contype = 'f' and t.oid <> c.oid), '{}') as needs
     from pg_class c
     where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace and c.relname <> $1
     order by c.relname`,
    // restore has its own, and compares
    [MIGRATION_TABLE],
  );
  const sorted: Header['tables'] = [];
  const waiting = new Set(rows);
  while (waiting.size > 0) {
    const ready = [...waiting].filter((row) => row.needs.every((name) => sorted.some((table) => table.name === name)));
    if (ready.length === 0) throw new Error('the foreign keys of the tables form a circle');
    for (const row of ready) {
      sorted.push({ name: row.name, columns: row.columns });
      waiting.delete(row);
    }
  }
  return sorted;
}

const copyTarget = ({ name, columns }: Header['tables'][number]) =>
  `${pg.escapeIdentifier(name)} (${columns.map((column) => pg.escapeIdentifier(column)).join(', ')})`;

const partName = (table: string, number: number) => `tables/${table}/${String(number).padStart(6, '0')}.copy`;

/** The bytes of the archive. `onManifest` is told before the last of them. */
async function* archive(
  client: pg.Client,
  header: Header,
  box: SecretBox,
  onManifest: (manifest: Manifest) => void,
): AsyncGenerator<Buffer> {
  const headerText = Buffer.from(`${JSON.stringify(header, null, 2)}\n`);
  yield* member('backup.json', headerText);
  const manifest: Manifest = { header_sha256: sha256(headerText).toString('hex'), tables: [] };
  for (const table of header.tables) {
    const sum = createHash('sha256');
    const entry = { name: table.name, rows: 0, bytes: 0, parts: 0, sha256: '' };
    const parts = copyParts(client, `copy ${copyTarget(table)} to stdout (format binary)`, {
      onRow: () => entry.rows++,
    });
    for await (const part of parts) {
      sum.update(part);
      entry.bytes += part.length;
      yield* member(partName(table.name, entry.parts++), part);
    }
    // the last message of a binary COPY is its trailer
    entry.rows--;
    manifest.tables.push({ ...entry, sha256: sum.digest('hex') });
  }
  const manifestText = Buffer.from(`${JSON.stringify(manifest, null, 2)}\n`);
  yield* member('manifest.json', manifestText);
  yield* member('manifest.seal', box.seal(sha256(manifestText), SEAL_PLACE));
  onManifest(manifest);
  yield Buffer.alloc(2 * TAR_BLOCK);
}

function* member(name: string, bytes: Buffer): Generator<Buffer> {
  yield tarHeader(name, bytes.length);
  yield bytes;
  yield Buffer.alloc(tarPadding(bytes.length));
}

/**
 * What a COPY TO STDOUT sends, in parts of at least `partBytes`. While nobody takes a part the server is not read from, so
 * memory stays flat. It always ends: a server that is read from and sends nothing for `silenceMs` fails the copy and
 * closes the connection. After the last part the connection takes the next statement.
 */
export async function* copyParts(
  client: pg.Client,
  sql: string,
  options: { partBytes?: number; silenceMs?: number; onRow?: () => void } = {},
): AsyncGenerator<Buffer> {
  const { partBytes = PART_BYTES, silenceMs = SILENCE_MS, onRow } = options;
  const { stream } = client.connection as unknown as { stream: Socket };
  const ready: Buffer[] = [];
  let growing: Buffer[] = [];
  let size = 0;
  let wake = () => {};
  let ended = false;
  let silent: CommandError | undefined;
  const cut = () => {
    if (size > 0) ready.push(Buffer.concat(growing));
    growing = [];
    size = 0;
  };
  const copied = copyOut(client, sql, (data) => {
    growing.push(Buffer.from(data));
    size += data.length;
    onRow?.();
    if (size < partBytes) return;
    cut();
    stream.pause();
    wake();
  }).finally(() => {
    ended = true;
    // the chunk that filled a part may have held the end as well: nothing else would resume the connection
    stream.resume();
    wake();
  });
  // the loop below awaits it; until then its failure must not count as unhandled
  copied.catch(() => undefined);
  const giveUp = () => {
    silent = new CommandError(`the database has sent nothing for ${silenceMs / 1000} s`);
    stream.destroy();
  };
  let timer: NodeJS.Timeout | undefined;
  const heard = () => timer?.refresh();
  stream.on('data', heard);
  try {
    for (;;) {
      const part = ready.shift();
      if (part) yield part;
      else if (ended) break;
      else {
        const woken = new Promise<void>((resolve) => {
          wake = resolve;
        });
        // only while it is read from can the server be silent
        timer = setTimeout(giveUp, silenceMs);
        stream.resume();
        await woken;
        clearTimeout(timer);
      }
    }
    await copied;
    cut();
    yield* ready;
  } catch (error) {
    throw silent ?? error;
  } finally {
    clearTimeout(timer);
    stream.off('data', heard);
    // given up in the middle: nothing else can be asked on this connection
    if (!ended) stream.destroy();
  }
}

async function assertOpens(client: pg.Client, box: SecretBox): Promise<void> {
  const { rows } = await client.query<{ canary: Buffer }>('select canary from instance');
  try {
    if (rows[0]) box.open(rows[0].canary, 'instance/canary');
  } catch {
    throw new CommandError('the master key does not open this database: set the one that it was made with');
  }
}

async function syncDirectory(dir: string): Promise<void> {
  const handle = await open(dir, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Loads the file in one transaction, which commits only when all of it was there and is what the manifest says. */
async function load(
  client: pg.Client,
  file: string,
  box: SecretBox,
  options: { checkpoints: string; behind: boolean },
): Promise<Restored> {
  const source = createReadStream(file);
  const unzipped = source.on('error', (error) => unzipped.destroy(error)).pipe(createGunzip());
  // its failure comes out of reading it, which may begin later
  unzipped.on('error', () => undefined);
  const reader = new ArchiveReader(unzipped);
  try {
    await client.query('begin');
    const tables = await listTables(client);
    await assertEmpty(client, tables);
    const headerText = await reader.text('backup.json');
    const header = parse(Header, headerText, 'backup.json');
    assertFits(header, tables, (await readState(client)).done, box);
    const loaded: Manifest = { header_sha256: sha256(headerText).toString('hex'), tables: [] };
    for (const table of header.tables) {
      const sum = createHash('sha256');
      const entry = { name: table.name, rows: 0, bytes: 0, parts: 0, sha256: '' };
      const bytes = reader.parts(
        () => partName(table.name, entry.parts),
        () => entry.parts++,
        (chunk) => {
          sum.update(chunk);
          entry.bytes += chunk.length;
        },
      );
      entry.rows = await copyIn(client, `copy ${copyTarget(table)} from stdin (format binary)`, bytes);
      loaded.tables.push({ ...entry, sha256: sum.digest('hex') });
    }
    const manifestText = await reader.text('manifest.json');
    const manifest = parse(Manifest, manifestText, 'manifest.json');
    const seal = await reader.text('manifest.seal');
    await reader.end();
    compare(manifest, loaded);
    assertSealed(manifestText, seal, box);
    await assertOpens(client, box);
    const beyond = await recordsBeyond(client, options.checkpoints);
    if (beyond.length > 0 && !options.behind) {
      throw new CommandError(
        `records are known that the backup does not hold:\n  ${beyond.join('\n  ')}\n` +
          'Restore a newer backup, or give --behind-checkpoints to give those records up. Nothing was restored.',
      );
    }
    const ended = await endWhatWasAlive(client);
    await recordRestore(client, { header, beyond, ended });
    await client.query('commit');
    await client.query('analyze');
    return { header, manifest, beyond, ended };
  } catch (error) {
    throw damaged(error);
  } finally {
    source.destroy();
    unzipped.destroy();
  }
}

interface Restored {
  header: Header;
  manifest: Manifest;
  /** In words, where something was signed beyond the backup. */
  beyond: string[];
  ended: Ended;
}

interface Ended {
  sessions: number;
  links: number;
  invitations: number;
  /** Changes of settings that waited for a second person. */
  changes: number;
  holds: number;
  keys: number;
}

const endedWords = ({ sessions, links, invitations, changes, holds, keys }: Ended) =>
  `Ended: ${sessions} sessions, ${links} sign-in links, ${invitations} invitations, ${changes} waiting changes of ` +
  `settings. Cancelled: ${holds} holds. ` +
  `Waiting for confirmation: ${keys} keys.`;

/**
 * Ends, within the transaction that restores it, what may have ended since the backup was made: someone signed out, a
 * link was used, an approval was spent, a key was revoked. Nobody can tell from the backup, so that in doubt it is over.
 */
async function endWhatWasAlive(client: pg.Client): Promise<Ended> {
  const run = async (sql: string) => (await client.query(sql)).rowCount ?? 0;
  await run(`delete from credential where kind in ('session', 'sign_in_link', 'invitation')`);
  // mails that were not sent yet hold links; what asks for one is asked again
  await run('delete from mail_message');
  await run('delete from sign_in_request');
  const sessions = await run('delete from session');
  const links = await run('delete from sign_in_link');
  const invitations = await run(
    'update invitation set revoked_at = now() where accepted_at is null and revoked_at is null',
  );
  // one that was withdrawn or rejected since would wait for its approval again
  const changes = await run(
    `update settings_change set status = 'superseded', decided_at = now() where status = 'pending'`,
  );
  const holds = await run(
    `update escrow_hold set status = 'cancelled', releases_at = null, ends_at = null, wake_at = null,
       machine_context = jsonb_set(machine_context, '{endedAt}', to_jsonb(floor(extract(epoch from now()) * 1000)::bigint)),
       row_version = row_version + 1
     where status in ('held', 'released')`,
  );
  const unconfirmed = (table: string) => run(`update ${table} set unconfirmed_since = now() where revoked_at is null`);
  return {
    sessions,
    links,
    invitations,
    changes,
    holds,
    keys: (await unconfirmed('api_key')) + (await unconfirmed('agent_key')),
  };
}

/** Where the checkpoint files state a record that the restored chains do not hold, or another one in its place. */
async function recordsBeyond(client: pg.Client, directory: string): Promise<string[]> {
  const { rows: signers } = await client.query<{ public_key: Buffer }>('select public_key from signing_key');
  const keys = signers.map(({ public_key }) => createPublicKey({ key: public_key, format: 'der', type: 'spki' }));
  const { rows: tenants } = await client.query<{ tenant_id: string }>('select tenant_id from tenant order by 1');
  const found: string[] = [];
  for (const { tenant_id } of tenants) {
    for (const [chain, table] of [
      ['forensics', 'forensic_record'],
      ['audit', 'audit_record'],
    ] as const) {
      try {
        const filed = await highestInFile(directory, tenant_id, chain, keys);
        const newest = filed.toSorted((a, b) => (b.generation ?? 0) - (a.generation ?? 0) || b.seq - a.seq)[0];
        if (!newest) continue;
        const { rows } = await client.query<{ hash: string }>(
          `select encode(hash, 'hex') as hash from ${table} where tenant_id = $1 and seq = $2`,
          [tenant_id, newest.seq],
        );
        if (rows[0]?.hash === newest.hash) continue;
        const { rows: heads } = await client.query<{ seq: string }>(
          'select seq from chain_head where tenant_id = $1 and chain = $2',
          [tenant_id, chain],
        );
        const what = rows[0] ? 'is another one' : `is not there, the last is ${heads[0]?.seq ?? 0}`;
        found.push(`tenant ${tenant_id}, ${chain}: record ${newest.seq} was signed and ${what}`);
      } catch (error) {
        found.push(`tenant ${tenant_id}, ${chain}: the checkpoint file cannot be read: ${(error as Error).message}`);
      }
    }
  }
  // of a tenant that the backup does not hold at all nothing but its files is left
  const held = new Set(tenants.map(({ tenant_id }) => tenant_id));
  for (const name of await filesOf(directory)) {
    const of = chainOfFile(name);
    if (!of || held.has(of.tenantId)) continue;
    try {
      const seqs = (await highestInFile(directory, of.tenantId, of.chain, keys)).map(({ seq }) => seq);
      if (seqs.length === 0) continue;
      found.push(
        `tenant ${of.tenantId}, ${of.chain}: record ${Math.max(...seqs)} was signed and the tenant is not there`,
      );
    } catch (error) {
      found.push(`tenant ${of.tenantId}, ${of.chain}: the checkpoint file cannot be read: ${(error as Error).message}`);
    }
  }
  return found;
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
 * Writes into each audit log what was restored, within the transaction that restores it: there is no moment, and no kill,
 * in which the old state is there and nothing tells so.
 */
async function recordRestore(client: pg.Client, restored: Omit<Restored, 'manifest'>): Promise<void> {
  const { addAudit } = await import('../chain/audit.ts');
  const { header, beyond, ended } = restored;
  const execute = async (sql: string, values: unknown[]) => (await client.query(sql, values)).rows as never;
  const { rows: tenants } = await client.query<{ tenant_id: string }>(
    `select tenant_id from chain_head where chain = 'audit' and seq > 0 order by tenant_id`,
  );
  for (const { tenant_id: tenantId } of tenants) {
    const lost = lostBy(tenantId, beyond);
    await addAudit(
      execute,
      tenantId,
      {
        actor: OPERATOR,
        action: 'database.restored',
        target: { type: 'database', id: header.master_key_id },
        severity: 'critical',
        reason: reasonOf(header),
        detail: `${endedWords(ended)} ${lost.length > 0 ? `Lost: ${lost.join('; ')}` : 'Nothing is known to lie beyond it.'}`,
      },
      {
        now: Date.now(),
        fingerprint: () => {
          throw new Error('the chain has begun already');
        },
      },
    );
  }
}

/** Accepts, in each chain that lacks something, that it is lost. Until then the chain is closed. */
async function acceptLosses(place: { config: Config; databaseUrl: string }, restored: Restored): Promise<void> {
  const { openCore } = await import('../app.ts');
  const log = createLog('silent', { write: () => true });
  const core = await openCore({ ...place, log });
  try {
    for (const { tenant_id: tenantId } of await core.tenants.list()) {
      const lost = lostBy(tenantId, restored.beyond);
      // what an audit record cannot be written without comes first
      for (const chain of ['audit', 'forensics'] as const) {
        if (!lost.some((words) => words.includes(`, ${chain}: `))) continue;
        await core.acceptLoss(tenantId, chain, reasonOf(restored.header), { actor: OPERATOR });
      }
    }
  } finally {
    await core.stop();
  }
}

const lostBy = (tenantId: string, beyond: readonly string[]) =>
  beyond.filter((words) => words.startsWith(`tenant ${tenantId}, `));
const reasonOf = (header: Header) => `restored from a backup of ${header.created_at}`;

/** Says of the reader's faults, of zlib's and of what PostgreSQL thinks of the data that the file is damaged. */
function damaged(error: unknown): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  const ofData = /^(22|23)/.test(code ?? '');
  if (!(error instanceof ArchiveError) && !code?.startsWith('Z_') && !ofData) return error;
  return new CommandError(`the backup is damaged: ${message}. Nothing was restored.`);
}

async function assertEmpty(client: pg.Client, tables: Header['tables']): Promise<void> {
  // nobody adds a tenant between this look and the commit
  await client.query('lock table tenant in share row exclusive mode');
  for (const { name } of tables) {
    if (OWN_ROWS.includes(name)) continue;
    const { rowCount } = await client.query(`select 1 from ${pg.escapeIdentifier(name)} limit 1`);
    if (rowCount)
      throw new CommandError(`the database is not empty (${name}): restore never overwrites, use a new one`);
  }
  for (const name of OWN_ROWS) await client.query(`delete from ${pg.escapeIdentifier(name)}`);
}

function assertFits(header: Header, tables: Header['tables'], done: readonly string[], box: SecretBox): void {
  const newer = header.migrations.filter((name) => !done.includes(name));
  if (newer.length > 0) {
    throw new CommandError(`the backup is of a newer program (${newer.join(', ')}): update this one`);
  }
  const older = done.filter((name) => !header.migrations.includes(name));
  if (older.length > 0) {
    throw new CommandError(
      `the backup is of an older program (${header.program}, before ${older[0]}): restore it with that one, then start this one`,
    );
  }
  if (JSON.stringify(header.tables) !== JSON.stringify(tables)) {
    throw new CommandError('the tables of the backup are not those of this program');
  }
  const id = box.keyId.toString('hex');
  if (header.master_key_id !== id) {
    throw new CommandError(`the backup needs the master key ${header.master_key_id}; this one is ${id}`);
  }
}

function compare(manifest: Manifest, loaded: Manifest): void {
  if (manifest.header_sha256 !== loaded.header_sha256)
    throw new ArchiveError('backup.json is not what the manifest says');
  for (const [i, table] of loaded.tables.entries()) {
    if (JSON.stringify(manifest.tables[i]) !== JSON.stringify(table)) {
      throw new ArchiveError(`the table ${table.name} is not what the manifest says`);
    }
  }
  if (manifest.tables.length !== loaded.tables.length) throw new ArchiveError('the manifest names other tables');
}

function assertSealed(manifestText: Buffer, seal: Buffer, box: SecretBox): void {
  let sealed: Buffer;
  try {
    sealed = box.open(seal, SEAL_PLACE);
  } catch {
    throw new ArchiveError('the seal of the manifest does not open');
  }
  if (!sealed.equals(sha256(manifestText))) throw new ArchiveError('the manifest was changed after it was sealed');
}

function parse<T>(schema: z.ZodType<T>, text: Buffer, name: string): T {
  try {
    return schema.parse(JSON.parse(text.toString()));
  } catch {
    throw new ArchiveError(`${name} is malformed, or of another version of backups`);
  }
}

/** Reads a ustar archive from a stream, member by member; throws an ArchiveError that says what is wrong. */
class ArchiveReader {
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);
  #at = 0;
  #next: { name: string; size: number } | undefined;
  #looked = false;

  constructor(source: AsyncIterable<Buffer>) {
    this.#chunks = source[Symbol.asyncIterator]();
  }

  /** The content of the member that must come next. */
  async text(name: string): Promise<Buffer> {
    const member = await this.#peek();
    if (member?.name !== name) throw new ArchiveError(`${name} is missing`);
    if (member.size > MAX_TEXT_BYTES) throw new ArchiveError(`${name} is too large`);
    const chunks: Buffer[] = [];
    for await (const chunk of this.#take()) chunks.push(Buffer.from(chunk));
    return Buffer.concat(chunks);
  }

  /** The content of the members that come next for as long as they have the name that is asked for. */
  async *parts(name: () => string, began: () => void, onChunk: (chunk: Buffer) => void): AsyncGenerator<Buffer> {
    while ((await this.#peek())?.name === name()) {
      began();
      for await (const chunk of this.#take()) {
        onChunk(chunk);
        yield chunk;
      }
    }
  }

  /** Nothing may follow. Reads to the very end, where zlib compares its own sum. */
  async end(): Promise<void> {
    const member = await this.#peek();
    if (member) throw new ArchiveError(`${member.name} should not be there`);
    const last = await this.#read(TAR_BLOCK);
    if (!last.equals(Buffer.alloc(TAR_BLOCK)) || (await this.#some(1)).length > 0) {
      throw new ArchiveError('something follows after the end');
    }
  }

  async #peek(): Promise<{ name: string; size: number } | undefined> {
    if (!this.#looked) {
      const at = this.#at;
      this.#next = readTarHeader(await this.#read(TAR_BLOCK), at);
      this.#looked = true;
    }
    return this.#next;
  }

  async *#take(): AsyncGenerator<Buffer> {
    const { size } = this.#next!;
    for (let left = size; left > 0; ) {
      const chunk = await this.#some(left);
      if (chunk.length === 0) throw new ArchiveError('the archive is cut off');
      left -= chunk.length;
      yield chunk;
    }
    await this.#read(tarPadding(size));
    this.#looked = false;
  }

  /** Exactly so many bytes. */
  async #read(length: number): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for (let left = length; left > 0; ) {
      const chunk = await this.#some(left);
      if (chunk.length === 0) throw new ArchiveError('the archive is cut off');
      chunks.push(chunk);
      left -= chunk.length;
    }
    return Buffer.concat(chunks);
  }

  /** At least one byte and at most so many; none at the end of the stream. */
  async #some(most: number): Promise<Buffer> {
    while (this.#rest.length === 0) {
      const { value, done } = await this.#chunks.next();
      if (done) return Buffer.alloc(0);
      this.#rest = value;
    }
    const chunk = this.#rest.subarray(0, most);
    this.#rest = this.#rest.subarray(chunk.length);
    this.#at += chunk.length;
    return chunk;
  }
}
