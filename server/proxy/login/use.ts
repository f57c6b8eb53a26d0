import type { Log } from '../../lib/log.ts';
import { assertSafe } from './provider.ts';
import { Logins } from './store.ts';

/** A token is renewed this long before its end. */
const EARLY_MS = 60_000;

/**
 * `fetch` with the access token of the sign-in at this address, which is renewed when it ends or is refused. Without a
 * sign-in it is `fetch` alone. The token is sent to this address's origin and nowhere else, and is in no log.
 */
export function signedIn(server: URL, dir: string, log: Log): typeof fetch {
  const logins = new Logins(dir);
  const token = async (refused?: string) => {
    const login = logins.read(server);
    const current = login?.tokens?.access_token;
    if (login === undefined || current === undefined) return undefined;
    assertSafe(server, server.href);
    const ends = login.expiresAt !== undefined && Date.now() > login.expiresAt - EARLY_MS;
    if (current !== refused && !ends) return current;
    if (!login.tokens?.refresh_token) return current === refused ? undefined : current;
    try {
      return await renew(logins, server, current);
    } catch (error) {
      log.warn(
        { server: server.origin, detail: (error as Error).name },
        'the sign-in could not be renewed: run `svc-proxy login` for this server',
      );
      return current === refused ? undefined : current;
    }
  };
  return async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input);
    if (url.origin !== server.origin) return fetch(input, init);
    const send = (bearer: string | undefined) => {
      const headers = new Headers(init?.headers);
      if (bearer !== undefined && !headers.has('authorization')) headers.set('authorization', `Bearer ${bearer}`);
      return fetch(input, { redirect: 'manual', ...init, headers });
    };
    const first = await token();
    const response = await send(first);
    if (response.status !== 401 || first === undefined) return response;
    const next = await token(first);
    if (next === undefined) {
      log.warn({ server: server.origin }, 'the server refuses the sign-in: run `svc-proxy login` for it again');
      return response;
    }
    await response.body?.cancel();
    return send(next);
  };
}

/** The new access token. Processes that have the same sign-in renew it once: the others find it renewed. */
async function renew(logins: Logins, server: URL, before: string): Promise<string | undefined> {
  return logins.alone(server, async () => {
    const login = logins.read(server);
    if (login?.tokens === undefined || login.tokens.access_token !== before) return login?.tokens?.access_token;
    const [{ auth }, { Provider, safeFetch }] = await Promise.all([
      import('@modelcontextprotocol/client'),
      import('./provider.ts'),
    ]);
    const provider = new Provider(logins, login);
    await auth(provider, { serverUrl: server, fetchFn: safeFetch(server.href) });
    return provider.login.tokens?.access_token;
  });
}
