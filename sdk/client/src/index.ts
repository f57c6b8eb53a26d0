import createFetchClient, { type Client } from 'openapi-fetch';
import type { paths } from './schema.ts';

export type { components, operations, paths } from './schema.ts';

/**
 * A client of the API whose paths, parameters, bodies and answers are typed by the server's OpenAPI document. `key` is an
 * API key or an agent key. A call resolves with `data`, or with `error` (an RFC 9457 problem); it rejects only when
 * there was no answer.
 */
export function createClient(options: { baseUrl: string; key: string; fetch?: typeof fetch }): Client<paths> {
  const { baseUrl, key, fetch } = options;
  return createFetchClient<paths>({
    baseUrl,
    headers: { authorization: `Bearer ${key}` },
    ...(fetch && { fetch: (request) => fetch(request) }),
  });
}
