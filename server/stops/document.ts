import { type KeyObject, verify } from 'node:crypto';
import { STOP_KIND_NAMES, STOP_MODE_NAMES, type Stop } from '../domain/stops.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';

/**
 * The document of a tenant's stops, version 1: a compact JWS (RFC 7515) over canonical JSON, which proxies poll and keep.
 * It is small and separate, so that a stop waits for no policy, bundle or scope.
 */
export const STOPS_TYPE = 'svc-stops+jws';
const FORMAT = 'svc-stops/1';
/** More than the longest targets and reasons of the maximum number of stops in force. */
const MOST_BYTES = 4 * 1024 * 1024;

export interface StopsDocument {
  format: typeof FORMAT;
  tenant: string;
  /** Increases with every change. A consumer rejects one lower than it has seen. */
  seq: number;
  /**
   * After this many seconds without a response from the control plane, a proxy denies anything that is not read-only; 0:
   * never.
   */
  grace_seconds: number;
  /** In ascending order of their ids. */
  stops: readonly Stop[];
}

export interface StopsHeader {
  alg: 'EdDSA';
  kid: string;
  typ: typeof STOPS_TYPE;
}

export type StopsFault =
  | 'format' // not such a document, or another version
  | 'key' // unknown kid
  | 'signature'
  | 'tenant' // another tenant's
  | 'rollback'; // older than one seen before

/** A document that must not be used. `reason` is stable; the message is for people. */
export class StopsError extends Error {
  override readonly name = 'StopsError';
  readonly reason: StopsFault;

  constructor(reason: StopsFault, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** What is signed. Throws a RangeError if it does not fit the format. */
export function stopsDocument(
  tenant: string,
  { seq, grace_seconds, stops }: Omit<StopsDocument, 'format' | 'tenant'>,
): StopsDocument {
  const document = { format: FORMAT, tenant, seq, grace_seconds, stops } as const;
  if (!isDocument(document)) throw new RangeError('these stops do not fit the format');
  return document;
}

/** Identifies a document's content, whichever key signed it: the ETag. */
export function stopsHash(document: StopsDocument): string {
  return sha256Tag(canonicalJson(document));
}

/** The key that a document claims to be signed with; undefined if it is not such a document. Only for looking up the key. */
export function signerOf(text: string): string | undefined {
  try {
    return headerOf(text.split('.')[0] ?? '').kid;
  } catch {
    return undefined;
  }
}

/** Opens a document. For any bad input it throws a StopsError and nothing else. */
export function openStops(
  text: string,
  keyFor: (kid: string) => KeyObject | undefined,
  expect: { tenant: string; min_seq: number },
): StopsDocument {
  if (text.length > MOST_BYTES) throw new StopsError('format', 'the document is too long');
  const [head = '', body = '', tail = '', ...more] = text.split('.');
  // the last character has unused bits; only the canonical encoding is accepted (RFC 4648 §3.5)
  const isCanonical = (part: string) => Buffer.from(part, 'base64url').toString('base64url') === part;
  if (more.length > 0 || ![head, body, tail].every(isCanonical)) throw new StopsError('format', 'it is no compact JWS');
  const { kid } = headerOf(head);
  const key = keyFor(kid);
  if (!key) throw new StopsError('key', `unknown signing key ${kid}`);
  const signature = Buffer.from(tail, 'base64url');
  const good = key.asymmetricKeyType === 'ed25519' && signature.length === 64;
  if (!good || !verify(null, Buffer.from(`${head}.${body}`, 'latin1'), key, signature)) {
    throw new StopsError('signature', 'the signature is not valid');
  }
  const document = canonical(Buffer.from(body, 'base64url'));
  if (!isDocument(document)) throw new StopsError('format', 'the content is not that of version 1');
  if (document.tenant !== expect.tenant) throw new StopsError('tenant', `the stops are those of ${document.tenant}`);
  if (document.seq < expect.min_seq) {
    throw new StopsError('rollback', `stops of seq ${expect.min_seq} were seen before these of ${document.seq}`);
  }
  return document;
}

function headerOf(head: string): StopsHeader {
  const header = canonical(Buffer.from(head, 'base64url'));
  if (!isObject(header, ['alg', 'kid', 'typ'])) throw new StopsError('format', 'the header is not that of version 1');
  const { alg, kid, typ } = header;
  if (alg !== 'EdDSA' || typ !== STOPS_TYPE || typeof kid !== 'string') {
    throw new StopsError('format', `the header is not of an EdDSA signature of ${STOPS_TYPE}`);
  }
  return { alg, kid, typ };
}

/** Parsers may disagree about duplicate members or other spellings of a value, so only the canonical form is accepted. */
function canonical(bytes: Buffer): unknown {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    const value: unknown = JSON.parse(text);
    if (canonicalJson(value) === text) return value;
  } catch {
    // handled like non-canonical text
  }
  throw new StopsError('format', 'it is not canonical JSON');
}

function isDocument(value: unknown): value is StopsDocument {
  return (
    isObject(value, ['format', 'grace_seconds', 'seq', 'stops', 'tenant']) &&
    value.format === FORMAT &&
    typeof value.tenant === 'string' &&
    [value.seq, value.grace_seconds].every((one) => Number.isSafeInteger(one) && (one as number) >= 0) &&
    Array.isArray(value.stops) &&
    value.stops.every((stop, n, all) => isStop(stop) && (n === 0 || all[n - 1].id < stop.id))
  );
}

const KINDS: readonly unknown[] = STOP_KIND_NAMES;
const MODES: readonly unknown[] = STOP_MODE_NAMES;

function isStop(value: unknown): value is Stop {
  const more = ['abort', 'until'].filter((name) => Object.hasOwn(Object(value), name));
  return (
    isObject(value, ['id', 'kind', 'mode', 'reason', 'target', ...more]) &&
    [value.id, value.target, value.reason].every((one) => typeof one === 'string') &&
    KINDS.includes(value.kind) &&
    MODES.includes(value.mode) &&
    (!more.includes('abort') || (value.abort === true && value.mode === 'deny')) &&
    (!more.includes('until') || (typeof value.until === 'string' && !Number.isNaN(Date.parse(value.until))))
  );
}

/** An object with exactly these members, in any order. */
function isObject(value: unknown, keys: readonly string[]): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const own = Object.keys(value);
  return own.length === keys.length && keys.every((key) => own.includes(key));
}
