import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  copyFileSync,
  cpSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import fc from 'fast-check';
import { afterEach, expect, test } from 'vitest';
import { type Batch, Spool, SpoolError, type SpoolOptions } from '../../server/proxy/spool.ts';
import { until } from '../helpers/until.ts';
import { runs } from '../siege/rounds.ts';
import { eventsOf } from './support.ts';

const dirs: string[] = [];
const opened: Spool[] = [];
afterEach(async () => {
  for (const spool of opened.splice(0)) await spool.close();
  for (const dir of dirs.splice(0)) rmSync(dir, { recursive: true, force: true });
});

function temporary(): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-spool-'));
  dirs.push(dir);
  return dir;
}

function open(dir: string, options: Partial<SpoolOptions> = {}): Spool {
  const spool = Spool.open(dir, { maxBytes: 1024 * 1024, outcomeWaitMs: 0, ...options })!;
  expect(spool).toBeDefined();
  opened.push(spool);
  return spool;
}

const event = (id: string) => (proxy_seq: number) => ({ event_id: id, padding: 'x'.repeat(200), proxy_seq });
const segments = (dir: string) =>
  readdirSync(dir)
    .filter((name) => name.endsWith('.spool'))
    .sort();
const ids = (batch: Batch | undefined) => batch && eventsOf(batch).map(({ event_id }) => event_id);

test('events come out in the order they went in, once acknowledged never again, over any restart', async () => {
  const operation = fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record({
        op: fc.constant('append' as const),
        open: fc.boolean(),
        count: fc.integer({ min: 1, max: 8 }),
      }),
    },
    {
      weight: 2,
      arbitrary: fc.record({ op: fc.constant('settle' as const), nth: fc.nat(20), facts: fc.boolean() }),
    },
    {
      weight: 2,
      arbitrary: fc.record({
        op: fc.constant('send' as const),
        most: fc.integer({ min: 1, max: 7 }),
        acknowledged: fc.boolean(),
      }),
    },
    { weight: 1, arbitrary: fc.record({ op: fc.constant('wait' as const), ms: fc.integer({ min: 1, max: 2000 }) }) },
    { weight: 1, arbitrary: fc.record({ op: fc.constant('restart' as const), copied: fc.boolean() }) },
  );
  await fc.assert(
    fc.asyncProperty(fc.array(operation, { maxLength: 40 }), async (operations) => {
      let dir = temporary();
      let now = 1_000_000;
      const options = { maxBytes: 160 * 1024, outcomeWaitMs: 1000, now: () => now };
      let spool = open(dir, options);
      const stored: string[] = [];
      const sent = new Map<unknown, string>();
      /** Events whose calls said something of their sessions, as far as that was not acknowledged. */
      const said = new Set<string>();
      const settled = new Set<string>();
      let acknowledged = 0;
      const acknowledge = (batch: Batch) => {
        spool.acknowledge(batch);
        acknowledged = batch.through;
        for (const { event_id, session_facts } of eventsOf(batch)) if (session_facts) said.delete(String(event_id));
      };
      const first = (batch: Batch) => ids({ ...batch, items: batch.items.filter(({ again }) => !again) });
      for (const step of operations) {
        if (step.op === 'append') {
          const made = Array.from({ length: step.count }, (_, n) => `e${stored.length + n + 1}`);
          const seqs = await Promise.all(
            made.map((id) => spool.append(event(id), step.open, { alone: step.count === 1 })),
          );
          expect(seqs).toEqual(made.map((_, n) => stored.length + n + 1));
          stored.push(...made);
        } else if (step.op === 'settle') {
          const seq = Math.max(1, acknowledged - 2) + step.nth;
          const id = stored[seq - 1];
          if (id === undefined) continue;
          const facts = step.facts && !settled.has(id) && { session_facts: [{ key: id }] as never };
          if (facts) said.add(id);
          settled.add(id);
          spool.settle(seq, { outcome: 'ok', total_latency_ms: 3, ...facts }, event(id)(seq));
        } else if (step.op === 'wait') now += step.ms;
        else if (step.op === 'send') {
          const batch = await spool.batch(step.most, 1e6);
          if (!batch) continue;
          expect(first(batch)).toEqual(stored.slice(acknowledged, batch.through));
          for (const [n, one] of eventsOf(batch).entries()) {
            const text = JSON.stringify(batch.items[n]!.again ? { ...one, session_facts: undefined } : one);
            expect(text, 'what was sent once is sent the same again').toBe(sent.get(one.event_id) ?? text);
            sent.set(one.event_id, text);
          }
          if (step.acknowledged) acknowledge(batch);
        } else if (step.copied) {
          // as a crash leaves it: what resolved is there; a note may not have been on the disk yet
          said.clear();
          const next = temporary();
          cpSync(dir, next, { recursive: true });
          rmSync(path.join(next, 'lock'));
          await spool.close();
          dir = next;
          spool = open(dir, options);
        } else {
          await spool.close();
          spool = open(dir, options);
        }
        expect(spool).toMatchObject({ decided: stored.length, acknowledged, pending: stored.length - acknowledged });
      }
      now += 10_000;
      while (spool.pending > 0 || said.size > 0) {
        // a note of what became of an action may be on its way to the disk
        const batch = await until(() => spool.batch(100, 1e6), 'a batch', { everyMs: 5 });
        expect(first(batch)).toEqual(stored.slice(acknowledged, batch.through));
        acknowledge(batch);
      }
      expect(acknowledged).toBe(stored.length);
      await spool.close();
      rmSync(dir, { recursive: true });
    }),
    { numRuns: runs(60, 25) },
  );
});

test('what became of an action goes with its event, or the event goes without it for good', async () => {
  const dir = temporary();
  let now = 0;
  const options = { outcomeWaitMs: 1000, now: () => now };
  const spool = open(dir, options);
  await spool.append(event('a'), true);
  await spool.append(event('b'), true);
  await spool.append(event('c'), false);
  expect(await spool.batch(100, 1e6)).toBeUndefined();
  spool.settle(1, { outcome: 'HTTP 200', total_latency_ms: 12 });
  spool.settle(1, { outcome: 'HTTP 500', total_latency_ms: 99 });
  spool.settle(77, { outcome: 'nobody', total_latency_ms: 0 });
  await spool.append(event('d'), false);
  expect(eventsOf(await spool.batch(100, 1e6))).toMatchObject([
    { event_id: 'a', outcome: 'HTTP 200', total_latency_ms: 12 },
  ]);

  now = 2000;
  const late = await spool.batch(100, 1e6);
  expect(ids(late)).toEqual(['a', 'b', 'c', 'd']);
  spool.settle(2, { outcome: 'HTTP 200', total_latency_ms: 1999 });
  await spool.append(event('e'), false);
  await spool.close();
  const again = await open(dir, options).batch(4, 1e6);
  expect(eventsOf(again)).toEqual(eventsOf(late));
  expect(eventsOf(again)[1]).not.toHaveProperty('outcome');
});

test('a note that went along with an event leaves the spool as usable as before', async () => {
  const spool = open(temporary(), { outcomeWaitMs: 1e9 });
  for (let n = 1; n <= 4; n++) {
    await spool.append(event(`e${n}`), true);
    spool.settle(n, { outcome: 'ok', total_latency_ms: 1 });
    if (n % 2 === 0) await delay(80);
  }
  const batch = await until(async () => {
    const next = await spool.batch(100, 1e6);
    return next?.items.length === 4 && next;
  }, 'the last note is on the disk');
  expect(eventsOf(batch).map(({ outcome }) => outcome)).toEqual(['ok', 'ok', 'ok', 'ok']);
});

test('what a call said of its session goes with its event once more where that was late, over any restart', async () => {
  const dir = temporary();
  let now = 0;
  const options = { outcomeWaitMs: 1000, maxBytes: 256 * 1024, now: () => now };
  let spool = open(dir, options);
  const facts = [{ source: 'trust', name: 'lowest_trust', key: 'web', value: 10 }] as never;
  const late = { outcome: 'HTTP 200', total_latency_ms: 9, session_facts: facts };
  const made: Record<string, unknown>[] = [];
  const append = (id: string, waits: boolean) =>
    spool.append((proxy_seq) => {
      made.push({ ...event(id)(proxy_seq) });
      return made.at(-1)!;
    }, waits);
  await append('slow', true);
  now += 2000;
  const first = (await spool.batch(10, 1e6))!;
  expect(eventsOf(first)).toEqual([made[0]]);
  // while it is sent, and again after it was acknowledged
  spool.settle(1, late, made[0]);
  spool.settle(1, { outcome: 'HTTP 200', total_latency_ms: 9 }, made[0]);
  await append('next', false);
  // not in one batch with itself
  expect(ids(await spool.batch(10, 1e6))).toEqual(['slow']);
  spool.acknowledge(first);
  expect(spool.behind).toBe(false);
  for (let restart = 0; restart < 2; restart++) {
    const batch = (await spool.batch(10, 1e6))!;
    expect(eventsOf(batch)).toEqual([{ ...made[0], session_facts: facts }, made[1]]);
    expect(batch).toMatchObject({ through: 2, items: [{ again: true }, { again: false }] });
    await spool.close();
    spool = open(dir, options);
    expect(spool).toMatchObject({ behind: true, pending: 1 });
  }
  spool.acknowledge((await spool.batch(10, 1e6))!);
  expect(spool).toMatchObject({ behind: false, pending: 0 });

  // where nothing else is left to be sent, in a segment that is over
  spool.settle(2, late, made[1]);
  await until(() => spool.batch(10, 1e6), 'it is stored');
  await spool.close();
  spool = open(dir, options);
  expect(spool).toMatchObject({ behind: true, pending: 0 });
  for (let n = 0; n < 300; n++) await append(`more-${n}`, false);
  expect(segments(dir).length).toBeGreaterThan(1);
  const rest: string[] = [];
  for (let batch = await spool.batch(7, 1e6); batch; batch = await spool.batch(7, 1e6)) {
    rest.push(...ids(batch)!.map(String));
    spool.acknowledge(batch);
  }
  expect(rest).toEqual(['next', ...Array.from({ length: 300 }, (_, n) => `more-${n}`)]);
  expect(segments(dir)).toHaveLength(1);
});

test('an action that was under way when the process ended is sent without an outcome', async () => {
  const dir = temporary();
  const options = { outcomeWaitMs: 1e9 };
  const first = open(dir, options);
  await first.append(event('a'), true);
  await first.append(event('b'), true);
  expect(await first.batch(100, 1e6)).toBeUndefined();
  await first.close();
  expect(ids(await open(dir, options).batch(100, 1e6))).toEqual(['a', 'b']);
});

test('a full spool takes nothing more, and takes again what was made room for', async () => {
  const dir = temporary();
  const spool = open(dir, { maxBytes: 128 * 1024 });
  let stored = 0;
  await expect(
    (async () => {
      for (;;) {
        await spool.append(event(`e${stored}`), false);
        stored++;
      }
    })(),
  ).rejects.toThrow(SpoolError);
  expect(stored).toBeGreaterThan(100);
  expect(spool).toMatchObject({ pending: stored, fault: 'the spool is full' });
  expect(() => spool.assertRoom()).toThrow('the spool is full');
  while (spool.pending > 0) spool.acknowledge((await spool.batch(100, 1e6))!);
  expect(spool.fault).toBeUndefined();
  expect(spool.bytes).toBeLessThan(64 * 1024);
  await spool.append(event('again'), false);
  expect(spool).toMatchObject({ decided: stored + 1, acknowledged: stored, pending: 1 });
  expect(segments(dir).length).toBeLessThan(4);
});

test('cut off anywhere, it holds every event before the cut and says what it put aside', async () => {
  const dir = temporary();
  const spool = open(dir);
  for (const id of ['a', 'b', 'c']) await spool.append(event(id), false);
  await spool.close();
  const [name] = segments(dir) as [string];
  const whole = readFileSync(path.join(dir, name));
  const ends = [...whole.entries()].filter(([, byte]) => byte === 10).map(([at]) => at + 1);
  for (let length = 0; length < whole.length; length += 7) {
    const copy = temporary();
    copyFileSync(path.join(dir, name), path.join(copy, name));
    truncateSync(path.join(copy, name), length);
    const warnings: string[] = [];
    const cut = Spool.open(copy, { maxBytes: 1e6, outcomeWaitMs: 0, warn: (text) => warnings.push(text) })!;
    const kept = ends.filter((end) => end <= length).length;
    expect(cut.pending).toBe(kept);
    expect(warnings).toHaveLength(length > (ends[kept - 1] ?? 0) ? 1 : 0);
    await cut.append(event('next'), false);
    expect(ids(await cut.batch(100, 1e6))).toEqual(['a', 'b', 'c'].slice(0, kept).concat('next'));
    await cut.close();
    rmSync(copy, { recursive: true });
  }
});

test('room at its end that a killed process had made is no damage', async () => {
  const dir = temporary();
  const spool = open(dir);
  await spool.append(event('a'), false);
  const copy = temporary();
  cpSync(dir, copy, { recursive: true });
  rmSync(path.join(copy, 'lock'));
  const [name] = segments(copy) as [string];
  expect(readFileSync(path.join(copy, name)).at(-1)).toBe(0);
  const warnings: string[] = [];
  const again = open(copy, { warn: (text) => warnings.push(text) });
  await again.append(event('b'), false);
  expect(ids(await again.batch(100, 1e6))).toEqual(['a', 'b']);
  expect(warnings).toEqual([]);
});

test('damage before its end stops it, and names the file', async () => {
  const dir = temporary();
  const spool = open(dir, { maxBytes: 80 * 1024 });
  for (let n = 0; n < 60; n++) await spool.append(event(`e${n}`), false);
  await spool.close();
  const [first, second] = segments(dir) as [string, string];
  const file = path.join(dir, first);
  const sound = readFileSync(file);
  const bad = Buffer.from(sound);
  bad[500] = bad[500]! ^ 1;
  writeFileSync(file, bad);
  expect(() => open(dir)).toThrow(new RegExp(`${first} is damaged at byte`));
  writeFileSync(file, sound.subarray(0, sound.indexOf(10) + 1));
  expect(() => open(dir)).toThrow(`${second} is damaged at byte 0 (an event is missing)`);
  writeFileSync(file, sound);
  expect(open(dir).pending).toBe(60);
});

test('one process has it at a time, and a killed one leaves it free', async () => {
  const dir = temporary();
  const script = `import { Spool } from '${path.resolve('server/proxy/spool.ts')}';
    const spool = Spool.open(${JSON.stringify(dir)}, { maxBytes: 1e6, outcomeWaitMs: 0 });
    for (let n = 0; ; n++) { const seq = await spool.append((s) => ({ event_id: 'e' + s }), false); console.log(seq); }`;
  const child = spawn(process.execPath, ['--input-type=module-typescript', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  await once(child.stdout, 'data');
  expect(Spool.open(dir, { maxBytes: 1e6, outcomeWaitMs: 0 })).toBeUndefined();
  child.kill('SIGKILL');
  await once(child, 'close');
  const told = Number(out.trim().split('\n').slice(0, -1).at(-1) ?? 0);
  const spool = open(dir);
  expect(spool.decided).toBeGreaterThanOrEqual(told);
  expect(Spool.open(dir, { maxBytes: 1e6, outcomeWaitMs: 0 })).toBeUndefined();
});

test('a write that fails leaves no gap and no trace', async () => {
  const dir = temporary();
  const spool = open(dir);
  await spool.append(event('a'), false);
  await expect(spool.append(() => ({ event_id: 'long', text: 'x'.repeat(70_000) }), false)).rejects.toThrow(SpoolError);
  await expect(
    spool
      .append(() => {
        throw new Error('no such event');
      }, false)
      .catch((error) => Promise.reject(error)),
  ).rejects.toThrow('no such event');
  await spool.append(event('b'), false);
  expect(eventsOf(await spool.batch(100, 1e6))).toMatchObject([
    { event_id: 'a', proxy_seq: 1 },
    { event_id: 'b', proxy_seq: 2 },
  ]);
});

test('what the control plane refuses for good is kept beside', async () => {
  const dir = temporary();
  const spool = open(dir);
  await spool.append(event('a'), false);
  spool.setAside(Buffer.from('{"event_id":"a"}'), 'VALIDATION_FAILED');
  appendFileSync(path.join(dir, 'unrelated'), 'x');
  expect(JSON.parse(readFileSync(path.join(dir, 'refused.jsonl'), 'utf8'))).toEqual({
    why: 'VALIDATION_FAILED',
    event: { event_id: 'a' },
  });
});

test('with a note of what was sent that is not whole, all that is there is sent again', async () => {
  const dir = temporary();
  const spool = open(dir);
  for (const id of ['a', 'b', 'c']) await spool.append(event(id), false);
  spool.acknowledge((await spool.batch(2, 1e6))!);
  await spool.close();
  const note = path.join(dir, 'acknowledged');
  const whole = readFileSync(note, 'utf8');
  const left = async () => {
    const again = open(dir);
    const pending = again.pending;
    await again.close();
    return pending;
  };
  expect(await left()).toBe(1);
  for (const spoiled of ['', whole.slice(0, -3), whole.replace('2', '3'), 'x'.repeat(26)]) {
    writeFileSync(note, spoiled);
    expect(await left(), spoiled).toBe(3);
  }
  writeFileSync(note, whole);
  expect(await left()).toBe(1);
});

test('each text is sent as it was stored, whatever is in it and however long it is, with its own input', async () => {
  const dir = temporary();
  const spool = open(dir, { maxBytes: 64 * 1024 * 1024, outcomeWaitMs: 1e9 });
  const odd = ['\t', '\n', '\r\n', '\0', '"\\', '\u2028', '💶', '\ud800', 'null', '"}\t{"'];
  // longer than what is read at once, among shorter ones
  const lengths = [0, 10, 200_000, 5, 130_000, 131_072, 300_000, 1];
  const stored = [];
  for (const [n, text] of odd.entries()) {
    const made = { event_id: `e${n}`, text };
    const input = n % 2 === 0 ? { event_id: `e${n}`, projection: text + 'x'.repeat(lengths[n] ?? 0) } : undefined;
    const outcome = { outcome: `HTTP ${text}`, total_latency_ms: n };
    const seq = await spool.append(() => ({ ...made }), n % 3 === 0, { input, alone: n % 2 === 0 });
    if (n % 3 === 0) spool.settle(seq, outcome);
    stored.push({ event: { ...made, proxy_seq: seq, ...(n % 3 === 0 && outcome) }, input });
  }
  const read = async (from: Spool) => {
    const batch = await until(async () => {
      const next = await from.batch(100, 1e9);
      return next?.items.length === odd.length && next;
    }, 'all of them are there');
    return batch.items.map(({ event, input }) => [event.toString(), input?.toString()]);
  };
  const before = await read(spool);
  expect(before).toEqual(stored.map(({ event, input }) => [JSON.stringify(event), input && JSON.stringify(input)]));
  await spool.close();
  expect(await read(open(dir)), 'also after a restart').toEqual(before);
});

test.each([
  ['while events are pending', 5],
  ['when all that was sent is acknowledged', 3],
])('a segment that holds nothing but outcomes is not begun again: %s', async (_, waves) => {
  const dir = temporary();
  const options = { maxBytes: 256 * 1024, outcomeWaitMs: 60_000 };
  const spool = open(dir, options);
  const numbers: number[] = [];
  // more than fit into the first segment
  for (let n = 0; n < 150; n++) numbers.push(await spool.append(event(`under-way-${n}`), true));
  const facts = [{ kind: 'fact', key: 'k', value: 'v'.repeat(400) }] as never;
  // they end in several groups, and none begins meanwhile
  const size = numbers.length / waves;
  for (let wave = 0; wave < waves; wave++) {
    const { bytes } = spool;
    for (const seq of numbers.slice(wave * size, (wave + 1) * size)) {
      spool.settle(seq, { outcome: 'HTTP 200', total_latency_ms: 1, session_facts: facts });
    }
    await until(() => spool.bytes > bytes, 'they are on the disk');
  }
  const outcomes = (batch: Batch | undefined) => eventsOf(batch).map(({ outcome }) => outcome);
  const handedOut = outcomes(await spool.batch(1000, 1e9));
  expect(handedOut).toEqual(numbers.map(() => 'HTTP 200'));
  if (waves === 5) await spool.append(event('after'), false);

  // what a process finds that starts where this one was killed just now
  const crashed = temporary();
  cpSync(dir, crashed, { recursive: true, filter: (file) => path.basename(file) !== 'lock' });
  const again = open(crashed, options);
  expect(outcomes(await again.batch(numbers.length, 1e9))).toEqual(handedOut);

  for (let batch = await spool.batch(20, 1e9); batch; batch = await spool.batch(20, 1e9)) spool.acknowledge(batch);
  expect(spool.pending).toBe(0);
  await spool.append(event('last'), false);
  expect(ids(await spool.batch(10, 1e9))).toEqual(['last']);
  expect(segments(dir)).toHaveLength(1);
  await spool.close();
  expect(ids(await open(dir, options).batch(10, 1e9))).toEqual(['last']);
});

test('an event whose outcome is waited for has none yet', async () => {
  const spool = open(temporary());
  await expect(spool.append(() => ({ event_id: 'a', outcome: 'aborted' }), true)).rejects.toThrow(TypeError);
  expect(await spool.append(() => ({ event_id: 'b', outcome: 'aborted' }), false)).toBe(1);
});
