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

/** A sign-in at an MCP server: what the proxy may do there for the person who signed in. */
export interface LoginState {
  /** The server's address. INVARIANT: tokens are sent to it, and to the authorization server below, alone. */
  url: string;
  discovery?: OAuthDiscoveryState;
  client?: StoredOAuthClientInformation;
  tokens?: StoredOAuthTokens;
  /** Milliseconds since the epoch; absent where the server did not say. */
  expiresAt?: number;
}

const LOCK_MS = 20_000;

/**
 * The sign-ins of one proxy directory, one folder for each server's address. Only their owner can read them: with what
 * stands beside them, the proxy's own key, somebody else could do as much.
 */
export class Logins {
  readonly #dir: string;

  constructor(dir: string) {
    this.#dir = path.join(dir, 'logins');
  }

  read(url: URL): LoginState | undefined {
    let state: LoginState;
    try {
      state = JSON.parse(readFileSync(this.#file(url), 'utf8')) as LoginState;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    return state.url === url.href ? state : undefined;
  }

  write(state: LoginState): void {
    const file = this.#file(new URL(state.url));
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
    writeAtomically(file, JSON.stringify(state));
  }

  /** False where there was none. */
  remove(url: URL): boolean {
    const known = this.read(url) !== undefined;
    rmSync(path.dirname(this.#file(url)), { recursive: true, force: true });
    return known;
  }

  /** Runs this while no other process does for the same server: a refresh token that is used twice may end the sign-in. */
  async alone<T>(url: URL, run: () => Promise<T>): Promise<T> {
    const dir = path.dirname(this.#file(url));
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

  #file(url: URL): string {
    return path.join(this.#dir, createHash('sha256').update(url.href).digest('hex').slice(0, 32), 'login.json');
  }
}
