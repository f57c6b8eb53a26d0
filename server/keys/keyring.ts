import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto';
import type { Database } from '../../db/index.ts';
import type { Clock } from '../lib/clock.ts';
import { keyFingerprint, keyThumbprint, newSigningKey, type SecretBox, spkiDer } from '../lib/crypto.ts';
import { Lookups } from '../lib/lookups.ts';

export interface SigningKey {
  /** RFC 7638 thumbprint. */
  readonly kid: string;
  readonly publicKey: KeyObject;
  /** `sha256:<hex>` of the public key's SPKI DER. */
  readonly fingerprint: string;
  readonly createdAt: Date;
  readonly retiredAt: Date | null;
}

/** What the database keeps of a signing key. */
export interface SigningKeyRow {
  kid: string;
  public_key: Buffer;
  /** Sealed under the master key. */
  private_key: Buffer;
  created_at: Date;
  retired_at: Date | null;
}

/**
 * INVARIANT: what a key of the keyring signed is trusted, retired or not. So a row counts only when its private key opens
 * with the master key and belongs to its public key and name: a row that someone added holds no private key sealed with
 * the master key, and an altered row does not hold the private key of its public key. Throws SealedError.
 */
export function openSigningKey(box: SecretBox, row: SigningKeyRow): SigningKey & { readonly privateKey: KeyObject } {
  try {
    const der = box.open(row.private_key, `signing_key/${row.kid}/private_key`);
    const privateKey = createPrivateKey({ key: der, type: 'pkcs8', format: 'der' });
    const publicKey = createPublicKey(privateKey);
    if (!spkiDer(publicKey).equals(row.public_key) || keyThumbprint(publicKey) !== row.kid) {
      throw new Error('the public key is another one');
    }
    const fingerprint = keyFingerprint(publicKey);
    return { kid: row.kid, publicKey, privateKey, fingerprint, createdAt: row.created_at, retiredAt: row.retired_at };
  } catch (cause) {
    throw new SealedError(`the signing key ${row.kid} was not made with this master key, or was altered`, { cause });
  }
}

/** The one key of the cache: all signing keys together. */
const ALL = 'all';

/** All keys, the current one first, which can sign. */
interface Open {
  keys: readonly SigningKey[];
  privateKey: KeyObject;
}

/** The master key does not open what this database holds. The server then starts sealed: it serves nothing. */
export class SealedError extends Error {}

/**
 * The Ed25519 keys that sign bundles, checkpoints and packages. One is current; retired ones stay to verify what they
 * signed. Private keys are stored encrypted under the master key.
 */
export class Keyring {
  readonly #db: Database;
  readonly #box: SecretBox;
  readonly #clock: Clock;
  readonly #lookups: Lookups<Open>;
  /** As they were last read, also while they are read again. */
  #open!: Open;
  #ready: Promise<void> = Promise.resolve();

  private constructor(db: Database, box: SecretBox, clock: Clock) {
    this.#db = db;
    this.#box = box;
    this.#clock = clock;
    this.#lookups = new Lookups({
      notices: db.notices,
      empties: { signing_keys: () => ALL },
      tags: () => [ALL],
      now: () => clock.now(),
    });
  }

  /**
   * Opens the keys, making the first one in an empty database. Throws SealedError when the master key is not the one
   * that this database was made with.
   */
  static async open(db: Database, box: SecretBox, clock: Clock): Promise<Keyring> {
    const keyring = new Keyring(db, box, clock);
    await keyring.#unseal();
    await keyring.#replace('when there is none');
    keyring.#open = await keyring.#load();
    db.notices.on('signing_keys', () => {
      // INVARIANT: a failed reload keeps the keys that were open; the next use reports the fault
      keyring.#ready = keyring.#reload().then(() => undefined);
      keyring.#ready.catch(() => undefined);
    });
    return keyring;
  }

  /** INVARIANT: of two reloads at a time, the one that began before a change does not end after the other. */
  async #reload(): Promise<Open> {
    const loaded = await this.#lookups.get(ALL, () => this.#load());
    this.#open = this.#lookups.peek(ALL) ?? (this.#db.notices.healthy ? this.#open : loaded);
    return loaded;
  }

  async #unseal(): Promise<void> {
    await this.#db.owner.query('insert into instance (canary, created_at) values ($1, $2) on conflict do nothing', [
      this.#box.seal('svc', 'instance/canary'),
      new Date(this.#clock.now()),
    ]);
    const { rows } = await this.#db.owner.query<{ canary: Buffer }>('select canary from instance');
    try {
      this.#box.open(rows[0]!.canary, 'instance/canary');
    } catch (error) {
      throw new SealedError('the master key does not open this database', { cause: error });
    }
  }

  async #load(): Promise<Open> {
    const { rows } = await this.#db.owner.query<SigningKeyRow>(
      'select * from signing_key order by created_at desc, kid',
    );
    const opened = rows.map((row) => openSigningKey(this.#box, row));
    const keys: SigningKey[] = opened.map(({ privateKey, ...key }) => key);
    const current = opened.find((key) => !key.retiredAt);
    if (!current) throw new SealedError('there is no current signing key');
    return {
      privateKey: current.privateKey,
      // the current one first, whatever the clocks said when they were made
      keys: [...keys.filter((k) => !k.retiredAt), ...keys.filter((k) => k.retiredAt)],
    };
  }

  /** Waits for a reload that a notice began. */
  settled(): Promise<void> {
    return this.#ready;
  }

  get current(): SigningKey & { readonly privateKey: KeyObject } {
    return { ...this.#open.keys[0]!, privateKey: this.#open.privateKey };
  }

  /** All keys, the current one first. */
  get all(): readonly SigningKey[] {
    return this.#open.keys;
  }

  find(kid: string): KeyObject | undefined {
    return this.#open.keys.find((key) => key.kid === kid)?.publicKey;
  }

  /** Makes a new current key and retires the one before. When it resolves, every process signs with the new key soon. */
  async rotate(): Promise<SigningKey> {
    await this.#replace('always');
    this.#lookups.forget(ALL);
    const { keys } = await this.#reload();
    // the notice may have begun another one
    await this.#ready;
    return keys[0]!;
  }

  /** Under the table's lock, so that processes that start together make one first key. */
  async #replace(when: 'always' | 'when there is none'): Promise<void> {
    const { privateKey, publicKey } = newSigningKey();
    const kid = keyThumbprint(publicKey);
    const now = new Date(this.#clock.now());
    const der = privateKey.export({ type: 'pkcs8', format: 'der' }) as Buffer;
    const client = await this.#db.owner.connect();
    try {
      await client.query('begin');
      await client.query('lock table signing_key in share row exclusive mode');
      const current = await client.query('select 1 from signing_key where retired_at is null');
      if (when === 'when there is none' && current.rowCount !== 0) {
        await client.query('rollback');
        return;
      }
      await client.query('update signing_key set retired_at = $1 where retired_at is null', [now]);
      await client.query('insert into signing_key (kid, public_key, private_key, created_at) values ($1, $2, $3, $4)', [
        kid,
        spkiDer(publicKey),
        this.#box.seal(der, `signing_key/${kid}/private_key`),
        now,
      ]);
      await client.query(`select pg_notify('svc_notice', 'signing_keys * ')`);
      await client.query('commit');
    } catch (error) {
      await client.query('rollback');
      throw error;
    } finally {
      client.release();
    }
  }
}
