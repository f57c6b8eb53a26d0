import type { Core } from '../app.ts';
import { OPERATOR } from '../domain/audit.ts';
import { ROLES } from '../domain/principal.ts';
import { newSignInLink } from '../provision.ts';
import {
  CommandError,
  columns,
  command,
  JSON_FLAG,
  listOf,
  REASON_FLAG,
  reasonOf,
  TENANT_FLAG,
  UsageError,
} from './command.ts';
import { withCore } from './installation.ts';
import { assertTenant, email } from './tenants.ts';

const by = { actor: OPERATOR };
const EMAIL_FLAG = { email: { value: 'EMAIL', required: true, help: 'address of the person' } } as const;
const ROLE_FLAG = { role: { value: 'ROLE', required: true, help: ROLES.join(', ') } } as const;

/** The id of a member by address. */
async function memberId(core: Core, tenantId: string, address: string): Promise<string> {
  await assertTenant(core, tenantId);
  const [member] = await core.db.query<{ id: string }>(
    tenantId,
    'select id from member where tenant_id = $1 and email = $2 and removed_at is null',
    [tenantId, address],
  );
  if (!member) throw new CommandError(`${address} is not a member of ${tenantId}: add them with "svc user create"`);
  return member.id;
}

function role(text: string): (typeof ROLES)[number] {
  const [one, ...more] = listOf(text, '--role', ROLES);
  if (!one || more.length > 0) throw new UsageError('--role must be a single role');
  return one;
}

const userCreate = command({
  name: 'user create',
  summary: 'Add a person to a tenant and print a one-time sign-in link',
  flags: {
    ...TENANT_FLAG,
    email: { value: 'EMAIL', required: true, help: 'address of the person' },
    roles: { value: 'LIST', required: true, help: `${ROLES.join(', ')}; separate several with commas` },
    name: { value: 'NAME', help: 'name of the person; default: the address' },
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    const person = {
      email: email(flags.email, '--email'),
      roles: listOf(flags.roles, '--roles', ROLES),
      name: flags.name,
    };
    const made = await withCore({}, async (core, config) => {
      await assertTenant(core, flags.tenant);
      const userId = await core.tenants.addMember(flags.tenant, person, { actor: OPERATOR });
      return { user_id: userId, ...(await newSignInLink(core, config.baseUrl, flags.tenant, userId)) };
    });
    print({ tenant_id: flags.tenant, email: person.email, roles: person.roles, ...made }, [
      `${person.email} is ${person.roles.join(', ')} in ${flags.tenant} (${made.user_id})`,
      `Sign-in link (works once, until ${made.expires_at}): ${made.sign_in_url}`,
    ]);
    return 0;
  },
});

const link = command({
  name: 'sign-in-link',
  summary: 'Print a new one-time sign-in link for a member',
  flags: { ...TENANT_FLAG, email: { value: 'EMAIL', required: true, help: 'address of the member' }, ...JSON_FLAG },
  async run({ flags, print }) {
    const address = email(flags.email, '--email');
    const made = await withCore({}, async (core, config) => {
      const userId = await memberId(core, flags.tenant, address);
      return { user_id: userId, ...(await newSignInLink(core, config.baseUrl, flags.tenant, userId)) };
    });
    print({ tenant_id: flags.tenant, email: address, ...made }, [made.sign_in_url]);
    return 0;
  },
});

const userList = command({
  name: 'user list',
  summary: 'List the people of a tenant, with their roles',
  flags: { ...TENANT_FLAG, all: { help: 'include removed people' }, ...JSON_FLAG },
  async run({ flags, print }) {
    const users = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      const found: Awaited<ReturnType<Core['members']['list']>>['people'] = [];
      for (let total = 1; found.length < total; ) {
        const page = await core.members.list(flags.tenant, {
          status: flags.all ? 'all' : 'active',
          limit: 200,
          offset: found.length,
        });
        found.push(...page.people);
        total = page.people.length === 0 ? 0 : page.total;
      }
      return found;
    });
    print(
      { users },
      columns(users.map((u) => [u.id, u.email, u.removed_at ? 'removed' : u.roles.join(',') || 'no role'])),
    );
    return 0;
  },
});

const userInvite = command({
  name: 'user invite',
  summary: 'Mail a person an invitation to a tenant',
  flags: { ...TENANT_FLAG, ...EMAIL_FLAG, ...ROLE_FLAG, ...JSON_FLAG },
  async run({ flags, print }) {
    const input = { email: email(flags.email, '--email'), role: role(flags.role), inviter: null };
    const { row, linkBy } = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.invitations.create(flags.tenant, input, by);
    });
    print({ id: row.id, email: input.email, role: input.role, expires_at: row.expiresAt.toISOString() }, [
      `${input.email} is invited until ${row.expiresAt.toISOString()}; a running server ${linkBy === 'mail' ? 'mails the link' : 'writes the mail to a file: set SMTP_URL to have it sent'}`,
    ]);
    return 0;
  },
});

const userGrant = command({
  name: 'user grant',
  summary: 'Grant a member a role',
  flags: { ...TENANT_FLAG, ...EMAIL_FLAG, ...ROLE_FLAG, ...REASON_FLAG, ...JSON_FLAG },
  run: (call) => changeRole(call, 'grant'),
});

const userRevoke = command({
  name: 'user revoke',
  summary: 'Revoke a role of a member; takes effect on every server before the command returns',
  flags: { ...TENANT_FLAG, ...EMAIL_FLAG, ...ROLE_FLAG, ...REASON_FLAG, ...JSON_FLAG },
  run: (call) => changeRole(call, 'revoke'),
});

const userRemove = command({
  name: 'user remove',
  summary: 'Remove a person; their roles, sessions, links and keys end immediately',
  flags: { ...TENANT_FLAG, ...EMAIL_FLAG, ...REASON_FLAG, ...JSON_FLAG },
  async run({ flags, print }) {
    const address = email(flags.email, '--email');
    const reason = reasonOf(flags);
    const userId = await withCore({}, async (core) => {
      const id = await memberId(core, flags.tenant, address);
      await core.members.remove(flags.tenant, id, by, { reason });
      return id;
    });
    print({ tenant_id: flags.tenant, user_id: userId, email: address, removed: true }, [`${address} was removed`]);
    return 0;
  },
});

async function changeRole(
  call: {
    flags: { tenant: string; email: string; role: string; reason: string | undefined };
    print: (result: object, lines: readonly string[]) => void;
  },
  how: 'grant' | 'revoke',
): Promise<number> {
  const { flags, print } = call;
  const [address, which, reason] = [email(flags.email, '--email'), role(flags.role), reasonOf(flags)];
  const person = await withCore({}, async (core) => {
    const id = await memberId(core, flags.tenant, address);
    if (how === 'grant') await core.members.grant(flags.tenant, id, which, by, reason);
    else await core.members.revoke(flags.tenant, id, which, by, { reason });
    return core.members.get(flags.tenant, id);
  });
  print({ tenant_id: flags.tenant, user_id: person.id, email: address, roles: person.roles }, [
    `${address} is ${person.roles.join(', ') || 'now without roles'} in ${flags.tenant}`,
  ]);
  return 0;
}

export const userCommands = [userCreate, userInvite, userList, userGrant, userRevoke, userRemove, link];
