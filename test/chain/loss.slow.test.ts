import { appendFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { acceptLoss } from '../../server/chain/accept-loss.ts';
import type { AppendEvent, Appender } from '../../server/chain/appender.ts';
import { auditWriter } from '../../server/chain/audit.ts';
import { Blocks } from '../../server/chain/block-writer.ts';
import { BLOCK_RECORDS } from '../../server/chain/blocks.ts';
import { ChainClosed, Checkpoints } from '../../server/chain/checkpoint.ts';
import { checkpointFile, notesIn } from '../../server/chain/checkpoint-file.ts';
import { lossRows } from '../../server/chain/loss.ts';
import { openLoss, signHead, signLoss } from '../../server/chain/note.ts';
import type { ChainName } from '../../server/chain/record.ts';
import { verifyChain } from '../../server/chain/verification.ts';
import { ingest } from '../../server/decisions/ingest.ts';
import { searchEvents } from '../../server/decisions/search.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import type { DecisionEvent } from '../../server/domain/decision.ts';
import { EVENTS } from '../../server/domain/events.ts';
import { commit } from '../../server/domain/kept-input.ts';
import { type Clock, systemClock } from '../../server/lib/clock.ts';
import { keyFingerprint } from '../../server/lib/crypto.ts';
import { useDatabase } from '../helpers/database.ts';
import { until } from '../helpers/until.ts';
import { appenderOn, event, eventsOf, newSigner, newTenant, rewrite, signer, silent, storedRows } from './helpers.ts';

const box = useDatabase();
const keys = [signer.publicKey];
let directory: string;
const open: { stop(): Promise<void> }[] = [];
beforeEach(async () => {
  directory = await mkdtemp(path.join(tmpdir(), 'svc-loss-'));
});
afterEach(async () => {
  for (const each of open.splice(0)) await each.stop();
  await rm(directory, { recursive: true });
});
/** For who takes over when what is there was not written a moment ago. */
const inAnHour: Clock = { now: () => Date.now() + 3_600_000 };
const sql = (text: string, ...values: unknown[]) => box.db.owner.query(text, values);

/** What one process knows and does. */
function newProcess(
  where: string | undefined = directory,
  db: ConstructorParameters<typeof Checkpoints>[0]['db'] = box.db,
  clock: Clock = systemClock,
) {
  const checkpoints = new Checkpoints({
    db,
    clock,
    log: silent,
    host: 'svc.test',
    signer: () => signer,
    keys: () => keys,
    directory: where,
    everyRecords: 25,
  });
  const writer: Appender = appenderOn(box.db, { checkpoints, clock });
  open.unshift(writer, checkpoints);
  const fingerprint = keyFingerprint(signer.publicKey);
  const audit = auditWriter(
    systemClock,
    () => fingerprint,
    () => checkpoints,
  );
  return {
    checkpoints,
    writer,
    act: (tenantId: string, id: string) =>
      box.db.transaction(tenantId, (em) =>
        audit(em, tenantId, { actor: OPERATOR, action: 'key.created', target: { type: 'key', id } }),
      ),
    verify: (tenantId: string, chain: ChainName = 'forensics') =>
      verifyChain(box.url, tenantId, chain, {
        keys,
        directory: where,
        chunk: 20,
        acknowledged: (...of) => checkpoints.acknowledged.known(...of),
      }),
    accept: (tenantId: string, chain: ChainName = 'forensics', reason = 'the drill') => {
      const parts = { db: box.db, clock: systemClock, checkpoints, host: 'svc.test', directory: where };
      const signs = { signer: () => ({ ...signer, fingerprint }), keys: () => keys };
      return acceptLoss({ ...parts, ...signs }, tenantId, chain, reason, { actor: OPERATOR });
    },
  };
}

/** Takes the database of a chain back to its first records, as if the later commits had never reached it. */
async function goBack(tenantId: string, to: number, table = 'forensic_record', chain = 'forensics') {
  await sql(`delete from ${table} where tenant_id = $1 and seq > $2`, tenantId, to);
  await sql('delete from chain_checkpoint where tenant_id = $1 and chain = $2 and seq > $3', tenantId, chain, to);
  const { rows } = await sql(`select hash from ${table} where tenant_id = $1 and seq = $2`, tenantId, to);
  await sql(
    'update chain_head set seq = $3, hash = $4 where tenant_id = $1 and chain = $2',
    tenantId,
    chain,
    to,
    rows[0].hash,
  );
}

describe('a chain that went back', () => {
  test('is closed by what the process acknowledged, even without a checkpoint; after acceptance it continues and stores resent events again', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    const events = eventsOf(20);
    await one.writer.append(tenantId, events);
    await goBack(tenantId, 8);
    one.writer.release(tenantId);
    await expect(one.writer.append(tenantId, events)).rejects.toThrow(ChainClosed);
    expect(await one.verify(tenantId)).toMatchObject({
      verified: false,
      linear: false,
      first_mismatch_seq: 9,
      reason: expect.stringMatching(/record 21 is not there/),
    });
    // others learn it from the row
    const other = newProcess(path.join(directory, 'other'));
    await expect(other.writer.append(tenantId, eventsOf(1))).rejects.toThrow(ChainClosed);
    expect(await other.verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 9 });

    const accepted = await other.accept(tenantId);
    expect(accepted).toMatchObject({ kept_seq: 8, lost_seq: 21, record: { seq: 9 } });
    expect(openLoss(accepted.note, keys)).toMatchObject({
      generation: 1,
      agreed: 8,
      kept: { seq: 8 },
      lost: { seq: 21 },
    });
    await expect.poll(() => one.writer.append(tenantId, events).catch(() => undefined)).toBeTruthy();
    const { results } = await one.writer.append(tenantId, events);
    expect(results.map((result) => 'seq' in result && result.seq)).toEqual([
      ...[2, 3, 4, 5, 6, 7, 8],
      ...Array.from({ length: 13 }, (_, n) => 10 + n),
    ]);
    for (const { verify } of [one, other, newProcess()]) {
      expect(await verify(tenantId)).toMatchObject({
        verified: true,
        records_checked: 22,
        accepted_losses: [{ seq: 9, kept_seq: 8, lost_seq: 21, reason: 'the drill' }],
      });
    }
    const audit = await sql(`select line from audit_record where tenant_id = $1 and seq > 1`, tenantId);
    expect(audit.rows.map(({ line }) => JSON.parse(line))).toMatchObject([
      { action: 'chain.loss_accepted', severity: 'critical', reason: 'the drill', note: accepted.note },
    ]);
    expect((await one.verify(tenantId, 'audit')).verified).toBe(true);
    const outbox = await sql(
      `select payload from event_outbox where tenant_id = $1 and event_type = 'forensics.loss_accepted'`,
      tenantId,
    );
    expect(
      outbox.rows.map(({ payload }) => EVENTS['forensics.loss_accepted'].payload.strict().parse(payload)),
    ).toMatchObject([{ kept_seq: 8, lost_seq: 21, record_seq: 9 }]);
  });

  test('is closed by what a process read when it took over, also when it wrote nothing itself', async () => {
    const tenantId = await newTenant(box.db);
    const events = eventsOf(20);
    await newProcess().writer.append(tenantId, events);
    const next = newProcess(path.join(directory, 'next'));
    await next.writer.open(tenantId);
    await goBack(tenantId, 8);
    next.writer.release(tenantId);
    await expect(next.writer.append(tenantId, events)).rejects.toThrow(ChainClosed);
  });

  test('is closed by what was answered as known to the key that a proxy has now', async () => {
    const tenantId = await newTenant(box.db);
    const sent = (event: Partial<DecisionEvent>) => ({ event_type: `decision.${event.decision}`, ...event });
    const bring = ({ writer }: { writer: Appender }, keyId: string, events: readonly AppendEvent[]) => {
      const append = (...of: Parameters<Appender['append']>) => writer.append(...of);
      const body = { events: events.map(({ event }) => sent(event)) };
      const deps = { append, holders: async () => new Map(), remember: async () => {} };
      return ingest(deps, { tenantId, keyId }, body, JSON.stringify(body).length);
    };
    const events = eventsOf(20);
    // the process dies with its answer, an hour ago
    await bring(newProcess(), 'key_1', events);
    const next = newProcess(path.join(directory, 'next'), box.db, inAnHour);
    expect(await bring(next, 'key_2', events)).toEqual({ accepted: 0, duplicates: 20, rejected: [] });
    await goBack(tenantId, 8);
    next.writer.release(tenantId);
    await expect(bring(next, 'key_2', eventsOf(1))).rejects.toThrow(ChainClosed);
  });

  test('loses the inputs of lost decisions too: a decision that is sent again brings its own', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    const withInputs = (of: string) =>
      eventsOf(12).map(({ event }, n) => {
        const text = `{"of":"${of}","n":${n}}`;
        const { kept, commitments } = commit({ projection: text, input: text }, 'sha256:00');
        return { event: { ...event, event_id: `evt_${n}`, ...commitments }, input: kept };
      });
    const first = withInputs('first');
    await one.writer.append(tenantId, first);
    await goBack(tenantId, 8);
    one.writer.release(tenantId);
    await expect(one.writer.append(tenantId, first)).rejects.toThrow(ChainClosed);
    await one.accept(tenantId);
    const inputs = () =>
      sql('select event_id, input from decision_input where tenant_id = $1 order by created_at', tenantId);
    const kept = first.slice(0, 7).map(({ event, input }) => ({ event_id: event.event_id, input: input!.input }));
    expect((await inputs()).rows.sort((a, b) => (a.event_id < b.event_id ? -1 : 1))).toEqual(kept);
    // others of the same ids, as a proxy has them in its spool with other salts
    const again = withInputs('again');
    const lost = again.slice(7);
    await expect.poll(() => one.writer.append(tenantId, lost).catch(() => undefined)).toBeTruthy();
    expect((await inputs()).rows).toEqual(
      expect.arrayContaining([
        ...kept,
        ...lost.map(({ event, input }) => ({ event_id: event.event_id, input: input!.input })),
      ]),
    );
    expect(await one.verify(tenantId)).toMatchObject({ verified: true });
  });

  test('does not report an event as a duplicate unless it contains it, when only the writer’s connection was lost', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    const events = eventsOf(5);
    await one.writer.append(tenantId, events);
    await goBack(tenantId, 2);
    const pids = await sql(
      `select pid from pg_stat_activity where datname = current_database() and query like '%copy forensic_record%' and pid <> pg_backend_pid()`,
    );
    for (const { pid } of pids.rows) await sql('select pg_terminate_backend($1)', pid);
    await expect.poll(() => one.writer.append(tenantId, events).catch((error) => error)).toBeInstanceOf(ChainClosed);
  });

  test('is closed by the file alone, of which the highest checkpoint counts, not the last', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    for (let i = 0; i < 4; i++) await one.writer.append(tenantId, eventsOf(25));
    await one.checkpoints.flushed();
    const file = checkpointFile(directory, tenantId, 'forensics');
    const [first] = (await readFile(file, 'utf8')).split(/(?<=\n\n— .*\n\n)/);
    await appendFile(file, first!);
    await goBack(tenantId, 60);
    const other = newProcess();
    expect(await other.verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 61 });
    await other.checkpoints.sweep();
    await expect(other.checkpoints.take(tenantId, 'forensics')).rejects.toThrow(/record 101 is not there/);
    await expect(other.writer.append(tenantId, eventsOf(100))).rejects.toThrow(ChainClosed);
    // and it does not turn green by itself
    expect(await other.verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 61 });
  });

  test('an acceptance works once: a chain cut again just after it is closed again', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    for (let i = 0; i < 4; i++) await one.writer.append(tenantId, eventsOf(25));
    await goBack(tenantId, 40);
    await expect(one.checkpoints.take(tenantId, 'forensics')).rejects.toThrow();
    await one.accept(tenantId);
    one.writer.release(tenantId);
    const next = eventsOf(25);
    await until(() => one.writer.append(tenantId, next).catch(() => undefined), 'the chain goes on');
    for (let i = 0; i < 3; i++) await one.writer.append(tenantId, eventsOf(25));
    await one.checkpoints.flushed();
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: true, records_checked: 141 });

    await goBack(tenantId, 41);
    const other = newProcess();
    expect(await other.verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 42 });
    await expect(other.writer.append(tenantId, eventsOf(1))).rejects.toThrow(ChainClosed);
    const again = await other.accept(tenantId);
    expect(openLoss(again.note, keys)).toMatchObject({ generation: 2, kept: { seq: 41 } });
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: true, records_checked: 42 });
    // and back to before the first acceptance
    await goBack(tenantId, 40);
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 41 });
  });

  test('no one can accept a loss without a key: a forged note, or one for another position, chain or tenant, has no effect', async () => {
    const forger = newSigner();
    const makers: ((of: { tenantId: string; kept: { seq: number; hash: string } }) => string)[] = [
      ({ tenantId, kept }) => signLoss(loss(tenantId, kept), forger.privateKey, forger.publicKey),
      ({ kept }) => signLoss(loss('tnt_other', kept), signer.privateKey, signer.publicKey),
      ({ tenantId, kept }) =>
        signLoss(loss(tenantId, { ...kept, seq: kept.seq - 1 }), signer.privateKey, signer.publicKey),
      ({ tenantId, kept }) =>
        signLoss(
          { ...loss(tenantId, kept), origin: `svc.test/${tenantId}/audit` },
          signer.privateKey,
          signer.publicKey,
        ),
      ({ tenantId, kept }) =>
        signHead({ origin: `svc.test/${tenantId}/forensics`, ...kept }, signer.privateKey, signer.publicKey),
    ];
    for (const make of makers) {
      const tenantId = await newTenant(box.db);
      const one = newProcess();
      for (let i = 0; i < 2; i++) await one.writer.append(tenantId, eventsOf(25));
      await one.checkpoints.flushed();
      await goBack(tenantId, 30);
      const rows = await storedRows(box.db, tenantId);
      const kept = { seq: 30, hash: rows.at(-1)!.hash.toString('hex') };
      // the forger turns the last record into an acceptance
      await rewrite(box.db, tenantId, 30, ({ v, alg, tenant_id, seq, received_at }) => ({
        ...{ alg, event_type: 'chain.loss', id: 'loss_forensics_1_00000000' },
        ...{ note: make({ tenantId, kept: { ...kept, seq: 29 } }), reason: 'forged', received_at, seq, tenant_id, v },
      }));
      await sql(
        `update forensic_record set event_id = 'loss_forensics_1_00000000', decision = 5, agent_h = 0, session_h = 0, tool_h = 0
         where tenant_id = $1 and seq = 30`,
        tenantId,
      );
      const result = await newProcess().verify(tenantId);
      expect(result).toMatchObject({ verified: false, accepted_losses: [] });
    }
    function loss(tenantId: string, kept: { seq: number; hash: string }) {
      const origin = `svc.test/${tenantId}/forensics`;
      return { origin, kept, generation: 1, agreed: 1, lost: { seq: 51, hash: 'ab'.repeat(32) } };
    }
  });

  test('decisions with ids such as that of an acceptance are not read with them', async () => {
    const tenantId = await newTenant(box.db);
    const { writer, checkpoints, accept } = newProcess();
    await writer.append(tenantId, [
      { event: event({ event_id: 'loss_forensics_1_00000000' }) },
      { event: event({ event_id: 'loss_forensics_2_00000000', policy_id: 'p'.repeat(100_000) }) },
    ]);
    await checkpoints.acknowledged.flushed();
    await goBack(tenantId, 2);
    await expect(checkpoints.inspect(tenantId, 'forensics')).rejects.toThrow(ChainClosed);
    await accept(tenantId, 'forensics', '長'.repeat(1000));
    const { rows } = await sql(lossRows('forensics'), tenantId);
    expect(rows.map(({ seq }) => seq)).toEqual([3]);
    expect(await checkpoints.inspect(tenantId, 'forensics')).toMatchObject({ generation: 1 });
  });

  test('to between a record and its checkpoint, has lost nothing and is signed again', async () => {
    const tenantId = await newTenant(box.db);
    const { writer, checkpoints, verify } = newProcess();
    await writer.append(tenantId, eventsOf(4));
    await checkpoints.take(tenantId, 'forensics');
    await checkpoints.flushed();
    await writer.stop();
    await checkpoints.stop();
    await sql('delete from chain_checkpoint where tenant_id = $1', tenantId);
    await sql('update chain_head set unsigned = true where tenant_id = $1', tenantId);
    expect(await verify(tenantId)).toMatchObject({
      verified: false,
      reason: expect.stringMatching(/missing in the data/),
    });

    const after = newProcess();
    await after.checkpoints.inspectAll();
    expect(await after.verify(tenantId)).toMatchObject({ verified: true, records_checked: 5, accepted_losses: [] });
    await expect(after.accept(tenantId)).rejects.toThrow(/agrees with everything/);
  });

  test('a chain that nothing contradicts has no loss to accept', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    await one.writer.append(tenantId, eventsOf(3));
    await expect(one.accept(tenantId)).rejects.toMatchObject({ problem: 'CONFLICT' });
  });

  test('a chain without any remaining record continues after a new genesis record', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    await one.writer.append(tenantId, eventsOf(30));
    for (const table of ['forensic_record', 'chain_checkpoint', 'chain_head']) {
      await sql(`delete from ${table} where tenant_id = $1`, tenantId);
    }
    await expect(one.checkpoints.take(tenantId, 'forensics')).rejects.toThrow(/record 31 is not there/);
    expect(await one.accept(tenantId)).toMatchObject({ kept_seq: 1, lost_seq: 31, record: { seq: 2 } });
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: true, records_checked: 2 });
  });

  test('a rewritten chain is closed too, and accepted from where it differs', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    for (let i = 0; i < 4; i++) await one.writer.append(tenantId, eventsOf(25));
    await one.checkpoints.flushed();
    await rewrite(box.db, tenantId, 40, (record) => ({ ...record, method: 'forged' }));
    await expect(newProcess().writer.append(tenantId, eventsOf(1))).rejects.toThrow(ChainClosed);
    const other = newProcess();
    await expect(other.checkpoints.take(tenantId, 'forensics')).rejects.toThrow(/another hash/);
    const { note } = await other.accept(tenantId);
    // the checkpoint of record 26 is still expected, those of 51, 76 and 101 are not
    expect(openLoss(note, keys)).toMatchObject({ agreed: 50, kept: { seq: 101 } });
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: true, records_checked: 102 });
    await rewrite(box.db, tenantId, 20, (record) => ({ ...record, method: 'again' }));
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 26 });
  });

  test('the summaries that searches read are made again from the records that are there then', async () => {
    const summarize = async () => {
      await new Blocks({ db: box.db, busy: () => false }).run(new AbortController().signal);
      const { rows } = await sql('select block from forensic_block where tenant_id = $1 order by block', tenantId);
      return rows.map(({ block }) => block);
    };
    const found = async (policy_id: string) => (await searchEvents(box.db, tenantId, { policy_id })).events.length;
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    for (let i = 0; i < 5; i++) await one.writer.append(tenantId, eventsOf(1000));
    expect(await summarize()).toEqual([0, 1]);
    await goBack(tenantId, 2 * BLOCK_RECORDS - 10);
    one.writer.release(tenantId);
    await expect(one.writer.append(tenantId, eventsOf(1))).rejects.toThrow(ChainClosed);
    expect(await one.verify(tenantId)).toMatchObject({ verified: false });
    const other = newProcess();
    await other.accept(tenantId);
    await other.writer.append(tenantId, eventsOf(20, { policy_id: 'later' }));
    expect(await found('later')).toBe(20);
    expect(await summarize()).toEqual([0, 1]);
    expect(await found('later')).toBe(20);
    expect(await other.verify(tenantId)).toMatchObject({ verified: true });
    // what was rewritten too
    await other.checkpoints.take(tenantId, 'forensics');
    await rewrite(box.db, tenantId, 2 * BLOCK_RECORDS, (record) => ({ ...record, policy_id: 'forged' }));
    const third = newProcess();
    await expect(third.writer.append(tenantId, eventsOf(1))).rejects.toThrow(ChainClosed);
    await third.accept(tenantId);
    expect(await summarize()).toEqual([0, 1]);
    expect([await found('forged'), await found('later')]).toEqual([12, 8]);
    expect(await third.verify(tenantId)).toMatchObject({ verified: true });
  });

  test('a file with a note without a valid signature stops signing until it is accepted; its valid notes are kept', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    for (let i = 0; i < 2; i++) await one.writer.append(tenantId, eventsOf(25));
    await one.checkpoints.flushed();
    const forger = newSigner();
    const head = { origin: `svc.test/${tenantId}/forensics`, seq: 70, hash: 'ab'.repeat(32) };
    const file = checkpointFile(directory, tenantId, 'forensics');
    await appendFile(file, `${signHead(head, forger.privateKey, forger.publicKey)}\n`);
    const other = newProcess();
    await other.writer.append(tenantId, eventsOf(30));
    expect((await other.checkpoints.latest(tenantId, 'forensics'))!.seq).toBe(51);
    expect(await other.verify(tenantId)).toMatchObject({ verified: false, reason: expect.stringMatching(/file/) });
    await other.accept(tenantId);
    const seqs = [];
    for await (const { seq } of notesIn(file)) seqs.push(seq);
    expect(seqs).toEqual([26, 51, 82]);
    expect(await newProcess().verify(tenantId)).toMatchObject({ verified: true, records_checked: 82 });
  });
});

describe('the audit chain', () => {
  test('that went back accepts no record, so no change is made, until the loss is accepted', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    for (let i = 0; i < 5; i++) await one.act(tenantId, `k${i}`);
    await goBack(tenantId, 3, 'audit_record', 'audit');
    await expect(one.act(tenantId, 'k5')).rejects.toThrow(ChainClosed);
    // the alarm needs the head, which the change that was refused held
    const alarms = async () => (await sql('select from chain_alarm where tenant_id = $1', tenantId)).rowCount;
    await expect.poll(alarms).toBe(1);
    await expect(newProcess().act(tenantId, 'k5')).rejects.toThrow(ChainClosed);
    expect(await one.verify(tenantId, 'audit')).toMatchObject({ verified: false, first_mismatch_seq: 4 });
    expect(await one.accept(tenantId, 'audit')).toMatchObject({ kept_seq: 3, lost_seq: 6, record: { seq: 4 } });
    await one.act(tenantId, 'k6');
    expect(await one.verify(tenantId, 'audit')).toMatchObject({ verified: true, records_checked: 5 });
    await goBack(tenantId, 4, 'audit_record', 'audit');
    await expect(one.act(tenantId, 'k7')).rejects.toThrow(ChainClosed);
  });

  test('a change that is rolled back was never acknowledged; several records of one transaction are', async () => {
    const tenantId = await newTenant(box.db);
    const { checkpoints, act } = newProcess();
    const audit = auditWriter(
      systemClock,
      () => 'sha256:00',
      () => checkpoints,
    );
    const entry = { actor: OPERATOR, action: 'key.created', target: { type: 'key', id: 'k' } } as const;
    const twice = (fail: boolean) =>
      box.db.transaction(tenantId, async (em) => {
        await audit(em, tenantId, entry);
        await audit(em, tenantId, entry);
        if (fail) throw new Error('rolled back');
      });
    await act(tenantId, 'first');
    await expect(twice(true)).rejects.toThrow('rolled back');
    expect(checkpoints.acknowledged.local(tenantId, 'audit')).toMatchObject({ seq: 2 });
    await twice(false);
    expect(checkpoints.acknowledged.local(tenantId, 'audit')).toMatchObject({ seq: 4 });
    await act(tenantId, 'last');
  });

  test('accepting the loss of the decision chain waits until it can be recorded in the audit chain', async () => {
    const tenantId = await newTenant(box.db);
    const one = newProcess();
    await one.writer.append(tenantId, eventsOf(10));
    for (let i = 0; i < 5; i++) await one.act(tenantId, `k${i}`);
    await goBack(tenantId, 3, 'audit_record', 'audit');
    await goBack(tenantId, 5);
    await expect(one.accept(tenantId)).rejects.toMatchObject({ problem: 'CONFLICT' });
    await one.accept(tenantId, 'audit');
    await one.accept(tenantId);
    for (const chain of ['audit', 'forensics'] as const)
      expect((await one.verify(tenantId, chain)).verified).toBe(true);
  });
});

test('a tenant’s file removed and the newest rows deleted: what the process acknowledged still proves the loss', async () => {
  const tenantId = await newTenant(box.db);
  const one = newProcess();
  for (let i = 0; i < 4; i++) await one.writer.append(tenantId, eventsOf(25));
  await one.checkpoints.flushed();
  await writeFile(checkpointFile(directory, tenantId, 'forensics'), '');
  await goBack(tenantId, 20);
  await one.checkpoints.inspectAll();
  const { rows } = await sql('select chain from chain_alarm where tenant_id = $1', tenantId);
  expect(rows).toEqual([{ chain: 'forensics' }]);
  expect(await newProcess().verify(tenantId)).toMatchObject({ verified: false, first_mismatch_seq: 21 });
});

test('chains that cannot be compared, however many, keep no other from its turn, and are compared as soon as they can be', async () => {
  const before = newProcess();
  const idle = await newTenant(box.db);
  const away = await Promise.all(Array.from({ length: 25 }, () => newTenant(box.db)));
  for (const tenantId of [...away, idle]) await before.writer.append(tenantId, eventsOf(25));
  await before.checkpoints.sweep();
  // the others have records that are not signed: they are compared first
  for (const tenantId of away) await before.writer.append(tenantId, eventsOf(3));
  await before.checkpoints.flushed();
  for (const tenantId of [away[0]!, idle]) await goBack(tenantId, 5);
  // their server does not answer
  let back = false;
  const { owner, asideOf } = box.db;
  const query = (text: string, values?: unknown[]) =>
    !back && away.includes(values?.[0] as string)
      ? Promise.reject(new Error('the node is away'))
      : owner.query(text, values);
  const partly = new Proxy(owner, {
    get: (target, name) => (name === 'query' ? query : Reflect.get(target, name, target)),
  });
  const one = newProcess(directory, { ...box.db, owner: partly, asideOf, nearOf: () => partly });
  const alarms = async () => {
    const { rows } = await sql('select tenant_id from chain_alarm where tenant_id = any($1)', [[...away, idle]]);
    return rows.map((row) => row.tenant_id as string).sort();
  };
  const inspecting = one.checkpoints.inspectAll();
  await until(async () => (await alarms()).length === 1, 'the alarm of the one that can be compared');
  expect(await alarms()).toEqual([idle]);
  back = true;
  await inspecting;
  expect(await alarms()).toEqual([away[0]!, idle].sort());
});
