import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { homedir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { auth, extractWWWAuthenticateParams, type OAuthMetadata } from '@modelcontextprotocol/client';
import { equalSecret } from '../../lib/crypto.ts';
import { addressesOf } from '../clients/install.ts';
import { printableAddress } from '../clients/printable.ts';
import { routesOf } from '../config.ts';
import { Failure, UsageError } from '../failure.ts';
import { Provider, safeFetch } from './provider.ts';
import { assertSafe } from './safe.ts';
import { type LoginPlace, type LoginState, Logins } from './store.ts';

/** How long a person may take to sign in. */
const PATIENCE_MS = 5 * 60_000;

export const LOGIN_HELP = `Usage: svc-proxy login [--issuer ISSUER] [--client-id ID] [--port PORT] [--scope SCOPE] [--no-browser] (SERVER | --url URL)
       svc-proxy login --route PATH [--port PORT] [--no-browser]
       svc-proxy logout (SERVER | --url URL | --route PATH)

Signs in at an MCP server that wants OAuth, in the browser. The proxy keeps the tokens, in SVC_PROXY_DIR (default
~/.svc-proxy) in a file that only you can read, renews them, and sends them to that server alone. Agents never get them.
\`logout\` has the tokens revoked where the authorization server can do that, and forgets them.

  SERVER            name of the server in a client's file, as \`svc-proxy install\` has wrapped it
  --url URL         its address, where it is in no client's file
  --route PATH      the upstream of this route of SVC_PROXY_ROUTES, which has \`sign_in\` (default of SVC_PROXY_DIR: ./.proxy)
  --issuer ISSUER   the authorization server, which is used alone; default: the one that the MCP server names
  --client-id ID    a client that is registered at the authorization server; default: one is registered now. The secret
                    of a confidential client is read from SVC_LOGIN_CLIENT_SECRET, and needs --issuer: no MCP server may
                    choose who gets it
  --port PORT       where the browser comes back to on this machine; default: any free port
  --scope SCOPE     what to ask for; default: what the server says
  --no-browser      only print the address to open

Exit codes: 0 done, 1 the sign-in failed, or tokens could not be revoked (they are forgotten), 2 wrong usage.
`;

export interface LoginParts {
  env: NodeJS.ProcessEnv;
  /** Opens a URL in the person's browser. */
  open?: (address: URL) => void;
  out?: (text: string) => void;
}

/** Signs in or out. Throws a Failure or a UsageError. Nothing that it prints or throws contains a code or a token. */
export async function login(mode: 'login' | 'logout', argv: string[], parts: LoginParts): Promise<void> {
  const { values, positionals } = parseArgs({
    args: argv,
    allowPositionals: true,
    options: {
      url: { type: 'string' },
      'client-id': { type: 'string' },
      port: { type: 'string', default: '0' },
      scope: { type: 'string' },
      issuer: { type: 'string' },
      route: { type: 'string' },
      'no-browser': { type: 'boolean' },
    },
  });
  const out = parts.out ?? ((text) => void process.stderr.write(text));
  const local = values.route === undefined ? path.join(homedir(), '.svc-proxy') : './.proxy';
  const dir = path.resolve(parts.env.SVC_PROXY_DIR || local);
  const logins = new Logins(dir);
  const route = values.route === undefined ? undefined : routeOf(values.route, values, positionals, parts.env);
  const url = route?.url ?? serverUrl(values.url, positionals, parts.env, dir);
  const place: LoginPlace = { url, ...(route && { route: { path: values.route!, issuer: route.issuer } }) };
  if (mode === 'logout') return logout(logins, place, out);
  const port = Number(values.port);
  if (!Number.isInteger(port) || port < 0 || port > 65535) throw new UsageError('--port: must be a port');
  assertSafe(url, url.href);
  const issuer = route?.issuer ?? values.issuer;
  if (issuer !== undefined) {
    if (!URL.canParse(issuer)) throw new UsageError('--issuer: must be the https address of an authorization server');
    assertSafe(new URL(issuer), url.href);
  }
  const id = route?.client_id ?? values['client-id'];
  const secret = id === undefined ? undefined : parts.env.SVC_LOGIN_CLIENT_SECRET;
  if (secret && issuer === undefined) {
    throw new UsageError(
      'SVC_LOGIN_CLIENT_SECRET: needs --issuer, the authorization server that it is for: the MCP server must not choose who gets it',
    );
  }

  const back = await listenForBrowser(port);
  try {
    const state: LoginState = {
      url: url.href,
      ...(route && { route: values.route! }),
      // with a configured issuer, the server is not asked for one
      ...(issuer !== undefined && { issuer, discovery: { authorizationServerUrl: issuer } }),
      ...(id !== undefined && {
        client: { client_id: id, ...(secret && { client_secret: secret }), ...(issuer !== undefined && { issuer }) },
      }),
    };
    const provider = new Provider(logins, state, {
      redirectUrl: back.url,
      show(address) {
        out(`Sign in at ${url.origin} in your browser. If it does not open, go to:\n\n  ${address}\n\n`);
        if (values['no-browser'] !== true) (parts.open ?? openBrowser)(address);
      },
    });
    const fetchFn = safeFetch(url.href);
    const challenge = await challengeOf(url, fetchFn);
    const scope = route?.scope ?? values.scope ?? challenge.scope;
    const options = {
      serverUrl: url,
      fetchFn,
      ...(scope !== undefined && { scope }),
      ...(challenge.resourceMetadataUrl && { resourceMetadataUrl: challenge.resourceMetadataUrl }),
    };
    const answered = back.answer(provider.state());
    // whoever awaits it gets the error
    answered.catch(() => {});
    await explained(() => auth(provider, options));
    const answer = await answered;
    await explained(() =>
      auth(provider, { ...options, authorizationCode: answer.code, ...(answer.iss && { iss: answer.iss }) }),
    );
    out(`Signed in at ${url.origin}. The proxy uses it from now on.\n`);
  } finally {
    back.close();
  }
}

function routeOf(
  wanted: string,
  options: { url?: string; issuer?: string; scope?: string; 'client-id'?: string },
  positionals: readonly string[],
  env: NodeJS.ProcessEnv,
): { url: URL; issuer: string; scope?: string | undefined; client_id?: string | undefined } {
  const { url, issuer, scope, 'client-id': id } = options;
  if (positionals.length > 0 || [url, issuer, scope, id].some((one) => one !== undefined)) {
    throw new UsageError('--route: stands alone; the route table says the rest');
  }
  const route = routesOf(env).find((one) => one.path === wanted);
  if (!route) throw new UsageError(`--route: SVC_PROXY_ROUTES has no route with the path ${wanted}`);
  if ('join' in route) throw new UsageError(`--route: ${wanted} joins others: sign in at each of them`);
  if (!route.sign_in) throw new UsageError(`--route: the route ${wanted} has no sign_in`);
  return { ...route.sign_in, url: new URL('to' in route ? route.to : route.mcp) };
}

function serverUrl(given: string | undefined, [name, ...more]: string[], env: NodeJS.ProcessEnv, dir: string): URL {
  if (more.length > 0) throw new UsageError('svc-proxy login: give one server');
  if (given !== undefined) {
    if (!/^https?:\/\//.test(given) || !URL.canParse(given))
      throw new UsageError('--url: must be an http or https address');
    return new URL(given);
  }
  if (name === undefined)
    throw new UsageError('svc-proxy login: what is missing is the server (see svc-proxy login --help)');
  const found = [...new Set(addressesOf(name, { platform: process.platform, home: homedir(), env }, dir))];
  if (found.length === 1) return new URL(found[0]!);
  throw new UsageError(
    found.length === 0
      ? `No client has a server ${name} with an address behind the proxy. \`svc-proxy status\` lists them; or give --url.`
      : `Clients have several servers ${name}: ${found.map(printableAddress).join(', ')}. Choose one with --url.`,
  );
}

/**
 * Forgets a sign-in, whatever the authorization server says, after asking it to revoke the tokens (RFC 7009). Reports what became
 * of them; throws a Failure if they may still work.
 */
async function logout(logins: Logins, place: LoginPlace, out: (text: string) => void): Promise<void> {
  const { origin } = place.url;
  const known = await logins.alone(place, async () => {
    const login = logins.read(place);
    const revoked = login?.tokens && (await revoke(login));
    logins.remove(place);
    return login && { revoked };
  });
  if (!known) {
    out(`There was no sign-in at ${origin}.\n`);
    return;
  }
  const { revoked } = known;
  if (revoked === undefined) out(`Signed out of ${origin}. There were no tokens to revoke.\n`);
  else if ('by' in revoked) out(`Signed out of ${origin}. ${revoked.by} has revoked the tokens.\n`);
  else {
    throw new Failure(
      `Signed out of ${origin}: the tokens are forgotten here. But ${revoked.why}, so they may work elsewhere until they end: end the access of svc-proxy in your account there.`,
    );
  }
}

type Revocation = { by: string } | { why: string };

async function revoke({ url, discovery, client, tokens }: LoginState): Promise<Revocation> {
  const metadata = discovery?.authorizationServerMetadata as Partial<OAuthMetadata> | undefined;
  const by = metadata?.issuer ?? discovery?.authorizationServerUrl ?? 'the authorization server';
  const endpoint = metadata?.revocation_endpoint;
  if (typeof endpoint !== 'string') return { why: `${by} offers no revocation` };
  const { client_id, client_secret } = client ?? {};
  const methods = metadata?.revocation_endpoint_auth_methods_supported ??
    metadata?.token_endpoint_auth_methods_supported ?? ['client_secret_basic'];
  // the refresh token first: revoking it revokes the entire grant
  const open = [
    ['refresh_token', tokens?.refresh_token],
    ['access_token', tokens?.access_token],
  ] as const;
  for (const [hint, token] of open) {
    if (token === undefined) continue;
    const body = new URLSearchParams({ token, token_type_hint: hint });
    const headers = new Headers({ accept: 'application/json' });
    if (client_id !== undefined && client_secret !== undefined && methods.includes('client_secret_basic')) {
      const pair = [client_id, client_secret].map((one) => encodeURIComponent(one).replace(/%20/g, '+')).join(':');
      headers.set('authorization', `Basic ${Buffer.from(pair).toString('base64')}`);
    } else {
      if (client_id !== undefined) body.set('client_id', client_id);
      if (client_secret !== undefined) body.set('client_secret', client_secret);
    }
    try {
      const response = await safeFetch(url)(new URL(endpoint), { method: 'POST', headers, body });
      await response.body?.cancel();
      // for a token that is not known there, the response is 200 (RFC 7009 §2.2)
      if (!response.ok) return { why: `${by} did not revoke them (${response.status})` };
    } catch (error) {
      if (error instanceof Failure) return { why: error.message };
      return { why: `${by} could not be reached` };
    }
  }
  return { by };
}

/** What the server responds without a token: where its metadata is, and which scope it requires. */
async function challengeOf(url: URL, fetchFn: ReturnType<typeof safeFetch>) {
  try {
    const response = await fetchFn(url, { headers: { accept: 'application/json, text/event-stream' } });
    await response.body?.cancel();
    return extractWWWAuthenticateParams(response);
  } catch (error) {
    const cause = (error as { cause?: { code?: string } }).cause;
    throw new Failure(`${url.origin} cannot be reached${cause?.code ? ` (${cause.code})` : ''}`);
  }
}

/** The library's errors may contain what the other side has said; their names do not. */
async function explained<T>(run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    if (error instanceof Failure) throw error;
    const { name, code } = error as Error & { code?: unknown };
    const said = typeof code === 'string' && /^[\w.-]{1,60}$/.test(code) ? ` (${code})` : '';
    const advice =
      name === 'RegistrationRejectedError'
        ? ' Register a client there yourself, and give its --client-id and --port.'
        : '';
    throw new Failure(`The sign-in failed: ${name}${said}. Nothing was kept.${advice}`);
  }
}

/**
 * A page on the loopback address for the browser to return to (RFC 8252, section 7.3). It accepts only the one answer that
 * belongs to this sign-in: any page that the person has open can call it, and must not spoil the sign-in.
 */
async function listenForBrowser(port: number) {
  const { promise, resolve, reject } = Promise.withResolvers<URLSearchParams>();
  let expected: string | undefined;
  const page = createServer((request, response) => {
    const target = URL.canParse(request.url ?? '', 'http://127.0.0.1')
      ? new URL(request.url!, 'http://127.0.0.1')
      : undefined;
    const state = target?.searchParams.get('state') ?? '';
    const known = expected !== undefined && equalSecret(Buffer.from(state), Buffer.from(expected));
    if (request.method !== 'GET' || target?.pathname !== '/callback' || !known) {
      response.writeHead(404).end();
      return;
    }
    response
      .writeHead(200, { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store', connection: 'close' })
      .end('You can close this page and go back to the terminal.\n');
    resolve(target.searchParams);
  });
  page.listen(port, '127.0.0.1');
  await once(page, 'listening');
  let timer: NodeJS.Timeout | undefined;
  return {
    url: `http://127.0.0.1:${(page.address() as AddressInfo).port}/callback`,
    async answer(state: string): Promise<{ code: string; iss: string | undefined }> {
      expected = state;
      timer = setTimeout(() => reject(new Failure('Nobody signed in within five minutes.')), PATIENCE_MS);
      const said = await promise;
      const error = said.get('error');
      const code = said.get('code');
      if (error !== null || !code) {
        const why = error !== null && /^[\w.-]{1,60}$/.test(error) ? ` (${error})` : '';
        throw new Failure(`The server did not sign you in${why}.`);
      }
      return { code, iss: said.get('iss') ?? undefined };
    },
    close() {
      clearTimeout(timer);
      page.closeAllConnections();
      page.close();
    },
  };
}

/** Without a shell, because the URL comes from elsewhere. */
function openBrowser(address: URL): void {
  const [command, args] =
    process.platform === 'darwin'
      ? ['open', [address.href]]
      : process.platform === 'win32'
        ? ['rundll32', ['url.dll,FileProtocolHandler', address.href]]
        : ['xdg-open', [address.href]];
  spawn(command as string, args as string[], { stdio: 'ignore', detached: true })
    .on('error', () => {})
    .unref();
}
