import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto';
import type { Database } from '../../db/index.ts';
import type { Clock } from '../lib/clock.ts';
import { keyFingerprint, keyThumbprint, newSigningKey, type SecretBox, spkiDer } from '../lib/crypto.ts';

export interface SigningKey {
  /** RFC 7638 thumbprint. */
  readonly kid: string;
  readonly publicKey: KeyObject;
  /** `sha256:<hex>` of the public key's SPKI DER. */
  readonly fingerprint: string;
  readonly createdAt: Date;
  readonly retiredAt: Date | null;
}

/** The master key does not open what this database holds. The server then starts sealed: it serves nothing. */
export class SealedError extends Error {}

/**
 * The Ed25519 keys that sign bundles, checkpoints and packages. One is current; retired ones stay to verify what they
 * signed. Private keys rest encrypted under the master key.
 */
export class Keyring {
  readonly #db: Database;
  readonly #box: SecretBox;
  readonly #clock: Clock;
  #keys: SigningKey[] = [];
  #private: KeyObject | undefined;
  #ready: Promise<void> = Promise.resolve();

  private constructor(db: Database, box: SecretBox, clock: Clock) {
    this.#db = db;
    this.#box = box;
    this.#clock = clock;
  }

  /**
   * Opens the keys, making the first one in an empty database. Throws SealedError when the master key is not the one
   * that this database was made with.
   */
  static async open(db: Database, box: SecretBox, clock: Clock): Promise<Keyring> {
    const keyring = new Keyring(db, box, clock);
    await keyring.#unseal();
    await keyring.#replace('when there is none');
    await keyring.#load();
    db.notices.on('signing_keys', () => {
      // INVARIANT: a failed reload keeps the keys that were open; the next use tells of the fault
      keyring.#ready = keyring.#load();
      keyring.#ready.catch(() => undefined);
    });
    return keyring;
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

  async #load(): Promise<void> {
    const { rows } = await this.#db.owner.query<{
      kid: string;
      public_key: Buffer;
      private_key: Buffer;
      created_at: Date;
      retired_at: Date | null;
    }>('select * from signing_key order by created_at desc, kid');
    const keys = rows.map((row) => {
      const publicKey = createPublicKey({ key: row.public_key, type: 'spki', format: 'der' });
      const fingerprint = keyFingerprint(publicKey);
      return { kid: row.kid, publicKey, fingerprint, createdAt: row.created_at, retiredAt: row.retired_at };
    });
    const current = rows.find((row) => !row.retired_at);
    if (!current) throw new SealedError('there is no current signing key');
    const der = this.#box.open(current.private_key, `signing_key/${current.kid}/private_key`);
    this.#private = createPrivateKey({ key: der, type: 'pkcs8', format: 'der' });
    // the current one first, whatever the clocks said when they were made
    this.#keys = [...keys.filter((k) => !k.retiredAt), ...keys.filter((k) => k.retiredAt)];
  }

  /** Waits for a reload that a notice began. */
  settled(): Promise<void> {
    return this.#ready;
  }

  get current(): SigningKey & { readonly privateKey: KeyObject } {
    return { ...this.#keys[0]!, privateKey: this.#private! };
  }

  /** All keys, the current one first. */
  get all(): readonly SigningKey[] {
    return this.#keys;
  }

  find(kid: string): KeyObject | undefined {
    return this.#keys.find((key) => key.kid === kid)?.publicKey;
  }

  /** Makes a new current key and retires the one before. When it resolves, every process signs with the new key soon. */
  async rotate(): Promise<SigningKey> {
    await this.#replace('always');
    await this.#load();
    return this.#keys[0]!;
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
