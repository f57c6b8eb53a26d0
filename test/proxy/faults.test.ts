import { once } from 'node:events';
import fs, { cpSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import http from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import net, { type AddressInfo } from 'node:net';
import path from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterEach, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { createLog } from '../../server/lib/log.ts';
import { traceOf } from '../../server/lib/trace.ts';
import { ControlPlane } from '../../server/proxy/control-plane.ts';
import { Enforcer } from '../../server/proxy/decide.ts';
import { Governance } from '../../server/proxy/governance.ts';
import { Holds } from '../../server/proxy/holds.ts';
import { Refusal } from '../../server/proxy/problem.ts';
import { Sender } from '../../server/proxy/sender.ts';
import { Spool, SpoolError } from '../../server/proxy/spool.ts';
import { StopWatch } from '../../server/proxy/stops.ts';
import { TestClock, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { eventsOf, type Governed, governed, temporaryDirectory } from './support.ts';

/** What the operating system answers is put in its place here: the spool is told that its disk failed. */

const real = { ...fs };
const opened: Spool[] = [];
afterEach(async () => {
  heal();
  for (const spool of opened.splice(0)) await spool.close();
});

function fail(faults: Partial<typeof fs>): void {
  Object.assign(fs, faults);
  syncBuiltinESMExports();
}
function heal(): void {
  const { writeSync, fdatasync, fdatasyncSync, ftruncateSync } = real;
  fail({ writeSync, fdatasync, fdatasyncSync, ftruncateSync });
}
/** The spool finds a disk slow by this clock, which goes on as the test says: on a busy machine any disk may be. */
function stopClock(): (ms: number) => void {
  let now = performance.now();
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => now);
  onTestFinished(() => clock.mockRestore());
  return (ms) => {
    now += ms;
  };
}
const full = () => {
  throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' });
};

function open(dir: string, options: { keep?: boolean; outcomeWaitMs?: number } = {}): Spool {
  const { outcomeWaitMs = 0 } = options;
  const spool = Spool.open(dir, { maxBytes: 1024 * 1024, outcomeWaitMs })!;
  if (options.keep !== false) opened.push(spool);
  return spool;
}
const event = (id: string) => () => ({ event_id: id });
const ids = async (spool: Spool) =>
  eventsOf(await spool.batch(1000, 1e6)).map(({ event_id, proxy_seq }) => [event_id, proxy_seq]);

/** What a process finds that starts where this one was killed just now. */
async function afterCrash(dir: string): Promise<unknown[]> {
  const copy = temporaryDirectory();
  cpSync(dir, copy, { recursive: true, filter: (file) => path.basename(file) !== 'lock' });
  return ids(open(copy));
}

test('an event whose write fails is refused, leaves no gap and no trace, and the next one is stored', async () => {
  for (const part of [0, 7, 40]) {
    const dir = temporaryDirectory();
    const spool = open(dir);
    await spool.append(event('a'), false);
    const writes: ((...call: never[]) => number)[] = [];
    fail({
      writeSync: ((fd: number, bytes: Buffer, at: number, length: number, position: number) => {
        if (part > 0 && writes.length === 0) {
          writes.push(full);
          return real.writeSync(fd, bytes, at, Math.min(part, length), position);
        }
        return full();
      }) as typeof fs.writeSync,
    });
    const [first, second] = [spool.append(event('lost'), true), spool.append(event('lost too'), false)];
    await expect(first).rejects.toThrow(SpoolError);
    await expect(second).rejects.toThrow(SpoolError);
    heal();
    expect(await afterCrash(dir)).toEqual([['a', 1]]);
    expect(spool).toMatchObject({ decided: 1, pending: 1, fault: undefined });
    expect(await spool.append(event('b'), false)).toBe(2);
    expect(await ids(spool)).toEqual([
      ['a', 1],
      ['b', 2],
    ]);
    expect(await afterCrash(dir)).toEqual(await ids(spool));
  }
});

test('after a flush that failed nothing is built on what may be there, and what was refused is not found again', async () => {
  const dir = temporaryDirectory();
  const spool = open(dir);
  await spool.append(event('a'), false);
  fail({
    fdatasync: ((_fd: number, done: (error: Error) => void) => done(new Error('input/output error'))) as never,
  });
  await expect(spool.append(event('lost'), false)).rejects.toThrow('could not be stored');
  heal();
  expect(spool.fault).toContain('input/output error');
  expect(() => spool.assertRoom()).toThrow(SpoolError);
  await expect(spool.append(event('b'), false)).rejects.toThrow(SpoolError);
  expect(spool).toMatchObject({ decided: 1, pending: 1 });
  expect(await afterCrash(dir)).toEqual([['a', 1]]);
});

test('one that is alone is flushed at once by a quick disk; a slow one, and a group, keep nothing else waiting', async () => {
  const spool = open(temporaryDirectory());
  const flushed: string[] = [];
  const advance = stopClock();
  let slow = 0;
  fail({
    fdatasync: ((_fd: number, done: (error: Error | null) => void) => {
      flushed.push('aside');
      done(null);
    }) as never,
    fdatasyncSync: () => {
      flushed.push('at once');
      advance(slow);
    },
  });
  const alone = (id: string) => spool.append(event(id), false, { alone: true });
  await alone('a');
  expect(flushed.splice(0), 'nothing is known of the disk').toEqual(['aside']);
  await alone('b');
  expect(flushed.splice(0)).toEqual(['at once']);
  await spool.append(event('c'), false);
  await Promise.all([alone('d'), spool.append(event('e'), false)]);
  expect(flushed.splice(0)).toEqual(['aside', 'aside']);
  slow = 5;
  await alone('f');
  expect(flushed.splice(0)).toEqual(['at once']);
  await alone('g');
  expect(flushed.splice(0), 'it was slow').toEqual(['aside']);
  expect(spool.decided).toBe(7);
});

test('who waited for a slow disk without doing anything else hears first of what happened meanwhile', async () => {
  const spool = open(temporaryDirectory());
  const advance = stopClock();
  fail({ fdatasync: ((_fd: number, done: (error: Error | null) => void) => done(null)) as never });
  await spool.append(event('a'), false);
  const server = net.createServer();
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const theirs = once(server, 'connection') as Promise<[net.Socket]>;
  const ours = net.connect((server.address() as AddressInfo).port, '127.0.0.1').resume();
  const [other] = await theirs;
  const heard: string[] = [];
  ours.on('end', () => heard.push('the connection has ended'));
  fail({
    fdatasyncSync: () => {
      other.destroy();
      advance(20);
    },
  });
  // begun by what came over a connection, as the requests of agents are: the first look at all others is in the turn after the next
  const asked = net.connect((server.address() as AddressInfo).port, '127.0.0.1').resume();
  const [answering] = (await once(server, 'connection')) as [net.Socket];
  const stored = new Promise<void>((resolve, reject) => {
    asked.once('data', () => {
      spool.append(event('b'), false, { alone: true }).then(() => {
        heard.push('it is stored');
        resolve();
      }, reject);
    });
  });
  answering.write('go');
  await stored;
  answering.destroy();
  await once(server.close(), 'close');
  expect(heard).toEqual(['the connection has ended', 'it is stored']);
});

test('after a write that failed it says why, until the disk has room again, also if nothing else is written', async () => {
  const spool = open(temporaryDirectory());
  await spool.append(event('a'), false);
  expect(await spool.refusal()).toBeUndefined();
  fail({ writeSync: full as never });
  await expect(spool.append(event('lost'), false)).rejects.toThrow(SpoolError);
  heal();
  const { writeFile } = real.promises;
  real.promises.writeFile = full;
  syncBuiltinESMExports();
  onTestFinished(() => {
    real.promises.writeFile = writeFile;
    syncBuiltinESMExports();
  });
  expect(await spool.refusal()).toContain('no space left on device');
  real.promises.writeFile = writeFile;
  syncBuiltinESMExports();
  expect(await spool.refusal()).toBeUndefined();
});

test('what could not be noted of an event whose outcome did not come is noted with the next batch', async () => {
  const dir = temporaryDirectory();
  const spool = open(dir);
  await spool.append(event('a'), true);
  await spool.append(event('b'), false);
  fail({ writeSync: full as never });
  await expect(spool.batch(100, 1e6)).rejects.toThrow('no space left');
  heal();
  expect(await ids(spool)).toEqual([
    ['a', 1],
    ['b', 2],
  ]);
  expect(await afterCrash(dir)).toEqual([
    ['a', 1],
    ['b', 2],
  ]);
});

test('what is complete is sent before an event that cannot be noted, and gives a full disk room', async () => {
  const spool = open(temporaryDirectory());
  for (const id of ['a', 'b']) await spool.append(event(id), false);
  await spool.append(event('c'), true);
  await spool.append(event('d'), false);
  fail({ writeSync: full as never });
  const first = await spool.batch(100, 1e6);
  expect(eventsOf(first).map(({ event_id }) => event_id)).toEqual(['a', 'b']);
  heal();
  spool.acknowledge(first!);
  fail({ writeSync: full as never });
  await expect(spool.batch(100, 1e6)).rejects.toThrow('no space left');
  heal();
  expect(await ids(spool)).toEqual([
    ['c', 3],
    ['d', 4],
  ]);
});

test('of a spool whose flush failed, what is complete is still sent', async () => {
  const spool = open(temporaryDirectory());
  await spool.append(event('a'), false);
  await spool.append(event('b'), true);
  fail({ fdatasync: ((_: number, done: (error: Error) => void) => done(new Error('input/output error'))) as never });
  for (const n of [1, 2]) expect(await ids(spool), `batch ${n}`).toEqual([['a', 1]]);
  heal();
  spool.acknowledge((await spool.batch(100, 1e6))!);
  await expect(spool.batch(100, 1e6)).rejects.toThrow('input/output error');
});

test.each([
  ['in time', 60_000],
  ['late', 0],
])('what a call says of its session, %s, is sent once the disk has room for it', async (_, outcomeWaitMs) => {
  const spool = open(temporaryDirectory(), { outcomeWaitMs });
  let made: Record<string, unknown> = {};
  await spool.append(() => {
    made = { event_id: 'a' };
    return made;
  }, true);
  if (outcomeWaitMs === 0) expect(await ids(spool)).toEqual([['a', 1]]);
  let tries = 0;
  fail({
    writeSync: (() => {
      tries++;
      return full();
    }) as never,
  });
  const facts = [{ source: 'trust', key: 'web', value: 10 }] as never;
  spool.settle(1, { outcome: 'HTTP 200', total_latency_ms: 1, session_facts: facts }, made);
  await until(() => tries > (outcomeWaitMs === 0 ? 0 : 1), 'it could not be stored');
  heal();
  const sent: unknown[] = [];
  await until(async () => {
    const batch = await spool.batch(10, 1e6);
    sent.push(...eventsOf(batch));
    if (batch) spool.acknowledge(batch);
    return sent.length === 2;
  }, 'both are sent');
  expect(sent).toEqual([made, { ...made, session_facts: facts }]);
});

test('where the flush of one that is alone fails, it is refused and nothing is built on what may be there', async () => {
  const dir = temporaryDirectory();
  const spool = open(dir);
  // of a disk whose flush took no time at all
  stopClock();
  fail({ fdatasync: ((_fd: number, done: (error: Error | null) => void) => done(null)) as never });
  await spool.append(event('a'), false);
  fail({
    fdatasyncSync: () => {
      throw new Error('input/output error');
    },
  });
  await expect(spool.append(event('lost'), true, { alone: true })).rejects.toThrow('could not be stored');
  heal();
  expect(spool.fault).toContain('input/output error');
  await expect(spool.append(event('b'), false, { alone: true })).rejects.toThrow(SpoolError);
  expect(spool).toMatchObject({ decided: 1, pending: 1 });
  expect(await afterCrash(dir)).toEqual([['a', 1]]);
});

test('of a group whose flush fails all are refused, also those that came while it went on', async () => {
  const dir = temporaryDirectory();
  const spool = open(dir);
  await spool.append(event('a'), false);
  let failing: ((error: Error) => void) | undefined;
  fail({
    fdatasync: ((_fd: number, done: (error: Error) => void) => {
      failing = done;
    }) as never,
  });
  const refused = Promise.allSettled(['b', 'c', 'd'].map((id) => spool.append(event(id), true)));
  await until(() => failing, 'it is flushed');
  const late = Promise.allSettled(['e', 'f'].map((id) => spool.append(event(id), false)));
  failing!(new Error('input/output error'));
  for (const { status } of [...(await refused), ...(await late)]) expect(status).toBe('rejected');
  heal();
  expect(spool).toMatchObject({ decided: 1, pending: 1 });
  expect(await afterCrash(dir)).toEqual([['a', 1]]);
});

test('nothing is said to be stored before the flush of its group has ended, and what comes meanwhile waits for the next', async () => {
  const dir = temporaryDirectory();
  const spool = open(dir);
  const flushes: (() => void)[] = [];
  fail({
    fdatasync: ((fd: number, done: (error: Error | null) => void) => {
      flushes.push(() => real.fdatasync(fd, done));
    }) as never,
  });
  const told: string[] = [];
  const append = (id: string) => spool.append(event(id), false).then(() => told.push(id));
  const first = [append('a'), append('b')];
  await until(() => flushes.length === 1, 'the first group is flushed');
  const second = [append('c'), append('d')];
  expect(await afterCrash(dir), 'a crash now may find what nobody was told about, in order').toEqual([
    ['a', 1],
    ['b', 2],
  ]);
  expect(told).toEqual([]);
  expect(spool).toMatchObject({ decided: 0, pending: 0 });
  expect(await spool.batch(100, 1e6), 'nor is it sent').toBeUndefined();
  flushes[0]!();
  await Promise.all(first);
  expect(told).toEqual(['a', 'b']);
  await until(() => flushes.length === 2, 'the second group is flushed');
  expect(told).toEqual(['a', 'b']);
  heal();
  flushes[1]!();
  await Promise.all(second);
  expect(told).toEqual(['a', 'b', 'c', 'd']);
  expect(await ids(spool)).toEqual([
    ['a', 1],
    ['b', 2],
    ['c', 3],
    ['d', 4],
  ]);
});

test('where what failed cannot be taken away either, nothing more is taken', async () => {
  const dir = temporaryDirectory();
  const spool = open(dir);
  await spool.append(event('a'), false);
  fail({ writeSync: full as never, ftruncateSync: full as never });
  await expect(spool.append(event('lost'), false)).rejects.toThrow(SpoolError);
  heal();
  expect(spool.fault).toContain('no space left');
  await expect(spool.append(event('b'), false)).rejects.toThrow(SpoolError);
  expect(await afterCrash(dir)).toEqual([['a', 1]]);
});

test('what is acknowledged up to the end of a segment, or just before it, leaves exactly the rest', async () => {
  const dir = temporaryDirectory();
  const segments = () => readdirSync(dir).filter((name) => name.endsWith('.spool'));
  const make = () => Spool.open(dir, { maxBytes: 256 * 1024, outcomeWaitMs: 0 })!;
  const spool = make();
  for (let n = 1; segments().length < 4; n++)
    await spool.append(() => ({ event_id: `e${n}`, text: 'x'.repeat(3000) }), false);
  const total = spool.decided;
  const firsts = segments()
    .sort()
    .map((name) => Number(name.slice(0, 16)));
  await spool.close();
  expect(firsts[1]).toBeGreaterThan(3);

  // to the last but one of the first segment, its last, the first of the next one
  for (const [through, left] of [
    [firsts[1]! - 2, 4],
    [firsts[1]! - 1, 3],
    [firsts[1]!, 3],
    [firsts[2]! - 2, 3],
    [firsts[2]! - 1, 2],
  ] as const) {
    const again = make();
    const count = through - again.acknowledged;
    again.acknowledge((await again.batch(count, 1e9))!);
    expect([through, segments().length]).toEqual([through, left]);
    const rest = await again.batch(1000, 1e9);
    expect(eventsOf(rest).map(({ proxy_seq }) => proxy_seq)).toEqual(
      Array.from({ length: total - through }, (_, n) => through + 1 + n),
    );
    await again.close();
    const after = make();
    expect(after).toMatchObject({ acknowledged: through, pending: total - through, decided: total });
    expect(eventsOf(await after.batch(1, 1e9))[0]).toMatchObject({ event_id: `e${through + 1}` });
    await after.close();
  }
});

test('events are sent again no sooner than the control plane asks for', async () => {
  const times: number[] = [];
  const stub = http.createServer((request, response) => {
    request.resume().on('end', () => {
      times.push(performance.now());
      if (times.length > 1) response.end('{"accepted":1,"duplicates":0,"rejected":[]}');
      else response.writeHead(503, { 'retry-after': '1' }).end();
    });
  });
  await new Promise<void>((resolve) => stub.listen(0, '127.0.0.1', resolve));
  const spool = open(temporaryDirectory());
  const control = new ControlPlane(`http://127.0.0.1:${(stub.address() as AddressInfo).port}`, () => 'key');
  const sender = new Sender({ spool, control, log: createLog('silent') });
  try {
    await spool.append(event('a'), false);
    sender.start();
    await until(() => times.length === 1, 'it is sent');
    // what it answers meanwhile is no reason, nor is another event
    sender.nudge();
    await spool.append(event('b'), false);
    await until(() => times.length > 1, 'it is sent again');
    expect(times[1]! - times[0]!).toBeGreaterThan(1000 * 0.8 - 50);
  } finally {
    await sender.stop(0);
    stub.close();
    stub.closeAllConnections();
  }
});

test('the control plane gets the texts of the spool in one body, inputs under the ids of their events', async () => {
  const bodies: unknown[] = [];
  const stub = http.createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    bodies.push(JSON.parse(gunzipSync(Buffer.concat(parts)).toString()));
    // of the second body, one that it does not have
    const rejected = [{ index: 1, code: 'VALIDATION_FAILED', detail: 'no' }];
    response.end(JSON.stringify({ accepted: 2, duplicates: 0, rejected, rejected_inputs: [] }));
  });
  await new Promise<void>((resolve) => stub.listen(0, '127.0.0.1', resolve));
  const dir = temporaryDirectory();
  const spool = open(dir);
  const control = new ControlPlane(`http://127.0.0.1:${(stub.address() as AddressInfo).port}`, () => 'key');
  const sender = new Sender({ spool, control, log: createLog('silent') });
  try {
    await spool.append(event('a'), false, { input: { event_id: 'a', projection: '{"a":"\t"}' } });
    await spool.append(event('b'), false);
    await spool.append(event('c'), false, { input: { event_id: 'c', projection: '{}' } });
    expect(await sender.drain()).toBe(true);
    await spool.append(event('d'), false);
    expect(await sender.drain()).toBe(true);
    expect(bodies).toEqual([
      {
        events: ['a', 'b', 'c'].map((event_id, n) => ({ event_id, proxy_seq: n + 1 })),
        inputs: [
          { event_id: 'a', projection: '{"a":"\t"}' },
          { event_id: 'c', projection: '{}' },
        ],
      },
      { events: [{ event_id: 'd', proxy_seq: 4 }] },
    ]);
    const aside = readFileSync(path.join(dir, 'refused.jsonl'), 'utf8').trim().split('\n');
    expect(aside.map((line) => JSON.parse(line))).toEqual([
      { why: 'VALIDATION_FAILED: no', event: { event_id: 'b', proxy_seq: 2 } },
    ]);
  } finally {
    stub.close();
    stub.closeAllConnections();
  }
});

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
let world: Governed;
beforeAll(async () => {
  world = await governed(server, {
    api: '@escrow("single") permit(principal, action, resource == Tool::"api");',
    open: 'permit(principal, action, resource == Tool::"open");',
  });
});

const attempt = {
  agent: { id: 'bot-1', role: 'clerk', owner: undefined },
  action_type: 'api_call',
  tool_name: 'api',
  arguments: { amount: 1 },
  summary: 'pay',
  trace: traceOf(undefined),
};

/** An enforcement point in this process, with policies from the server. */
async function enforcement() {
  const dir = temporaryDirectory();
  mkdirSync(path.join(dir, 'spool'));
  const control = new ControlPlane(server.url, () => world.proxyKey);
  const [clock, log] = [new TestClock(), createLog('silent')];
  const parts = { control, dir, clock, log };
  const governance = new Governance({ ...parts, key: () => world.proxyKey, scopes: null, stale: 'deny' });
  await governance.start();
  onTestFinished(() => governance.stop());
  const stops = new StopWatch({ ...parts, trust: governance, proxyId: 'p' });
  await stops.start(governance.knownTenant);
  onTestFinished(() => stops.stop());
  const spool = open(path.join(dir, 'spool'));
  const enforcer = new Enforcer({
    ...{ governance, stops, spool, holds: new Holds(control), proxyId: 'p', control, clock, log },
    behind: () => false,
    limitsAway: 'rates',
    inputs: 'full',
  });
  return { enforcer, stops, spool, dir };
}

test('what was permitted does not go on where the proxy has not heard of stops for too long', async () => {
  const { enforcer, stops } = await enforcement();
  const ruling = await enforcer.rule({ ...attempt, tool_name: 'open' });
  if (!('stands' in ruling)) throw new Error(`it was decided as ${ruling.decision}`);
  expect(ruling.stands()).toBe(true);
  let stale = true;
  Object.defineProperty(stops, 'stale', { get: () => stale });
  expect(ruling.stands()).toBe(false);
  stale = false;
  expect(ruling.stands()).toBe(true);
  ruling.done('ok');
});

test('a hold whose decision cannot be recorded is withdrawn, and nobody is asked to approve it', async () => {
  const { enforcer, spool, dir } = await enforcement();
  fail({ writeSync: full as never });
  await expect(enforcer.rule(attempt)).rejects.toThrow(Refusal);
  heal();
  const { body } = await server.call<{ holds: { status: string }[] }>(200, 'GET /v1/escrow', world.tenant.admin);
  expect(body.holds).toMatchObject([{ status: 'cancelled' }]);
  expect(spool.pending).toBe(0);
  // once it can be recorded, the same action has a hold that is open
  expect(await enforcer.rule(attempt)).toMatchObject({ decision: 'escrow', hold: { status: 'held' } });
  expect(
    readFileSync(
      path.join(dir, 'spool', readdirSync(path.join(dir, 'spool')).find((name) => name.endsWith('.spool'))!),
      'utf8',
    ),
  ).toContain('decision.escrow');
});
