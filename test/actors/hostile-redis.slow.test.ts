import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Core, openCore } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { createLog } from '../../server/lib/log.ts';
import { createTenant } from '../../server/provision.ts';
import { useDatabase } from '../helpers/database.ts';
import { expectWhole, MASTER_KEY, ServerProcess, writer } from '../helpers/processes.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';

/** An attacker who has all of Redis, and nothing else, against two servers as processes of their own. */
describe.skipIf(noRedis)('who holds Redis', () => {
  const box = useDatabase();
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-hostile-'));
  let redis: TestRedis;
  let attacker: Redis;
  let core: Core;
  let servers: [ServerProcess, ServerProcess];
  let tenantId: string;
  let admin: string;

  beforeAll(async () => {
    redis = await TestRedis.start();
    attacker = new Redis(redis.url);
    const env = { DATABASE_URL: box.url, REDIS_URL: redis.url, SVC_RATE_SIGN_IN: '10' };
    const config = readConfig({ ...env, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY });
    core = await openCore({ config, databaseUrl: box.url, log: createLog('silent') });
    servers = [new ServerProcess('a', env), new ServerProcess('b', env)];
    await Promise.all(servers.map((server) => server.start()));
    const tenant = await createTenant(core, 'http://localhost', { name: 'Test', adminEmail: 'admin@example.test' });
    ({ tenant_id: tenantId, api_key: admin } = tenant);
  });
  afterAll(async () => {
    attacker?.disconnect();
    await Promise.all((servers ?? []).map((server) => server.dispose()));
    await core?.stop();
    await redis?.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  async function call(server: ServerProcess, key: string, line: string, body?: object): Promise<number> {
    const [method, target] = line.split(' ') as [string, string];
    const response = await fetch(server.url + target, {
      method,
      headers: { authorization: `Bearer ${key}`, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
    });
    await response.arrayBuffer();
    return response.status;
  }

  test('does not bring a revoked key or an ended session back to life', async () => {
    const made = await core.keys.createApiKey(
      tenantId,
      { label: 'stolen', scopes: ['admin'], owner: null },
      { actor: OPERATOR },
    );
    const key = made.secret;
    for (const server of servers) expect(await call(server, key, 'GET /v1/keys')).toBe(200);
    const entries = async () => {
      const names = (await attacker.keys('*')).filter((name) => name.includes(':credential:'));
      return Promise.all(names.map(async (name) => [name, await attacker.getBuffer(name)] as const));
    };
    await expect.poll(async () => (await entries()).length).toBeGreaterThan(0);
    const copied = await entries();
    for (const [, value] of copied) {
      expect(Buffer.from(String(value), 'base64url').toString('latin1')).not.toMatch(/api_key|principal|admin/);
    }
    const repeat = async () => {
      for (const [name, value] of copied) await attacker.set(name, value!);
    };
    expect(await call(servers[0], admin, `DELETE /v1/keys/${made.row.id}`, { reason: 'it leaked' })).toBe(204);
    for (let i = 0; i < 10; i++) {
      await repeat();
      for (const server of servers) {
        expect(await call(server, key, 'GET /v1/keys')).toBe(401);
        expect(await call(server, key, 'POST /v1/keys', { label: 'new', scopes: ['admin'] })).toBe(401);
      }
    }
    // a process that was not there when the key was revoked
    await servers[1].kill();
    await servers[1].startAgain();
    for (let i = 0; i < 5; i++) {
      await repeat();
      expect(await call(servers[1], key, 'GET /v1/keys')).toBe(401);
    }
    // the entry of one key in the place of another
    await call(servers[1], admin, 'GET /v1/keys');
    const good = (await entries()).find(([name]) => !copied.some(([other]) => other === name));
    for (const [name] of copied) if (good) await attacker.set(name, good[1]!);
    expect(await call(servers[1], key, 'GET /v1/keys')).toBe(401);
  });

  test('stops no tenant’s writes with a false owner, and reads none of them', async () => {
    const [sample] = (await attacker.keys('*')).filter((name) => name.includes(':credential:'));
    const prefix = sample?.split(':credential:')[0] ?? '';
    expect(prefix).toMatch(/^svc:/);
    const id = 'attackerattacker';
    const heard: string[] = [];
    const tap = new Redis(redis.url);
    await tap.psubscribe('*');
    tap.on('pmessageBuffer', (_pattern: Buffer, _channel: Buffer, message: Buffer) =>
      heard.push(message.toString('latin1')),
    );
    await tap.subscribe(`${prefix}:node:${id}`);
    let attacking = true;
    const attack = (async () => {
      while (attacking) {
        await attacker.set(`${prefix}:owner:${tenantId}`, id);
        // what came by is sent again to everybody
        for (const message of heard.splice(0, 20)) {
          for (const channel of await attacker.pubsub('CHANNELS', `${prefix}:node:*`)) {
            await attacker.publish(String(channel), Buffer.from(message, 'latin1'));
          }
          expect(message).not.toMatch(/refund|support|bot-1|decision/);
        }
      }
    })();
    try {
      const w = writer(admin);
      for (let i = 0; i < 16; i++) await w.append([servers[i % 2]!]);
      expect([...w.refusals]).toEqual([]);
      attacking = false;
      await attack;
      await expectWhole(core.db, tenantId, w.acknowledged);
    } finally {
      attacking = false;
      await attack.catch(() => undefined);
      tap.disconnect();
    }
  });

  test('opens no flood of sign-ins by deleting counters', async () => {
    let letIn = 0;
    // within the minute that is counted
    for (let i = 0; i < 15; i++) {
      for (const server of servers) {
        const { status } = await fetch(`${server.url}/auth/magic-link`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ email: `nobody${i}@example.test` }),
        });
        if (status !== 429) letIn++;
        for (const name of await attacker.keys('*:rate:*')) await attacker.del(name);
      }
    }
    expect(letIn).toBe(20);
  });
});
