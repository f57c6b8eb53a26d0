import { isUtf8 } from 'node:buffer';
import { BlockList, isIP } from 'node:net';
import { promisify } from 'node:util';
import { brotliDecompress, gunzip, inflate } from 'node:zlib';
import { nestsDeeper } from '../lib/json-depth.ts';
import { ConfigError, type HttpRoute, type Route } from './config.ts';
import { Refusal } from './decide.ts';

/**
 * What a request says, read so that there is one reading: what was decided on is what the upstream gets. A JSON or form
 * body goes on as it was understood, printed anew; a path that programs read in different ways is refused.
 */

const MOST_DEPTH = 64;

/** The path with unreserved characters decoded (RFC 3986 §6.2.2.2), and the query as it stands. Throws a Refusal. */
export function readTarget(target: string): { path: string; query: string } {
  const bad = (why: string) => new Refusal(400, 'VALIDATION_FAILED', `the target of the request ${why}`);
  if (!target.startsWith('/')) throw bad('is not a path');
  const at = target.indexOf('?');
  const query = at < 0 ? '' : target.slice(at);
  const raw = at < 0 ? target : target.slice(0, at);
  if (!/^[\x21-\x7e]*$/.test(target) || target.includes('#') || /["<>\\^`{|}]/.test(raw)) {
    throw bad('has characters that no path has');
  }
  if (/%(?![0-9A-Fa-f]{2})/.test(raw)) throw bad('has an incomplete escape');
  const path = raw.replace(/%([0-9A-Fa-f]{2})/g, (octet, hex: string) => {
    const character = String.fromCharCode(Number.parseInt(hex, 16));
    return /[A-Za-z0-9\-._~]/.test(character) ? character : octet.toUpperCase();
  });
  if (/%(?:2F|5C|00)/.test(path)) throw bad('has an escaped separator');
  if (path.includes('//') || /(?:^|\/)\.{1,2}(?:\/|$)/.test(path)) throw bad('has empty or dot segments');
  // some servers cut path parameters off before they look at the segments (`/public/..;/admin`)
  if (/(?:^|\/)\.{1,2};/.test(path)) throw bad('has empty or dot segments');
  return { path, query };
}

/** The most specific route for a path, and what is left of the path beyond the route's own; undefined for none. */
export function findRoute(routes: readonly Route[], path: string): { route: Route; rest: string } | undefined {
  let best: { route: Route; rest: string; length: number } | undefined;
  for (const route of routes) {
    const base = route.path.replace(/\/?\*$/, '');
    const open = route.path.endsWith('*');
    if (open ? path !== base && !path.startsWith(`${base}/`) : path !== base) continue;
    const length = base.length + (open ? 0 : 1);
    if (!best || length > best.length) best = { route, rest: path.slice(base.length), length };
  }
  return best && { route: best.route, rest: best.rest };
}

/** Where the request goes: the upstream's own path, then what is left of the request's, and its query. */
export function upstreamUrl(route: HttpRoute, rest: string, query: string): URL {
  const url = new URL(route.to);
  const base = rest === '' ? url.pathname : url.pathname.replace(/\/$/, '');
  // assigned as text: the parts were checked, and must not be read once more in another way
  return new URL(`${url.origin}${base}${rest}${query}`);
}

export interface ReadBody {
  /** As policies see it: the JSON value, the form's members, or the digest of what is opaque. Absent without a body. */
  value?: unknown;
  /** What goes to the upstream. */
  bytes: Buffer;
  kind: 'none' | 'json' | 'form' | 'opaque';
  /** The bytes are not those that came, so that digests and signatures over those no longer hold. */
  rewritten: boolean;
}

/** Reads a body, already without its content coding. Throws a Refusal. */
export function readBody(
  bytes: Buffer,
  contentType: string | undefined,
  opaque: false | ((bytes: Buffer) => unknown),
): ReadBody {
  if (bytes.length === 0) return { bytes, kind: 'none', rewritten: false };
  const { type, charset } = mediaType(contentType);
  if (charset === undefined || /^(?:utf-?8|us-ascii)$/.test(charset)) {
    if (isJson(type)) {
      const value = readJson(bytes);
      return { value, bytes: Buffer.from(JSON.stringify(value)), kind: 'json', rewritten: true };
    }
    if (type === 'application/x-www-form-urlencoded') {
      const text = isUtf8(bytes) ? bytes.toString() : '';
      if (text === '') throw new Refusal(400, 'VALIDATION_FAILED', 'the body is not a form');
      const form = new URLSearchParams(text);
      return { value: members(form), bytes: Buffer.from(form.toString()), kind: 'form', rewritten: true };
    }
  }
  if (opaque) return { value: opaque(bytes), bytes, kind: 'opaque', rewritten: false };
  throw new Refusal(415, 'UNSUPPORTED_MEDIA_TYPE', 'on this route a body must be JSON or a form, in UTF-8');
}

/** The names of a query or a form with their values; a name that comes several times has a list. */
export function members(parameters: URLSearchParams): Record<string, string | string[]> {
  const found: Record<string, string | string[]> = Object.create(null);
  for (const name of new Set(parameters.keys())) {
    const values = parameters.getAll(name);
    found[name] = values.length === 1 ? (values[0] as string) : values;
  }
  // a plain object, with `__proto__` as the member that it is
  return Object.fromEntries(Object.entries(found));
}

export function isJson(type: string): boolean {
  return type === 'application/json' || /^[\w.-]+\/[\w.-]+\+json$/.test(type);
}

export function mediaType(header: string | undefined): { type: string; charset: string | undefined } {
  const [type = '', ...parameters] = (header ?? '').split(';').map((part) => part.trim().toLowerCase());
  const charset = parameters.find((one) => one.startsWith('charset='))?.slice(8);
  return { type, charset: charset?.replace(/^"(.*)"$/, '$1') };
}

/** Is this text or are these bytes JSON that may be parsed: UTF-8, and not nested beyond reason? */
export function isParsable(bytes: Buffer): boolean {
  return isUtf8(bytes) && !nestsDeeper(bytes, MOST_DEPTH);
}

function readJson(bytes: Buffer): unknown {
  const bad = (why: string) => new Refusal(400, 'VALIDATION_FAILED', `the body ${why}`);
  if (!isParsable(bytes)) throw bad(`is not UTF-8, or nests deeper than ${MOST_DEPTH}`);
  try {
    return JSON.parse(bytes.toString());
  } catch {
    throw bad('is not valid JSON');
  }
}

/** The content does not decode; `tooLong` where it only is too long. */
export class CodingError extends Error {
  readonly tooLong: boolean;

  constructor(message: string, tooLong = false) {
    super(message);
    this.tooLong = tooLong;
  }
}

type Decode = (body: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>;
const DECODERS: Readonly<Record<string, Decode>> = {
  gzip: promisify(gunzip) as Decode,
  'x-gzip': promisify(gunzip) as Decode,
  deflate: promisify(inflate) as Decode,
  br: promisify(brotliDecompress) as Decode,
};

/** Undoes the content codings, the last applied first, to at most so many bytes. Rejects with a CodingError. */
export async function decode(body: Buffer, codings: string | undefined, mostBytes: number): Promise<Buffer> {
  const names = (codings ?? '')
    .split(',')
    .map((name) => name.trim().toLowerCase())
    .filter((name) => name !== '' && name !== 'identity');
  if (names.length > 2) throw new CodingError('has more than two content codings');
  let bytes = body;
  for (const name of names.reverse()) {
    const decoder = Object.hasOwn(DECODERS, name) ? DECODERS[name] : undefined;
    if (!decoder) throw new CodingError('has a content coding that is not gzip, deflate or br');
    try {
      bytes = await decoder(bytes, { maxOutputLength: mostBytes });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE') {
        throw new CodingError(`unpacks to more than ${mostBytes} bytes`, true);
      }
      throw new CodingError('does not unpack');
    }
  }
  return bytes;
}

/** Addresses and networks of reverse proxies that are believed. */
export function trustedAddresses(list: readonly string[]): BlockList {
  const trusted = new BlockList();
  for (const item of list) {
    const [address = '', bits] = item.split('/');
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4';
    if (isIP(address) === 0) throw new ConfigError(`SVC_PROXY_TRUST: ${item} is not an address`);
    if (bits === undefined) trusted.addAddress(address, family);
    else trusted.addSubnet(address, Number(bits), family);
  }
  return trusted;
}

/** Who sent the request: the peer, or where that is believed, the last address before it that is not. */
export function clientAddress(peer: string | undefined, forwardedFor: string | undefined, trusted: BlockList): string {
  const hops = [...(forwardedFor ?? '').split(','), peer ?? ''].map((hop) =>
    hop.trim().replace(/^::ffff:(?=[\d.]+$)/i, ''),
  );
  for (let n = hops.length - 1; ; n--) {
    const hop = hops[n] as string;
    const family = isIP(hop);
    if (n === 0 || family === 0) return family === 0 ? (hops[n + 1] ?? '') : hop;
    if (!trusted.check(hop, family === 6 ? 'ipv6' : 'ipv4')) return hop;
  }
}
