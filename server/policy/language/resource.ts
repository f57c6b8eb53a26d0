import path from 'node:path';

/** The host and the path of a request's resource, as policies compare them. */
export interface Location {
  host?: string;
  path?: string;
}

const WRITTEN = /^([A-Za-z][A-Za-z0-9+.-]*):(.*)$/s;

/** Undefined for something that looks like a URL and is none. */
export function location(resource: string, http: boolean): Location | undefined {
  const url = URL.parse(resource);
  // clients also accept `http:/host`, `https:\\host` and leading white space
  if (url?.host || /^[A-Za-z][A-Za-z0-9+.-]*:\/\//.test(resource)) {
    return url ? { host: normalHost(url.hostname), path: httpPath(url.pathname) } : undefined;
  }
  return { path: http ? httpPath(resource) : withoutDots(resource) };
}

/** The form of a host that a URL parser found. */
function normalHost(hostname: string): string {
  return hostname.replace(/\.$/, '').toLowerCase();
}

export function httpPath(text: string): string {
  return withoutDots(decodeUnreserved(text.replace(/[?#].*$/s, '')));
}

/** With unreserved characters decoded, and other escapes in upper case (RFC 3986 §6.2.2). */
export function decodeUnreserved(text: string): string {
  return text.replace(/%([0-9A-Fa-f]{2})/g, (octet, hex: string) => {
    const character = String.fromCharCode(Number.parseInt(hex, 16));
    return /[A-Za-z0-9\-._~]/.test(character) ? character : octet.toUpperCase();
  });
}

function withoutDots(text: string): string {
  return /(?:^|\/)\.{1,2}(?:\/|$)|\/\//.test(text) ? path.posix.normalize(text) : text;
}

/** In these, WHATWG's parser finds a host where RFC 3986 finds none. */
const SPECIAL = new Set(['http', 'https', 'ws', 'wss', 'ftp', 'file']);
const INVISIBLE = /[\s\p{Cc}\p{Default_Ignorable_Code_Point}]/u;

/**
 * Whether every program finds the same host and path in this resource: a parser of WHATWG's and one of RFC 3986, a
 * client that resolves dot segments and one that does not, a server that decodes first and one that splits first. The
 * path is held to what a proxy lets through. `http`: whether the request has a method.
 */
export function readsAlike(resource: string, http: boolean): boolean {
  const [, scheme, rest] = WRITTEN.exec(resource) ?? [];
  if (scheme === undefined || rest === undefined) {
    return http ? isPlainTarget(resource) : isPlainPath(resource);
  }
  if (rest.startsWith('//')) return isPlainUrl(resource, scheme.toLowerCase(), rest.slice(2));
  // `memo:insights`, but neither `host:443/x` nor `blob:https://host`
  return !SPECIAL.has(scheme.toLowerCase()) && !scheme.includes('.') && /^[^\d/]/.test(rest) && isPlainPath(`/${rest}`);
}

function isPlainUrl(resource: string, scheme: string, rest: string): boolean {
  const [, authority = '', raw = '', after = ''] = /^([^/?#]*)([^?#]*)(.*)$/s.exec(rest) ?? [];
  if (INVISIBLE.test(after) || after.includes('\\')) return false;
  if (raw !== '' && pathFault(raw) !== undefined) return false;
  const [, host] = /^(?:[\w.~!$&'()*+,;=:%-]*@)?([^@:[\]]*|\[[\dA-Fa-f:.]+\])(?::\d*)?$/.exec(authority) ?? [];
  if (host === undefined) return false;
  if (host === '') return authority === '' && (scheme === 'file' || !SPECIAL.has(scheme));
  if (host.startsWith('[')) return true;
  if (!/^[\0-\x7f]*$/.test(host)) return SPECIAL.has(scheme) && isPlainName(host);
  // a number such as 0x7f.1 is an address to some and a name to others
  const found = URL.parse(resource)?.hostname;
  return /^[\w.-]+$/.test(host) && found !== undefined && normalHost(found) === normalHost(host);
}

/** Whether all versions of IDNA and all folding clients take an international name for the same one. */
function isPlainName(host: string): boolean {
  return /^[\p{L}\p{M}\p{N}.-]+$/u.test(host) && !/[ßẞς]/.test(host) && host.normalize('NFKC') === host;
}

/** The path of an HTTP request, with its query. */
function isPlainTarget(target: string): boolean {
  const at = target.indexOf('?');
  const [raw, query] = at < 0 ? [target, ''] : [target.slice(0, at), target.slice(at)];
  return raw.startsWith('/') && pathFault(raw) === undefined && !INVISIBLE.test(query) && !query.includes('#');
}

/** A path that may be anything, such as that of a file. */
export function isPlainPath(text: string): boolean {
  const hidden = /[\p{Cc}\p{Default_Ignorable_Code_Point}\\%?#;]/u;
  // Windows drops dots and spaces at the end of a segment
  return text.startsWith('/') && !hidden.test(text) && !/\/\/|[.\s](?:\/|$)/.test(text) && !isDisguised(text);
}

/**
 * Why programs may read this path of an HTTP request in different ways: separators and dot segments in any spelling, path
 * parameters (`;`), double encoding, invalid UTF-8. Undefined if they do not.
 */
export function pathFault(raw: string): string | undefined {
  if (!/^[\x21-\x7e]*$/.test(raw) || /["#<>[\\\]^`{|}]/.test(raw)) return 'has characters that no path has';
  if (/%(?![0-9A-Fa-f]{2})/.test(raw)) return 'has an incomplete escape';
  const text = decodeUnreserved(raw);
  // some servers strip path parameters before they look at the segments (`/public;/../admin`)
  if (text.includes(';') || text.includes('%3B')) return 'has path parameters';
  if (/%(?:2F|5C|[01][0-9A-F]|7F)/.test(text)) return 'has an escaped separator or control character';
  if (/%25[0-9A-F]{2}/i.test(text)) return 'is encoded twice';
  // Windows drops dots and spaces at the end of a segment
  if (text.includes('//') || /(?:\.|%20)(?:\/|$)/.test(text)) return 'has empty or dot segments';
  if (!text.includes('%')) return undefined;
  try {
    return isDisguised(decodeURIComponent(text)) ? 'has a disguised separator' : undefined;
  } catch {
    return 'is not UTF-8';
  }
}

/** Whether programs that fold lookalikes (NFKC) find a separator beyond ASCII. */
function isDisguised(text: string): boolean {
  const beyond = text.replace(/[\0-\x7f]+/g, '');
  return beyond !== '' && /[\0-,./:-@[-`{-\x7f]/.test(beyond.normalize('NFKC'));
}

/** A currency as ISO 4217 writes its codes. Which of them are in use changes by the year. */
export const CURRENCY = /^[A-Z]{3}$/;
/** A method as RFC 9110 §5.6.2 allows one. */
const METHOD = /^[!#$%&'*+.^_`|~\dA-Za-z-]+$/;

/** What a rule cannot tell of a request: the amount has no exact form, or programs read the text in different ways. */
export const DOUBTED = ['estimated_value', 'resource', 'method', 'value_currency'] as const;
export type Doubted = (typeof DOUBTED)[number];

/** The attributes of the context whose reading makes each of them matter. */
export const ATTRIBUTES_OF: Readonly<Record<Doubted, readonly string[]>> = {
  estimated_value: ['amount'],
  resource: ['host', 'path'],
  method: ['method'],
  value_currency: ['currency'],
};

export const isMethod = (text: string) => METHOD.test(text);
