import { z } from 'zod';
import type { SettingsChangeRow } from '../../db/entities/index.ts';
import { doerOf } from '../domain/audit.ts';
import { invalid } from '../errors.ts';
import { reason, text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { GUARDED_SETTINGS, Settings, SettingsPatch } from './settings.ts';
import { CHANGE_STATES, type SettingsChanges } from './settings-changes.ts';
import type { Tenants } from './tenants.ts';

/** How a key is shown: nothing that helps to use it. */
type KeyName = { id: string; kind: 'api_key' | 'agent_key'; name: string; ended: boolean };

export function peopleRouter(tenants: Tenants, keyNames: (tenantId: string) => Promise<KeyName[]>) {
  return trpc.router({
    directory: route(
      'GET /v1/directory',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'List the names of the tenant’s people and keys, including former ones',
        description: 'Of keys the newest 1,000, each with its label or its agent and nothing else.',
        tag: 'people',
      },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          people: z.array(z.object({ id: z.string(), name: z.string(), avatar_url: z.string().nullable() })),
          keys: z.array(
            z.object({
              id: z.string(),
              kind: z.enum(['api_key', 'agent_key']),
              name: z.string(),
              ended: z.boolean().describe('revoked or expired'),
            }),
          ),
        }),
      )
      .query(async ({ ctx }) => ({
        people: await tenants.directory(ctx.tenantId),
        keys: await keyNames(ctx.tenantId),
      })),
  });
}

const SettingsChangeOut = z
  .object({
    id: z.string(),
    status: z.enum(CHANGE_STATES),
    reason: z.string(),
    proposed_by: z.string(),
    created_at: z.iso.datetime(),
    changes: z.array(
      z.object({
        setting: z.string(),
        from: z.unknown(),
        to: z.unknown(),
        loosens: z.boolean().describe('weakens a safeguard, so a second person must approve it'),
      }),
    ),
    decided_by: z.string().nullable(),
    decided_at: z.iso.datetime().nullable(),
    comment: z.string().nullable(),
  })
  .meta({ id: 'SettingsChange', description: 'A settings change that needs a second person, pending or decided' });

const changeOut = (row: SettingsChangeRow): z.input<typeof SettingsChangeOut> => ({
  id: row.id,
  status: row.status,
  reason: row.reason,
  proposed_by: row.proposedBy,
  created_at: row.createdAt.toISOString(),
  changes: row.changes,
  decided_by: row.decidedBy ?? null,
  decided_at: row.decidedAt?.toISOString() ?? null,
  comment: row.comment ?? null,
});

const settingsTag = 'settings';
/** Only a signed-in person may decide, never a key. */
const decides = { role: 'approver' } as const;

/** `assertActionTypes` throws a RangeError for action types that a policy schema cannot contain. */
export function settingsRouter(
  tenants: Tenants,
  changes: SettingsChanges,
  assertActionTypes: (own: Settings['action_types']) => void,
) {
  return trpc.router({
    get: route(
      'GET /v1/settings',
      { keys: [], role: 'viewer' },
      {
        summary: 'Read the settings',
        description: 'Unset settings have their default values.',
        tag: settingsTag,
      },
    )
      .input(z.strictObject({}))
      .output(Settings)
      .query(({ ctx }) => tenants.settings(ctx.tenantId)),

    change: route(
      'PATCH /v1/settings',
      { keys: [], role: 'admin' },
      {
        summary: 'Change settings',
        description: `Changes only the given settings; null restores the default. ${GUARDED_SETTINGS.map((name) => `\`${name}\``).join(', ')} can be changed only by a signed-in person, with a \`reason\`. If approval is required, a change that weakens a safeguard (approval off, self-approval or votes of policy authors on, single sign-on no longer required, a shorter retention, another person in an approver group, other action types) is stored and waits for a second person: the response then contains it as \`waiting\`, with the settings unchanged.`,
        tag: settingsTag,
        problems: ['CONFLICT', 'FORBIDDEN'],
      },
    )
      .input(SettingsPatch.extend({ reason: reason.optional() }))
      .output(Settings.extend({ waiting: SettingsChangeOut.nullable() }))
      .mutation(async ({ ctx, input: { reason, ...patch } }) => {
        try {
          if (patch.action_types) assertActionTypes(patch.action_types);
        } catch (error) {
          if (!(error instanceof RangeError)) throw error;
          throw invalid('/action_types', error.message);
        }
        const { settings, waiting } = await changes.change(ctx.tenantId, patch, doerOf(ctx), reason);
        return { ...settings, waiting: waiting && changeOut(waiting) };
      }),

    changes: route(
      'GET /v1/settings/changes',
      { keys: [], role: 'viewer' },
      {
        summary: 'List settings changes that need a second person, pending and decided',
        tag: settingsTag,
      },
    )
      .input(
        z.strictObject({
          status: z.enum(CHANGE_STATES).optional(),
          limit: z.int().min(1).max(200).default(50),
          offset: z.int().min(0).max(1_000_000).default(0),
        }),
      )
      .output(z.object({ changes: z.array(SettingsChangeOut), total: z.int(), limit: z.int(), offset: z.int() }))
      .query(async ({ ctx, input }) => {
        const { rows, total } = await changes.list(ctx.tenantId, input);
        return { changes: rows.map(changeOut), total, limit: input.limit, offset: input.offset };
      }),

    approveChange: route('POST /v1/settings/changes/{id}/approve', decides, {
      summary: 'Approve a pending settings change and apply it',
      description: 'Needs a signed-in approver other than the person who requested the change.',
      tag: settingsTag,
      problems: ['NOT_FOUND', 'SELF_APPROVAL', 'INVALID_STATUS', 'CONFLICT'],
    })
      .input(z.strictObject({ id: text(64), comment: text(2000).optional() }))
      .output(SettingsChangeOut)
      .mutation(async ({ ctx, input }) =>
        changeOut(await changes.approve(ctx.tenantId, input.id, input.comment, doerOf(ctx))),
      ),

    rejectChange: route('POST /v1/settings/changes/{id}/reject', decides, {
      summary: 'Reject a pending settings change, or withdraw your own',
      tag: settingsTag,
      problems: ['NOT_FOUND', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ id: text(64), reason }))
      .output(SettingsChangeOut)
      .mutation(async ({ ctx, input }) =>
        changeOut(await changes.reject(ctx.tenantId, input.id, input.reason, doerOf(ctx))),
      ),
  });
}
