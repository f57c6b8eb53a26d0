import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { publicRoute, trpc } from '../rpc/procedure.ts';

/** The one version number: of the package, the API document and what /v1/meta says. */
export const { version: VERSION } = JSON.parse(
  readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
) as {
  version: string;
};

/** What a client may want to know of the server before it has a credential. */
export function metaRouter() {
  return trpc.router({
    get: publicRoute('GET /v1/meta', { summary: 'The server’s version and limits', tag: 'meta' })
      .input(z.strictObject({}))
      .output(
        z.object({
          name: z.string(),
          version: z.string(),
          api: z.literal('v1'),
          limits: z.object({ events_per_ingest: z.int(), records_per_export: z.int(), page: z.int() }),
        }),
      )
      .query(() => ({
        name: 'Agent Governance Control Plane',
        version: VERSION,
        api: 'v1' as const,
        limits: { events_per_ingest: 100, records_per_export: 10_000, page: 1000 },
      })),
  });
}
