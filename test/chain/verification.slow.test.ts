import { appendFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Database } from '../../db/index.ts';
import { auditWriter } from '../../server/chain/audit.ts';
import { Checkpoints } from '../../server/chain/checkpoint.ts';
import { appendNotes, checkpointFile } from '../../server/chain/checkpoint-file.ts';
import { signHead } from '../../server/chain/note.ts';
import { AUDIT_COLUMNS, chainHash, decisionLine, idHash } from '../../server/chain/record.ts';
import { type VerifyOptions, verifyChain } from '../../server/chain/verification.ts';
import { Verifications } from '../../server/chain/verifications.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { DERIVED_COLUMNS } from '../../server/domain/decision.ts';
import { commit } from '../../server/domain/kept-input.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { isDatabaseFault } from '../../server/lib/database-fault.ts';
import { useDatabase } from '../helpers/database.ts';
import { until } from '../helpers/until.ts';
import { SIEGE, sampled } from '../siege/rounds.ts';
import { appenderOn, event, eventsOf, newSigner, newTenant, rewrite, signer, silent, storedRows } from './helpers.ts';

const box = useDatabase();
const keys = [signer.publicKey];
let directory: string;
let checkpoints: Checkpoints;
beforeAll(async () => {
  directory = await mkdtemp(path.join(tmpdir(), 'svc-verify-'));
  checkpoints = new Checkpoints({
    db: box.db,
    clock: systemClock,
    log: silent,
    host: 'svc.test',
    signer: () => signer,
    keys: () => keys,
    directory,
    everyRecords: 25,
  });
});
afterAll(async () => {
  await checkpoints.stop();
  await rm(directory, { recursive: true });
});

/** A chain of 1 + 10 × 10 records with checkpoints at 31, 61, 91 and at its head. */
const newChain = (batches = 10) => filledChain(batches, 10);

async function filledChain(batches: number, size: number): Promise<string> {
  const tenantId = await newTenant(box.db);
  const writer = appenderOn(box.db, { checkpoints });
  for (let i = 0; i < batches; i++) await writer.append(tenantId, eventsOf(size));
  await writer.stop();
  await checkpoints.take(tenantId, 'forensics');
  await checkpoints.flushed();
  return tenantId;
}
const LENGTH = 101;
const verify = (tenantId: string, chunk = 40) =>
  verifyChain(box.url, tenantId, 'forensics', { keys, directory, chunk });
const sql = (text: string, ...values: unknown[]) => box.db.owner.query(text, values);

describe('an intact chain', () => {
  test('verifies in chunks of any size, to the head at the start', async () => {
    const tenantId = await newChain();
    for (const chunk of [1, 7, 64, LENGTH - 1, LENGTH, LENGTH + 1, 100_000]) {
      const seen: number[] = [];
      const options = { keys, directory, chunk, onProgress: (p: { checked: number }) => seen.push(p.checked) };
      const result = await verifyChain(box.url, tenantId, 'forensics', options);
      expect(result).toMatchObject({ verified: true, linear: true, records_checked: LENGTH, head: { seq: LENGTH } });
      expect(result.last_checkpoint).toMatchObject({ seq: LENGTH, hash: result.head.hash });
      expect(result).not.toHaveProperty('first_mismatch_id');
      expect(seen).toHaveLength(Math.ceil(LENGTH / chunk));
    }
  });

  test('that is empty verifies', async () => {
    const tenantId = await newTenant(box.db);
    expect(await verify(tenantId)).toMatchObject({ verified: true, records_checked: 0, last_checkpoint: null });
  });

  test('verifies while it grows', async () => {
    const tenantId = await newChain(3);
    const writer = appenderOn(box.db, { checkpoints });
    // with each step of the verification, so that the chain never grows faster than it is read
    const growing: Promise<unknown>[] = [];
    const onProgress = () => growing.push(writer.append(tenantId, eventsOf(37)));
    for (let i = 0; i < 10; i++) {
      const options = { keys, directory, chunk: 100, onProgress };
      expect(await verifyChain(box.url, tenantId, 'forensics', options)).toMatchObject({ verified: true });
    }
    expect(growing.length).toBeGreaterThan(20);
    await Promise.all(growing);
    await writer.stop();
  });

  test('verifies while its first checkpoint file appears', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appenderOn(box.db);
    await writer.append(tenantId, eventsOf(10));
    await writer.stop();
    const { rows } = await sql('select seq, hash from chain_head where tenant_id = $1', tenantId);
    const held = await box.db.owner.connect();
    try {
      // holds the verification before it reads the head, after it looked for the file
      await held.query('begin; lock table chain_alarm in access exclusive mode');
      const verdict = verify(tenantId);
      await until(async () => {
        const { rows: waiting } = await held.query(
          `select from pg_locks where not granted and relation = 'chain_alarm'::regclass`,
        );
        return waiting.length > 0;
      }, 'the verification waits');
      const origin = `svc.test/${tenantId}/forensics`;
      const head = { origin, seq: rows[0].seq, hash: rows[0].hash.toString('hex') };
      const note = signHead(head, signer.privateKey, signer.publicKey);
      await appendNotes(checkpointFile(directory, tenantId, 'forensics'), `${note}\n`);
      await held.query('rollback');
      expect(await verdict).toMatchObject({ verified: true, last_checkpoint: null });
    } finally {
      await held.query('rollback');
      held.release();
    }
  });

  test('of the audit log verifies too, and a changed one does not', async () => {
    const tenantId = await newTenant(box.db);
    const audit = auditWriter(systemClock, () => 'sha256:00');
    for (let i = 0; i < 30; i++) {
      await box.db.transaction(tenantId, (em) =>
        audit(em, tenantId, {
          action: 'key.created',
          actor: { type: 'system', id: `a${i}` },
          target: { type: 'key', id: `k${i}` },
        } as Parameters<typeof audit>[2]),
      );
    }
    await checkpoints.take(tenantId, 'audit');
    await checkpoints.flushed();
    const check = () => verifyChain(box.url, tenantId, 'audit', { keys, directory, chunk: 9 });
    expect(await check()).toMatchObject({ verified: true, records_checked: 31, last_checkpoint: { seq: 31 } });
    for (const column of AUDIT_COLUMNS) {
      await sql(`update audit_record set ${column} = ${column} || 'x' where tenant_id = $1 and seq = 9`, tenantId);
      const reason = expect.stringContaining(`column ${column} `);
      expect(await check()).toMatchObject({ verified: false, first_mismatch_seq: 9, reason });
      await sql(`update audit_record set ${column} = rtrim(${column}, 'x') where tenant_id = $1 and seq = 9`, tenantId);
    }
    expect(await check()).toMatchObject({ verified: true });
    await sql(
      `update audit_record set received_at = received_at + interval '1 ms' where tenant_id = $1 and seq = 12`,
      tenantId,
    );
    const { rows } = await sql('select id from audit_record where tenant_id = $1 and seq = 12', tenantId);
    expect(await check()).toMatchObject({ verified: false, first_mismatch_id: rows[0].id, first_mismatch_seq: 12 });
  });
});

/** Each changes an intact chain at record `at` and says which seq is then the first that is wrong. */
type Tampering = (
  db: Database,
  tenantId: string,
  at: number,
) => Promise<{ seq: number; id?: string | undefined; linear?: boolean }>;
const idAt = async (tenantId: string, seq: number) =>
  (await storedRows(box.db, tenantId)).find((row) => row.seq === seq)?.event_id;
/** Of a forgery without a flaw the first checkpoint at or after it tells. */
async function signedAfter(tenantId: string, seq: number) {
  const { rows } = await sql(
    'select min(seq) as seq from chain_checkpoint where tenant_id = $1 and seq >= $2',
    tenantId,
    seq,
  );
  return { seq: rows[0].seq as number, id: await idAt(tenantId, rows[0].seq) };
}
const TAMPERINGS: Record<string, Tampering> = {
  'a word of the text': async (_, tenantId, at) => {
    await sql(
      `update forensic_record set line = replace(line, '"method"', '"methoe"') where tenant_id = $1 and seq = $2 and seq > 1`,
      tenantId,
      at,
    );
    await sql(
      `update forensic_record set line = replace(line, 'genesis', 'genesiz') where tenant_id = $1 and seq = $2 and seq = 1`,
      tenantId,
      at,
    );
    return { seq: at, id: await idAt(tenantId, at) };
  },
  'a bit of the hash': async (_, tenantId, at) => {
    await sql(
      'update forensic_record set hash = set_bit(hash, $3, 1 - get_bit(hash, $3)) where tenant_id = $1 and seq = $2',
      tenantId,
      at,
      at % 256,
    );
    return { seq: at, id: await idAt(tenantId, at) };
  },
  'the length of the hash': async (_, tenantId, at) => {
    await sql(`update forensic_record set hash = hash || '\\x00' where tenant_id = $1 and seq = $2`, tenantId, at);
    return { seq: at, id: await idAt(tenantId, at) };
  },
  'a record deleted': async (_, tenantId, at) => {
    await sql('delete from forensic_record where tenant_id = $1 and seq = $2', tenantId, at);
    // the mismatch shows at what now stands there
    return at === LENGTH
      ? { seq: at, linear: false }
      : { seq: at + 1, id: await idAt(tenantId, at + 1), linear: false };
  },
  'the tail cut, head and checkpoints with it': async (_, tenantId, at) => {
    const keep = Math.max(2, at - 1);
    await sql('delete from forensic_record where tenant_id = $1 and seq > $2', tenantId, keep);
    await sql('delete from chain_checkpoint where tenant_id = $1 and seq > $2', tenantId, keep);
    const { hash } = (await storedRows(box.db, tenantId)).at(-1)!;
    await sql(`update chain_head set seq = $2, hash = $3 where tenant_id = $1`, tenantId, keep, hash);
    return { seq: keep + 1, linear: false };
  },
  'the beginning cut': async (_, tenantId, at) => {
    await sql('delete from forensic_record where tenant_id = $1 and seq <= $2', tenantId, Math.min(at, LENGTH - 1));
    const first = Math.min(at, LENGTH - 1) + 1;
    return { seq: first, id: await idAt(tenantId, first), linear: false };
  },
  'two records exchanged': async (_, tenantId, at) => {
    const one = Math.min(Math.max(at, 2), LENGTH - 1);
    const swap = 'update forensic_record set seq = $3 where tenant_id = $1 and seq = $2';
    await sql(swap, tenantId, one, -1);
    await sql(swap, tenantId, one + 1, one);
    await sql(swap, tenantId, -1, one + 1);
    return { seq: one, id: await idAt(tenantId, one) };
  },
  'a record put in, the rest moved up and everything written and hashed again': async (_, tenantId, at) => {
    const place = Math.max(at, 2);
    await sql('update forensic_record set seq = -seq where tenant_id = $1 and seq >= $2', tenantId, place);
    await sql('update forensic_record set seq = 1 - seq where tenant_id = $1 and seq < 0', tenantId);
    const forged = event({ decision: 'allow' });
    const time = (await storedRows(box.db, tenantId))[place - 2]!.received_at;
    const line = decisionLine(tenantId, place, time.toISOString(), forged);
    await sql(
      `insert into forensic_record (seq, received_at, agent_h, session_h, tool_h, decision, hash, tenant_id, event_id, line)
       values ($2, $8, $4, $5, $9, 0, $6, $1, $3, $7)`,
      tenantId,
      place,
      forged.event_id,
      idHash(forged.agent_id),
      idHash(forged.session_id),
      Buffer.alloc(32),
      line,
      time,
      idHash(forged.tool_name),
    );
    await sql('update chain_head set seq = seq + 1 where tenant_id = $1', tenantId);
    await rewrite(box.db, tenantId, place, (record, seq) => ({ ...record, seq }));
    return { ...(await signedAfter(tenantId, place)), linear: false };
  },
  'everything from a record on rewritten with new hashes': async (_, tenantId, at) => {
    const place = Math.max(at, 2);
    await rewrite(box.db, tenantId, place, (record) =>
      record.seq === place ? { ...record, method: 'forged' } : record,
    );
    return { ...(await signedAfter(tenantId, place)), linear: false };
  },
  'the same, and signed with another key': async (_, tenantId, at) => {
    const place = Math.max(at, 2);
    await rewrite(box.db, tenantId, place, (record) =>
      record.seq === place ? { ...record, method: 'forged' } : record,
    );
    const forger = newSigner();
    const rows = await storedRows(box.db, tenantId);
    const { rows: signed } = await sql(
      'select seq from chain_checkpoint where tenant_id = $1 and seq >= $2 order by seq',
      tenantId,
      place,
    );
    for (const { seq } of signed) {
      const head = { origin: `svc.test/${tenantId}/forensics`, seq, hash: rows[seq - 1]!.hash.toString('hex') };
      const note = signHead(head, forger.privateKey, forger.publicKey);
      await sql('update chain_checkpoint set note = $3 where tenant_id = $1 and seq = $2', tenantId, seq, note);
    }
    return { seq: 0 };
  },
  'the same, and the checkpoints deleted': async (_, tenantId, at) => {
    const place = Math.max(at, 2);
    await rewrite(box.db, tenantId, place, (record) =>
      record.seq === place ? { ...record, method: 'forged' } : record,
    );
    const signed = await signedAfter(tenantId, place);
    await sql('delete from chain_checkpoint where tenant_id = $1', tenantId);
    // the file still has every one of them
    return { ...signed, linear: false };
  },
  'a record added behind the head': async (_, tenantId) => {
    const last = (await storedRows(box.db, tenantId)).at(-1)!;
    const forged = event();
    const at = new Date();
    const line = decisionLine(tenantId, LENGTH + 1, at.toISOString(), forged);
    await sql(
      `insert into forensic_record (seq, received_at, agent_h, session_h, decision, hash, tenant_id, event_id, line)
       values ($2, $8, $4, $5, $9, $6, $1, $3, $7)`,
      tenantId,
      LENGTH + 1,
      forged.event_id,
      idHash(forged.agent_id),
      idHash(forged.session_id),
      chainHash(last.hash, line),
      line,
      at,
      1,
    );
    return { seq: LENGTH + 1, linear: false };
  },
  'the head set elsewhere': async (_, tenantId, at) => {
    await sql(`update chain_head set hash = $2 where tenant_id = $1`, tenantId, Buffer.alloc(32, at));
    return { seq: LENGTH, linear: false };
  },
};
const COLUMNS: Record<string, string> = {
  ...Object.fromEntries(
    DERIVED_COLUMNS.map(({ column, hashed }) => [column, hashed ? `${column} + 1` : `(${column} + 1) % 5`]),
  ),
  received_at: `received_at - interval '1 ms'`,
  event_id: `event_id || 'x'`,
};
for (const [column, value] of Object.entries(COLUMNS)) {
  TAMPERINGS[`the column ${column}`] = async (_, tenantId, at) => {
    const row = (await storedRows(box.db, tenantId))[at - 1]!;
    await sql(`update forensic_record set ${column} = ${value} where tenant_id = $1 and seq = $2`, tenantId, at);
    return { seq: at, id: row.event_id };
  };
}

describe('tampering is found, at the record where it starts', () => {
  test.each(Object.entries(TAMPERINGS))('%s', async (kind, tamper) => {
    const places = fc.sample(fc.integer({ min: 1, max: LENGTH }), { numRuns: SIEGE ? 8 : 1, seed: kind.length });
    const all = new Set([1, LENGTH, ...places]);
    for (const at of sampled([...all], (place) => `${kind} at ${place}`, 3)) {
      const tenantId = await newChain();
      const expected = await tamper(box.db, tenantId, at);
      const result = await verify(tenantId);
      expect(result, `at ${at}`).toMatchObject({ verified: false, reason: expect.any(String) });
      if (expected.linear !== undefined) expect(result.linear).toBe(expected.linear);
      if (expected.seq > 0) expect(result.first_mismatch_seq).toBe(expected.seq);
      if (expected.id !== undefined) expect(result.first_mismatch_id).toBe(expected.id);
    }
  });

  test('an edited, swapped or deleted checkpoint', async () => {
    const edits = [
      `update chain_checkpoint set note = replace(note, 'svc-chain-head/v1', 'svc-chain-head/v2') where tenant_id = $1 and seq = 61`,
      `update chain_checkpoint c set note = d.note from chain_checkpoint d where c.tenant_id = $1 and d.tenant_id = $1 and c.seq = 61 and d.seq = 91`,
      `update chain_checkpoint set seq = 62 where tenant_id = $1 and seq = 61`,
      `delete from chain_checkpoint where tenant_id = $1 and seq >= 91`,
    ];
    for (const edit of edits) {
      const tenantId = await newChain();
      expect((await sql(edit, tenantId)).rowCount).toBeGreaterThan(0);
      const result = await verify(tenantId);
      expect(result).toMatchObject({ verified: false, reason: expect.stringMatching(/checkpoint/) });
    }
  });

  test('a checkpoint at the end of a chunk, at the start of the next and at the end of the chain', async () => {
    const seqs = [1, 19, 20, 21, 40, 41, LENGTH - 1, LENGTH];
    const places = seqs.flatMap((seq) => [true, false].map((inFile) => ({ seq, inFile })));
    for (const { seq, inFile } of sampled(places, undefined, 3)) {
      const tenantId = await newChain();
      const head = { origin: `svc.test/${tenantId}/forensics`, seq, hash: 'ab'.repeat(32) };
      const note = signHead(head, signer.privateKey, signer.publicKey);
      if (inFile) await appendFile(checkpointFile(directory, tenantId, 'forensics'), `${note}\n`);
      else {
        await sql(`delete from chain_checkpoint where tenant_id = $1 and seq = $2`, tenantId, seq);
        await sql(`insert into chain_checkpoint values ($1, 'forensics', $2, 'k', $3, now())`, tenantId, seq, note);
      }
      // in the file there are two of the last record, and a late one of each that went by
      const result = await verify(tenantId, 20);
      expect(result, `${seq} ${inFile}`).toMatchObject({ verified: false, first_mismatch_seq: seq });
    }
  });

  test('a changed record among some that are hashed together, too long for that, or longer than what is read at once', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appenderOn(box.db);
    const sizes = [1, 1, 1, 1, 1, 2000, 1, 1, 400, 500, 600, 1, 300_000, 1, 1, 1, 1, 1, 600_000, 1, 1, 1, 1];
    for (const size of sizes) await writer.append(tenantId, [{ event: event({ method: 'x'.repeat(size) }) }]);
    await writer.stop();
    expect(await verify(tenantId)).toMatchObject({ verified: true, records_checked: sizes.length + 1 });
    const change = `update forensic_record set line = replace(line, $3, $4) where tenant_id = $1 and seq = $2`;
    for (const seq of sampled([3, 4, 7, 9, 11, 13, 14, 16, 21, 24], String, 2)) {
      await sql(change, tenantId, seq, '"method":"x', '"method":"y');
      const { event_id: id } = (await storedRows(box.db, tenantId))[seq - 1]!;
      expect(await verify(tenantId, 100_000)).toMatchObject({
        verified: false,
        first_mismatch_seq: seq,
        first_mismatch_id: id,
        reason: expect.stringContaining('its hash does not follow'),
      });
      await sql(change, tenantId, seq, '"method":"y', '"method":"x');
    }
    expect(await verify(tenantId, 100_000)).toMatchObject({ verified: true });
  });

  test('a row before record 1', async () => {
    for (const seq of [0, -1, -7]) {
      const tenantId = await newChain(2);
      await sql(
        `insert into forensic_record (seq, received_at, agent_h, session_h, decision, hash, tenant_id, event_id, line)
         select $2, received_at, agent_h, session_h, decision, hash, tenant_id, 'before', line
         from forensic_record where tenant_id = $1 and seq = 2`,
        tenantId,
        seq,
      );
      expect(await verify(tenantId, 10)).toMatchObject({
        verified: false,
        linear: false,
        records_checked: 22,
        first_mismatch_seq: seq,
      });
    }
  });

  test('an input other than the one decided on, or whose record names none', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appenderOn(box.db, { checkpoints });
    const events = Array.from({ length: 30 }, (_, n) => {
      const input = JSON.stringify({ amount: n, note: 'ünïcode \u2028' });
      const { kept, commitments } = commit({ input, projection: n % 2 ? `{"n":${n}}` : undefined }, 'sha256:00');
      return { event: event(commitments), input: kept };
    });
    await writer.append(tenantId, events);
    await writer.stop();
    expect(await verify(tenantId)).toMatchObject({ verified: true });
    // one that retention erased is not missed
    const ids = events.map(({ event }) => event.event_id);
    await sql('delete from decision_input where tenant_id = $1 and event_id = any($2)', tenantId, ids.slice(0, 5));
    await sql(
      'update decision_input set salt_b = null, input = null where tenant_id = $1 and event_id = $2',
      tenantId,
      ids[7],
    );
    expect(await verify(tenantId)).toMatchObject({ verified: true });
    const kept = 'salt_a, projection, salt_b, input';
    const another = ['salt_a', 'projection', 'salt_b', 'input'].map((name) => `${name} = b.${name}`).join(', ');
    await sql('create temporary table before as select * from decision_input where tenant_id = $1', tenantId);
    const alterations: [n: number, change: string][] = [
      [20, `input = replace(a.input, '"amount":2', '"amount":9')`],
      [21, `projection = a.projection || ' '`],
      [22, `salt_b = '\\x${'00'.repeat(16)}'`],
      [23, `salt_a = '\\x${'00'.repeat(16)}'`],
      // what was kept of another record, whole
      [25, another],
    ];
    for (const [n, change] of alterations) {
      await sql(
        `update decision_input a set ${change} from before b
         where a.tenant_id = $1 and a.event_id = $2 and b.event_id = $3`,
        tenantId,
        ids[n],
        ids[26],
      );
      expect(await verify(tenantId), change).toMatchObject({
        verified: false,
        linear: true,
        first_mismatch_id: ids[n],
        first_mismatch_seq: n + 2,
        reason: expect.stringMatching(/the input that is kept with it has another hash/),
      });
      await sql(
        `update decision_input a set (${kept}) = (b.salt_a, b.projection, b.salt_b, b.input) from before b
         where a.tenant_id = $1 and a.event_id = $2 and b.event_id = a.event_id`,
        tenantId,
        ids[n],
      );
    }
    expect(await verify(tenantId)).toMatchObject({ verified: true });
  });

  test('of the audit log is reported with the record; a cut tail with its position', async () => {
    const tenantId = await newTenant(box.db);
    const audit = auditWriter(systemClock, () => 'sha256:00');
    for (let i = 0; i < 9; i++) {
      await box.db.transaction(tenantId, (em) =>
        audit(em, tenantId, { action: 'key.created', actor: OPERATOR, target: { type: 'key', id: `k${i}` } }),
      );
    }
    await checkpoints.take(tenantId, 'audit');
    await checkpoints.flushed();
    const check = () => verifyChain(box.url, tenantId, 'audit', { keys, directory });
    const { rows } = await sql('select id, line from audit_record where tenant_id = $1 order by seq', tenantId);
    await sql(`update audit_record set line = replace(line, 'k5', 'k6') where tenant_id = $1 and seq = 7`, tenantId);
    expect(await check()).toMatchObject({ verified: false, first_mismatch_id: rows[6].id, first_mismatch_seq: 7 });
    await sql('update audit_record set line = $2 where tenant_id = $1 and seq = 7', tenantId, rows[6].line);
    expect(await check()).toMatchObject({ verified: true });
    await sql('delete from audit_record where tenant_id = $1 and seq > 8', tenantId);
    const cut = await check();
    expect(cut).toMatchObject({
      verified: false,
      first_mismatch_seq: 9,
      // the last one that is there
      first_mismatch_id: rows[7].id,
      reason: expect.stringMatching(/the last is 8/),
    });
  });

  test('the chain of another tenant in place of this one', async () => {
    const [mine, other] = [await newChain(), await newChain()];
    for (const table of ['forensic_record', 'chain_checkpoint', 'chain_head']) {
      await sql(`delete from ${table} where tenant_id = $1`, mine);
      await sql(`update ${table} set tenant_id = $1 where tenant_id = $2`, mine, other);
    }
    const result = await verifyChain(box.url, mine, 'forensics', { keys, chunk: 64 });
    expect(result).toMatchObject({ verified: false, first_mismatch_id: 'genesis_forensics', first_mismatch_seq: 1 });
  });

  test('a forged or unreadable checkpoint file', async () => {
    const tenantId = await newChain();
    const file = checkpointFile(directory, tenantId, 'forensics');
    const ahead = signHead(
      { origin: `svc.test/${tenantId}/forensics`, seq: LENGTH + 5, hash: 'ab'.repeat(32) },
      signer.privateKey,
      signer.publicKey,
    );
    await appendFile(file, `${ahead}\n`);
    expect(await verify(tenantId)).toMatchObject({ verified: false, linear: false, first_mismatch_seq: LENGTH + 1 });
    const other = await newChain(2);
    await appendFile(checkpointFile(directory, other, 'forensics'), `${ahead.replace('ab', 'ba')}\n`);
    expect(await verify(other)).toMatchObject({ verified: false, reason: expect.stringMatching(/checkpoint file/) });
  });
});

describe('verifications', () => {
  const verifications = () => new Verifications(box.url, () => ({ keys, directory, chunk: 20 }));

  test('waiting callers share one run, which began after their call', async () => {
    const tenantId = await newChain();
    const all = verifications();
    const first = all.verify(tenantId, 'forensics');
    let runs = 0;
    const shared = [1, 2, 3].map(() =>
      all.verify(tenantId, 'forensics', { onProgress: ({ checked }) => (checked === 20 ? runs++ : undefined) }),
    );
    const [a, b, c] = await Promise.all(shared);
    expect(await first).toMatchObject({ verified: true });
    expect(b).toBe(a);
    expect(c).toBe(a);
    expect(runs).toBe(3);
    await sql(`update forensic_record set decision = (decision + 1) % 5 where tenant_id = $1 and seq = 50`, tenantId);
    expect(await all.verify(tenantId, 'forensics')).toMatchObject({ verified: false, first_mismatch_seq: 50 });
  });

  test('an aborted caller leaves immediately; the work continues for the others and ends when none is left', async () => {
    const tenantId = await newChain();
    const all = verifications();
    const [stay, leave, last] = [undefined, new AbortController(), new AbortController()];
    const kept = all.verify(tenantId, 'forensics', { signal: stay });
    const left = all.verify(tenantId, 'forensics', { signal: leave.signal });
    leave.abort(new Error('gone'));
    await expect(left).rejects.toThrow('gone');
    expect(await kept).toMatchObject({ verified: true });
    const alone = all.verify(tenantId, 'forensics', {
      signal: last.signal,
      onProgress: () => last.abort(new Error('enough')),
    });
    await expect(alone).rejects.toThrow('enough');
    expect(await all.verify(tenantId, 'forensics')).toMatchObject({ verified: true });
    await expect(all.verify(tenantId, 'forensics', { signal: AbortSignal.abort(new Error('before')) })).rejects.toThrow(
      'before',
    );
  });

  test('a caller that joins a verification whose callers have all left still gets an answer', async () => {
    const tenantId = await newChain();
    const all = verifications();
    for (const later of [() => undefined, () => Promise.resolve(), () => delay(5)]) {
      const first = all.verify(tenantId, 'forensics');
      const leave = new AbortController();
      const left = all.verify(tenantId, 'forensics', { signal: leave.signal });
      left.catch(() => undefined);
      leave.abort(new Error('gone'));
      await later();
      const joined = all.verify(tenantId, 'forensics');
      await expect(left).rejects.toThrow('gone');
      expect(await joined).toMatchObject({ verified: true });
      expect(await first).toMatchObject({ verified: true });
      // and one that joins while the last caller leaves a run that has begun
      const end = new AbortController();
      const alone = all.verify(tenantId, 'forensics', {
        signal: end.signal,
        onProgress: () => end.abort(new Error('enough')),
      });
      await expect(alone).rejects.toThrow('enough');
      await later();
      expect(await all.verify(tenantId, 'forensics')).toMatchObject({ verified: true });
    }
  });

  test('many concurrent tenants all get their answer', async () => {
    const tenants = await Promise.all(Array.from({ length: 6 }, () => newChain(2)));
    const all = verifications();
    const results = await Promise.all(tenants.map((tenantId) => all.verify(tenantId, 'forensics')));
    expect(results.every((result) => result.verified && result.records_checked === 21)).toBe(true);
  });

  test('a database failure is an error, not a verdict', async () => {
    const tenantId = await newChain(30);
    const cut = `select pg_terminate_backend(pid) from pg_stat_activity
      where application_name = 'svc verification' and datname = current_database()`;
    const cuts: Promise<number | null>[] = [];
    const onProgress = () => void cuts.push(sql(cut).then(({ rowCount }) => rowCount));
    const error = await verifyChain(box.url, tenantId, 'forensics', { keys, chunk: 1, onProgress }).catch((e) => e);
    expect(error).toBeInstanceOf(Error);
    expect(isDatabaseFault(error)).toBe(true);
    expect(await Promise.all(cuts)).toContain(1);
  });
});

/**
 * What happens after the first chunk of a verification. Much of the chain has not been read yet, if it is long: the thread does not
 * wait until it is heard here.
 */
async function inTheMiddle(tenantId: string, act: (worker: Worker) => unknown, signal?: AbortSignal) {
  let worker: Worker | undefined;
  process.once('worker', (made) => {
    worker = made;
  });
  let acted: unknown;
  const onProgress = () => {
    acted ??= act(worker!) ?? true;
  };
  const options = { keys, directory, chunk: 1, busy: () => true, onProgress, signal };
  try {
    return await verifyChain(box.url, tenantId, 'forensics', options);
  } finally {
    await acted;
  }
}
const MUCH = 100;
const connections = async () =>
  (
    await sql(
      `select 1 from pg_stat_activity where application_name = 'svc verification' and datname = current_database()`,
    )
  ).rowCount;

describe('in the middle of a verification', () => {
  test('a thread that is killed is an error, never a verdict', async () => {
    const tenantId = await newChain(MUCH);
    await expect(inTheMiddle(tenantId, (worker) => worker.terminate())).rejects.toThrow(
      /thread of a verification ended/,
    );
    expect(await verify(tenantId)).toMatchObject({ verified: true });
  });

  test('a thread that runs out of memory is an error, never a verdict', async () => {
    const tenantId = await newChain(3);
    const tight = verifyChain(box.url, tenantId, 'forensics', { keys, directory, heapMb: 3 });
    await expect(tight).rejects.toMatchObject({ code: 'ERR_WORKER_OUT_OF_MEMORY' });
    expect(await verify(tenantId)).toMatchObject({ verified: true });
  });

  test('a caller that gives up ends it, and its connection', async () => {
    const tenantId = await newChain(MUCH);
    const gone = new AbortController();
    const given = inTheMiddle(tenantId, () => gone.abort(new Error('enough')), gone.signal);
    await expect(given).rejects.toThrow('enough');
    await expect.poll(connections).toBe(0);
  });

  test('a record that is changed before it is read is found', async () => {
    const tenantId = await newChain(3);
    const last = 31;
    const change = () =>
      sql(
        `update forensic_record set line = replace(line, '"method"', '"methoe"') where tenant_id = $1 and seq = $2`,
        tenantId,
        last,
      );
    // it has read far ahead of the progress that it told about, or not: either way the next one finds it
    const during = await inTheMiddle(tenantId, change);
    if (!during.verified) expect(during).toMatchObject({ first_mismatch_seq: last });
    expect(await verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: last });
  });

  test('records that vanish make no chain that verifies', async () => {
    const tenantId = await newChain(30);
    const remove = async () => {
      for (const table of ['forensic_record', 'chain_checkpoint', 'chain_head']) {
        await sql(`delete from ${table} where tenant_id = $1`, tenantId);
      }
    };
    const during = await inTheMiddle(tenantId, remove);
    // it may have read all of them before, and then says so
    if (during.verified) expect(during.records_checked).toBe(301);
    else expect(during.linear).toBe(false);
    expect(await verify(tenantId)).toMatchObject({ verified: false, linear: false });
  });

  test('one of another tenant goes on', async () => {
    const [one, other] = [await newChain(MUCH), await newChain(3)];
    const all = new Verifications(box.url, () => ({ keys, directory, chunk: 5 }));
    const [killed, kept] = await Promise.allSettled([
      inTheMiddle(one, (worker) => worker.terminate()),
      all.verify(other, 'forensics'),
    ]);
    expect(killed.status).toBe('rejected');
    expect(kept).toMatchObject({ status: 'fulfilled', value: { verified: true, records_checked: 31 } });
  });
});

describe('columns that are no longer what they were made as', () => {
  const altered = async (tenantId: string, [there, back]: [string, string], change: string) => {
    await sql(`alter table forensic_record ${there}`);
    try {
      await sql(`update forensic_record set ${change} where tenant_id = $1 and seq = 9`, tenantId);
      return await verify(tenantId);
    } finally {
      await sql(`delete from forensic_record where tenant_id = $1`, tenantId);
      await sql(`alter table forensic_record ${back}`);
    }
  };
  const nullable = (column: string): [string, string] => [
    `alter ${column} drop not null`,
    `alter ${column} set not null`,
  ];
  /** Its hash begins like the message of the protocol that comes after the last column. */
  const TRACE = 'Sk4cwQ';
  const CASES: Record<string, [how: [there: string, back: string], change: string, first?: number]> = {
    'a wider hash': [
      ['alter trace_h type bigint', 'alter trace_h type int using 0'],
      'trace_h = trace_h::bigint << 32',
      // it is that of every record
      1,
    ],
    'a hash that is null': [nullable('trace_h'), 'trace_h = null'],
    'a text that is null': [nullable('line'), 'line = null'],
    'the hash of a record that is null': [nullable('hash'), 'hash = null'],
    'an id that is null': [nullable('event_id'), 'event_id = null'],
    'a part of a millisecond': [
      ['alter received_at type timestamptz(6)', 'alter received_at type timestamptz(3)'],
      `received_at = received_at + interval '900 microseconds'`,
    ],
  };
  async function traced(): Promise<string> {
    const tenantId = await newTenant(box.db);
    const writer = appenderOn(box.db);
    await writer.append(tenantId, eventsOf(20, { trace_id: TRACE }));
    await writer.stop();
    return tenantId;
  }
  beforeAll(async () => {
    expect(idHash(TRACE)).toBe(0x64000002);
    expect(await verify(await traced())).toMatchObject({ verified: true });
    // each change of a column goes over what is there
    await sql('delete from forensic_record');
  });
  for (const [what, [how, change, first = 9]] of Object.entries(CASES)) {
    test(`${what} is a verdict, and not an intact chain`, async () => {
      const tenantId = await traced();
      expect(await altered(tenantId, how, change)).toMatchObject({ verified: false, first_mismatch_seq: first });
    });
  }
});

test('a head far beyond the last record is a verdict, at once', async () => {
  const tenantId = await newChain(2);
  await sql('update chain_head set seq = 4000000000000000 where tenant_id = $1', tenantId);
  expect(await verify(tenantId)).toMatchObject({ verified: false, linear: false, first_mismatch_seq: 22 });
});

test('a record far beyond the others is a verdict, at once', async () => {
  const tenantId = await newChain(2);
  await sql('update forensic_record set seq = 4000000000000000 where tenant_id = $1 and seq = 10', tenantId);
  const verdict = await verify(tenantId);
  expect(verdict).toMatchObject({ verified: false, linear: false, first_mismatch_seq: 11, records_checked: 21 });
});

test('a checkpoint file that cannot be read is reported, and the records all the same', async () => {
  const tenantId = await newChain(2);
  const file = checkpointFile(directory, tenantId, 'forensics');
  await rm(file);
  await mkdir(file);
  const verdict = await verify(tenantId);
  expect(verdict).toMatchObject({ verified: false, linear: true, records_checked: 21 });
  expect(verdict.reason).toMatch(/^the checkpoint file: /);
  expect(verdict).not.toHaveProperty('first_mismatch_seq');
});

test('a table that stays locked is a fault of the database, since what waits for the lock holds up records', async () => {
  const tenantId = await newChain(2);
  const held = await box.db.owner.connect();
  try {
    await held.query('begin; lock table forensic_record in access exclusive mode');
    const error = await verify(tenantId).catch((reason) => reason);
    expect(isDatabaseFault(error), String(error)).toBe(true);
  } finally {
    await held.query('rollback');
    held.release();
  }
});

describe('a long chain is shared between two threads', () => {
  const RECORDS = 5001;
  /** Where the second one begins: whole blocks of 2,048 records. */
  const BOUND = 4096;
  const options = () => ({ keys, directory, chunk: 1000 });
  const alone = (tenantId: string) =>
    verifyChain(box.url, tenantId, 'forensics', { ...options(), sharedFrom: Number.POSITIVE_INFINITY });
  const shared = (tenantId: string, more: Partial<VerifyOptions> = {}) =>
    verifyChain(box.url, tenantId, 'forensics', { ...options(), ...more, sharedFrom: 1000 });
  let tenantId: string;
  /** Puts the chain back as it was. */
  let restore: () => Promise<void>;
  beforeAll(async () => {
    tenantId = await filledChain(5, 1000);
    ({ restore } = await snapshotOf(tenantId));
  });

  test('that is intact verifies, and each record is read once', async () => {
    const seen: { checked: number; total: number }[] = [];
    const result = await verifyChain(box.url, tenantId, 'forensics', {
      ...options(),
      sharedFrom: 1000,
      onProgress: (progress) => seen.push(progress),
    });
    expect(result).toEqual(await alone(tenantId));
    expect(result).toMatchObject({ verified: true, linear: true, records_checked: RECORDS, head: { seq: RECORDS } });
    expect(seen.at(-1)).toEqual({ checked: RECORDS, total: RECORDS });
    const counts = seen.map(({ checked }) => checked);
    expect(counts).toEqual(counts.toSorted((a, b) => a - b));
    // more steps than one thread alone would tell of in chunks of this size
    expect(counts).toHaveLength(Math.ceil(BOUND / 1000) + Math.ceil((RECORDS - BOUND) / 1000));
  });

  const one = (text: string) => (at: number) => sql(`${text} where tenant_id = $1 and seq = $2`, tenantId, at);
  const CHANGES: Record<string, (at: number) => Promise<unknown>> = {
    'a word of a text': one(`update forensic_record set line = replace(line, '"method"', '"methoe"')`),
    'a bit of a hash': one('update forensic_record set hash = set_bit(hash, 7, 1 - get_bit(hash, 7))'),
    'the length of a hash': one(`update forensic_record set hash = hash || '\\x00'`),
    'a column': one('update forensic_record set agent_h = agent_h + 1'),
    'a record deleted': one('delete from forensic_record'),
    'all records from there on deleted, and the head moved back': async (at) => {
      await sql('delete from forensic_record where tenant_id = $1 and seq >= $2', tenantId, at);
      await sql(
        `update chain_head h set seq = r.seq, hash = r.hash from forensic_record r
         where h.tenant_id = $1 and h.chain = 'forensics' and r.tenant_id = $1 and r.seq = $2 - 1`,
        tenantId,
        at,
      );
    },
    'a checkpoint that states another hash': async (at) => {
      const head = { origin: `svc.test/${tenantId}/forensics`, seq: at, hash: 'ab'.repeat(32) };
      const note = signHead(head, signer.privateKey, signer.publicKey);
      await sql(
        `insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at) values ($1, 'forensics', $2, 'k', $3, now())
         on conflict (tenant_id, chain, seq) do update set note = excluded.note`,
        tenantId,
        at,
        note,
      );
    },
  };
  for (const [what, change] of Object.entries(CHANGES)) {
    test(`${what} is found, wherever it is, as by one thread`, async () => {
      const places = [2, 100, BOUND - 1, BOUND, BOUND + 1, RECORDS - 1];
      for (const at of sampled(places, (place) => `${what} at ${place}`, 6)) {
        await change(at);
        try {
          const verdict = await shared(tenantId);
          expect(verdict, `at ${at}`).toEqual(await alone(tenantId));
          expect(verdict.verified, `at ${at}`).toBe(false);
          expect(Math.abs(verdict.first_mismatch_seq! - at), `at ${at}`).toBeLessThanOrEqual(1);
        } finally {
          await restore();
        }
      }
    });
  }

  test('a hash that is null where the second one would begin is a verdict', async () => {
    await sql('alter table forensic_record alter hash drop not null');
    try {
      await sql('update forensic_record set hash = null where tenant_id = $1 and seq = $2', tenantId, BOUND);
      expect(await shared(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: BOUND });
    } finally {
      await sql('delete from forensic_record where tenant_id = $1', tenantId);
      await sql('alter table forensic_record alter hash set not null');
      await restore();
    }
  });

  test('another hash in the checkpoint file is found, wherever it is', async () => {
    const file = checkpointFile(directory, tenantId, 'forensics');
    const text = await readFile(file);
    for (const at of sampled([100, BOUND, BOUND + 1, RECORDS - 1], String, 2)) {
      const head = { origin: `svc.test/${tenantId}/forensics`, seq: at, hash: 'ab'.repeat(32) };
      await appendNotes(file, `${signHead(head, signer.privateKey, signer.publicKey)}\n`);
      expect(await shared(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: at });
      await writeFile(file, text);
    }
    expect(await shared(tenantId)).toMatchObject({ verified: true });
  });

  test('what was rewritten in both parts is told of where it begins', async () => {
    try {
      for (const at of [4500, 300]) await CHANGES['a word of a text']!(at);
      expect(await shared(tenantId)).toMatchObject({
        verified: false,
        first_mismatch_seq: 300,
        records_checked: RECORDS,
      });
    } finally {
      await restore();
    }
  });

  test('each of the two connections that is cut is an error, never a verdict', async () => {
    for (const order of ['asc', 'desc']) {
      let cut: Promise<number | null> | undefined;
      const onProgress = () => {
        cut ??= sql(
          `select pg_terminate_backend(pid) from pg_stat_activity
           where application_name = 'svc verification' and datname = current_database()
           order by backend_start ${order} limit 1`,
        ).then(({ rowCount }) => rowCount);
      };
      // neither is at its end by then
      const error = await shared(tenantId, { onProgress, busy: () => true, chunk: 2 }).catch((reason) => reason);
      expect(await cut).toBe(1);
      expect(isDatabaseFault(error), String(error)).toBe(true);
      await expect.poll(connections).toBe(0);
    }
  });

  test('a caller that gives up ends both', async () => {
    const gone = new AbortController();
    // thousands of statements: neither is at its end by then
    const given = shared(tenantId, { signal: gone.signal, busy: () => true, chunk: 2 });
    given.catch(() => undefined);
    await expect.poll(connections, { interval: 1 }).toBe(2);
    gone.abort(new Error('enough'));
    await expect(given).rejects.toThrow('enough');
    await expect.poll(connections).toBe(0);
  });
});

/** The records, checkpoints, head and checkpoint file of a chain, to be put back. */
async function snapshotOf(tenantId: string) {
  const tables = ['forensic_record', 'chain_checkpoint', 'chain_head'];
  const file = checkpointFile(directory, tenantId, 'forensics');
  const text = await readFile(file);
  for (const table of tables) await sql(`drop table if exists kept_${table}`);
  for (const table of tables)
    await sql(`create table kept_${table} as select * from ${table} where tenant_id = '${tenantId}'`);
  return {
    async restore() {
      for (const table of tables) {
        await sql(`delete from ${table} where tenant_id = $1`, tenantId);
        await sql(`insert into ${table} select * from kept_${table}`);
      }
      await writeFile(file, text);
    },
  };
}

test('its connection has the rights of requests: one tenant, and nothing but reading', async () => {
  const tenantId = await newChain(2);
  await sql('revoke select on forensic_record from svc_app');
  try {
    await expect(verify(tenantId)).rejects.toMatchObject({ code: '42501' });
  } finally {
    await sql('grant select on forensic_record to svc_app');
  }
  expect(await verify(tenantId)).toMatchObject({ verified: true });
});

test('a database that is not there is an error', async () => {
  const url = new URL(box.url);
  url.port = '1';
  const error = await verifyChain(url.href, 'tnt_x', 'forensics', { keys }).catch((reason) => reason);
  expect(isDatabaseFault(error)).toBe(true);
});

const LONG = SIEGE ? 200_000 : 20_000;

test(`memory stays flat: a chain of ${LONG} records costs no more than one of 2000`, async () => {
  const peaks: number[] = [];
  for (const size of [2000, LONG]) {
    const tenantId = await newTenant(box.db);
    const writer = appenderOn(box.db);
    for (let i = 0; i < size; i += 1000) await writer.append(tenantId, eventsOf(1000));
    await writer.stop();
    let worker: Worker | undefined;
    process.once('worker', (made) => {
      worker = made;
    });
    let peak = 0;
    const looks: Promise<void>[] = [];
    const onProgress = () => {
      const look = worker!.getHeapStatistics().then(
        ({ external_memory, used_heap_size }) => {
          peak = Math.max(peak, external_memory + used_heap_size);
        },
        () => undefined,
      );
      looks.push(look);
    };
    await verifyChain(box.url, tenantId, 'forensics', { keys, chunk: 1000, onProgress });
    await Promise.all(looks);
    expect(peak).toBeGreaterThan(0);
    peaks.push(peak);
  }
  // what waits to be collected included; the 18,000 more would be 8 MB
  expect(peaks[1]! - peaks[0]!).toBeLessThan(4_000_000);
});
