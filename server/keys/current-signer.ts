import { Bounded } from '../lib/bounded.ts';
import type { Clock } from '../lib/clock.ts';
import { type Standing, signCurrent } from './current.ts';
import type { Keyring } from './keyring.ts';

/** How long one signature serves, for all proxies of a tenant: shorter than any grace that is worth setting. */
const SERVES_MS = 1_000;

/** Signs what is current, at most once in a while for each tenant. */
export class CurrentSigner {
  readonly #keyring: Pick<Keyring, 'signerOf'>;
  readonly #clock: Clock;
  readonly #made = new Bounded<{ text: string; at: number }>({ entries: 20_000, characters: 8_000_000 });

  constructor(keyring: Pick<Keyring, 'signerOf'>, clock: Clock) {
    this.#keyring = keyring;
    this.#clock = clock;
  }

  /** `trusted`: the ids of the only keys that the proxy trusts, with commas; empty if it named none. */
  sign(standing: Standing, trusted: string): string {
    const signer = this.#keyring.signerOf(trusted.split(',', 20).map((kid) => kid.trim()));
    const now = this.#clock.now();
    const key = `${standing.what} ${standing.tenant} ${standing.seq} ${standing.hash} ${signer.kid}`;
    const made = this.#made.get(key);
    if (made && now - made.at >= 0 && now - made.at < SERVES_MS) return made.text;
    return this.#made.set(key, { text: signCurrent(standing, now, signer), at: now }).text;
  }
}
