import { readFileSync } from 'node:fs';
import { parseEnv } from 'node:util';
import { z } from 'zod';
import type { Core } from '../app.ts';
import { OPERATOR_LINK_SECONDS } from '../auth/magic-links.ts';
import { readConfig } from '../config.ts';
import { DEMO_PREFIX } from '../demo/tenant.ts';
import { OPERATOR } from '../domain/audit.ts';
import { TENANT_ID } from '../domain/tenant-id.ts';
import { faultLines } from '../lib/faults.ts';
import { showsSomething } from '../lib/visible.ts';
import { createTenant } from '../provision.ts';
import { SettingsPatch } from '../tenants/settings.ts';
import { CommandError, columns, command, JSON_FLAG, reasonOf, suggestion, TENANT_FLAG, UsageError } from './command.ts';
import { type Installation, openCoreOf, withCore } from './installation.ts';

const create = command({
  name: 'tenant create',
  summary: 'Create a tenant with its first admin, an admin API key and a one-time sign-in link',
  more: 'The key and the link are shown once. Works while the server runs. SVC_BASE_URL or PORT decides the link.',
  flags: {
    name: { value: 'NAME', required: true, help: 'name of the tenant' },
    'admin-email': { value: 'EMAIL', required: true, help: 'address of the first admin' },
    id: { value: 'ID', help: 'id of the tenant, which cannot be changed later; default: generated' },
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    const name = flags.name.trim();
    if (name.length > 200 || /\p{Cc}/u.test(name) || !showsSomething(name))
      throw new UsageError('--name must have 1 to 200 characters');
    const adminEmail = email(flags['admin-email'], '--admin-email');
    // the id is part of URLs, file names and every record
    if (flags.id !== undefined && !new RegExp(`^${TENANT_ID}$`).test(flags.id)) {
      throw new UsageError('--id must have 1 to 64 letters, digits, "_" or "-", and start with a letter or digit');
    }
    if (flags.id?.startsWith(DEMO_PREFIX)) {
      throw new UsageError(`--id must not begin with "${DEMO_PREFIX}", which marks what may be deleted as a demo`);
    }
    const tenant = await withCore({ create: true }, (core, config) =>
      createTenant(core, config.baseUrl, { name, adminEmail, ...(flags.id && { id: flags.id }) }),
    );
    print(
      tenant,
      columns([
        ['Tenant', tenant.tenant_id],
        ['Admin', tenant.admin_email],
        ['Admin API key', tenant.api_key],
        ['Sign-in link', `${tenant.sign_in_url}   (once, within ${OPERATOR_LINK_SECONDS / 86_400} days)`],
      ]),
    );
    return 0;
  },
});

const list = command({
  name: 'tenant list',
  summary: 'List the tenants',
  flags: JSON_FLAG,
  async run({ print }) {
    const tenants = await withCore({}, (core) => core.tenants.list());
    print({ tenants }, columns(tenants.map((t) => [t.tenant_id, t.created_at, t.name])));
    return 0;
  },
});

const settingsGet = command({
  name: 'settings get',
  summary: 'Show the settings of a tenant',
  flags: { ...TENANT_FLAG, ...JSON_FLAG },
  async run({ flags, print }) {
    const settings = await withCore({}, (core) => core.tenants.settings(flags.tenant));
    print(settings, settingLines(settings));
    return 0;
  },
});

const settingsSet = command({
  name: 'settings set',
  summary: 'Change settings of a tenant; a running server applies them immediately',
  more: `Settings: ${Object.keys(SettingsPatch.shape).join(', ')}.\nThe value null restores the default.\nExample: svc settings set --tenant default approval_required=true --reason 'we are three now'`,
  args: [{ name: 'KEY=VALUE', help: 'a setting and its new value; lists and objects as JSON', many: true }],
  flags: {
    ...TENANT_FLAG,
    reason: { value: 'TEXT', help: 'why, in one line; required for guarded settings' },
    ...JSON_FLAG,
  },
  async run({ flags, args, print }) {
    const patch = readPatch(args);
    const why = flags.reason === undefined ? undefined : reasonOf(flags);
    const settings = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      const changed = await core.settingsChanges.change(flags.tenant, patch, { actor: OPERATOR }, why);
      return changed.settings;
    });
    print(settings, settingLines(settings));
    return 0;
  },
});

const move = command({
  name: 'tenant move',
  summary: 'Move a tenant with its records, people, keys and policies to another installation',
  more:
    'FILE has the settings of the other installation, one NAME=value a line: DATABASE_URL, SVC_BASE_URL and its master key.\n' +
    'Requests go on while records are copied; then the tenant answers 503 until it is at the other address. Run the same\n' +
    'command again if it was interrupted, or end the move with --undo. See docs/moving.md.',
  args: [{ name: 'TENANT_ID', help: 'id of the tenant' }],
  flags: {
    to: { value: 'FILE', help: 'settings of the installation that the tenant moves to' },
    undo: { help: 'end a move that is not complete: the tenant stays here' },
    'target-gone': { help: 'with --undo and without --to: the database of the other installation is gone for good' },
    forget: { help: 'delete what is still here of a tenant that has moved away' },
    abandon: {
      value: 'ADDRESS',
      help: "delete what an unfinished move copied here; confirm with the source's address",
    },
    ...JSON_FLAG,
  },
  async run({ args, flags, print }) {
    const tenantId = args[0]!;
    const { to, undo, forget, abandon, 'target-gone': gone } = flags;
    const ways = [to !== undefined, forget, gone, abandon !== undefined].filter(Boolean).length;
    if (ways !== 1 || (undo ? to === undefined && !gone : gone)) {
      throw new UsageError('specify --to FILE, --to FILE --undo, --undo --target-gone, --forget, or --abandon ADDRESS');
    }
    const { abandonCopy, forgetMoved, moveTenant, undoAlone, undoMove } = await import('./tenant-move.ts');
    const { withSide } = await import('./tenant-move/side.ts');
    await withCore({}, (...parts) =>
      withSide(...parts, tenantId, async (source) => {
        if (abandon !== undefined) {
          await abandonCopy(source, tenantId, abandon);
          print({ tenant_id: tenantId, abandoned: true }, [
            `${tenantId}: what was copied from ${abandon} is deleted`,
            'If the tenant still answers 503 at the source, run "svc tenant move" with --undo there.',
          ]);
          return;
        }
        if (to === undefined) {
          await (gone ? undoAlone : forgetMoved)(source, tenantId);
          if (gone) print({ tenant_id: tenantId, undone: true, restored: true }, [`${tenantId} stays here`]);
          else print({ tenant_id: tenantId, forgotten: true }, [`${tenantId}: what was still here is deleted`]);
          return;
        }
        const installation = installationOf(to);
        await openCoreOf(installation, {}, (...there) =>
          withSide(...there, tenantId, async (target) => {
            if (undo) {
              const { restored } = await undoMove({ source, target, tenantId });
              print({ tenant_id: tenantId, undone: true, restored }, [`${tenantId} stays here`]);
              return;
            }
            const tell = (step: string) => void process.stderr.write(`${step}\n`);
            const moved = await moveTenant({ source, target, tenantId, tell });
            print(moved, [
              `${tenantId} has moved to ${moved.address}`,
              'Give its proxies and agents the new address, and proxies the new signing key; see docs/moving.md.',
            ]);
          }),
        );
      }),
    );
    return 0;
  },
});

/** The installation whose settings are in a file. It has been started or migrated, so it has a master key of its own. */
function installationOf(file: string): Installation {
  const env = parseEnv(readFileSync(file, 'utf8'));
  const config = readConfig(env);
  const { databaseUrl, databaseSessionUrl: sessionUrl = databaseUrl } = config;
  if (databaseUrl === undefined || sessionUrl === undefined || !env.SVC_BASE_URL || !config.masterKey) {
    throw new CommandError(`${file} must set DATABASE_URL, SVC_BASE_URL, and SVC_MASTER_KEY or SVC_MASTER_KEY_FILE`);
  }
  return { config, databaseUrl, sessionUrl };
}

export const tenantCommands = [create, list, settingsGet, settingsSet, move];

/** Parses an email address and lower-cases it. Throws a UsageError that names the flag. */
export function email(text: string, flag: string): string {
  // the same syntax as browsers, which also allows admin@localhost
  const parsed = z.email({ pattern: z.regexes.html5Email }).max(254).safeParse(text.trim().toLowerCase());
  if (!parsed.success) throw new UsageError(`${flag}: ${JSON.stringify(text)} is not an email address`);
  return parsed.data;
}

/** Throws NOT_FOUND for an unknown tenant; otherwise the command would fail on a foreign key or find nothing. */
export async function assertTenant(core: Core, tenantId: string): Promise<void> {
  await core.tenants.settings(tenantId);
}

function readPatch(pairs: readonly string[]): SettingsPatch {
  const known = Object.keys(SettingsPatch.shape);
  const patch: Record<string, unknown> = {};
  for (const pair of pairs) {
    const at = pair.indexOf('=');
    const key = at < 0 ? pair : pair.slice(0, at);
    if (!known.includes(key)) throw new UsageError(`unknown setting ${JSON.stringify(key)}${suggestion(key, known)}`);
    if (at < 0) throw new UsageError(`${key}: must be written as ${key}=VALUE`);
    if (Object.hasOwn(patch, key)) throw new UsageError(`${key} was given twice`);
    patch[key] = jsonOrText(pair.slice(at + 1));
  }
  const parsed = SettingsPatch.safeParse(patch);
  if (parsed.success) return parsed.data;
  throw new UsageError(faultLines(parsed.error).join('; '));
}

function jsonOrText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function settingLines(settings: object): string[] {
  return columns(Object.entries(settings).map(([key, value]) => [key, JSON.stringify(value)]));
}
