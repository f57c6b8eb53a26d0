import { z } from 'zod';
import { type Reads, readsOf } from '../../db/index.ts';
import { TokenIssuer } from '../auth/sso/token-issuers.ts';
import { AUDIT_ACTIONS, type AuditAction, doerOf } from '../domain/audit.ts';
import { isReservedProxyId } from '../domain/proxy-ids.ts';
import { AppError } from '../errors.ts';
import type { Bundles } from '../policy/bundles.ts';
import { askedReason, text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import { BUNDLE_DAYS, MOST_BUNDLES } from './bundle-history.ts';
import type { Fleet } from './fleet.ts';

const tag = 'proxies';

const heartbeat = {
  proxy_id: text(200).refine((id) => !isReservedProxyId(id), 'is reserved for the control plane'),
  version: text(100).optional(),
  bundle_hash: text(100).optional(),
  bundle_seq: z.int().min(0).optional(),
  refused_bundle: text(100).optional().describe('why the newest bundle was not applied; absent if it was'),
  spooled_events: z.int().min(0).optional(),
  started_at: z.iso.datetime().optional(),
  desktop: z
    .boolean()
    .optional()
    .describe('it wraps MCP servers for one client, such as a desktop application, and ends with it'),
};

const BundleRunOut = z
  .object({
    bundle_hash: z.string().nullable().describe('null: not a bundle of this server'),
    bundle_seq: z.int().nullable(),
    built_at: z.iso.datetime().nullable(),
    since: z.iso.datetime().describe('when the proxy first reported it'),
    until: z.iso.datetime().nullable().describe('when it first reported another one; null: it reported this one last'),
    lag_seconds: z
      .int()
      .nullable()
      .describe(
        'from the making of the bundle to the first report of it; null for the first bundle of a proxy, and for one that it used before',
      ),
    change: z
      .object({
        id: z.string().describe('of the audit record'),
        action: z.enum(Object.keys(AUDIT_ACTIONS) as [AuditAction, ...AuditAction[]]),
        target: z.object({ type: z.string(), id: z.string() }),
      })
      .nullable()
      .describe('the last change of what bundles contain before this one was made'),
  })
  .meta({ id: 'BundleRun' });

/** The maximum number of agent keys in one report. */
const MOST_KEYS = 1000;

export function fleetRouter(
  db: Reads,
  fleet: Fleet,
  pollSeconds: (tenantId: string) => Promise<number>,
  tokenIssuers: (tenantId: string) => Promise<TokenIssuer[]>,
  bundles: Pick<Bundles, 'known'>,
) {
  return trpc.router({
    heartbeat: route(
      'POST /v1/proxies/heartbeat',
      { keys: ['proxy'] },
      { summary: 'Report that a proxy is alive', tag },
    )
      .input(
        z.strictObject({
          ...heartbeat,
          stopping: z.boolean().optional().describe('the last report: the proxy is stopping, and will not be missed'),
          agent_keys: z
            .array(text(100))
            .max(MOST_KEYS)
            .optional()
            .describe('the ids of the agent keys that it took since its last report'),
        }),
      )
      .output(z.object({ poll_seconds: z.int(), time: z.iso.datetime() }))
      .mutation(async ({ ctx, input }) => {
        if (ctx.principal.kind !== 'api_key') throw new AppError('FORBIDDEN');
        const seconds = await pollSeconds(ctx.tenantId);
        await fleet.heartbeat(ctx.tenantId, ctx.principal.id, input, seconds);
        return { poll_seconds: seconds, time: new Date().toISOString() };
      }),

    rollout: route(
      'GET /v1/proxies/rollout',
      { keys: ['pipeline'], role: 'viewer', workload: 'policies:read' },
      { summary: 'How many proxies enforce the live policies', tag },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          proxies: z.int().describe('proxies that were heard of within three poll intervals'),
          current: z.int().describe('of those, the ones that enforce the newest bundle'),
          silent: z.int().describe('without those on desktops, and those that said that they stop'),
          poll_seconds: z.int(),
        }),
      )
      .query(async ({ ctx }) => {
        const seconds = await pollSeconds(ctx.tenantId);
        const all = await fleet.list(ctx.tenantId, seconds);
        const proxies = all.filter(({ state }) => state === 'alive');
        const hashes = [...new Set(proxies.flatMap(({ bundle_hash }) => bundle_hash ?? []))];
        const known = await bundles.known(ctx.tenantId, hashes);
        return {
          proxies: proxies.length,
          current: proxies.filter(({ bundle_hash }) => known.get(bundle_hash ?? '')?.current).length,
          silent: all.filter(({ state, desktop }) => state === 'silent' && !desktop).length,
          poll_seconds: seconds,
        };
      }),

    list: route(
      'GET /v1/proxies',
      { keys: [], role: 'viewer' },
      { summary: 'List proxies, most recently seen first', tag },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          proxies: z.array(
            z.object({
              ...heartbeat,
              proxy_id: z.string(),
              key_id: z.string().describe('the key that it reported with'),
              first_seen_at: z.iso.datetime(),
              last_seen_at: z.iso.datetime(),
              state: z
                .enum(['alive', 'silent', 'stopped'])
                .describe('silent: for three poll intervals; stopped: it said so when it ended'),
              up_to_date: z
                .boolean()
                .nullable()
                .describe('enforces the newest bundle; null if it reported no bundle known to the server'),
              bundle_built_at: z.iso
                .datetime()
                .nullable()
                .describe(
                  'when the bundle that it enforces was built; null if it reported no bundle known to the server',
                ),
            }),
          ),
        }),
      )
      .query(async ({ ctx }) => {
        const proxies = await fleet.list(ctx.tenantId, await pollSeconds(ctx.tenantId));
        const hashes = [...new Set(proxies.flatMap(({ bundle_hash }) => bundle_hash ?? []))];
        const known = await bundles.known(ctx.tenantId, hashes);
        return {
          proxies: proxies.map((proxy) => {
            const bundle = known.get(proxy.bundle_hash ?? '');
            return {
              ...proxy,
              up_to_date: bundle?.current ?? null,
              bundle_built_at: bundle?.builtAt(proxy.bundle_seq).toISOString() ?? null,
            };
          }),
        };
      }),

    bundles: route(
      'GET /v1/proxies/{proxy_id}/bundles',
      { keys: [], role: 'viewer' },
      {
        summary: 'List the bundles that a proxy used, the newest first',
        description: `As it reported them: at most ${MOST_BUNDLES}, of the last ${BUNDLE_DAYS} days. Of a bundle that this server never issued it says so, and nothing else.`,
        tag,
        problems: ['NOT_FOUND', 'TOO_BROAD'],
      },
    )
      .input(z.strictObject({ proxy_id: text(200) }))
      .output(z.object({ bundles: z.array(BundleRunOut) }))
      .query(async ({ ctx, input }) => ({
        bundles: await fleet.bundles(readsOf(db, ctx), ctx.tenantId, input.proxy_id),
      })),

    remove: route(
      'DELETE /v1/proxies/{proxy_id}',
      { keys: [], role: 'admin' },
      {
        summary: 'Forget a proxy that is out of service; one that still reports comes back',
        tag,
        status: 204,
        problems: ['NOT_FOUND'],
      },
    )
      .input(z.strictObject({ proxy_id: text(200), reason: askedReason }))
      .output(z.void())
      .mutation(async ({ ctx, input }) =>
        fleet.remove(ctx.tenantId, input.proxy_id, doerOf(ctx), await reasonFor(ctx, input.reason)),
      ),

    config: route(
      'GET /v1/proxy-config',
      { keys: ['proxy'] },
      { summary: 'What a proxy needs besides the bundle: agent keys by hash, token issuers', tag },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          poll_seconds: z.int(),
          agent_keys: z.array(
            z.object({
              id: z.string(),
              key_hash: z.string(),
              agent_id: z.string(),
              agent_role: z.string(),
              owner_id: z.string().nullable(),
              expires_at: z.iso.datetime().optional(),
            }),
          ),
          token_issuers: z.array(TokenIssuer),
        }),
      )
      .query(async ({ ctx }) => ({
        poll_seconds: await pollSeconds(ctx.tenantId),
        agent_keys: await fleet.agentKeys(ctx.tenantId),
        token_issuers: await tokenIssuers(ctx.tenantId),
      })),
  });
}
