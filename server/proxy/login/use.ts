import type { Log } from '../../lib/log.ts';
import { CredentialError } from '../credentials.ts';
import { assertSafe } from './safe.ts';
import { type LoginPlace, Logins } from './store.ts';

/** How long before its end a token is renewed. */
const EARLY_MS = 60_000;

/** The sign-in at one place, as it is on disk now. Its tokens appear in no log. */
export class SignIn {
  readonly #place: LoginPlace;
  readonly #logins: Logins;
  readonly #log: Log;
  readonly #hint: string;

  constructor(place: LoginPlace, dir: string, log: Log) {
    this.#place = place;
    this.#logins = new Logins(dir);
    this.#log = log;
    const { route } = place;
    this.#hint = route ? `run \`svc-proxy login --route ${route.path}\`` : 'run `svc-proxy login` for this server';
  }

  /**
   * The access token, renewed if it is about to end or is the one that was `refused`; undefined if there is none that could work.
   */
  async token(refused?: string): Promise<string | undefined> {
    const { url } = this.#place;
    const login = this.#logins.read(this.#place);
    const current = login?.tokens?.access_token;
    if (login === undefined || current === undefined) return undefined;
    assertSafe(url, url.href);
    const { expiresAt = Number.POSITIVE_INFINITY } = login;
    const usable = () => (current === refused || Date.now() > expiresAt ? undefined : current);
    if (current !== refused && Date.now() <= expiresAt - EARLY_MS) return current;
    if (!login.tokens?.refresh_token) return usable();
    try {
      return await this.#renew(current);
    } catch (error) {
      this.#log.warn(
        { server: url.origin, detail: (error as Error).name },
        `the sign-in could not be renewed: ${this.#hint}`,
      );
      return usable();
    }
  }

  /** The token; rejects with a CredentialError that says what to do. */
  async required(refused?: string): Promise<string> {
    const token = await this.token(refused).catch((error) => {
      throw new CredentialError(`the sign-in at ${this.#place.url.origin} cannot be read (${(error as Error).name})`);
    });
    if (token !== undefined) return token;
    const what = refused === undefined ? 'there is no sign-in that works' : 'the server refuses the sign-in';
    throw new CredentialError(`${this.#place.url.origin}: ${what}: ${this.#hint}`);
  }

  /** The new access token. Processes that share a sign-in renew it once: the others find it renewed. */
  async #renew(before: string): Promise<string | undefined> {
    return this.#logins.alone(this.#place, async () => {
      const login = this.#logins.read(this.#place);
      if (login?.tokens === undefined || login.tokens.access_token !== before) return login?.tokens?.access_token;
      const [{ auth }, { Provider, safeFetch }] = await Promise.all([
        import('@modelcontextprotocol/client'),
        import('./provider.ts'),
      ]);
      const provider = new Provider(this.#logins, login);
      const { url } = this.#place;
      await auth(provider, { serverUrl: url, fetchFn: safeFetch(url.href) });
      return provider.login.tokens?.access_token;
    });
  }
}

/**
 * `fetch` with the access token of the sign-in at this address, which is renewed when it ends or is refused. Without a sign-in it
 * is plain `fetch`. The token is sent to this address's origin and nowhere else.
 */
export function signedIn(server: URL, dir: string, log: Log): typeof fetch {
  const signIn = new SignIn({ url: server }, dir, log);
  return fetchWith(server, {
    token: (refused) => signIn.token(refused),
    refused: () =>
      log.warn({ server: server.origin }, 'the server refuses the sign-in: run `svc-proxy login` for it again'),
  });
}

/** `fetch` for a route with a sign-in: without a working token, nothing is sent, and it rejects with a CredentialError. */
export function signedInRoute(server: URL, signIn: SignIn, log: Log): typeof fetch {
  return fetchWith(server, {
    async token(refused) {
      try {
        return await signIn.required(refused);
      } catch (error) {
        if (error instanceof CredentialError) log.error({ detail: error.detail }, error.message);
        throw error;
      }
    },
    refused() {},
  });
}

function fetchWith(
  server: URL,
  { token, refused }: { token: (refused?: string) => Promise<string | undefined>; refused: () => void },
): typeof fetch {
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
      refused();
      return response;
    }
    await response.body?.cancel();
    return send(next);
  };
}
