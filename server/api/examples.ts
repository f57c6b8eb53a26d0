import { readFileSync } from 'node:fs';

/** An example request body and success response, as shown in the OpenAPI document. */
export interface Example {
  request?: unknown;
  answer?: unknown;
}

/**
 * By `METHOD /path`. Recorded from a running server (`npm run examples`), so that they show real responses; the tests
 * check them against the schemas.
 */
export const EXAMPLES = JSON.parse(readFileSync(new URL('examples.json', import.meta.url), 'utf8')) as Readonly<
  Record<string, Example>
>;
