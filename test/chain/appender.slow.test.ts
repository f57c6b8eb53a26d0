import { setTimeout as delay } from 'node:timers/promises';
import { hash as blake3 } from 'blake3';
import fc from 'fast-check';
import { afterEach, describe, expect, test } from 'vitest';
import { Fenced } from '../../server/actors/host.ts';
import type { AppendEvent, Appended, Appender, AppenderOptions } from '../../server/chain/appender.ts';
import { Checkpoints } from '../../server/chain/checkpoint.ts';
import { decisionLine } from '../../server/chain/record.ts';
import { AppError } from '../../server/errors.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { useDatabase } from '../helpers/database.ts';
import { until } from '../helpers/until.ts';
import { anyEvent, appenderOn, event, eventsOf, newTenant, signer, silent, storedRows, verdictOf } from './helpers.ts';

const box = useDatabase();
const open: Appender[] = [];
function appender(options: Partial<AppenderOptions> = {}): Appender {
  const made = appenderOn(box.db, options);
  open.push(made);
  return made;
}
afterEach(async () => {
  await Promise.all(open.splice(0).map((made) => made.stop()));
});

/** For who takes over when what is there was not written a moment ago. */
const later = { ...systemClock, now: () => Date.now() + 3_600_000 };

const refusal = (code: string) => expect.objectContaining({ problem: code });
const stored = (result: Appended | undefined) => (result && 'seq' in result ? result : undefined);

/** Tries again while the answer is UNAVAILABLE, as a client does. */
async function persistently(append: () => ReturnType<Appender['append']>): Promise<Appended[]> {
  return until(async () => {
    try {
      return (await append()).results;
    } catch (error) {
      if (!(error instanceof AppError) || error.problem !== 'UNAVAILABLE') throw error;
      return undefined;
    }
  }, 'an answer other than UNAVAILABLE');
}

/** The backends that hold a chain writer's connection. */
async function writerPids(): Promise<number[]> {
  const { rows } = await box.db.owner.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and query like '%copy forensic_record%'
     and pid <> pg_backend_pid()`,
  );
  return rows.map((row) => row.pid);
}
async function killWriters(): Promise<number> {
  const pids = await writerPids();
  for (const pid of pids) await box.db.owner.query('select pg_terminate_backend($1)', [pid]);
  return pids.length;
}

const whole = (input: string) => ({ salt_b: '00'.repeat(16), input });

describe('what is appended verifies', () => {
  test('any batches of events, even with repeated ids, make a chain that verifies and contains each id once', async () => {
    const ids = Array.from({ length: 12 }, (_, i) => `evt_${i}`);
    const batches = fc.array(fc.array(anyEvent(ids), { minLength: 1, maxLength: 8 }), { minLength: 1, maxLength: 8 });
    const writer = appender();
    await fc.assert(
      fc.asyncProperty(batches, fc.boolean(), async (all, together) => {
        const tenantId = await newTenant(box.db);
        const answers: Appended[][] = [];
        const append = async (batch: (typeof all)[number], i: number) => {
          answers[i] = (
            await writer.append(
              tenantId,
              batch.map((e) => ({ event: e })),
            )
          ).results;
        };
        if (together) await Promise.all(all.map(append));
        else for (const [i, batch] of all.entries()) await append(batch, i);

        const verdict = await verdictOf(box.db, tenantId);
        expect(verdict).toMatchObject({ verified: true, linear: true });
        const rows = new Map((await storedRows(box.db, tenantId)).map((row) => [row.event_id, row]));
        expect(rows.size).toBe(new Set(all.flat().map((e) => e.event_id)).size + 1);
        let fresh = 0;
        for (const [i, batch] of all.entries()) {
          for (const [j, e] of batch.entries()) {
            const row = rows.get(e.event_id)!;
            const receivedAt = row.received_at.toISOString();
            const { key_id } = JSON.parse(row.line) as { key_id?: string };
            const same = decisionLine(tenantId, row.seq, receivedAt, { ...e, key_id }) === row.line;
            const answer = answers[i]![j]!;
            if (!same) expect(answer).toEqual({ conflict: true });
            else {
              expect(answer).toMatchObject({ seq: row.seq });
              expect('otherKey' in answer).toBe(e.key_id !== key_id);
            }
            if (stored(answer)?.duplicate === false) fresh++;
          }
        }
        expect(fresh).toBe(rows.size - 1);
      }),
      { numRuns: 40 },
    );
  });

  test('32 concurrent tenants keep separate chains, whatever the number of writers', async () => {
    for (const shards of [1, 3]) {
      const writer = appender({ shards });
      const tenants = await Promise.all(Array.from({ length: 32 }, () => newTenant(box.db)));
      await Promise.all(
        tenants.flatMap((tenantId) =>
          Array.from({ length: 6 }, (_, i) => writer.append(tenantId, eventsOf(1 + 7 * i, { policy_id: tenantId }))),
        ),
      );
      for (const tenantId of tenants) {
        expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 1 + 6 + 7 * 15 });
        const lines = (await storedRows(box.db, tenantId)).slice(1).map((row) => JSON.parse(row.line));
        expect(lines.every((line) => line.policy_id === tenantId && line.tenant_id === tenantId)).toBe(true);
      }
    }
  });

  test('received_at never goes back, whatever the clock does, also across writers', async () => {
    const tenantId = await newTenant(box.db);
    const times = [5000, 9000, 1000, 9500, 9400, 2000];
    for (const time of times) {
      const writer = appender({ clock: { now: () => time } });
      await writer.append(tenantId, eventsOf(2));
      await writer.append(tenantId, eventsOf(2));
    }
    const received = (await storedRows(box.db, tenantId)).map((row) => row.received_at.getTime());
    expect(received).toEqual(received.toSorted((a, b) => a - b));
    expect(received.at(-1)).toBe(9500);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true });
  });

  test('inputs are stored next to the chain and committed with their records', async () => {
    const tenantId = await newTenant(box.db);
    const events: AppendEvent[] = eventsOf(30).map((e, i) =>
      i % 3 === 0
        ? {
            ...e,
            input: {
              ...(i % 2 === 0 && { salt_a: '0a'.repeat(16), projection: `{"n":${i}}` }),
              ...(i !== 12 && { salt_b: 'b0'.repeat(16), input: `{"n":${i},"ä":"😀"}` }),
            },
          }
        : e,
    );
    await appender().append(tenantId, events);
    const { rows } = await box.db.owner.query(
      `select event_id, encode(salt_a, 'hex') as salt_a, projection, encode(salt_b, 'hex') as salt_b, input
       from decision_input where tenant_id = $1`,
      [tenantId],
    );
    const stored = new Map(
      rows.map(({ event_id, ...kept }) => [
        event_id,
        Object.fromEntries(Object.entries(kept).filter(([, value]) => value !== null)),
      ]),
    );
    expect(stored).toEqual(new Map(events.filter((e) => e.input).map((e) => [e.event.event_id, e.input])));
  });

  test('the genesis record names the tenant and the key, and its id is reserved', async () => {
    const tenantId = await newTenant(box.db);
    const { results } = await appender().append(tenantId, [{ event: event({ event_id: 'genesis_forensics' }) }]);
    expect(results).toEqual([{ conflict: true }]);
    await appender().append(tenantId, eventsOf(1));
    const first = JSON.parse((await storedRows(box.db, tenantId))[0]!.line);
    expect(first).toMatchObject({ event_type: 'chain.genesis', tenant_id: tenantId, seq: 1 });
    expect(first.public_key_fingerprint).toMatch(/^sha256:[0-9a-f]{64}$/);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 2 });
  });
});

describe('an event id is stored once', () => {
  test('a replay is acknowledged with its original position, from memory and from the table', async () => {
    const tenantId = await newTenant(box.db);
    const events = eventsOf(300);
    const writer = appender();
    const first = await writer.append(tenantId, events);
    const expected = first.results.map((result) => ({ ...result, duplicate: true }));
    expect((await writer.append(tenantId, events)).results).toEqual(expected);
    const other = appender({ clock: later });
    const mixed = [...events.slice(200), ...eventsOf(50)];
    const again = (await other.append(tenantId, mixed)).results;
    expect(again.slice(0, 100)).toEqual(expected.slice(200));
    expect(again.slice(100).every((result) => stored(result)?.duplicate === false)).toBe(true);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 351 });
  });

  test('who takes over knows what was written a moment ago: sent again it is a duplicate, without a transaction', async () => {
    const tenantId = await newTenant(box.db);
    const events = eventsOf(50);
    const first = await appender().append(tenantId, events);
    let sent = 0;
    const next = appender({ hooks: { sent: () => void sent++ } });
    const again = await next.append(tenantId, events);
    expect(again.results).toEqual(first.results.map((result) => ({ ...result, duplicate: true })));
    const other = events.map(({ event }) => ({ event: { ...event, tool_name: 'other' } }));
    expect((await next.append(tenantId, other)).results).toEqual(events.map(() => ({ conflict: true })));
    expect(sent).toBe(0);
    expect((await next.append(tenantId, [...events, ...eventsOf(1)])).results.at(-1)).toMatchObject({ seq: 52 });
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 52 });
  });

  test('the same batch sent many times concurrently is stored once', async () => {
    const tenantId = await newTenant(box.db);
    const events = eventsOf(50);
    for (const writer of [appender(), appender()]) {
      const answers = await Promise.all(Array.from({ length: 30 }, () => writer.append(tenantId, events)));
      const seqs = answers.map(({ results }) => results.map((result) => stored(result)?.seq));
      for (const each of seqs) expect(each).toEqual(seqs[0]);
    }
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 51 });
  });

  test('other content under a known id is a conflict, within a batch, from memory and from the table', async () => {
    const tenantId = await newTenant(box.db);
    const one = event();
    const two = { ...one, evaluation_us: one.evaluation_us + 1 };
    const writer = appender();
    const first = await writer.append(tenantId, [{ event: one }, { event: two }, { event: one }]);
    expect(first.results).toEqual([
      expect.objectContaining({ duplicate: false }),
      { conflict: true },
      expect.objectContaining({ duplicate: true }),
    ]);
    for (const each of [writer, appender({ clock: later })]) {
      const { results } = await each.append(tenantId, [{ event: two }, { event: event() }]);
      expect(results).toEqual([{ conflict: true }, expect.objectContaining({ duplicate: false })]);
    }
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 4 });
  });

  test('an event is the same whichever key brings it: from memory, from that of a former owner, and from the table', async () => {
    const tenantId = await newTenant(box.db);
    // what an agent writes looks like no key
    const events = eventsOf(5, { key_id: 'key_1', agent_role: '","key_id":"key_3', deny_reason: '\\","key_id":"' });
    const none = eventsOf(1);
    const first = await appender().append(tenantId, [...events, ...none]);
    const brought = [...events, ...none].map(({ event }) => ({ event: { ...event, key_id: 'key_2' } }));
    const expected = first.results.map((result) => ({ ...result, duplicate: true, otherKey: true }));
    for (const writer of [open.at(-1)!, appender(), appender({ clock: later })]) {
      expect((await writer.append(tenantId, brought)).results).toEqual(expected);
      expect((await writer.append(tenantId, events)).results[0]).toEqual({ seq: 2, duplicate: true });
      const other = brought.map(({ event }) => ({ event: { ...event, tool_name: 'other' } }));
      expect((await writer.append(tenantId, other)).results).toEqual(other.map(() => ({ conflict: true })));
    }
    const rows = await storedRows(box.db, tenantId);
    expect(rows.slice(1).map(({ line }) => JSON.parse(line).key_id)).toEqual([...Array(5).fill('key_1'), undefined]);
  });

  test('ids forgotten under load are still found', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appender({ recentIds: 0 });
    const early = eventsOf(10);
    await writer.append(tenantId, early);
    for (let i = 0; i < 10; i++) await writer.append(tenantId, eventsOf(1000));
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, i) => writer.append(tenantId, [...eventsOf(80), early[i % 10]!, ...eventsOf(1)])),
    );
    for (const [i, { results }] of answers.entries()) {
      expect(stored(results[80])).toMatchObject({ seq: 2 + (i % 10), duplicate: true });
    }
    expect(await verdictOf(box.db, tenantId)).toMatchObject({
      verified: true,
      records_checked: 1 + 10 + 10_000 + 20 * 81,
    });
  });
});

describe('a bad event affects no other event', () => {
  const incompressible = Array.from({ length: 9000 }, (_, i) =>
    String.fromCodePoint(0x4e00 + ((i * 7919) % 20_000)),
  ).join('');
  test.each([
    ['NUL in the id', { event_id: 'evt_\0' }],
    ['an id too long for its index', { event_id: incompressible }],
    ['a lone surrogate in the id', { event_id: 'evt_\ud800' }],
    ['a lone surrogate elsewhere', { tool_name: 'a\udfffb' }],
    ['what is not there', { agent_id: undefined as unknown as string }],
    ['what cannot be written down', { evaluation_us: 1n as unknown as number }],
  ])('%s', async (_, bad) => {
    const [tenantId, neighbor] = [await newTenant(box.db), await newTenant(box.db)];
    const writer = appender();
    await writer.append(tenantId, eventsOf(1));
    const poisoned = [...eventsOf(10), { event: event(bad) }, ...eventsOf(10)];
    const answers = await Promise.all([
      writer.append(neighbor, eventsOf(20)),
      writer.append(tenantId, poisoned),
      writer.append(tenantId, eventsOf(20)),
      writer.append(neighbor, eventsOf(20)),
    ]);
    for (const [i, { results }] of answers.entries()) {
      const refused = results.flatMap((result, j) => ('refused' in result ? [j] : []));
      expect(refused).toEqual(i === 1 ? [10] : []);
    }
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 42 });
    expect(await verdictOf(box.db, neighbor)).toMatchObject({ verified: true, records_checked: 41 });
  });

  test('if the database refuses an input, its record is not stored either', async () => {
    const tenantId = await newTenant(box.db);
    const { results } = await appender().append(tenantId, [
      { event: event(), input: whole('{}') },
      { event: event(), input: whole('a\0b') },
    ]);
    expect(results).toEqual([expect.objectContaining({ duplicate: false }), { refused: true }]);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 2 });
  });
});

describe('one writer owns a chain', () => {
  test('the older of two writers is fenced, its write refused, and the chain stays linear', async () => {
    const tenantId = await newTenant(box.db);
    const [older, newer] = [appender(), appender()];
    await older.append(tenantId, eventsOf(5));
    await newer.append(tenantId, eventsOf(5));
    const late = eventsOf(3);
    await expect(older.append(tenantId, late)).rejects.toThrow(Fenced);
    const rows = await storedRows(box.db, tenantId);
    expect(rows.some((row) => row.event_id === late[0]!.event.event_id)).toBe(false);
    await newer.append(tenantId, eventsOf(5));
    // it takes the chain back only when it is asked again
    await older.append(tenantId, late);
    await expect(newer.append(tenantId, eventsOf(1))).rejects.toThrow(Fenced);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 19 });
  });

  test('two writers competing for a tenant lose and duplicate nothing', async () => {
    const tenantId = await newTenant(box.db);
    const acknowledged = new Set<string>();
    const work = async (writer: Appender) => {
      for (let i = 0; i < 25; i++) {
        const events = eventsOf(4);
        await persistently(() => writer.append(tenantId, events));
        for (const e of events) acknowledged.add(e.event.event_id);
      }
    };
    const [one, two] = [appender(), appender()];
    await Promise.all([work(one), work(two), work(one), work(two)]);
    expect(acknowledged.size).toBe(400);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 401 });
  });

  test('a damaged chain does not prevent the others of its group from being stored', async () => {
    const [damaged, kept] = [await newTenant(box.db), await newTenant(box.db)];
    const writer = appender();
    await Promise.all([writer.append(damaged, eventsOf(1)), writer.append(kept, eventsOf(1))]);
    const orphan = event();
    await box.db.owner.query(
      `insert into decision_input (tenant_id, event_id, created_at, salt_b, input) values ($1, $2, now(), '\\x00', '{}')`,
      [damaged, orphan.event_id],
    );
    const both = (events: AppendEvent[]) =>
      Promise.allSettled([writer.append(damaged, events), writer.append(kept, eventsOf(2))]);
    const refused = { status: 'rejected', reason: refusal('UNAVAILABLE') };
    expect(await both([{ event: orphan, input: whole('{}') }])).toMatchObject([refused, { status: 'fulfilled' }]);
    // one without it is stored, until a record stands beyond the head
    expect(await both(eventsOf(1))).toMatchObject([{ status: 'fulfilled' }, { status: 'fulfilled' }]);
    await box.db.owner.query(
      `insert into forensic_record (tenant_id, seq, received_at, agent_h, session_h, tool_h, decision, hash, event_id, line)
       select tenant_id, 4, received_at, agent_h, session_h, tool_h, decision, hash, 'beyond', line
       from forensic_record where tenant_id = $1 and seq = 3`,
      [damaged],
    );
    expect(await both(eventsOf(1))).toMatchObject([refused, { status: 'fulfilled' }]);
    expect(await verdictOf(box.db, kept)).toMatchObject({ verified: true, records_checked: 8 });
  });

  test('a fenced tenant does not prevent the others of its group from being stored', async () => {
    const [lost, kept] = [await newTenant(box.db), await newTenant(box.db)];
    const [writer, thief] = [appender(), appender()];
    await Promise.all([writer.append(lost, eventsOf(1)), writer.append(kept, eventsOf(1))]);
    await thief.open(lost);
    const [a, b] = await Promise.allSettled([writer.append(lost, eventsOf(2)), writer.append(kept, eventsOf(2))]);
    expect(a).toMatchObject({ status: 'rejected', reason: expect.any(Fenced) });
    expect(b.status).toBe('fulfilled');
    expect(await verdictOf(box.db, kept)).toMatchObject({ verified: true, records_checked: 4 });
    expect(await verdictOf(box.db, lost)).toMatchObject({ verified: true, records_checked: 2 });
  });
});

describe('a connection that breaks', () => {
  test('under load: nothing acknowledged is lost, nothing is duplicated, the chains stay linear', async () => {
    const tenants = await Promise.all(Array.from({ length: 3 }, () => newTenant(box.db)));
    const writer = appender();
    const acknowledged = new Map(tenants.map((tenantId) => [tenantId, new Map<string, number>()]));
    let running = true;
    const loops = Array.from({ length: 12 }, async (_, n) => {
      const tenantId = tenants[n % 3]!;
      while (running) {
        const events = eventsOf(60);
        const results = await persistently(() => writer.append(tenantId, events));
        for (const [i, result] of results.entries()) {
          acknowledged.get(tenantId)!.set(events[i]!.event.event_id, stored(result)!.seq);
        }
      }
    });
    let kills = 0;
    // each moment finds a connection, or none while the writer makes another one
    for (let i = 0; kills < 8; i++) {
      await delay(20 + 13 * (i % 12));
      kills += await killWriters();
    }
    running = false;
    await Promise.all(loops);
    for (const tenantId of tenants) {
      const seqs = new Map((await storedRows(box.db, tenantId)).map((row) => [row.event_id, row.seq]));
      const expected = acknowledged.get(tenantId)!;
      expect(expected.size).toBeGreaterThan(100);
      for (const [id, seq] of expected) expect(seqs.get(id)).toBe(seq);
      expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: expected.size + 1 });
    }
  });

  test.each([0, 1, 3, 8])('%i ms after a COMMIT was sent: the lookup finds its outcome', async (ms) => {
    const tenantId = await newTenant(box.db);
    let cuts = 0;
    const writer = appender({
      hooks: {
        sent: (cut) => {
          if (cuts++ % 2 === 1) setTimeout(cut, ms);
        },
      },
    });
    for (let i = 0; i < 6; i++) {
      const events = eventsOf(100);
      const { results } = await writer.append(tenantId, events);
      // none of them was there before, however often it had to be tried
      expect(results.every((result) => stored(result)?.duplicate === false)).toBe(true);
    }
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 601 });
  });

  test('while another process takes over: the former owner does not take the chain back', async () => {
    const tenantId = await newTenant(box.db);
    const thief = appender();
    let armed = false;
    const writer = appender({
      hooks: {
        sent: (cut) => {
          if (armed) cut();
        },
      },
    });
    await writer.append(tenantId, eventsOf(1));
    await thief.append(tenantId, eventsOf(1));
    armed = true;
    const late = writer.append(tenantId, eventsOf(1));
    await expect(late).rejects.toThrow(Fenced);
    await thief.append(tenantId, eventsOf(1));
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 4 });
  });

  test('while nothing is written: how long the database has been away is told, until it is back', async () => {
    let away = false;
    const db = {
      nearOf: () => box.db.owner,
      connectNear: () => (away ? Promise.reject(new Error('connection refused')) : box.db.connectOwner()),
    };
    const writer = appender({ db, patienceMs: 200 });
    await writer.append(await newTenant(box.db), eventsOf(1));
    away = true;
    await killWriters();
    await expect.poll(() => writer.oldestMs).toBeGreaterThan(300);
    expect(writer.waiting).toBe(0);
    away = false;
    await expect.poll(() => writer.oldestMs).toBe(0);
  });

  test('for a long time: callers get UNAVAILABLE until the database is back', async () => {
    const tenantId = await newTenant(box.db);
    let away = false;
    const db = {
      nearOf: () => box.db.owner,
      connectNear: () => (away ? Promise.reject(new Error('connection refused')) : box.db.connectOwner()),
    };
    const writer = appender({ db, patienceMs: 300 });
    await writer.append(tenantId, eventsOf(1));
    away = true;
    await killWriters();
    const events = eventsOf(3);
    await expect(writer.append(tenantId, events)).rejects.toMatchObject({
      problem: 'UNAVAILABLE',
      headers: { 'retry-after': '1' },
    });
    // nothing waits for the database, since everything is refused; how long it has been away is told all the same, and grows
    expect(writer.waiting).toBe(0);
    const told = writer.oldestMs;
    expect(told).toBeGreaterThan(300);
    await expect(writer.append(tenantId, events)).rejects.toEqual(refusal('UNAVAILABLE'));
    await expect.poll(() => writer.oldestMs).toBeGreaterThan(told + 300);
    away = false;
    await expect.poll(async () => (await writer.append(tenantId, events)).results.length).toBe(3);
    expect(writer.oldestMs).toBe(0);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 5 });
  });
});

describe('bounds', () => {
  test('a full mailbox refuses with Retry-After and loses nothing that it accepted', async () => {
    const tenantId = await newTenant(box.db);
    const other = await newTenant(box.db);
    const writer = appender({ mailbox: 200 });
    await writer.append(tenantId, eventsOf(1));
    const blocker = await box.db.connectOwner();
    await blocker.query('begin');
    await blocker.query('select from chain_head where tenant_id = $1 for update', [tenantId]);
    const accepted = Array.from({ length: 10 }, () => writer.append(tenantId, eventsOf(10)));
    const error = await writer.append(tenantId, eventsOf(1)).catch((refused: unknown) => refused);
    expect(error).toBeInstanceOf(AppError);
    expect(error).toMatchObject({ problem: 'UNAVAILABLE', headers: { 'retry-after': '1' } });
    // it is the tenant's share that is full
    accepted.push(writer.append(other, eventsOf(10)));
    expect(writer.waiting).toBe(110);
    await blocker.query('rollback');
    await blocker.end();
    await Promise.all(accepted);
    expect(writer.waiting).toBe(0);
    await writer.append(tenantId, eventsOf(1));
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 103 });
  });

  test('stop finishes what was accepted and refuses the rest', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appender();
    const accepted = Array.from({ length: 20 }, () => writer.append(tenantId, eventsOf(100)));
    const stopped = writer.stop();
    await expect(writer.append(tenantId, eventsOf(1))).rejects.toEqual(refusal('UNAVAILABLE'));
    await stopped;
    await Promise.all(accepted);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 2001 });
    expect(await writerPids()).toEqual([]);
  });

  test('large events are committed by few, and leave room for those of other tenants', async () => {
    const [tenantId, other] = [await newTenant(box.db), await newTenant(box.db)];
    const sent: number[] = [];
    const writer = appender({ hooks: { sent: () => sent.push(writer.waiting) } });
    await writer.append(tenantId, eventsOf(1));
    await writer.append(other, eventsOf(1));
    sent.length = 0;
    const bytes = 60 * 1024;
    const large = () => eventsOf(50, { deny_reason: 'x'.repeat(bytes) }).map((each) => ({ ...each, bytes }));
    const together = Promise.allSettled(Array.from({ length: 20 }, () => writer.append(tenantId, large())));
    await writer.append(other, eventsOf(1));
    const settled = await together;
    // 3 MB each: a quarter of the mailbox is 5 of them, and two are more than a transaction takes
    expect(settled.map(({ status }) => status)).toEqual([...Array(5).fill('fulfilled'), ...Array(15).fill('rejected')]);
    expect(sent.length).toBeGreaterThanOrEqual(5);
  });

  test('inputs release their mailbox space, stored or refused: far more than its capacity passes through in turn', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appender();
    const input = whole('x'.repeat(7 * 1024 * 1024));
    for (let i = 0; i < 10; i++) {
      await expect(writer.append('nobody', [{ event: event(), input }])).rejects.toEqual(refusal('NOT_FOUND'));
      const { results } = await writer.append(tenantId, [{ event: event(), input }]);
      expect(results).toMatchObject([{ duplicate: false }]);
    }
    // and at once it does not
    const together = await Promise.allSettled(
      Array.from({ length: 9 }, () => writer.append(tenantId, [{ event: event(), input }])),
    );
    expect(together.map(({ status }) => status)).toEqual([...Array(2).fill('fulfilled'), ...Array(7).fill('rejected')]);
  });

  test('connects before the first event, when it is told to or a tenant is opened, and once', async () => {
    let connections = 0;
    const connectNear = () => {
      connections++;
      return box.db.connectOwner();
    };
    const db = { nearOf: () => box.db.owner, connectNear };
    const [told, opening] = [appender({ db }), appender({ db })];
    told.connect();
    expect(connections).toBe(1);
    const tenantId = await newTenant(box.db);
    await told.append(tenantId, eventsOf(1));
    expect(connections).toBe(1);
    await opening.open(tenantId);
    expect(connections).toBe(2);
    await opening.append(tenantId, eventsOf(1));
    expect(connections).toBe(2);
  });

  test('a chain that could not be opened is opened by the next call', async () => {
    const tenantId = await newTenant(box.db);
    let failures = 2;
    const near = new Proxy(box.db.owner, {
      get: (pool, name) => {
        const value = Reflect.get(pool, name) as unknown;
        if (name !== 'query' || failures === 0) return typeof value === 'function' ? value.bind(pool) : value;
        failures--;
        return () => Promise.reject(new Error('connection refused'));
      },
    });
    const writer = appender({ db: { nearOf: () => near, connectNear: () => box.db.connectOwner() } });
    // those who wait for one opening fail together, and none of them is held against the next
    const two = await Promise.allSettled([1, 2].map(() => writer.append(tenantId, eventsOf(1))));
    expect(two.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    await expect(writer.append(tenantId, eventsOf(1))).rejects.toEqual(refusal('UNAVAILABLE'));
    expect((await writer.append(tenantId, eventsOf(1))).results).toMatchObject([{ seq: 2 }]);
    expect(writer.waiting).toBe(0);
  });

  test('a long non-ASCII line is stored and verified byte for byte', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appender();
    for (const text of ['ü'.repeat(9000), '€'.repeat(20_000), '𝄞'.repeat(70_000), 'x\u2028\ufeff'.repeat(30_000)]) {
      await writer.append(tenantId, [{ event: event({ deny_reason: text }) }, ...eventsOf(2)]);
    }
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 13 });
    for (const { line, hash, seq } of (await storedRows(box.db, tenantId)).slice(1)) {
      const previous = (await storedRows(box.db, tenantId))[seq - 2]!.hash.toString('hex');
      expect(hash.toString('hex')).toBe(String(blake3(Buffer.from(`${previous}\n${line}`)).toString('hex')));
    }
  });

  test('a tenant can have any name', async () => {
    const tenantId = `tnt "quoted", {braced} \\ 'and' null`;
    await box.db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [tenantId]);
    const checkpoints = new Checkpoints({
      db: box.db,
      clock: systemClock,
      log: silent,
      host: 'svc.test',
      signer: () => signer,
      keys: () => [signer.publicKey],
      everyRecords: 5,
    });
    await appender({ checkpoints }).append(tenantId, eventsOf(10));
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true, records_checked: 11 });
    expect(await checkpoints.latest(tenantId, 'forensics')).toMatchObject({ seq: 11 });
  });

  test('a tenant that does not exist is not found, and others are unaffected', async () => {
    const tenantId = await newTenant(box.db);
    const writer = appender();
    await expect(writer.append('nobody', eventsOf(1))).rejects.toEqual(refusal('NOT_FOUND'));
    await writer.append(tenantId, eventsOf(1));
  });

  test('a chain whose head was moved back is not overwritten', async () => {
    const tenantId = await newTenant(box.db);
    await appender().append(tenantId, eventsOf(10));
    const rows = await storedRows(box.db, tenantId);
    await box.db.owner.query('update chain_head set seq = 5, hash = $2 where tenant_id = $1', [
      tenantId,
      rows[4]!.hash,
    ]);
    await expect(appender().append(tenantId, eventsOf(1))).rejects.toEqual(refusal('UNAVAILABLE'));
    expect(await storedRows(box.db, tenantId)).toEqual(rows);
  });

  test('every commit is flushed, whatever the server’s default', async () => {
    const tenantId = await newTenant(box.db);
    const seen: string[] = [];
    const db = {
      nearOf: () => box.db.owner,
      connectNear: async () => {
        const client = await box.db.connectOwner();
        const query = client.query.bind(client) as (...args: unknown[]) => Promise<{ rows: { now: string }[] }>;
        client.query = (async (...args: unknown[]) => {
          const result = await query(...args);
          seen.push(
            ((await query('show synchronous_commit')) as { rows: { synchronous_commit?: string }[] }).rows[0]!
              .synchronous_commit!,
          );
          return result;
        }) as unknown as typeof client.query;
        return client;
      },
    };
    await appender({ db }).append(tenantId, eventsOf(1));
    expect(seen.at(-1)).toBe('on');
  });
});
