import {
  createCipheriv,
  createDecipheriv,
  createPublicKey,
  generateKeyPairSync,
  hash,
  hkdfSync,
  type KeyObject,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';

export function sha256(data: string | Uint8Array): Buffer {
  return hash('sha256', data, 'buffer');
}

/** In hex. */
export function sha256Hex(data: string | Uint8Array): string {
  return hash('sha256', data, 'hex');
}

/** `sha256:<hex>`, the form in which every hash leaves this system except BLAKE3 chain hashes (bare hex). */
export function sha256Tag(data: string | Uint8Array): string {
  return `sha256:${sha256Hex(data)}`;
}

const POOL_BYTES = 4096;
let pool = Buffer.alloc(0);
let drawn = 0;

/**
 * A few bytes from the system's generator, each handed out once. They are drawn in batches of some thousands, because drawing
 * sixteen takes just as long. For ids and salts; keys are drawn individually. The view is valid until the next call.
 */
export function randomFew(bytes: number): Buffer {
  if (drawn + bytes > pool.length) {
    pool = randomBytes(POOL_BYTES);
    drawn = 0;
  }
  drawn += bytes;
  return pool.subarray(drawn - bytes, drawn);
}

/** Compares two secrets (or their hashes) in a time that does not depend on where they differ; unequal lengths are unequal. */
export function equalSecret(a: Uint8Array, b: Uint8Array): boolean {
  return a.byteLength === b.byteLength && timingSafeEqual(a, b);
}

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

/** `length` characters of base62 from the system's generator, each of them uniform (bytes over 247 are discarded). */
export function randomBase62(length: number): string {
  let out = '';
  while (out.length < length) {
    for (const byte of randomBytes(length * 2)) {
      if (byte < 248 && out.length < length) out += BASE62[byte % 62];
    }
  }
  return out;
}

/** A number in base62, left-padded to `width`. */
export function toBase62(value: number, width: number): string {
  let out = '';
  for (let rest = value; out.length < width; rest = Math.floor(rest / 62)) out = BASE62[rest % 62] + out;
  return out;
}

/** The SPKI DER of an Ed25519 public key: the input of its fingerprint. */
export function spkiDer(key: KeyObject): Buffer {
  return key.export({ type: 'spki', format: 'der' }) as Buffer;
}

/** `sha256:<hex>` of the key's SPKI DER. */
export function keyFingerprint(publicKey: KeyObject): string {
  return sha256Tag(spkiDer(publicKey));
}

/** The RFC 7638 thumbprint of an Ed25519 key, used as `kid`. */
export function keyThumbprint(publicKey: KeyObject): string {
  const { crv, kty, x } = publicKey.export({ format: 'jwk' });
  return sha256(JSON.stringify({ crv, kty, x })).toString('base64url');
}

export function newSigningKey(): { privateKey: KeyObject; publicKey: KeyObject } {
  return generateKeyPairSync('ed25519');
}

export function publicKeyOf(privateKey: KeyObject): KeyObject {
  return createPublicKey(privateKey);
}

/**
 * Seals secrets at rest with AES-256-GCM under a key derived from the master key.
 *
 * `place` (tenant/table/id/column) is authenticated with the secret: a ciphertext that is moved to another row, column
 * or tenant does not open. Form: 0x01 | 8-byte id of the master key | 12-byte random nonce | ciphertext | 16-byte tag.
 */
export class SecretBox {
  readonly #key: Buffer;
  /** Identifies the master key that sealed a secret, and reveals nothing about the key. */
  readonly keyId: Buffer;

  constructor(masterKey: Uint8Array) {
    if (masterKey.byteLength < 32) throw new RangeError('the master key must have at least 32 bytes');
    this.#key = Buffer.from(hkdfSync('sha256', masterKey, Buffer.alloc(0), 'svc secret box v1', 32));
    this.keyId = Buffer.from(hkdfSync('sha256', masterKey, Buffer.alloc(0), 'svc key id v1', 8));
  }

  seal(secret: string | Uint8Array, place: string): Buffer {
    const nonce = randomBytes(12);
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(Buffer.from(place));
    const body = Buffer.concat([cipher.update(secret as Uint8Array), cipher.final()]);
    return Buffer.concat([Buffer.from([1]), this.keyId, nonce, body, cipher.getAuthTag()]);
  }

  /** The secret, or an Error that names the place and never the secret. */
  open(sealed: Uint8Array, place: string): Buffer {
    const bytes = Buffer.from(sealed);
    if (bytes[0] !== 1 || bytes.length < 37) throw new Error(`the secret at ${place} has an unknown form`);
    if (!bytes.subarray(1, 9).equals(this.keyId)) throw new Error(`the secret at ${place} has another master key`);
    const decipher = createDecipheriv('aes-256-gcm', this.#key, bytes.subarray(9, 21)).setAAD(Buffer.from(place));
    decipher.setAuthTag(bytes.subarray(-16));
    try {
      return Buffer.concat([decipher.update(bytes.subarray(21, -16)), decipher.final()]);
    } catch {
      throw new Error(`the secret at ${place} does not open: it was changed, moved, or has another master key`);
    }
  }
}
