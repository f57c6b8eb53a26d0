import { readFileSync } from 'node:fs';

/** An example of a request's body and of the answer of success, as the OpenAPI document shows them. */
export interface Example {
  request?: unknown;
  answer?: unknown;
}

/**
 * By `METHOD /path`. Recorded from a running server (`npm run examples`), so that they show what really is answered; the
 * tests compare them with the schemas.
 */
export const EXAMPLES = JSON.parse(readFileSync(new URL('examples.json', import.meta.url), 'utf8')) as Readonly<
  Record<string, Example>
>;
