import { appendFile, mkdtemp, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Appender } from '../../server/chain/appender.ts';
import {
  ChainClosed,
  type Checkpoint,
  type CheckpointOptions,
  Checkpoints,
  InconsistentChain,
} from '../../server/chain/checkpoint.ts';
import { checkpointFile, highestInFile } from '../../server/chain/checkpoint-file.ts';
import { openHead } from '../../server/chain/note.ts';
import { chainHash, genesisLine, ZERO_HASH } from '../../server/chain/record.ts';
import { EVENTS } from '../../server/domain/events.ts';
import { useDatabase } from '../helpers/database.ts';
import {
  appenderOn,
  eventsOf,
  newSigner,
  newTenant,
  rewrite,
  signer,
  silent,
  storedRows,
  verdictOf,
} from './helpers.ts';

const box = useDatabase();
let directory: string;
let now: number;
let told: Checkpoint[];
const open: { stop(): Promise<void> }[] = [];
beforeEach(async () => {
  directory = await mkdtemp(path.join(tmpdir(), 'svc-checkpoints-'));
  now = Date.UTC(2026, 0, 1);
  told = [];
});
afterEach(async () => {
  for (const each of open.splice(0)) await each.stop();
  await rm(directory, { recursive: true });
});

const keys = [signer.publicKey];
function checkpointsOf(options: Partial<CheckpointOptions> = {}): Checkpoints {
  const made = new Checkpoints({
    db: box.db,
    clock: { now: () => now },
    log: silent,
    host: 'svc.test',
    signer: () => signer,
    keys: () => keys,
    directory,
    onCheckpoint: (checkpoint) => told.push(checkpoint),
    ...options,
  });
  open.push(made);
  return made;
}
function appender(checkpoints?: Checkpoints): Appender {
  const made = appenderOn(box.db, { clock: { now: () => now }, checkpoints });
  open.unshift(made);
  return made;
}
/** Every checkpoint of the tenant states what the chain holds, in order, under our signature. */
async function consistent(checkpoints: Checkpoints, tenantId: string): Promise<number[]> {
  const rows = await storedRows(box.db, tenantId);
  const list = await checkpoints.list(tenantId, 'forensics', 1, 1e9);
  for (const { seq, hash, note } of list) {
    expect(openHead(note, keys)).toEqual({ origin: `svc.test/${tenantId}/forensics`, seq, hash });
    expect(rows[seq - 1]!.hash.toString('hex')).toBe(hash);
  }
  return list.map(({ seq }) => seq);
}

describe('checkpoints', () => {
  test('the writer signs after a fixed number of records, in the transaction of the head', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf({ everyRecords: 50 });
    const writer = appender(checkpoints);
    for (let i = 0; i < 20; i++) await writer.append(tenantId, eventsOf(20));
    expect(await consistent(checkpoints, tenantId)).toEqual([61, 121, 181, 241, 301, 361]);
    expect(told.map(({ seq }) => seq)).toEqual([61, 121, 181, 241, 301, 361]);
    // what is not committed is not told, and a replay signs nothing
    await writer.append(tenantId, eventsOf(5));
    expect(told).toHaveLength(6);
    expect((await checkpoints.latest(tenantId, 'forensics'))?.seq).toBe(361);
    expect((await checkpoints.list(tenantId, 'forensics', 100, 250)).map(({ seq }) => seq)).toEqual([121, 181, 241]);
  });

  test('is announced only after its commit, and never if that fails', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf({ everyRecords: 10 });
    const seen: [string, number][] = [];
    const hooks = {
      sent: () => seen.push(['sent', told.length]),
      committed: () => seen.push(['committed', told.length]),
    };
    const writer = appenderOn(box.db, { clock: { now: () => now }, checkpoints, hooks });
    open.unshift(writer);
    await writer.append(tenantId, eventsOf(20));
    expect(seen).toEqual([
      ['sent', 0],
      ['committed', 0],
    ]);
    expect(told.map(({ seq }) => seq)).toEqual([21]);
    // another writer takes the chain: the next checkpoint is signed and its transaction fails
    await appender().open(tenantId);
    await expect(writer.append(tenantId, eventsOf(20))).rejects.toThrow();
    await checkpoints.flushed();
    expect(seen.length).toBeGreaterThan(2);
    expect(told).toHaveLength(1);
    expect(await highestInFile(directory, tenantId, 'forensics', keys)).toMatchObject([{ seq: 21 }]);
    expect(checkpoints.acknowledged.local(tenantId, 'forensics')).toMatchObject({ seq: 21 });
  });

  test('what was found in the chain after a lost connection, or because it came twice, counts as acknowledged', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf();
    let lose = false;
    const writer = appenderOn(box.db, {
      clock: { now: () => now },
      checkpoints,
      hooks: {
        sent: (cut) => {
          if (!lose) return;
          lose = false;
          // the transaction is committed meanwhile, and its answer not read
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500);
          cut();
        },
      },
    });
    open.unshift(writer);
    const seqOf = () => checkpoints.acknowledged.local(tenantId, 'forensics')?.seq;
    await writer.append(tenantId, eventsOf(1));
    expect(seqOf()).toBe(2);
    lose = true;
    expect((await writer.append(tenantId, eventsOf(1))).results).toEqual([{ seq: 3, duplicate: false }]);
    expect(seqOf()).toBe(3);
    // by another process, so long ago that nobody remembers their ids
    const events = eventsOf(2);
    await appender(checkpointsOf()).append(tenantId, events);
    now += 3_600_000;
    writer.release(tenantId);
    expect((await writer.append(tenantId, events)).results).toEqual([
      { seq: 4, duplicate: true },
      { seq: 5, duplicate: true },
    ]);
    expect(seqOf()).toBe(5);
  });

  test('a chain with few new records is signed after the interval, once', async () => {
    const [busy, idle] = [await newTenant(box.db), await newTenant(box.db)];
    const checkpoints = checkpointsOf();
    const writer = appender();
    await writer.append(busy, eventsOf(3));
    await writer.append(idle, eventsOf(3));
    const swept = async () => {
      await checkpoints.sweep();
      const mine = told.splice(0).filter(({ tenantId }) => tenantId === busy || tenantId === idle);
      return mine.map(({ tenantId, seq }) => [tenantId, seq]).sort();
    };
    expect(await swept()).toEqual([
      [busy, 4],
      [idle, 4],
    ]);
    expect(await swept()).toEqual([]);
    await writer.append(busy, eventsOf(1));
    expect(await swept()).toEqual([]);
    now += 60_000;
    expect(await swept()).toEqual([[busy, 5]]);
    now += 600_000;
    expect(await swept()).toEqual([]);
    expect(await consistent(checkpoints, busy)).toEqual([4, 5]);
    expect(await consistent(checkpoints, idle)).toEqual([4]);
    // a clock that was ahead when it signed stops nothing once it is set right
    now += 86_400_000;
    await writer.append(busy, eventsOf(1));
    expect(await swept()).toEqual([[busy, 6]]);
    now -= 86_400_000;
    await writer.append(busy, eventsOf(1));
    expect(await swept()).toEqual([[busy, 7]]);
    await writer.append(busy, eventsOf(1));
    expect(await swept()).toEqual([]);
  });

  test('the audit chain is signed like the decision chain', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf();
    const line = genesisLine(tenantId, 'audit', new Date(now).toISOString(), 'sha256:00');
    const hash = chainHash(Buffer.from(ZERO_HASH, 'hex'), line);
    const { owner } = box.db;
    await owner.query(`insert into chain_head values ($1, 'audit', 1, $2, 0)`, [tenantId, hash]);
    await owner.query(`insert into audit_record values ($1, 1, 'genesis_audit', $2, '', '', '', '', '', $3, $4)`, [
      tenantId,
      new Date(now),
      hash,
      line,
    ]);
    const checkpoint = await checkpoints.take(tenantId, 'audit');
    expect(checkpoint).toMatchObject({ chain: 'audit', seq: 1, hash: hash.toString('hex') });
    expect(await checkpoints.take(tenantId, 'audit')).toBeUndefined();
    await checkpoints.flushed();
    expect(await highestInFile(directory, tenantId, 'audit', keys)).toMatchObject([{ seq: 1 }]);
    expect(await highestInFile(directory, tenantId, 'forensics', keys)).toEqual([]);
  });

  test('checkpoints signed by two processes under load do not contradict each other', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = [checkpointsOf({ everyRecords: 30 }), checkpointsOf()] as const;
    const writer = appender(checkpoints[0]);
    let running = true;
    const sweeping = (async () => {
      while (running) await checkpoints[1].take(tenantId, 'forensics');
    })();
    for (let i = 0; i < 60; i++) await writer.append(tenantId, eventsOf(13));
    running = false;
    await sweeping;
    expect((await consistent(checkpoints[0], tenantId)).length).toBeGreaterThan(20);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 781 });
  });

  test('a chain that contradicts what was signed is closed: nothing is added, nothing signed, by sweep or by writer', async () => {
    for (const kind of ['rewritten', 'cut', 'cut with its checkpoints'] as const) {
      const tenantId = await newTenant(box.db);
      const checkpoints = checkpointsOf({ everyRecords: 10 });
      const { owner } = box.db;
      const before = appender(checkpoints);
      await before.append(tenantId, eventsOf(20));
      await before.append(tenantId, eventsOf(10));
      await checkpoints.flushed();
      if (kind === 'rewritten') await rewrite(box.db, tenantId, 4, (record) => ({ ...record, method: 'forged' }));
      else {
        await owner.query('delete from forensic_record where tenant_id = $1 and seq > 20', [tenantId]);
        const { hash } = (await storedRows(box.db, tenantId)).at(-1)!;
        await owner.query('update chain_head set seq = 20, hash = $2 where tenant_id = $1', [tenantId, hash]);
        if (kind !== 'cut') await owner.query('delete from chain_checkpoint where tenant_id = $1', [tenantId]);
      }
      const rows = await storedRows(box.db, tenantId);
      const signed = (await checkpoints.latest(tenantId, 'forensics'))?.seq;
      // one process that saw it all, and one that knows the database and the file only
      for (const knowing of [checkpoints, checkpointsOf({ everyRecords: 10 })]) {
        await expect(appender(knowing).append(tenantId, eventsOf(50))).rejects.toThrow(ChainClosed);
        await expect(knowing.take(tenantId, 'forensics')).rejects.toThrow(InconsistentChain);
        await knowing.sweep();
        expect(knowing.closed).toBe(1);
      }
      expect((await checkpoints.latest(tenantId, 'forensics'))?.seq).toBe(signed);
      expect(await storedRows(box.db, tenantId)).toEqual(rows);
      const events = await owner.query(
        `select payload from event_outbox where tenant_id = $1 and event_type = 'forensics.chain_closed'`,
        [tenantId],
      );
      expect(events.rows).toMatchObject([{ payload: { chain: 'forensics', known_seq: 31 } }]);
      expect(EVENTS['forensics.chain_closed'].payload.strict().parse(events.rows[0].payload)).toBeTruthy();
    }
  });

  test('a chain whose last checkpoint does not open is not signed any more; it still grows', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf({ everyRecords: 10 });
    await appender().append(tenantId, eventsOf(30));
    await checkpoints.take(tenantId, 'forensics');
    await box.db.owner.query(
      `update chain_checkpoint set note = replace(note, E'\\n31\\n', E'\\n32\\n') where tenant_id = $1`,
      [tenantId],
    );
    await appender(checkpoints).append(tenantId, eventsOf(50));
    await expect(checkpoints.take(tenantId, 'forensics')).rejects.toThrow(InconsistentChain);
    await checkpoints.sweep();
    expect((await checkpoints.latest(tenantId, 'forensics'))?.seq).toBe(31);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 81 });
  });

  test('a rotated key signs immediately, and the previous one still verifies what it signed', async () => {
    const tenantId = await newTenant(box.db);
    const second = newSigner();
    let current = signer;
    const checkpoints = checkpointsOf({ signer: () => current, keys: () => [second.publicKey, signer.publicKey] });
    const writer = appender();
    await writer.append(tenantId, eventsOf(1));
    await checkpoints.take(tenantId, 'forensics');
    current = second;
    await writer.append(tenantId, eventsOf(1));
    expect(await checkpoints.take(tenantId, 'forensics')).toMatchObject({ kid: second.kid, seq: 3 });
  });

  test('without a signing key, records are still stored', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf({
      everyRecords: 5,
      signer: () => {
        throw new Error('sealed');
      },
    });
    await appender(checkpoints).append(tenantId, eventsOf(20));
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 21 });
    expect(told).toEqual([]);
  });
});

describe('the checkpoint file', () => {
  test('contains every checkpoint in order; the newest complete one counts, and a torn one is skipped', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf({ everyRecords: 10 });
    const writer = appender(checkpoints);
    for (let i = 0; i < 10; i++) await writer.append(tenantId, eventsOf(10));
    await checkpoints.flushed();
    const file = checkpointFile(directory, tenantId, 'forensics');
    const text = await readFile(file, 'utf8');
    expect(text).toBe(told.map(({ note }) => `${note}\n`).join(''));
    const newest = told.at(-1)!;
    const before = told.at(-2)!;
    for (let cut = 1; cut < newest.note.length; cut += 7) {
      await writeFile(file, text);
      await truncate(file, Buffer.byteLength(text) - cut);
      const [head] = await highestInFile(directory, tenantId, 'forensics', keys);
      expect(head?.seq).toBe(before.seq);
      if (cut % 3 === 0) {
        checkpoints.publish([newest]);
        await checkpoints.flushed();
        expect(await highestInFile(directory, tenantId, 'forensics', keys)).toMatchObject([{ seq: newest.seq }]);
      }
    }
  });

  test('a forged highest entry is an error, not an older answer', async () => {
    const tenantId = await newTenant(box.db);
    const checkpoints = checkpointsOf();
    await appender().append(tenantId, eventsOf(10));
    const { note } = (await checkpoints.take(tenantId, 'forensics'))!;
    await checkpoints.flushed();
    await appendFile(checkpointFile(directory, tenantId, 'forensics'), `${note.replace('\n11\n', '\n12\n')}\n`);
    await expect(highestInFile(directory, tenantId, 'forensics', keys)).rejects.toThrow(/no signature/);
  });

  test('an unwritable directory is logged and does not stop anything', async () => {
    const tenantId = await newTenant(box.db);
    const file = path.join(directory, 'file');
    await writeFile(file, '');
    const checkpoints = checkpointsOf({ directory: path.join(file, 'below'), everyRecords: 5 });
    await appender(checkpoints).append(tenantId, eventsOf(20));
    await checkpoints.flushed();
    expect(told).toHaveLength(1);
  });
});
