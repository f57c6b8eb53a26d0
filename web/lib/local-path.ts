/** An origin that no path can name. */
const HERE = 'http://here.invalid';

/**
 * A path on this site, never on another one. Even after the browser has removed dots and line breaks, it does not begin with two
 * slashes, which would name a host to anything that parses it again.
 */
export function localPath(value: unknown): string | undefined {
  if (typeof value !== 'string' || !/^\/(?![/\\])/.test(value)) return undefined;
  const url = URL.parse(value, HERE);
  return url?.origin === HERE && !url.pathname.startsWith('//') ? value : undefined;
}
