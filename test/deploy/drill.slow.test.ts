import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { noArchive } from '../../deploy/drill/archive.ts';
import { noPatroni } from '../../deploy/drill/managed.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { noRedis } from '../helpers/redis.ts';
import { ROUNDS, SIEGE } from '../siege/rounds.ts';

const root = path.resolve(import.meta.dirname, '../..');

async function printed(script: string, ...flags: string[]) {
  return printedWith({}, script, ...flags);
}

/** Where the machine that fails is gone at once, and only a slow one would make the program give up. */
async function printedPatiently(script: string, ...flags: string[]) {
  return printedWith({ SVC_PATIENCE: String(PATIENCE) }, script, ...flags);
}

async function printedWith(more: Record<string, string>, script: string, ...flags: string[]) {
  const args = [`deploy/drill/${script}`, '--json', ...flags];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: root, env: { ...process.env, ...more } });
  return JSON.parse(stdout);
}

async function drill(...flags: string[]) {
  // as fast as they can, the writers would take a core from the tests beside this one
  const rest = SIEGE ? '0' : '20';
  const rounds = String(ROUNDS.failovers);
  return (await printedPatiently('failover.ts', '--rounds', rounds, '--seconds', '1', '--rest', rest, ...flags)) as {
    ok: boolean;
    total: { acknowledged: number; lost: number; doubled: number };
    rounds: { acknowledged: number; lost: number; lost_as_reported: number; verified: boolean }[];
  };
}

test('with a synchronous standby, a failover loses nothing and stores nothing twice', async () => {
  const { ok, total, rounds } = await drill();
  expect({ ok, ...total }).toMatchObject({ ok: true, lost: 0, doubled: 0 });
  expect(rounds).toHaveLength(ROUNDS.failovers);
  for (const round of rounds) {
    expect(round.acknowledged).toBeGreaterThan(10);
    expect(round).toMatchObject({ lost_as_reported: 0, verified: true });
  }
}, 1_200_000);

test('with an asynchronous standby, what a failover loses is found, and goes on only when an operator accepted it', async () => {
  const { ok, total, rounds } = await drill('--asynchronous');
  expect({ ok, doubled: total.doubled }).toEqual({ ok: true, doubled: 0 });
  expect(total.lost).toBeGreaterThan(0);
  for (const { lost, lost_as_reported, verified } of rounds) {
    expect(lost_as_reported).toBeGreaterThanOrEqual(lost);
    expect(verified).toBe(true);
  }
}, 1_200_000);

test.skipIf(noRedis)(
  'a rolling upgrade with a migration loses nothing, stores nothing twice, and ends with even shares',
  async () => {
    // one process by another shows it; what several share is for the siege
    const [processes, tenants, seconds] = SIEGE ? ['3', '30', '10'] : ['1', '2', '0.3'];
    const size = ['--processes', processes!, '--tenants', tenants!, '--seconds', seconds!];
    const result = await printedPatiently('upgrade.ts', '--migration', '--or-copy', ...size);
    // the history may have no commit to compare with, as after a change of the first migration
    if (result.same_program) console.warn(`the upgrade began with ${result.from}: it showed a restart alone`);
    expect(result).toMatchObject({ ok: true, migrations: ['9999-drill'], lost: 0, doubled: 0 });
    expect(result.acknowledged).toBeGreaterThan(50);
    expect(result.shares).toHaveLength(Number(processes));
  },
  600_000,
);

test('no upgrade is drilled where there is no earlier version, unless a copy of this one is asked for', async () => {
  // without a history
  const copy = mkdtempSync(path.join(tmpdir(), 'svc-no-history-'));
  try {
    for (const part of ['db', 'deploy/drill', 'machines', 'server', 'package.json', 'package-lock.json']) {
      cpSync(path.join(root, part), path.join(copy, part), { recursive: true });
    }
    symlinkSync(path.join(root, 'node_modules'), path.join(copy, 'node_modules'));
    const run = promisify(execFile)(process.execPath, ['deploy/drill/upgrade.ts'], { cwd: copy });
    await expect(run).rejects.toMatchObject({ stderr: expect.stringContaining('--or-copy, which shows a restart') });
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
});

const unmanaged = noPatroni();
if (unmanaged !== undefined) console.warn(`SKIPPED: failovers by Patroni, because ${unmanaged}`);

test.skipIf(unmanaged)(
  'with Patroni, etcd and HAProxy as in deploy/, nothing acknowledged is lost or stored twice, whichever of them dies',
  async () => {
    const short = ['--faults', 'postgres', '--through', 'haproxy', '--seconds', '0.5', '--rest', '20'];
    const long = ['--rounds', String(Math.ceil(ROUNDS.failovers / 4)), '--rest', '5'];
    const { ok, total, rounds } = await printed('patroni.ts', ...(SIEGE ? long : short));
    expect({ ok, ...total }).toMatchObject({ ok: true, lost: 0, doubled: 0 });
    expect(rounds).not.toHaveLength(0);
    for (const { fault, primary, acknowledged, verified } of rounds) {
      expect(verified).toBe(true);
      expect(acknowledged).toBeGreaterThan(10);
      // etcd and HAProxy cost no primary
      expect(primary.after !== primary.before).toBe(!['etcd', 'haproxy'].includes(fault));
    }
  },
  3_600_000,
);

const unarchived = noArchive();
if (unarchived !== undefined) console.warn(`SKIPPED: a restore to a point in time, because ${unarchived}`);

test.skipIf(unarchived)(
  'a restore to a point in time has what was acknowledged before it; what came after it is missed, and proxies go on',
  async () => {
    const result = await printedPatiently('recovery.ts', '--seconds', SIEGE ? '10' : '0.5');
    expect(result).toMatchObject({ ok: true, before: { lost: 0 }, doubled: 0, verified: true });
    expect(result.before.acknowledged).toBeGreaterThan(50);
    expect(result.after.lost).toBe(result.after.acknowledged);
    expect(result.after.reported).toBeGreaterThan(0);
    expect(result.doctor.restored.join()).toContain('default/forensics does not hold checkpoint');
    expect(result.doctor.accepted).toEqual([]);
    expect(result.bundle.renewed).toBeGreaterThan(result.bundle.seen);
  },
  600_000,
);
