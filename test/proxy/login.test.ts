import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { auth } from '@modelcontextprotocol/client';
import { pino } from 'pino';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { login } from '../../server/proxy/login/command.ts';
import { Provider as ProxyProvider } from '../../server/proxy/login/provider.ts';
import { Logins } from '../../server/proxy/login/store.ts';
import { signedIn } from '../../server/proxy/login/use.ts';
import { listen, oauthWorld, person } from './oauth.ts';
import { temporaryDirectory } from './support.ts';

const world = await oauthWorld();
afterEach(() => {
  world.resource = world.mcp;
  world.authorization = world.issuer;
  world.seen.length = 0;
});

async function signIn(dir: string, open: (address: URL) => void = (address) => void person(address)): Promise<string> {
  let output = '';
  const out = (text: string) => {
    output += text;
  };
  await login('login', ['--url', world.mcp], { env: { SVC_PROXY_DIR: dir }, open, out });
  return output;
}

async function signOut(dir: string): Promise<string> {
  let output = '';
  const out = (text: string) => {
    output += text;
  };
  await login('logout', ['--url', world.mcp], { env: { SVC_PROXY_DIR: dir }, out });
  return output;
}

const silent = pino({ level: 'silent' });
const stored = (dir: string) => new Logins(dir).read({ url: new URL(world.mcp) })!;

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
    const login1 = stored(dir);
    const { tokens } = login1;
    expect(tokens!.refresh_token).toBeTruthy();
    expect(output).toContain('Signed in');
    for (const secret of [tokens!.access_token, tokens!.refresh_token!]) expect(output).not.toContain(secret);
    const folder = path.join(dir, 'logins', createHash('sha256').update(world.mcp).digest('hex').slice(0, 32));
    expect(statSync(path.join(dir, 'logins')).mode & 0o777).toBe(0o700);
    expect(statSync(path.join(folder, 'login.json')).mode & 0o777).toBe(0o600);

    const response = await signedIn(new URL(world.mcp), dir, silent)(world.mcp, { method: 'POST', body: '{}' });
    expect(response.status).toBe(200);
    expect(world.seen.at(-1)).toBe(tokens!.access_token);

    expect(await signOut(dir)).toContain(`${world.issuer} has revoked the tokens`);
    expect(stored(dir)).toBeUndefined();
    // by the authorization server, which both tokens are dead at now
    const { client } = login1;
    const body = { grant_type: 'refresh_token', refresh_token: tokens!.refresh_token!, client_id: client!.client_id };
    const again = await fetch(`${world.issuer}/token`, { method: 'POST', body: new URLSearchParams(body) });
    expect([again.status, await again.json()]).toMatchObject([400, { error: 'invalid_grant' }]);
    expect(world.revoked).toEqual(['RefreshToken']);
    expect(await signOut(dir)).toContain('There was no sign-in');
  });

  test('signs out here whatever becomes of the revocation, and says what did', async () => {
    const dir = temporaryDirectory();
    const spoiled = async (change: (metadata: Record<string, unknown>) => void) => {
      await signIn(dir);
      const login = stored(dir);
      change(login.discovery!.authorizationServerMetadata as Record<string, unknown>);
      new Logins(dir).write(login);
      const error = await signOut(dir).catch((one: Error) => one.message);
      expect(stored(dir)).toBeUndefined();
      expect(error).toContain('the tokens are forgotten here');
      expect(error).not.toContain(login.tokens!.access_token);
      return error;
    };
    expect(await spoiled((metadata) => delete metadata.revocation_endpoint)).toContain('offers no revocation');
    const at = (url: string) => (metadata: Record<string, unknown>) => {
      metadata.revocation_endpoint = url;
    };
    expect(await spoiled(at('http://evil.example/revoke'))).toContain('neither https nor on this machine');
    expect(await spoiled(at(`${world.issuer}/nothing`))).toContain('did not revoke them (404)');
    expect(await spoiled(at('http://127.0.0.1:1/revoke'))).toContain('could not be reached');
  });

  test('gives the secret of a client to the configured authorization server alone', async () => {
    const evil = await listen();
    const asked: string[] = [];
    evil.use((request, response) => {
      asked.push(`${request.method} ${request.url}`);
      const metadata = {
        issuer: evil.url,
        authorization_endpoint: `${evil.url}/auth`,
        token_endpoint: `${evil.url}/token`,
        registration_endpoint: `${evil.url}/register`,
        response_types_supported: ['code'],
        code_challenge_methods_supported: ['S256'],
      };
      response.setHeader('content-type', 'application/json').end(JSON.stringify(metadata));
    });
    world.authorization = evil.url;
    const env = { SVC_PROXY_DIR: temporaryDirectory(), SVC_LOGIN_CLIENT_SECRET: 'the-secret-of-the-client' };
    const run = (...more: string[]) =>
      login('login', ['--url', world.mcp, '--client-id', 'known', ...more], { env, out: () => {} });
    await expect(run()).rejects.toThrow('SVC_LOGIN_CLIENT_SECRET: needs --issuer');
    let opened: URL | undefined;
    const stopped = login('login', ['--url', world.mcp, '--client-id', 'known', '--issuer', world.issuer], {
      env,
      out: () => {},
      open(address) {
        opened = address;
        const back = new URL(address.searchParams.get('redirect_uri')!);
        back.search = `error=access_denied&state=${address.searchParams.get('state')}`;
        void fetch(back);
      },
    });
    await expect(stopped).rejects.toThrow('access_denied');
    expect(opened!.origin).toBe(world.issuer);
    expect(asked).toEqual([]);
    // a state on the disk that names another one than it is bound to is not used
    const login1 = {
      url: world.mcp,
      issuer: world.issuer,
      tokens: { access_token: 'x', token_type: 'Bearer', issuer: evil.url },
    };
    new Logins(env.SVC_PROXY_DIR).write(login1);
    expect(stored(env.SVC_PROXY_DIR)).toBeUndefined();
    const provider = new ProxyProvider(new Logins(env.SVC_PROXY_DIR), {
      ...{ url: world.mcp, issuer: world.issuer },
      client: { client_id: 'known', client_secret: env.SVC_LOGIN_CLIENT_SECRET },
    });
    await expect(auth(provider, { serverUrl: world.mcp })).rejects.toThrow('names another authorization server');
    expect(asked.every((line) => line.startsWith('GET '))).toBe(true);
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
