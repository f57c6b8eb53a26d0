import { z } from 'zod';
import { route, trpc } from '../api/trpc.ts';
import { actorOf } from '../auth/audit.ts';
import { Settings, SettingsPatch } from './settings.ts';
import type { Tenants } from './tenants.ts';

export function settingsRouter(tenants: Tenants) {
  return trpc.router({
    get: route('GET /v1/settings', { keys: [], role: 'viewer' }, { summary: 'Read the settings', tag: 'settings' })
      .input(z.strictObject({}))
      .output(Settings)
      .query(({ ctx }) => tenants.settings(ctx.tenantId)),

    change: route('PATCH /v1/settings', { keys: [], role: 'admin' }, { summary: 'Change settings', tag: 'settings' })
      .input(SettingsPatch)
      .output(Settings)
      .mutation(({ ctx, input }) =>
        tenants.changeSettings(ctx.tenantId, input, {
          actor: actorOf(ctx.principal, ctx.ip),
          requestId: ctx.requestId,
        }),
      ),
  });
}
