import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type {
  OAuthDiscoveryState,
  StoredOAuthClientInformation,
  StoredOAuthTokens,
} from '@modelcontextprotocol/client';
import { writeAtomically } from '../files.ts';
import { lockDirectory } from '../lock.ts';

/** What a sign-in is for: a server's address; for a route, also the route and its configured authorization server. */
export interface LoginPlace {
  url: URL;
  route?: { path: string; issuer: string } | undefined;
}

/** A sign-in at an MCP server or an API: what the proxy may do there for the person who signed in. */
export interface LoginState {
  /** The server's address. INVARIANT: tokens are sent only to it and to the authorization server below. */
  url: string;
  /** The route, if the sign-in is only for that. */
  route?: string;
  /** The only authorization server that it may be from; absent if the server may choose. */
  issuer?: string;
  discovery?: OAuthDiscoveryState;
  client?: StoredOAuthClientInformation;
  tokens?: StoredOAuthTokens;
  /** Milliseconds since the epoch; absent if the server did not say. */
  expiresAt?: number;
}

const LOCK_MS = 20_000;

/**
 * The sign-ins of one proxy directory, one folder per server address. Only their owner can read them: with the proxy's own key,
 * which is stored next to them, someone else could do just as much.
 */
export class Logins {
  readonly #dir: string;

  constructor(dir: string) {
    this.#dir = path.join(dir, 'logins');
  }

  /**
   * Returns only what was stored for exactly this place: for a route, the same address and issuer under another path are another
   * place.
   */
  read(place: LoginPlace): LoginState | undefined {
    let state: LoginState;
    try {
      state = JSON.parse(readFileSync(this.#file(place), 'utf8')) as LoginState;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    const { url, route } = place;
    if (state.url !== url.href || state.route !== route?.path || (route && state.issuer !== route.issuer))
      return undefined;
    const { issuer, tokens } = state;
    const foreign = issuer !== undefined && tokens?.issuer !== undefined && !sameIssuer(tokens.issuer, issuer);
    return foreign ? undefined : state;
  }

  write(state: LoginState): void {
    const file = this.#file(placeOf(state));
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
    writeAtomically(file, JSON.stringify(state));
  }

  remove(place: LoginPlace): void {
    rmSync(path.dirname(this.#file(place)), { recursive: true, force: true });
  }

  /** Runs this while no other process does so for the same server: a refresh token that is used twice may end the sign-in. */
  async alone<T>(place: LoginPlace, run: () => Promise<T>): Promise<T> {
    const dir = path.dirname(this.#file(place));
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    for (const end = Date.now() + LOCK_MS; ; ) {
      const lock = lockDirectory(dir);
      if (lock) {
        try {
          return await run();
        } finally {
          lock.close();
        }
      }
      if (Date.now() > end) throw new Error('another process renews the sign-in and does not end');
      await delay(50);
    }
  }

  #file({ url, route }: LoginPlace): string {
    const key = route ? JSON.stringify([route.path, route.issuer, url.href]) : url.href;
    return path.join(this.#dir, createHash('sha256').update(key).digest('hex').slice(0, 32), 'login.json');
  }
}

function placeOf({ url, route, issuer }: LoginState): LoginPlace {
  return { url: new URL(url), ...(route !== undefined && { route: { path: route, issuer: issuer! } }) };
}

/** Issuers are compared as text (RFC 8414 §3.3), except for a trailing slash, which a URL without a path gets when printed. */
export function sameIssuer(one: string, other: string): boolean {
  return one.replace(/\/$/, '') === other.replace(/\/$/, '');
}
