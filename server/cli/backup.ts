import { createHash } from 'node:crypto';
import { createWriteStream, existsSync, readFileSync } from 'node:fs';
import { open, rename, rm } from 'node:fs/promises';
import type { Socket } from 'node:net';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type pg from 'pg';
import { copyOut } from '../chain/copy.ts';
import { SecretBox, sha256 } from '../lib/crypto.ts';
import { TAR_BLOCK, tarHeader, tarPadding } from '../lib/tar.ts';
import {
  assertOpens,
  copyTarget,
  FORMAT,
  type Header,
  listTables,
  type Manifest,
  partName,
  SEAL_PLACE,
  VERSION,
} from './backup-format.ts';
import { CommandError, columns, command, JSON_FLAG } from './command.ts';
import {
  assertCurrent,
  assertOneServer,
  cleanups,
  readState,
  requireMasterKey,
  withClient,
  withInstallation,
} from './installation.ts';

/** The approximate size of a part, and the amount of a table held in memory. */
const PART_BYTES = 4 * 1024 * 1024;
/** If the database sends nothing for this long during a read, it is considered lost. */
const SILENCE_MS = 60_000;

export const backup = command({
  name: 'backup',
  summary: 'Write a consistent snapshot of the database to a file; the server may run',
  more:
    'The backup does not contain the master key and is useless without it: keep a copy of the key in another place.\n' +
    'Also keep the files in $SVC_DATA_DIR/checkpoints, which prove later that no record is missing.',
  args: [{ name: 'FILE', help: 'the file to create; it must not exist' }],
  flags: JSON_FLAG,
  async run({ args, print }) {
    const file = path.resolve(args[0]!);
    if (existsSync(file))
      throw new CommandError(`${file} already exists: choose another name, because backups are never overwritten`);
    const partial = `${file}.partial`;
    const { header, manifest } = await withInstallation({}, ({ config, sessionUrl }) =>
      withClient(sessionUrl, { query_timeout: SILENCE_MS }, async (client) => {
        assertCurrent(await readState(client));
        await assertOneServer(client);
        const box = new SecretBox(requireMasterKey(config));
        await client.query('begin transaction isolation level repeatable read read only');
        await assertOpens(client, box);
        await assertNobodyMoves(client);
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
        // for svc_backup_timestamp_seconds. The file is complete whether or not this succeeds, and an alarm too many does no harm.
        await client.query('commit');
        await client.query('update instance set backed_up_at = now()').catch(() => undefined);
        return { header, manifest: manifest! };
      }),
    );
    print({ file, ...header, tables: manifest.tables }, [
      ...columns(manifest.tables.map((table) => [table.name, `${table.rows} rows`])),
      `Written to ${file}`,
      `Restoring it requires the master key ${header.master_key_id}, which it does not contain: keep the key in another place.`,
    ]);
    return 0;
  },
});

/** In a backup taken during a move, a parcel would bring back to life what a restore ends. */
async function assertNobodyMoves(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ tenant_id: string }>(
    `select tenant_id from tenant_move where state in ('fencing', 'fenced', 'copying') limit 1`,
  );
  if (rows[0]) {
    throw new CommandError(
      `${rows[0].tenant_id} is moving: finish that with "svc tenant move", or undo it, and try again`,
    );
  }
}

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

/** The bytes of the archive. `onManifest` is called before the last of them. */
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
 * The output of a COPY TO STDOUT, in parts of at least `partBytes`. Reading from the server pauses while a part has not
 * been consumed, so memory use is constant. If the server sends nothing for `silenceMs` during a read, the copy fails and
 * the connection is closed. After the last part the connection can run the next statement.
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
    // the chunk that filled a part may also contain the end; nothing else would resume the connection
    stream.resume();
    wake();
  });
  // awaited in the loop below; until then a rejection must not be reported as unhandled
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
        // the timeout applies only while reading
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
    // abandoned midway: the connection cannot be used for anything else
    if (!ended) stream.destroy();
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
