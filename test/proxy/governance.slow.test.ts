import { createPublicKey, generateKeyPairSync } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { keyThumbprint } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';
import { BundleError } from '../../server/policy/bundle.ts';
import { packBundle } from '../../server/policy/pack-bundle.ts';
import { Agents } from '../../server/proxy/agents.ts';
import { ControlPlane } from '../../server/proxy/control-plane.ts';
import { Governance, openGoverning } from '../../server/proxy/governance.ts';
import { TestClock, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { contentOf } from '../policy/support.ts';
import { SIEGE, sampled } from '../siege/rounds.ts';
import { decisions, enforce, type Governed, governed, ProxyProcess, temporaryDirectory, Upstream } from './support.ts';

const DAY_MS = 24 * 3600 * 1000;
const ALLOW = 'permit(principal in AgentRole::"clerk", action, resource == Tool::"api");';
const MASKED = `@scope("a") @mask("$.ssn") ${ALLOW}\n@scope("b") forbid(principal, action, resource == Tool::"never");`;

describe('a bundle', () => {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519');
  const kid = keyThumbprint(publicKey);
  const keyFor = (asked: string) => (asked === kid ? publicKey : undefined);
  const content = contentOf({ pol: MASKED });
  const make = (seq: number, what = content) =>
    packBundle(what, { seq, not_after: '2030-01-01T00:00:00.000Z', kid, privateKey });
  const expected = { keyFor, tenant: content.tenant, scopes: null, newest: undefined };

  test('with any one byte changed is refused', async () => {
    const { bytes } = await make(7);
    openGoverning(bytes, expected).engine.dispose();
    const flips = [...bytes.keys()].flatMap((at) => [1, 0x80, 0xff].map((flip) => ({ at, flip })));
    for (const { at, flip } of sampled(flips)) {
      const changed = Buffer.from(bytes);
      changed[at] = changed[at]! ^ flip;
      expect(() => openGoverning(changed, expected), `byte ${at} ^ ${flip}`).toThrow(BundleError);
    }
    for (const cut of [0, 5, 9, 200, bytes.length - 1]) {
      expect(() => openGoverning(bytes.subarray(0, cut), expected)).toThrow(BundleError);
    }
    expect(() => openGoverning(Buffer.concat([bytes, Buffer.from('x')]), expected)).toThrow(BundleError);
  });

  test('of another tenant, key, scope set or an older number is refused, and so is another of the same number', async () => {
    const { bytes, hash } = await make(7);
    const refused = (change: object) => () => openGoverning(bytes, { ...expected, ...change });
    expect(refused({ tenant: 'ten_other' })).toThrow(expect.objectContaining({ reason: 'tenant' }));
    expect(refused({ keyFor: () => generateKeyPairSync('ed25519').publicKey })).toThrow(
      expect.objectContaining({ reason: 'signature' }),
    );
    expect(refused({ keyFor: () => undefined })).toThrow(expect.objectContaining({ reason: 'key' }));
    expect(refused({ scopes: ['a'] })).toThrow(expect.objectContaining({ reason: 'content' }));
    expect(refused({ newest: { seq: 8, hash } })).toThrow(expect.objectContaining({ reason: 'rollback' }));
    expect(refused({ newest: { seq: 7, hash: `sha256:${'0'.repeat(64)}` } })).toThrow(
      expect.objectContaining({ reason: 'rollback' }),
    );
    openGoverning(bytes, { ...expected, newest: { seq: 7, hash } }).engine.dispose();
    // a filtered bundle is authentic as well, and lacks a forbid
    const filtered = contentOf({ pol: MASKED }, ['a']);
    const nine = await make(9, filtered);
    expect(() => openGoverning(nine.bytes, expected)).toThrow(expect.objectContaining({ reason: 'content' }));
    openGoverning(nine.bytes, { ...expected, scopes: ['a'] }).engine.dispose();
  });

  test('with an obligation that is not understood is refused', async () => {
    const [first, ...rest] = content.policies;
    const policies = [{ ...first!, annotations: { ...first!.annotations, mask: ['$[?(@.a)]'] } }, ...rest];
    const nine = await make(9, { ...content, policies });
    expect(() => openGoverning(nine.bytes, expected)).toThrow(expect.objectContaining({ reason: 'content' }));
  });
});

const server = useServer({ SVC_POLL_SECONDS: '1' });

/** The same bundle with another number in its header, and so with a signature that does not fit. */
function withSeq(bundle: Buffer, seq: number): Buffer {
  const end = 9 + bundle.readUInt32BE(5);
  const [head, , signature] = bundle.toString('latin1', 9, end).split('.');
  const header = { ...JSON.parse(Buffer.from(head!, 'base64url').toString()), seq };
  const jws = `${Buffer.from(JSON.stringify(header)).toString('base64url')}..${signature}`;
  const length = Buffer.alloc(4);
  length.writeUInt32BE(jws.length);
  return Buffer.concat([bundle.subarray(0, 5), length, Buffer.from(jws), bundle.subarray(end)]);
}

describe('policies and agents', () => {
  let world: Governed;
  const log = createLog('silent');
  beforeAll(async () => {
    world = await governed(server, { api: ALLOW });
  });
  const make = (dir: string, more: Partial<ConstructorParameters<typeof Governance>[0]> = {}, url = server.url) =>
    new Governance({
      control: new ControlPlane(url, () => world.proxyKey),
      key: () => world.proxyKey,
      dir,
      scopes: null,
      stale: 'deny',
      clock: new TestClock(),
      log,
      ...more,
    });
  const NOWHERE = 'http://127.0.0.1:9';
  const hashOf = async () => {
    const { sha256Tag } = await import('../../server/lib/crypto.ts');
    return sha256Tag(world.agentKey);
  };

  async function fetched(): Promise<string> {
    const dir = temporaryDirectory();
    const governance = make(dir);
    await governance.start();
    expect(governance.ready).toBe(true);
    await governance.stop();
    return dir;
  }

  test('are taken up from the disk when the control plane is away, and only as they were left', async () => {
    const dir = await fetched();
    const away = make(dir, {}, NOWHERE);
    await away.start();
    expect(away.ready).toBe(true);
    expect(await away.agent(await hashOf())).toMatchObject({ agentId: 'bot-1', agentRole: 'clerk' });
    await away.stop();

    for (const name of ['bundle.svcb', 'state.json']) {
      const whole = readFileSync(path.join(dir, name));
      for (let at = 0; at < whole.length; at += Math.ceil(whole.length / (SIEGE ? 60 : 12))) {
        const copy = temporaryDirectory();
        cpSync(dir, copy, { recursive: true });
        const changed = Buffer.from(whole);
        changed[at] = changed[at]! ^ 1;
        writeFileSync(path.join(copy, name), changed);
        const tampered = make(copy, {}, NOWHERE);
        await tampered.start();
        expect(tampered.ready, `${name} changed at ${at}`).toBe(false);
        await tampered.stop();
      }
    }
  });

  test('on disk are worth nothing to another key, and one who writes there cannot make agents', async () => {
    const dir = await fetched();
    const kept = JSON.parse(readFileSync(path.join(dir, 'state.json'), 'utf8'));
    expect(JSON.stringify(kept)).not.toContain(world.agentKey);
    kept.state.configuration.agent_keys.push({
      ...kept.state.configuration.agent_keys[0],
      key_hash: `sha256:${'a'.repeat(64)}`,
    });
    writeFileSync(path.join(dir, 'state.json'), JSON.stringify(kept));
    const away = make(dir, {}, NOWHERE);
    await away.start();
    expect(away.ready).toBe(false);
    expect(await away.agent(`sha256:${'a'.repeat(64)}`)).toBe('unknown');
    await away.stop();
  });

  test('that could not be written are in force, and are written when the disk has room again', async () => {
    const dir = await fetched();
    const file = path.join(dir, 'bundle.svcb');
    const before = readFileSync(file);
    const governance = make(dir);
    await governance.start();
    // as where there is no room: nothing can be put in its place
    renameSync(file, `${file}.kept`);
    mkdirSync(path.join(file, 'full'), { recursive: true });
    await enforce(server, world.tenant, 'later', 'permit(principal, action, resource == Tool::"later");');
    const seq = await until(() => {
      const { bundle } = governance;
      return (
        bundle &&
        bundle.seq > JSON.parse(readFileSync(path.join(dir, 'state.json'), 'utf8')).state.newest.seq &&
        bundle.seq
      );
    }, 'the new policies are in force');
    rmSync(file, { recursive: true });
    renameSync(`${file}.kept`, file);
    await until(() => !readFileSync(file).equals(before), 'they are written');
    await governance.stop();
    const away = make(dir, {}, NOWHERE);
    await away.start();
    expect(away.bundle).toMatchObject({ seq });
    await away.stop();
  });

  test('an older bundle put back on disk is refused, and the newest is fetched', async () => {
    const dir = await fetched();
    const old = readFileSync(path.join(dir, 'bundle.svcb'));
    await enforce(server, world.tenant, 'more', 'permit(principal, action, resource == Tool::"more");');
    const newer = make(dir);
    await newer.start();
    const { seq } = newer.bundle!;
    await newer.stop();
    writeFileSync(path.join(dir, 'bundle.svcb'), old);
    const away = make(dir, {}, NOWHERE);
    await away.start();
    expect(away.standing).toBe('no_bundle');
    await away.stop();
    const back = make(dir);
    await back.start();
    expect(back.bundle).toMatchObject({ seq });
    await back.stop();
  });

  test('spoiled on disk do not let an older bundle in', async () => {
    const dir = await fetched();
    const file = path.join(dir, 'state.json');
    const whole = readFileSync(file, 'utf8');
    const seen = async (text: string) => {
      writeFileSync(file, text);
      const governance = make(dir);
      const told: string[] = [];
      governance.onPoll = (what, result) => told.push(`${what} ${result}`);
      await governance.start();
      const { standing } = governance;
      await governance.stop();
      return { standing: typeof standing === 'string' ? standing : standing.seq, told };
    };
    // a state that says that a newer one was seen: no matter who wrote that, it may be true
    const newer = JSON.parse(whole);
    newer.state.newest.seq += 1;
    expect(await seen(JSON.stringify(newer))).toMatchObject({
      standing: 'no_bundle',
      told: expect.arrayContaining(['bundle rejected']),
    });
    // no state at all, but a bundle that says so
    const own = readFileSync(path.join(dir, 'bundle.svcb'));
    for (const spoiled of ['', '{', '{"state":null}', '{"state":{"v":1}}']) {
      writeFileSync(path.join(dir, 'bundle.svcb'), withSeq(own, newer.state.newest.seq));
      expect((await seen(spoiled)).standing, spoiled).toBe('no_bundle');
      writeFileSync(path.join(dir, 'bundle.svcb'), own);
      expect((await seen(spoiled)).standing, spoiled).toBe(newer.state.newest.seq - 1);
    }
  });

  test('tell an agent key no more once it has expired, whatever the control plane says or does not', async () => {
    const clock = new TestClock();
    const made = await server.call<{ key: string }>(201, 'POST /v1/agent-keys', world.tenant.admin, {
      agent_id: 'bot-9',
      agent_role: 'clerk',
      expires_at: new Date(Date.now() + 3_600_000).toISOString(),
    });
    const governance = make(temporaryDirectory(), { clock });
    await governance.start();
    const agents = new Agents({ governance, tokens: () => Promise.reject(new Error('no token comes')) });
    expect(await agents.identify(made.body.key)).toMatchObject({ id: 'bot-9' });
    clock.advance(3_600_001);
    await expect(agents.identify(made.body.key)).rejects.toThrow('does not work');
    expect(await agents.identify(world.agentKey)).toMatchObject({ id: 'bot-1' });
    await governance.stop();
  });

  test('past their end deny everything, unless the setting says to go on', async () => {
    const dir = await fetched();
    const clock = new TestClock();
    const denying = make(dir, { clock }, NOWHERE);
    await denying.start();
    const keeping = make(dir, { clock, stale: 'keep' }, NOWHERE);
    await keeping.start();
    clock.advance(29 * DAY_MS);
    expect([denying.ready, keeping.ready]).toEqual([true, true]);
    clock.advance(2 * DAY_MS);
    expect(denying.standing).toBe('bundle_expired');
    expect(keeping.ready).toBe(true);
    await denying.stop();
    await keeping.stop();
  });

  test('signed by another key than the pinned one are refused', async () => {
    const { publicKey } = generateKeyPairSync('ed25519');
    const other = make(temporaryDirectory(), { pubkeys: publicKey.export({ type: 'spki', format: 'pem' }) as string });
    await other.start();
    expect(other.standing).toBe('no_bundle');
    await other.stop();
    const pem = await (await fetch(`${server.url}/pubkey`)).text();
    expect(createPublicKey(pem).asymmetricKeyType).toBe('ed25519');
    const right = make(temporaryDirectory(), { pubkeys: pem });
    await right.start();
    expect(right.ready).toBe(true);
    await right.stop();
  });

  test('of one tenant are not mixed with another’s', async () => {
    const dir = await fetched();
    const stranger = (await (await server.tenant()).key('proxy')).key!;
    const mixed = make(dir, { control: new ControlPlane(server.url, () => stranger), key: () => stranger });
    await mixed.start();
    expect(mixed.ready).toBe(false);
    await mixed.stop();
  });
});

describe('a bundle that is refused', () => {
  test('is told by the proxy, and shown beside it in the fleet', async () => {
    const world = await governed(server, { api: ALLOW });
    await world.tenant.set({ poll_seconds: 120 });
    const key = { key: world.proxyKey };
    const seqOf = async () => {
      const { headers } = await server.call(200, 'GET /v1/policies/bundle', key);
      return Number(headers.get('x-svc-bundle-seq'));
    };
    const beat = (proxy_id: string, bundle_seq: number, more: Record<string, unknown> = {}) =>
      server.call(200, 'POST /v1/proxies/heartbeat', key, { proxy_id, bundle_seq, ...more });
    expect(await seqOf()).toBe(1);
    await beat('p', 1);
    expect(await seqOf()).toBe(1);
    // one that was never given out here
    await beat('p', 40, { refused_bundle: 'rollback' });
    expect(await seqOf()).toBe(41);
    await beat('p', 41);
    await beat('q', 3, { refused_bundle: 'rollback' });
    expect(await seqOf()).toBe(41);
    // nor can a proxy key make every proxy fetch a new bundle with each heartbeat, but once in a poll interval
    for (const seq of [42, 43, 44]) await beat('t', seq);
    expect(await seqOf()).toBe(41);
    server.clock.advance(120_000);
    await beat('t', 45);
    expect(await seqOf()).toBe(46);
    server.clock.advance(120_000);
    // nor use the numbers up
    await beat('r', Number.MAX_SAFE_INTEGER);
    await beat('s', 2_000_000);
    expect(await seqOf()).toBe(46);
    const person = await world.tenant.person('viewer');
    const { body } = await server.call<{ proxies: { proxy_id: string; refused_bundle?: string }[] }>(
      200,
      'GET /v1/proxies',
      person,
    );
    const told = Object.fromEntries(body.proxies.map((one) => [one.proxy_id, one.refused_bundle]));
    expect(told).toEqual({ p: undefined, q: 'rollback', r: undefined, s: undefined, t: undefined });
  });
});

describe('a running proxy', () => {
  let world: Governed;
  let proxy: ProxyProcess;
  beforeAll(async () => {
    const upstream = await new Upstream().start();
    world = await governed(server, { api: ALLOW });
    const env = { ...world.env, SVC_PROXY_ID: 'edge-1' };
    proxy = await new ProxyProcess([{ path: '/api/*', to: upstream.url }], env).start();
    await proxy.ready();
  });
  const status = async (key = world.agentKey) =>
    (await fetch(`${proxy.url}/api/x`, { headers: { authorization: `Bearer ${key}` } })).status;
  const seq = async () => (await proxy.metrics()).svc_proxy_bundle_seq!;

  test('tells the control plane that it lives, and what it has', async () => {
    const seen = await until(async () => {
      const { body } = await server.call<{ proxies: Record<string, unknown>[] }>(
        200,
        'GET /v1/proxies',
        world.tenant.admin,
      );
      // its first poll lists it; what it has comes with its first report
      return body.proxies.find(({ version }) => version);
    }, 'it has reported');
    expect(seen).toMatchObject({
      proxy_id: 'edge-1',
      version: '1.0.0',
      bundle_seq: 1,
      spooled_events: 0,
      state: 'alive',
    });
  });

  test('enforces a change, a revoked policy and a revoked agent key within a poll interval', async () => {
    expect(await status()).toBe(200);
    const first = await seq();

    await enforce(server, world.tenant, 'halt', '@reason("stopped") forbid(principal, action, resource);');
    await until(async () => (await seq()) === first + 1, 'the change is there');
    expect(await status()).toBe(403);
    await server.call(200, 'DELETE /v1/policies/halt', world.tenant.admin);
    await until(async () => (await seq()) === first + 2, 'the revocation is there');
    expect(await status()).toBe(200);

    const agent = await server.call<{ id: string; key: string }>(201, 'POST /v1/agent-keys', world.tenant.admin, {
      agent_id: 'bot-9',
      agent_role: 'clerk',
    });
    expect(await status(agent.body.key), 'a new key works at once').toBe(200);
    await server.call(204, `DELETE /v1/agent-keys/${agent.body.id}`, world.tenant.admin);
    await until(async () => (await status(agent.body.key)) === 401, 'it works no longer');
  });

  test('takes up a revocation although the database was set back behind the bundles that it has seen', async () => {
    const { id } = world.tenant;
    const newest = (await seq()) + 1;
    await enforce(server, world.tenant, 'more', ALLOW);
    await until(async () => (await seq()) === newest, 'the change is there');
    await proxy.call(200, 'GET /api/x', world.agentKey);
    // an older backup: the numbers begin again, and nobody has heard of the proxy
    await server.core.db.owner.query('delete from policy_bundle where tenant_id = $1', [id]);
    await server.core.db.owner.query('delete from proxy_instance where tenant_id = $1', [id]);
    await server.call(200, 'DELETE /v1/policies/more', world.tenant.admin);
    await server.call(200, 'DELETE /v1/policies/api', world.tenant.admin);
    // between the two it may have taken up the first alone
    await until(async () => (await status()) === 403, 'the revocation is there');
    expect(await seq()).toBeGreaterThan(newest);
    await until(async () => (await proxy.metrics()).svc_proxy_bundle_refused === 0, 'nothing is refused any more');
  });

  test('leaves its bundle on the disk when it is stopped', async () => {
    proxy.signal('SIGTERM');
    expect(await proxy.exited()).toBe(0);
    expect(existsSync(path.join(proxy.dir, 'state', 'bundle.svcb'))).toBe(true);
  });

  test('whose own key is revoked denies everything, keeps the records, and goes on with a new key', async () => {
    const upstream = await new Upstream().start();
    const world = await governed(server, { api: ALLOW });
    const made = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', world.tenant.admin, {
      label: 'p',
      scopes: ['proxy'],
    });
    const file = path.join(temporaryDirectory(), 'key');
    writeFileSync(file, made.body.key);
    const proxy = await new ProxyProcess([{ path: '/api/*', to: upstream.url }], {
      SVC_URL: server.url,
      SVC_PROXY_KEY_FILE: file,
    }).start();
    await proxy.ready();
    await proxy.call(200, 'GET /api/x', world.agentKey);
    await server.call(204, `DELETE /v1/keys/${made.body.id}`, world.tenant.admin);
    await until(async () => (await fetch(`${proxy.url}/readyz`)).status === 503, 'the proxy has heard');
    expect(await (await fetch(`${proxy.url}/readyz`)).json()).toMatchObject({ faults: ['key_refused'] });
    const before = upstream.received.length;
    const refused = await proxy.call(503, 'GET /api/x', world.agentKey);
    expect(refused.body).toMatchObject({ code: 'UNAVAILABLE', detail: 'the control plane does not accept the proxy' });
    expect(upstream.received).toHaveLength(before);

    writeFileSync(file, world.proxyKey);
    await proxy.ready();
    await proxy.call(200, 'GET /api/x', world.agentKey);
    const id = refused.headers.get('x-svc-event-id');
    const found = await until(
      async () => (await decisions(server, world.tenant)).find((event) => event.id === id),
      'the denial is recorded',
    );
    expect(found).toMatchObject({ decision: 'deny' });
  });
});
