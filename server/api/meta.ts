import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { publicRoute, trpc } from '../rpc/procedure.ts';

/** The version of the package, which is also that of the API document and of /v1/meta. */
export const { version: VERSION } = JSON.parse(
  readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
) as {
  version: string;
};

/** Facts about the server that a client may need before it has a credential. */
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
