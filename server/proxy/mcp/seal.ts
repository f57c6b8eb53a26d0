import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';
import { deflateRawSync, inflateRawSync } from 'node:zlib';

/** What is sealed for one use cannot be opened for another. */
export type SealedFor = 'round' | 'hold' | 'task' | 'server-task';

const MOST_BYTES = 256 * 1024;

/**
 * Seals what a client carries for the proxy (AES-256-GCM): no one else can read or create it, and every proxy with the same key
 * can open it. A seal does not prove single use.
 */
export class Seal {
  readonly #secret: () => string;
  #derived: { secret: string; key: Buffer; nonces: Buffer } | undefined;

  constructor(secret: () => string) {
    this.#secret = secret;
  }

  /** Base64url. */
  seal(use: SealedFor, value: unknown): string {
    const nonce = randomBytes(12);
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(Buffer.from(use));
    const body = Buffer.concat([cipher.update(deflateRawSync(JSON.stringify(value))), cipher.final()]);
    return Buffer.concat([nonce, body, cipher.getAuthTag()]).toString('base64url');
  }

  /** The value; undefined if it was not sealed here, for this use, in this exact encoding. */
  open(use: SealedFor, text: unknown): unknown {
    try {
      const body = this.#opened(Buffer.from(use), text);
      return body && JSON.parse(inflateRawSync(body, { maxOutputLength: MOST_BYTES }).toString());
    } catch {
      return undefined;
    }
  }

  #opened(aad: Buffer, text: unknown): Buffer | undefined {
    if (typeof text !== 'string') return undefined;
    const bytes = Buffer.from(text, 'base64url');
    if (bytes.length < 28 || bytes.toString('base64url') !== text) return undefined;
    try {
      const decipher = createDecipheriv('aes-256-gcm', this.#key, bytes.subarray(0, 12)).setAAD(aad);
      decipher.setAuthTag(bytes.subarray(-16));
      return Buffer.concat([decipher.update(bytes.subarray(12, -16)), decipher.final()]);
    } catch {
      return undefined;
    }
  }

  /**
   * A name for a text, always the same for the same text, and valid only for what it is `bound` to. That two names stand for the
   * same text is all that they reveal: the nonce is derived from the text (as in RFC 5297).
   */
  name(use: SealedFor, bound: string, text: string): string {
    const plain = Buffer.from(text);
    const aad = nameAad(use, bound);
    const { key, nonces } = this.#keys;
    const nonce = createHmac('sha256', nonces).update(aad).update('\0').update(plain).digest().subarray(0, 12);
    const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(aad);
    const body = Buffer.concat([cipher.update(plain), cipher.final()]);
    return Buffer.concat([nonce, body, cipher.getAuthTag()]).toString('base64url');
  }

  /** The text of a name; undefined if it was not named here, for this use and what it is bound to. */
  named(use: SealedFor, bound: string, name: unknown): string | undefined {
    return this.#opened(nameAad(use, bound), name)?.toString();
  }

  get #key(): Buffer {
    return this.#keys.key;
  }

  get #keys(): { key: Buffer; nonces: Buffer } {
    const secret = this.#secret();
    if (this.#derived?.secret !== secret) {
      const derive = (info: string) => Buffer.from(hkdfSync('sha256', secret, '', info, 32));
      this.#derived = { secret, key: derive('svc mcp seal v1'), nonces: derive('svc mcp seal nonces v1') };
    }
    return this.#derived;
  }
}

function nameAad(use: SealedFor, bound: string): Buffer {
  return Buffer.from(`${use} name\0${bound}`);
}
