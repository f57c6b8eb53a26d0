import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto';
import { inTransaction } from '../../db/client.ts';
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

/** A signing key as stored. */
export interface SigningKeyRow {
  kid: string;
  public_key: Buffer;
  /** Encrypted with the master key. */
  private_key: Buffer;
  created_at: Date;
  retired_at: Date | null;
}

/**
 * INVARIANT: everything that a key of the keyring signed is trusted, retired or not. A row is therefore valid only if
 * its private key decrypts with the master key and matches the row's public key and name: an inserted row has no
 * private key encrypted with the master key, and an altered row does not have the private key of its public key. Throws
 * SealedError.
 */
export function openSigningKey(box: SecretBox, row: SigningKeyRow): SigningKey & { readonly privateKey: KeyObject } {
  try {
    const der = box.open(row.private_key, `signing_key/${row.kid}/private_key`);
    const privateKey = createPrivateKey({ key: der, type: 'pkcs8', format: 'der' });
    const publicKey = createPublicKey(privateKey);
    if (!spkiDer(publicKey).equals(row.public_key) || keyThumbprint(publicKey) !== row.kid) {
      throw new Error('the public key does not match');
    }
    const fingerprint = keyFingerprint(publicKey);
    return { kid: row.kid, publicKey, privateKey, fingerprint, createdAt: row.created_at, retiredAt: row.retired_at };
  } catch (cause) {
    throw new SealedError(`the signing key ${row.kid} was not created with this master key, or was altered`, { cause });
  }
}

/** Up to which record of each chain, and up to which bundle, a former key is trusted. */
export interface FormerLimits {
  readonly forensics: ChainLimit;
  readonly audit: ChainLimit;
  readonly bundles: number;
}

/** A record, and how many losses had been accepted by then. */
interface ChainLimit {
  readonly seq: number;
  readonly generation: number;
}

/**
 * A public key of the installation that a tenant came from. It verifies what that installation signed for this tenant until the
 * tenant moved, and nothing else: nothing of another tenant, and nothing later. It never signs here, since its private key stayed
 * behind.
 */
export interface FormerKey {
  readonly tenantId: string;
  readonly kid: string;
  readonly publicKey: KeyObject;
  readonly upTo: FormerLimits;
}

/** A former key as stored. */
export interface FormerKeyRow {
  tenant_id: string;
  kid: string;
  /** The key and its limits, encrypted with the master key: someone who can write to the table can neither add nor widen one. */
  sealed: Buffer;
}

const formerPlace = (tenantId: string, kid: string) => `${tenantId}/former_key/${kid}/sealed`;

/** Seals a former key for storage. */
export function sealFormerKey(box: SecretBox, { tenantId, kid, publicKey, upTo }: FormerKey): FormerKeyRow {
  const text = JSON.stringify({ spki: spkiDer(publicKey).toString('base64'), upTo });
  return { tenant_id: tenantId, kid, sealed: box.seal(text, formerPlace(tenantId, kid)) };
}

/** Throws SealedError for a row that was not sealed with this master key for this tenant and key. */
export function openFormerKey(box: SecretBox, { tenant_id: tenantId, kid, sealed }: FormerKeyRow): FormerKey {
  try {
    const { spki, upTo } = JSON.parse(box.open(sealed, formerPlace(tenantId, kid)).toString()) as {
      spki: string;
      upTo: FormerLimits;
    };
    const publicKey = createPublicKey({ key: Buffer.from(spki, 'base64'), type: 'spki', format: 'der' });
    return { tenantId, kid, publicKey, upTo };
  } catch (cause) {
    throw new SealedError(`the former key ${kid} was not added with this master key, or was altered`, { cause });
  }
}

/** The keys trusted for notes about a chain: the installation's own, and those of the installations its tenant came from. */
export function keysOfChain(
  own: readonly KeyObject[],
  former: readonly FormerKey[],
  tenantId: string,
  chain: 'forensics' | 'audit',
): (KeyObject | { publicKey: KeyObject; upTo: ChainLimit })[] {
  const here = former.filter((key) => key.tenantId === tenantId);
  return [...own, ...here.map(({ publicKey, upTo }) => ({ publicKey, upTo: upTo[chain] }))];
}

/** The only key of the cache, for all signing keys together. */
const ALL = 'all';

/** All keys, starting with the current one, which signs. */
interface Open {
  keys: readonly SigningKey[];
  former: readonly FormerKey[];
  privateKeys: ReadonlyMap<string, KeyObject>;
}

/** The master key does not decrypt this database's keys. The server then starts sealed and serves nothing. */
export class SealedError extends Error {}

/**
 * The Ed25519 keys that sign bundles, checkpoints and packages. One is current; retired ones are kept so that their signatures
 * can be verified. Private keys are stored encrypted with the master key.
 */
export class Keyring {
  readonly #db: Database;
  readonly #box: SecretBox;
  readonly #clock: Clock;
  readonly #lookups: Lookups<Open>;
  /** The keys as last loaded; kept while a reload is in progress. */
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
   * Loads the keys, and creates the first one in an empty database. Throws SealedError if the database was created with
   * another master key.
   */
  static async open(db: Database, box: SecretBox, clock: Clock): Promise<Keyring> {
    const keyring = new Keyring(db, box, clock);
    await keyring.#unseal();
    await keyring.#replace('when there is none');
    keyring.#open = await keyring.#load();
    db.notices.on('signing_keys', () => {
      // INVARIANT: a failed reload keeps the loaded keys; the next use reports the fault
      keyring.#ready = keyring.#reload().then(() => undefined);
      keyring.#ready.catch(() => undefined);
    });
    return keyring;
  }

  /** INVARIANT: of two concurrent reloads, one that began before a change does not finish after the other. */
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
    const { rows: former } = await this.#db.owner.query<FormerKeyRow>('select * from former_key');
    return {
      privateKeys: new Map(opened.map(({ kid, privateKey }) => [kid, privateKey])),
      former: former.map((row) => openFormerKey(this.#box, row)),
      // the current one first, even if a clock was wrong when it was created
      keys: [...keys.filter((k) => !k.retiredAt), ...keys.filter((k) => k.retiredAt)],
    };
  }

  /** Waits for a reload triggered by a notice. */
  settled(): Promise<void> {
    return this.#ready;
  }

  get current(): SigningKey & { readonly privateKey: KeyObject } {
    return this.#signing(this.#open.keys[0]!);
  }

  /**
   * The key that signs for someone who trusts only these, so that a proxy which was not told of a new key yet hears that what it
   * has is still current: the newest one of them, even if it is retired, and the current one if none of them is known.
   */
  signerOf(trusted: readonly string[]): SigningKey & { readonly privateKey: KeyObject } {
    const { keys } = this.#open;
    return this.#signing(keys.find(({ kid }) => trusted.includes(kid)) ?? keys[0]!);
  }

  #signing(key: SigningKey): SigningKey & { readonly privateKey: KeyObject } {
    return { ...key, privateKey: this.#open.privateKeys.get(key.kid)! };
  }

  /** All keys, the current one first. */
  get all(): readonly SigningKey[] {
    return this.#open.keys;
  }

  /** The keys trusted for notes about a chain. */
  ofChain(tenantId: string, chain: 'forensics' | 'audit') {
    const { keys, former } = this.#open;
    return keysOfChain(
      keys.map(({ publicKey }) => publicKey),
      former,
      tenantId,
      chain,
    );
  }

  /** The keys of the installations that a tenant came from. */
  formerOf(tenantId: string): readonly FormerKey[] {
    return this.#open.former.filter((key) => key.tenantId === tenantId);
  }

  /** The key of a bundle that was signed for the tenant, here or, before it moved, elsewhere. */
  ofBundle(kid: string, { tenant, seq }: { tenant: string; seq: number }): KeyObject | undefined {
    const former = this.formerOf(tenant).find((key) => key.kid === kid && seq <= key.upTo.bundles);
    return this.find(kid) ?? former?.publicKey;
  }

  find(kid: string): KeyObject | undefined {
    return this.#open.keys.find((key) => key.kid === kid)?.publicKey;
  }

  /**
   * Creates a new current key and retires the previous one. Other processes sign with the new key shortly after it
   * resolves.
   */
  async rotate(): Promise<SigningKey> {
    this.#db.replication?.assert();
    await this.#replace('always');
    this.#lookups.forget(ALL);
    const { keys } = await this.#reload();
    // the notice may have triggered another reload
    await this.#ready;
    return keys[0]!;
  }

  /** Takes the table's lock, so that processes that start together create only one first key. */
  async #replace(when: 'always' | 'when there is none'): Promise<void> {
    const { privateKey, publicKey } = newSigningKey();
    const kid = keyThumbprint(publicKey);
    const now = new Date(this.#clock.now());
    const der = privateKey.export({ type: 'pkcs8', format: 'der' }) as Buffer;
    await inTransaction(this.#db.owner, async (client) => {
      await client.query('lock table signing_key in share row exclusive mode');
      const current = await client.query('select 1 from signing_key where retired_at is null');
      if (when === 'when there is none' && current.rowCount !== 0) return;
      await client.query('update signing_key set retired_at = $1 where retired_at is null', [now]);
      await client.query('insert into signing_key (kid, public_key, private_key, created_at) values ($1, $2, $3, $4)', [
        kid,
        spkiDer(publicKey),
        this.#box.seal(der, `signing_key/${kid}/private_key`),
        now,
      ]);
      await client.query(`select pg_notify('svc_notice', 'signing_keys * ')`);
    });
  }
}
