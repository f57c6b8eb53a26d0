import { z } from 'zod';
import { route, trpc } from '../api/trpc.ts';
import { actorOf } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import { Settings, SettingsPatch } from './settings.ts';
import type { Tenants } from './tenants.ts';

export function peopleRouter(tenants: Tenants) {
  return trpc.router({
    directory: route(
      'GET /v1/directory',
      { keys: ['pipeline'], role: 'viewer' },
      { summary: 'The names of the tenant’s people, also of those who left', tag: 'people' },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          people: z.array(z.object({ id: z.string(), name: z.string(), avatar_url: z.string().nullable() })),
        }),
      )
      .query(async ({ ctx }) => ({ people: await tenants.directory(ctx.tenantId) })),
  });
}

/** `assertActionTypes` throws a RangeError on action types that no policy schema can have. */
export function settingsRouter(tenants: Tenants, assertActionTypes: (own: Settings['action_types']) => void) {
  return trpc.router({
    get: route('GET /v1/settings', { keys: [], role: 'viewer' }, { summary: 'Read the settings', tag: 'settings' })
      .input(z.strictObject({}))
      .output(Settings)
      .query(({ ctx }) => tenants.settings(ctx.tenantId)),

    change: route(
      'PATCH /v1/settings',
      { keys: [], role: 'admin' },
      {
        summary: 'Change settings',
        tag: 'settings',
        problems: ['CONFLICT'],
      },
    )
      .input(SettingsPatch)
      .output(Settings)
      .mutation(({ ctx, input }) => {
        try {
          if (input.action_types) assertActionTypes(input.action_types);
        } catch (error) {
          if (!(error instanceof RangeError)) throw error;
          throw new AppError('VALIDATION_FAILED', undefined, {
            faults: [{ pointer: '/action_types', message: error.message }],
          });
        }
        return tenants.changeSettings(ctx.tenantId, input, {
          actor: actorOf(ctx.principal, ctx.ip),
          requestId: ctx.requestId,
        });
      }),
  });
}
