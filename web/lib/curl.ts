/** A text as one word of a shell. */
const word = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

/** Sends exactly one request to the address as it is written: no brackets that stand for several, no dots taken out. */
const CURL = 'curl -sS --globoff --path-as-is';

/** Reads something of the API. The parts of the path may be of others: each stays one part, and one word of the shell. */
export const getCommand = (origin: string, path: readonly string[]): string =>
  `${CURL} -H "Authorization: Bearer $KEY" \\\n  ${word(`${origin}/v1/${path.map(encodeURIComponent).join('/')}`)}`;

/** Sends a request again as it was sent. The body is never the name of a file to curl, as it is after --data and an @. */
export const postCommand = (url: string, headers: Readonly<Record<string, string>>, body: string): string =>
  [
    `${CURL} ${word(url)}`,
    ...Object.entries(headers).map(([name, value]) => `-H ${word(`${name}: ${value}`)}`),
    `--data-raw ${word(body)}`,
  ].join(' \\\n  ');
