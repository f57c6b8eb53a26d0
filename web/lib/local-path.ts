/** Any origin that no path names. */
const HERE = 'http://here.invalid';

/**
 * A path on this site, never on another one. Also where the browser has taken dots and line ends out of it, it does not begin
 * with two slashes, which would name a site to what reads it once more.
 */
export function localPath(value: unknown): string | undefined {
  if (typeof value !== 'string' || !/^\/(?![/\\])/.test(value)) return undefined;
  const url = URL.parse(value, HERE);
  return url?.origin === HERE && !url.pathname.startsWith('//') ? value : undefined;
}
