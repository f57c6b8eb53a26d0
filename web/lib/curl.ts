/** Quotes a text as a single shell word. */
const word = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

/** Sends exactly one request to the address as written: brackets are not expanded, dots are not removed. */
const CURL = 'curl -sS --globoff --path-as-is';

/** Reads from the API. Parts of the path may be untrusted: each stays one path segment, and the URL one shell word. */
export const getCommand = (origin: string, path: readonly string[]): string =>
  `${CURL} -H "Authorization: Bearer $KEY" \\\n  ${word(`${origin}/v1/${path.map(encodeURIComponent).join('/')}`)}`;

/** Repeats a request exactly as it was sent. curl never takes the body for a file name, as it does with --data and an @. */
export const postCommand = (url: string, headers: Readonly<Record<string, string>>, body: string): string =>
  [
    `${CURL} ${word(url)}`,
    ...Object.entries(headers).map(([name, value]) => `-H ${word(`${name}: ${value}`)}`),
    `--data-raw ${word(body)}`,
  ].join(' \\\n  ');
