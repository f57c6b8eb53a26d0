import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { deflateRawSync, inflateRawSync } from 'node:zlib';

/** What is sealed for one use opens for no other. */
export type SealedFor = 'round' | 'hold' | 'task';

const MOST_BYTES = 256 * 1024;

/**
 * Seals what a client carries for the proxy (AES-256-GCM): it can neither be read nor made by others, and is opened by
 * every proxy with the same key. A seal proves no single use.
 */
export class Seal {
  readonly #secret: () => string;

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

  /** The value; undefined for what was not sealed here, for this use, in this writing. */
  open(use: SealedFor, text: unknown): unknown {
    if (typeof text !== 'string') return undefined;
    const bytes = Buffer.from(text, 'base64url');
    if (bytes.length < 29 || bytes.toString('base64url') !== text) return undefined;
    try {
      const decipher = createDecipheriv('aes-256-gcm', this.#key, bytes.subarray(0, 12)).setAAD(Buffer.from(use));
      decipher.setAuthTag(bytes.subarray(-16));
      const body = Buffer.concat([decipher.update(bytes.subarray(12, -16)), decipher.final()]);
      return JSON.parse(inflateRawSync(body, { maxOutputLength: MOST_BYTES }).toString());
    } catch {
      return undefined;
    }
  }

  get #key(): Buffer {
    return Buffer.from(hkdfSync('sha256', this.#secret(), '', 'svc mcp seal v1', 32));
  }
}
