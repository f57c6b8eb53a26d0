import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import Provider from 'oidc-provider';
import { pino } from 'pino';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { login } from '../../server/proxy/login/command.ts';
import { Logins } from '../../server/proxy/login/store.ts';
import { signedIn } from '../../server/proxy/login/use.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { Visitor } from '../helpers/visitor.ts';
import { temporaryDirectory } from './support.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

async function listen(): Promise<{ url: string; use: (handler: Handler) => void }> {
  const server = http.createServer();
  await once(server.listen(0, '127.0.0.1'), 'listening');
  atEnd(() => {
    server.closeAllConnections();
    server.close();
  });
  let handle: Handler = (_, response) => void response.writeHead(404).end();
  server.on('request', (request, response) => handle(request, response));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    use: (handler) => {
      handle = handler;
    },
  };
}

/** An MCP server as a resource that wants OAuth, and a certified authorization server for it. */
const world = {
  mcp: '',
  issuer: '',
  seen: [] as (string | undefined)[],
  valid: new Set<string>(),
  resource: '',
  asked: [] as string[],
  authorization: '',
};

beforeAll(async () => {
  const as = await listen();
  const rs = await listen();
  world.mcp = `${rs.url}/mcp`;
  world.resource = world.mcp;
  world.issuer = as.url;
  world.authorization = as.url;
  const provider = new Provider(as.url, {
    cookies: { keys: ['a key for cookies of the test'] },
    pkce: { required: () => true },
    scopes: ['openid', 'offline_access', 'tools'],
    features: {
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => world.mcp,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({ scope: 'tools', audience: world.mcp, accessTokenTTL: 600 }),
      },
    },
    issueRefreshToken: async () => true,
    rotateRefreshToken: true,
    findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
  });
  provider.on('access_token.saved', (token) => {
    world.asked.push(String(token.aud));
  });
  const callback = provider.callback();
  as.use((request, response) => void callback(request, response));
  rs.use((request, response) => {
    if (request.url === '/.well-known/oauth-protected-resource/mcp') {
      response.setHeader('content-type', 'application/json');
      response.end(
        JSON.stringify({
          resource: world.resource,
          authorization_servers: [world.authorization],
          scopes_supported: ['tools'],
        }),
      );
      return;
    }
    const token = request.headers.authorization?.replace('Bearer ', '');
    world.seen.push(token);
    if (token !== undefined && !token.startsWith('refused') && !world.valid.has(`not ${token}`)) response.end('{}');
    else {
      const metadata = `${rs.url}/.well-known/oauth-protected-resource/mcp`;
      response.writeHead(401, { 'www-authenticate': `Bearer resource_metadata="${metadata}"` }).end();
    }
  });
});
afterEach(() => {
  world.resource = world.mcp;
  world.authorization = world.issuer;
  world.seen.length = 0;
});

/** The person: signs in and consents on the pages of the provider, and comes back to the loopback address. */
async function person(address: URL, back: (url: URL) => URL = (url) => url): Promise<void> {
  const visitor = new Visitor();
  const start = (await visitor.follow(address.href)).url;
  const form = (body: string) => ({
    method: 'POST',
    body,
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
  });
  const consent = (await visitor.follow(start, form('prompt=login&login=ada&password=x'))).url;
  const done = await visitor.follow(consent, form('prompt=consent'), address.searchParams.get('redirect_uri')!);
  await fetch(back(new URL(done.url)));
}

async function signIn(dir: string, open: (address: URL) => void = (address) => void person(address)): Promise<string> {
  let output = '';
  const out = (text: string) => {
    output += text;
  };
  await login('login', ['--url', world.mcp], { env: { SVC_PROXY_DIR: dir }, open, out });
  return output;
}

const silent = pino({ level: 'silent' });
const stored = (dir: string) => new Logins(dir).read(new URL(world.mcp))!;

describe('svc-proxy login', () => {
  test('signs in with PKCE for this very server, keeps the tokens where only their owner reads them, and shows none', async () => {
    const dir = temporaryDirectory();
    let asked: URL | undefined;
    const output = await signIn(dir, (address) => {
      asked = address;
      void person(address);
    });
    expect(asked!.searchParams.get('code_challenge_method')).toBe('S256');
    expect(asked!.searchParams.get('resource')).toBe(world.mcp);
    expect(asked!.searchParams.get('state')!.length).toBeGreaterThan(40);
    expect(asked!.searchParams.get('redirect_uri')).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/callback$/);
    expect(world.asked.at(-1)).toBe(world.mcp);
    const { tokens } = stored(dir);
    expect(tokens!.refresh_token).toBeTruthy();
    expect(output).toContain('Signed in');
    for (const secret of [tokens!.access_token, tokens!.refresh_token!]) expect(output).not.toContain(secret);
    const folder = path.join(dir, 'logins', createHash('sha256').update(world.mcp).digest('hex').slice(0, 32));
    expect(statSync(path.join(dir, 'logins')).mode & 0o777).toBe(0o700);
    expect(statSync(path.join(folder, 'login.json')).mode & 0o777).toBe(0o600);

    const response = await signedIn(new URL(world.mcp), dir, silent)(world.mcp, { method: 'POST', body: '{}' });
    expect(response.status).toBe(200);
    expect(world.seen.at(-1)).toBe(tokens!.access_token);

    await login('logout', ['--url', world.mcp], { env: { SVC_PROXY_DIR: dir }, out: () => {} });
    expect(stored(dir)).toBeUndefined();
  });

  test('takes no answer but its own: not one without its state, and not one of another server', async () => {
    const dir = temporaryDirectory();
    const statuses: number[] = [];
    await signIn(dir, async (address) => {
      const back = address.searchParams.get('redirect_uri')!;
      for (const spoiled of [`${back}?code=stolen`, `${back}?code=stolen&state=guess`, `${back}?error=access_denied`]) {
        statuses.push((await fetch(spoiled)).status);
      }
      await person(address);
    });
    expect(statuses).toEqual([404, 404, 404]);
    expect(stored(dir).tokens).toBeDefined();

    const other = temporaryDirectory();
    const mixed = signIn(
      other,
      (address) =>
        void person(address, (url) => {
          url.searchParams.set('iss', 'https://evil.example');
          return url;
        }),
    );
    await expect(mixed).rejects.toThrow('The sign-in failed');
    expect(stored(other)).toBeUndefined();
  });

  test('asks for no token for another server than the one it was told', async () => {
    world.resource = 'http://127.0.0.1:1/mcp';
    await expect(signIn(temporaryDirectory(), () => {})).rejects.toThrow('The sign-in failed');
  });

  test('goes to no authorization server over plain http elsewhere', async () => {
    world.authorization = 'http://10.1.2.3';
    await expect(signIn(temporaryDirectory(), () => {})).rejects.toThrow('neither https nor on this machine');
    await expect(
      login('login', ['--url', 'http://mcp.example/mcp'], { env: { SVC_PROXY_DIR: '/nowhere' }, out: () => {} }),
    ).rejects.toThrow('neither https nor on this machine');
  });

  test('says where the person refused', async () => {
    const refuse = async (address: URL) => {
      const back = new URL(address.searchParams.get('redirect_uri')!);
      back.search = `error=access_denied&state=${address.searchParams.get('state')}`;
      await fetch(back);
    };
    await expect(signIn(temporaryDirectory(), (address) => void refuse(address))).rejects.toThrow(
      'did not sign you in (access_denied)',
    );
  });
});

describe('the proxy that is signed in', () => {
  const dir = temporaryDirectory();
  const use = () => signedIn(new URL(world.mcp), dir, silent);
  beforeAll(async () => {
    await signIn(dir);
  });

  test('renews a token that is refused, once for all that need it, and sends the request again', async () => {
    const before = stored(dir).tokens!;
    world.valid.add(`not ${before.access_token}`);
    const issued = world.asked.length;
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => use()(world.mcp, { method: 'POST', body: '{}' })),
    );
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
    expect(world.asked.length - issued).toBe(1);
    expect(world.asked.at(-1)).toBe(world.mcp);
    expect(stored(dir).tokens!.access_token).not.toBe(before.access_token);
    expect(stored(dir).tokens!.refresh_token).not.toBe(before.refresh_token);
  });

  test('renews a token that is about to end before it is refused', async () => {
    const login = stored(dir);
    new Logins(dir).write({ ...login, expiresAt: Date.now() + 1000 });
    await use()(world.mcp, { method: 'POST', body: '{}' });
    expect(world.seen).toHaveLength(1);
    expect(world.seen[0]).not.toBe(login.tokens!.access_token);
  });

  test('sends its token to no other address, and a refused sign-in to the log without it', async () => {
    const elsewhere = await listen();
    let got: string | undefined = 'nothing';
    elsewhere.use((request, response) => {
      got = request.headers.authorization;
      response.end();
    });
    await use()(`${elsewhere.url}/mcp`);
    expect(got).toBeUndefined();

    const lines: string[] = [];
    const log = pino({}, { write: (line: string) => void lines.push(line) });
    const login = stored(dir);
    const broken = { ...login, tokens: { ...login.tokens!, access_token: 'refused-1', refresh_token: 'refused-2' } };
    new Logins(dir).write(broken);
    const response = await signedIn(new URL(world.mcp), dir, log)(world.mcp, { method: 'POST', body: '{}' });
    expect(response.status).toBe(401);
    expect(lines.join('')).toContain('svc-proxy login');
    expect(lines.join('')).not.toMatch(/refused-[12]/);
  });

  test('without a sign-in sends what it would', async () => {
    const response = await signedIn(new URL(world.mcp), temporaryDirectory(), silent)(world.mcp);
    expect(response.status).toBe(401);
    expect(world.seen).toEqual([undefined]);
  });

  test('takes nothing from a file that was made for another address', async () => {
    const other = temporaryDirectory();
    await signIn(other);
    const [folder] = readdirSync(path.join(other, 'logins'));
    const file = path.join(other, 'logins', folder!, 'login.json');
    writeFileSync(file, readFileSync(file, 'utf8').replace(world.mcp, 'https://elsewhere.example/mcp'));
    expect(stored(other)).toBeUndefined();
  });
});
