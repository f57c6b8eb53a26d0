import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import { BlockList, isIP } from 'node:net';
import { promisify } from 'node:util';
import { brotliDecompress, gunzip, inflate } from 'node:zlib';
import { ACTION_PARTS } from '../domain/action-body.ts';
import { Bounded } from '../lib/bounded.ts';
import { nestsDeeper, shapeFault } from '../lib/json-depth.ts';
import { repeatsMember } from '../lib/json-members.ts';
import { Parts } from '../lib/parts.ts';
import { ConfigError } from '../lib/settings.ts';
import { decodeUnreserved, pathFault } from '../policy/language/resource.ts';
import type { HttpRoute, Route } from './config.ts';
import { Refusal } from './problem.ts';

/**
 * Reads a request so that only one reading is possible: what was decided on is what the upstream gets. A JSON or form body is
 * passed on as it was understood, serialized again; a path that programs read in different ways is refused.
 */

const MOST_DEPTH = 64;

/** A path that everything below leaves unchanged, as most are. */
const SIMPLE_TARGET = /^\/(?:[\w~-]+\/)*[\w~-]*$/;

/**
 * The path with unreserved characters decoded (RFC 3986 §6.2.2.2), and the query with `+` as the `%20` that it means in forms.
 * Throws a Refusal for anything that programs read in different ways: separators and dot segments in any spelling, path
 * parameters (`;`), double encoding, invalid UTF-8, and names in the query that some programs consider the same.
 */
export function readTarget(target: string): { path: string; query: string } {
  const bad = (why: string) => new Refusal(400, 'VALIDATION_FAILED', `the target of the request ${why}`);
  if (SIMPLE_TARGET.test(target)) return { path: target, query: '' };
  if (!target.startsWith('/')) throw bad('is not a path');
  const at = target.indexOf('?');
  const raw = at < 0 ? target : target.slice(0, at);
  // the query too
  if (!/^[\x21-\x7e]*$/.test(target) || target.includes('#')) throw bad('has characters that no path has');
  if (/%(?![0-9A-Fa-f]{2})/.test(target)) throw bad('has an incomplete escape');
  const fault = pathFault(raw);
  if (fault) throw bad(fault);
  const path = decodeUnreserved(raw);
  const query = at < 0 ? '' : target.slice(at).replaceAll('+', '%20');
  if (query.includes(';')) throw bad('has a semicolon in its query');
  if (query.includes('%')) compatible(query, bad);
  readParameters(query.slice(1), bad);
  return { path, query };
}

/** The characters beyond ASCII as seen by programs that fold lookalikes (NFKC). Throws on invalid UTF-8. */
function compatible(text: string, bad: (why: string) => Refusal): string {
  try {
    return decodeURIComponent(text)
      .replace(/[\0-\x7f]+/g, '')
      .normalize('NFKC');
  } catch {
    throw bad('is not UTF-8');
  }
}

/**
 * The most specific route for a path, and the rest of the path beyond the route's own; undefined if there is none. Throws a
 * Refusal if a more specific route differs only by case or by a trailing slash: an upstream that treats both as the same could
 * otherwise be reached without that route.
 */
export function findRoute(routes: readonly Route[], path: string): { route: Route; rest: string } | undefined {
  const bases = basesOf(routes);
  const exact = mostSpecific(bases, path, 'base');
  const alike = mostSpecific(bases, path.replace(/(?<=.)\/$/, '').toLowerCase(), 'folded');
  if (alike && exact && alike.length > exact.length) {
    throw new Refusal(404, 'NOT_FOUND', `no route has this path; there is one with ${alike.route.path}`);
  }
  return exact && { route: exact.route, rest: path.slice(exact.base.length) };
}

interface Base {
  route: Route;
  base: string;
  folded: string;
  open: boolean;
}

/** What each route table is searched by. */
const BASES = new WeakMap<readonly Route[], readonly Base[]>();

function basesOf(routes: readonly Route[]): readonly Base[] {
  let bases = BASES.get(routes);
  if (!bases) {
    bases = routes.map((route) => {
      const base = route.path.replace(/\/?\*$/, '');
      return { route, base, folded: base.toLowerCase(), open: route.path.endsWith('*') };
    });
    BASES.set(routes, bases);
  }
  return bases;
}

function mostSpecific(bases: readonly Base[], wanted: string, by: 'base' | 'folded') {
  let best: { route: Route; base: string; length: number } | undefined;
  for (const one of bases) {
    const base = one[by];
    const fits = one.open
      ? wanted.startsWith(base) && (wanted.length === base.length || wanted[base.length] === '/')
      : wanted === (base || '/');
    if (!fits) continue;
    const length = base.length + (one.open ? 0 : 1);
    if (!best || length > best.length) best = { route: one.route, base, length };
  }
  return best;
}

const TARGETS = new WeakMap<HttpRoute, { origin: string; pathname: string; open: string }>();

function targetOf(route: HttpRoute) {
  let target = TARGETS.get(route);
  if (!target) {
    const { origin, pathname } = new URL(route.to);
    target = { origin, pathname, open: pathname.replace(/\/$/, '') };
    TARGETS.set(route, target);
  }
  return target;
}

/** Where the request goes: the upstream's own path, then the rest of the request's path, and its query. */
export function upstreamUrl(route: HttpRoute, rest: string, query: string): URL {
  const { origin, pathname, open } = targetOf(route);
  // concatenated as text: the parts were checked, and must not be parsed again in another way
  return new URL(`${origin}${rest === '' ? pathname : open}${rest}${query}`);
}

export interface ReadBody {
  /** What policies see: the JSON value, the form's fields, or the digest of opaque content. Absent without a body. */
  value?: unknown;
  /** What goes to the upstream. */
  bytes: Buffer;
  kind: 'none' | 'json' | 'form' | 'opaque';
  /** Whether the bytes differ from those received, so that digests and signatures over those are no longer valid. */
  rewritten: boolean;
}

/** Reads a body, already without its content coding. Throws a Refusal. */
export function readBody(
  bytes: Buffer,
  contentType: string | undefined,
  opaque: false | ((bytes: Buffer) => unknown),
): ReadBody {
  if (bytes.length === 0) return { bytes, kind: 'none', rewritten: false };
  const media = mediaType(contentType);
  if (media && isStructured(media.type)) {
    // in another charset, a program that does not support it would read other fields than were decided on
    if (!isUtf8Charset(media.charset)) throw new Refusal(415, 'UNSUPPORTED_MEDIA_TYPE', 'a body must be in UTF-8');
    if (isJson(media.type)) {
      const value = readJson(bytes);
      return { value, bytes: Buffer.from(JSON.stringify(value)), kind: 'json', rewritten: true };
    }
    const bad = (why: string) => new Refusal(400, 'VALIDATION_FAILED', `the form ${why}`);
    if (!isUtf8(bytes)) throw bad('is not UTF-8');
    let parts = 0;
    for (let at = bytes.indexOf('&'); at >= 0; at = bytes.indexOf('&', at + 1))
      if (++parts > ACTION_PARTS) throw tooMany();
    const form = readParameters(bytes.toString(), bad);
    return { value: members(form), bytes: Buffer.from(form.toString()), kind: 'form', rewritten: true };
  }
  if (opaque && (media || contentType === undefined)) {
    return { value: opaque(bytes), bytes, kind: 'opaque', rewritten: false };
  }
  throw new Refusal(415, 'UNSUPPORTED_MEDIA_TYPE', 'on this route a body must be JSON or a form, in UTF-8');
}

/** The names and values of a query or a form; a name that occurs more than once has a list. */
export function members(parameters: URLSearchParams): Record<string, string | string[]> {
  const found = Map.groupBy(parameters, ([name]) => name);
  // a plain object, in which `__proto__` is an ordinary member
  return Object.fromEntries(
    Array.from(found, ([name, pairs]) => [name, pairs.length === 1 ? pairs[0]![1] : pairs.map(([, value]) => value)]),
  );
}

/** The parameters of a query or a form. Throws if a name is written in two ways that some programs treat as the same. */
function readParameters(text: string, bad: (why: string) => Refusal): URLSearchParams {
  const parameters = new URLSearchParams(text);
  const spellings = new Map<string, string>();
  for (const name of parameters.keys()) {
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    if (/[\x00-\x1f\x7f\ufeff]|^\s|\s$/.test(name)) throw bad('has a name with white space or control characters');
    const base = baseOf(name);
    const known = spellings.get(base) ?? name;
    if (known !== name && !(known.includes('[') && name.includes('['))) throw bad('has a name in two spellings');
    spellings.set(base, name);
  }
  return parameters;
}

/** A name ignoring case, with dots and spaces as `_`, and `a[]` or `a[x]` as the list or object `a`. */
function baseOf(name: string): string {
  if (/^[a-z0-9_-]*$/.test(name)) return name;
  return name.normalize('NFKC').toLowerCase().replace(/[ .]/g, '_').split('[', 1)[0]!;
}

/** Frameworks let a parameter of this name override the method. */
const METHOD_PARAMETER = '_method';

/** Whether a parameter of the request overrides its method. */
export function overridesMethod(...values: unknown[]): boolean {
  return values.some(
    (value) => typeof value === 'object' && value !== null && Object.keys(value).map(baseOf).includes(METHOD_PARAMETER),
  );
}

export function isJson(type: string): boolean {
  return /^(?:application|text)\/(?:x-)?json$/.test(type) || /^[\w.-]+\/[\w.-]+\+json$/.test(type);
}

/** Whether a body of this type has fields that policies see. */
export function isStructured(type: string): boolean {
  return isJson(type) || type === 'application/x-www-form-urlencoded';
}

export function isUtf8Charset(charset: string | undefined): boolean {
  return charset === undefined || /^(?:utf-?8|us-ascii)$/.test(charset);
}

const TOKEN = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";
const MEDIA_TYPE = new RegExp(`^(${TOKEN}/${TOKEN})((?:[ \\t]*;[ \\t]*${TOKEN}=(?:${TOKEN}|"[^"\\\\]*"))*)[ \\t]*;?$`);

interface MediaType {
  readonly type: string;
  readonly charset: string | undefined;
}

/** Few values of it occur, and it is read several times per request. */
const MEDIA_TYPES = new Bounded<MediaType | undefined>({ entries: 200, characters: 20_000 });

/** A media type and its charset, in lower case (RFC 9110 §8.3); undefined for any other form or for two charsets. */
export function mediaType(header: string | undefined): MediaType | undefined {
  if (header === undefined) return undefined;
  return MEDIA_TYPES.has(header) ? MEDIA_TYPES.get(header) : MEDIA_TYPES.set(header, readMediaType(header));
}

function readMediaType(header: string): MediaType | undefined {
  const [, type, parameters = ''] = MEDIA_TYPE.exec(header.trim().toLowerCase()) ?? [];
  if (type === undefined) return undefined;
  const charsets = Array.from(parameters.matchAll(/;[ \t]*([^=;]+)=("[^"]*"|[^;"]*)/g)).filter(([, name]) =>
    name!.startsWith('charset'),
  );
  if (charsets.length > 1 || charsets.some(([, name]) => name !== 'charset')) return undefined;
  return { type, charset: charsets[0]?.[2]?.trim().replace(/^"(.*)"$/, '$1') };
}

/**
 * Requests may contain these only once, and not name them in `Connection`, which would have them dropped on the way: they
 * determine who makes the request, where it goes, and how the body is read. The headers that a route decides on are treated the
 * same.
 */
const GUARDED = ['host', 'authorization', 'transfer-encoding', 'mcp-session-id', 'mcp-protocol-version'];
const guarded = (name: string) => GUARDED.includes(name) || /^(?:content|x-svc)-/.test(name);

/** The name of a header, and the name that a program could mistake it for. */
interface HeaderName {
  name: string;
  alike: string;
  guarded: boolean;
  /** The name that it could be mistaken for differs from it, and is guarded. */
  disguised: boolean;
}

/** Requests mostly use the same names. */
const HEADER_NAMES = new Bounded<HeaderName>({ entries: 500, characters: 20_000 });

function headerName(raw: string): HeaderName {
  const known = HEADER_NAMES.get(raw);
  if (known) return known;
  const name = raw.toLowerCase();
  const alike = name.replace(/[^a-z0-9]/g, '-');
  return HEADER_NAMES.set(raw, {
    name,
    alike,
    guarded: guarded(name),
    disguised: name !== alike && guarded(alike),
  });
}

/**
 * Throws a Refusal if the headers of a request can be read in more than one way: if a guarded or decided-on header occurs twice,
 * is named by `Connection`, or is spelled so that a program behind the proxy could mistake it for one of these (`X_Account`), or
 * if a body is framed in any way other than by its length or in chunks.
 */
export function checkHeaders(
  { headers, rawHeaders, httpVersion }: IncomingMessage,
  decidedOn: readonly string[],
): void {
  const bad = (why: string) => new Refusal(400, 'VALIDATION_FAILED', why);
  const seen = new Set<string>();
  for (let n = 0; n < rawHeaders.length; n += 2) {
    const { name, alike, guarded, disguised } = headerName(rawHeaders[n]!);
    const decides = decidedOn.includes(name);
    if (disguised || (name !== alike && decidedOn.includes(alike))) throw bad(`the header ${name} looks like ${alike}`);
    if (!guarded && !decides) continue;
    if (seen.has(name)) throw bad(`the header ${name} is there twice`);
    if (decides && !/^[\t\x20-\x7e]*$/.test(rawHeaders[n + 1]!)) throw bad(`the header ${name} is not ASCII`);
    seen.add(name);
  }
  const { connection, 'transfer-encoding': coding } = headers;
  if (connection !== undefined) {
    const dropped = connectionOptions(connection).find((name) => guarded(name) || decidedOn.includes(name));
    if (dropped !== undefined) throw bad(`Connection names ${dropped}, which would not be forwarded`);
  }
  if (coding !== undefined && (coding.toLowerCase() !== 'chunked' || httpVersion === '1.0')) {
    throw bad('the framing of the body is not understood');
  }
}

/** The names in `Connection`, in lower case. */
export function connectionOptions(header: string | undefined): string[] {
  return (header ?? '').split(',').map((name) => name.trim().toLowerCase());
}

/** A name that every program reads in the same way: some treat other characters as `-`. */
export function isPlainHeader(name: string): boolean {
  return /^[a-z0-9-]+$/.test(name);
}

/** The entire body; undefined if it is longer. */
export function collect(stream: IncomingMessage, mostBytes: number): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    const parts = new Parts();
    const take = (part: Buffer) => {
      if (parts.bytes + part.length <= mostBytes) parts.push(part);
      else {
        // not destroyed: the connection still has to carry the response
        stream.off('data', take).pause();
        resolve(undefined);
      }
    };
    stream.on('data', take);
    stream.once('end', () => resolve(parts.join()));
    stream.once('error', reject);
    stream.once('close', () => stream.complete || reject(new Error('the body broke off')));
  });
}

const tooMany = () =>
  new Refusal(413, 'PAYLOAD_TOO_LARGE', `the body has more than ${ACTION_PARTS} values, names and brackets`);

/** Whether these bytes are text that may be parsed as JSON: UTF-8, and not nested too deep. */
export function isParsable(bytes: Buffer): boolean {
  return isUtf8(bytes) && !nestsDeeper(bytes, MOST_DEPTH);
}

/**
 * The value of a JSON body. Throws a Refusal if it is not JSON, is nested too deep, has too many parts, or has an object with
 * two members of one name.
 */
export function readJson(bytes: Buffer, parts: number = ACTION_PARTS): unknown {
  const bad = (why: string) => new Refusal(400, 'VALIDATION_FAILED', `the body ${why}`);
  const fault = isUtf8(bytes) ? shapeFault(bytes, { depth: MOST_DEPTH, parts }) : 'coding';
  if (fault === 'parts') throw tooMany();
  if (fault) throw bad(`is not UTF-8, or nests deeper than ${MOST_DEPTH}`);
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString());
  } catch {
    throw bad('is not valid JSON');
  }
  // if two members have the same name, some programs take the first, others the last
  if (repeatsMember(bytes, value)) throw bad('has two members of the same name');
  return value;
}

/** The content cannot be decoded; `tooLong` if it is merely too long. */
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

/** Reverses the content codings, last applied first, up to `mostBytes`. Rejects with a CodingError. */
export async function decode(body: Buffer, codings: string | undefined, mostBytes: number): Promise<Buffer> {
  if (codings === undefined) return body;
  const names = codings
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

/** Addresses and networks of trusted reverse proxies. */
export function trustedAddresses(list: readonly string[]): BlockList {
  const trusted = new BlockList();
  for (const item of list) {
    const [address = '', bits] = item.split('/');
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4';
    const most = family === 'ipv6' ? 128 : 32;
    if (isIP(address) === 0 || (bits !== undefined && !(/^\d{1,3}$/.test(bits) && Number(bits) <= most))) {
      throw new ConfigError(`SVC_PROXY_TRUST: ${item} is not an address`);
    }
    if (bits === undefined) trusted.addAddress(address, family);
    else trusted.addSubnet(address, Number(bits), family);
  }
  return trusted;
}

/** The address of the client: the peer, or behind trusted proxies the last address that is not one of them. */
export function clientAddress(peer: string | undefined, forwardedFor: string | undefined, trusted: BlockList): string {
  const plain = (hop: string) => hop.trim().replace(/^::ffff:(?=[\d.]+$)/i, '');
  const own = plain(peer ?? '');
  if (!forwardedFor) return isIP(own) === 0 ? '' : own;
  const hops = [...forwardedFor.split(',').map(plain), own];
  for (let n = hops.length - 1; ; n--) {
    const hop = hops[n] as string;
    const family = isIP(hop);
    if (n === 0 || family === 0) return family === 0 ? (hops[n + 1] ?? '') : hop;
    if (!trusted.check(hop, family === 6 ? 'ipv6' : 'ipv4')) return hop;
  }
}
