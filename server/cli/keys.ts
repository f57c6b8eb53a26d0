import type { AgentKeyRow } from '../../db/entities/index.ts';
import { AGENT_NAME_RULE, isAgentName } from '../domain/agent-names.ts';
import { OPERATOR } from '../domain/audit.ts';
import { SCOPES } from '../domain/principal.ts';

import {
  columns,
  command,
  duration,
  JSON_FLAG,
  listOf,
  REASON_FLAG,
  reasonOf,
  TENANT_FLAG,
  UsageError,
} from './command.ts';
import { withCore } from './installation.ts';
import { assertTenant } from './tenants.ts';

const by = { actor: OPERATOR };
const EXPIRES_FLAG = {
  expires: { value: 'TIME', help: 'when it expires: a duration such as 90d or 12h, or a date such as 2030-01-31' },
} as const;
const SHOWN_ONCE = 'The key is shown only once, because only its hash is stored.';

const keyCreate = command({
  name: 'key create',
  summary: 'Create an API key',
  more: SHOWN_ONCE,
  flags: {
    ...TENANT_FLAG,
    scopes: { value: 'LIST', required: true, help: `${SCOPES.join(', ')}; separate several with commas` },
    label: { value: 'TEXT', help: 'what the key is for' },
    ...EXPIRES_FLAG,
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    const input = {
      label: label(flags.label) ?? 'created by the operator',
      scopes: listOf(flags.scopes, '--scopes', SCOPES),
      expiresAt: flags.expires ? end(flags.expires) : undefined,
      owner: null,
    };
    const { row, secret } = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.keys.createApiKey(flags.tenant, input, by);
    });
    print(
      {
        id: row.id,
        key: secret,
        label: row.label,
        prefix: row.prefix,
        scopes: row.scopes,
        created_at: row.createdAt.toISOString(),
        expires_at: row.expiresAt?.toISOString(),
      },
      [secret],
    );
    return 0;
  },
});

const keyList = command({
  name: 'key list',
  summary: 'List all that signs in without a person: API keys, agent keys and workload trusts of a tenant',
  more: 'Without their plaintext. After "svc restore" they are inactive until "svc key confirm".',
  flags: { ...TENANT_FLAG, ...JSON_FLAG },
  async run({ flags, print }) {
    const { apiKeys, agentKeys, trusts } = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return {
        apiKeys: await core.keys.listApiKeys(flags.tenant),
        agentKeys: await core.keys.listAgentKeys(flags.tenant),
        trusts: await core.workloads.list(flags.tenant),
      };
    });
    const keys = apiKeys.map((row) => ({
      id: row.id,
      label: row.label,
      prefix: row.prefix,
      scopes: row.scopes,
      created_by: row.createdBy ?? null,
      created_at: row.createdAt.toISOString(),
      last_used_at: row.lastUsedAt?.toISOString(),
      expires_at: row.expiresAt?.toISOString(),
      inactive: row.unconfirmedSince != null,
    }));
    const agent_keys = agentKeys.map(agentKeyOf);
    const workload_trusts = trusts.map((row) => ({
      id: row.id,
      label: row.label,
      issuer: row.issuer,
      scopes: row.scopes,
      created_by: row.createdBy ?? null,
      created_at: row.createdAt.toISOString(),
      last_used_at: row.lastUsedAt?.toISOString(),
      inactive: row.unconfirmedSince != null,
    }));
    const state = ({ inactive, expires_at }: { inactive: boolean; expires_at?: string | undefined }) =>
      inactive ? 'inactive' : (expires_at ?? 'never expires');
    print(
      { keys, agent_keys, workload_trusts },
      columns([
        ...keys.map((k) => [k.id, `${k.prefix}…`, k.scopes.join(','), state(k), k.label]),
        ...agent_keys.map((k) => [k.id, `${k.prefix}…`, `${k.agent_id} as ${k.agent_role}`, state(k), k.label]),
        ...workload_trusts.map((k) => [k.id, k.issuer, k.scopes.join(','), state(k), k.label]),
      ]),
    );
    return 0;
  },
});

const keyRevoke = command({
  name: 'key revoke',
  summary: 'Revoke an API key; takes effect on every server before the command returns',
  args: [{ name: 'KEY_ID', help: 'id of the key, as "svc key list" shows it' }],
  flags: {
    ...TENANT_FLAG,
    ...REASON_FLAG,
    made: { help: 'also revoke the API keys and agent keys that were made with it, and with those' },
    ...JSON_FLAG,
  },
  run: ({ flags, args, print }) => revoke('api_key', flags, args[0]!, print),
});

const keyConfirm = command({
  name: 'key confirm',
  summary: 'Reactivate one key, or all keys of a tenant, after restoring a backup',
  more:
    'After "svc restore" all API keys, agent keys and workload trusts are inactive, because those revoked after the backup\n' +
    'would otherwise be valid again. Look at "svc key list", and revoke those that you do not recognize first.',
  args: [],
  flags: {
    ...TENANT_FLAG,
    id: { value: 'KEY_ID', help: 'id of one of them, as "svc key list" shows it' },
    all: { help: 'all inactive keys of the tenant' },
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    if (flags.all === (flags.id !== undefined)) throw new UsageError('specify either --id or --all');
    const confirmed = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.keys.confirm(flags.tenant, flags.id, by);
    });
    print(
      { confirmed },
      confirmed.length > 0
        ? columns(confirmed.map((k) => ['confirmed', k.kind.replace('_', ' '), k.id, k.allows, k.label]))
        : ['no key needs confirmation'],
    );
    return 0;
  },
});

const agentCreate = command({
  name: 'agent-key create',
  summary: 'Create a key for an agent; the key determines the identity of the agent',
  more: SHOWN_ONCE,
  flags: {
    ...TENANT_FLAG,
    'agent-id': { value: 'ID', required: true, help: 'id of the agent' },
    'agent-role': { value: 'ROLE', required: true, help: 'role of the agent, as policies name it' },
    label: { value: 'TEXT', help: 'what the key is for; default: the agent id' },
    ...EXPIRES_FLAG,
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    for (const name of ['agent-id', 'agent-role'] as const) {
      if (!isAgentName(flags[name])) throw new UsageError(`--${name} ${AGENT_NAME_RULE}`);
    }
    const input = {
      label: label(flags.label) ?? flags['agent-id'].slice(0, 100),
      agentId: flags['agent-id'],
      agentRole: flags['agent-role'],
      expiresAt: flags.expires ? end(flags.expires) : undefined,
      owner: null,
    };
    const { row, secret } = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.keys.createAgentKey(flags.tenant, input, by);
    });
    print(
      {
        id: row.id,
        key: secret,
        label: row.label,
        agent_id: row.agentId,
        agent_role: row.agentRole,
        created_at: row.createdAt.toISOString(),
        expires_at: row.expiresAt?.toISOString(),
      },
      [secret],
    );
    return 0;
  },
});

const agentList = command({
  name: 'agent-key list',
  summary: 'List the valid agent keys of a tenant, without their plaintext',
  flags: { ...TENANT_FLAG, ...JSON_FLAG },
  async run({ flags, print }) {
    const rows = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.keys.listAgentKeys(flags.tenant);
    });
    const keys = rows.map(agentKeyOf);
    print(
      { agent_keys: keys },
      columns(
        keys.map((k) => [k.id, `${k.prefix}…`, k.agent_id, k.agent_role, k.expires_at ?? 'never expires', k.label]),
      ),
    );
    return 0;
  },
});

const agentKeyOf = (row: AgentKeyRow) => ({
  id: row.id,
  label: row.label,
  agent_id: row.agentId,
  agent_role: row.agentRole,
  prefix: row.prefix,
  created_at: row.createdAt.toISOString(),
  last_used_at: row.lastUsedAt?.toISOString(),
  expires_at: row.expiresAt?.toISOString(),
  inactive: row.unconfirmedSince != null,
});

const agentRevoke = command({
  name: 'agent-key revoke',
  summary: 'Revoke an agent key; takes effect on every server before the command returns',
  args: [{ name: 'KEY_ID', help: 'id of the key, as "svc agent-key list" shows it' }],
  flags: { ...TENANT_FLAG, ...REASON_FLAG, ...JSON_FLAG },
  run: ({ flags, args, print }) => revoke('agent_key', flags, args[0]!, print),
});

const rotate = command({
  name: 'keys rotate',
  summary: 'Create a new signing key; existing signatures remain verifiable',
  more: 'A running server uses the new key immediately. The rotation is recorded in the audit chain of every tenant.',
  flags: JSON_FLAG,
  async run({ print }) {
    const result = await withCore({}, async (core) => {
      const old = core.keyring.current;
      const key = await core.keyring.rotate();
      const tenants = await core.tenants.list();
      for (const { tenant_id } of tenants) {
        await core.db.transaction(tenant_id, (em) =>
          core.audit(em, tenant_id, {
            actor: OPERATOR,
            action: 'signing_key.rotated',
            target: { type: 'signing_key', id: key.kid },
            detail: `the previous key was ${old.kid}`,
            beforeHash: old.fingerprint,
            afterHash: key.fingerprint,
          }),
        );
      }
      return { kid: key.kid, fingerprint: key.fingerprint, retired_kid: old.kid, tenants: tenants.length };
    });
    print(result, [
      `New signing key ${result.kid}`,
      `Fingerprint     ${result.fingerprint}`,
      `Retired         ${result.retired_kid}`,
    ]);
    return 0;
  },
});

const signingKeys = command({
  name: 'keys list',
  summary: 'List the signing keys, current one first',
  flags: JSON_FLAG,
  async run({ print }) {
    const keys = await withCore({}, async (core) =>
      core.keyring.all.map((key) => ({
        kid: key.kid,
        fingerprint: key.fingerprint,
        created_at: key.createdAt.toISOString(),
        retired_at: key.retiredAt?.toISOString() ?? null,
      })),
    );
    print(
      { keys },
      columns(
        keys.map((k) => [k.kid, k.fingerprint, k.created_at, k.retired_at ? `retired ${k.retired_at}` : 'current']),
      ),
    );
    return 0;
  },
});

export const keyCommands = [
  keyCreate,
  keyList,
  keyRevoke,
  keyConfirm,
  agentCreate,
  agentList,
  agentRevoke,
  rotate,
  signingKeys,
];

async function revoke(
  kind: 'api_key' | 'agent_key',
  flags: { tenant: string; reason: string | undefined; made?: boolean },
  id: string,
  print: (result: object, lines: string[]) => void,
): Promise<number> {
  const reason = reasonOf(flags);
  await withCore({}, async (core) => {
    await assertTenant(core, flags.tenant);
    await core.keys.revoke(flags.tenant, kind, id, by, { reason, made: flags.made ?? false });
  });
  print({ id, revoked: true }, [`${id} was revoked`]);
  return 0;
}

function label(text: string | undefined): string | undefined {
  if (text !== undefined && (text.trim() === '' || text.length > 100)) {
    throw new UsageError('--label must have 1 to 100 characters');
  }
  return text;
}

/** Parses a duration from now, or a date, which must be in the future. */
function end(text: string): Date {
  const at = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Date.now() + duration(text, '--expires');
  if (!(at > Date.now())) throw new UsageError('--expires must be in the future');
  return new Date(at);
}
