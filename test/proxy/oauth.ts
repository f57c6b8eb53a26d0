import { once } from 'node:events';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import Provider from 'oidc-provider';
import { atEnd } from '../helpers/cleanups.ts';
import { Visitor } from '../helpers/visitor.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

export async function listen(): Promise<{ url: string; use: (handler: Handler) => void }> {
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

/** An MCP server (or an API) as a resource that wants OAuth, and a certified authorization server for it. */
export async function oauthWorld() {
  const world = {
    mcp: '',
    issuer: '',
    seen: [] as (string | undefined)[],
    valid: new Set<string>(),
    resource: '',
    asked: [] as string[],
    revoked: [] as string[],
    authorization: '',
    /** Answers a request whose token is good. */
    answer: ((_, response) => void response.end('{}')) as Handler,
  };

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
      revocation: { enabled: true },
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
  provider.on('refresh_token.destroyed', (token) => void world.revoked.push(token.kind));
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
    if (token !== undefined && !token.startsWith('refused') && !world.valid.has(`not ${token}`))
      world.answer(request, response);
    else {
      const metadata = `${rs.url}/.well-known/oauth-protected-resource/mcp`;
      response.writeHead(401, { 'www-authenticate': `Bearer resource_metadata="${metadata}"` }).end();
    }
  });
  return world;
}

/** The person: signs in and consents on the pages of the provider, and comes back to the loopback address. */
export async function person(address: URL, back: (url: URL) => URL = (url) => url): Promise<void> {
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
