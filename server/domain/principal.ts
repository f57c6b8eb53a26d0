import type { StatedSource, WorkloadScope } from './workload.ts';

/**
 * Who may call what: four key scopes, four escalating roles, agent keys, workload tokens. Pure: takes rules and principals,
 * returns a refusal or nothing.
 */
export const SCOPES = ['proxy', 'pipeline', 'stop', 'admin'] as const;
export type Scope = (typeof SCOPES)[number];

/** Each role includes those before it. */
export const ROLES = ['viewer', 'author', 'approver', 'admin'] as const;
export type Role = (typeof ROLES)[number];

/** The caller, after the credential was checked. Everything in it belongs to one tenant. */
export type Principal =
  | {
      readonly kind: 'api_key';
      readonly tenantId: string;
      readonly id: string;
      readonly scopes: readonly Scope[];
      /** The person who made the key; null for keys made by an operator. */
      readonly ownerId: string | null;
      /** The person who counts as the author of what is written with a key of nobody: see authorOf. */
      readonly authorId?: string | undefined;
    }
  | {
      readonly kind: 'session';
      readonly tenantId: string;
      /** sha256 of the session id, in hex. */
      readonly id: string;
      readonly userId: string;
      readonly email: string;
      readonly name: string;
      readonly avatarUrl: string | null;
      readonly roles: readonly Role[];
      readonly authMethod: string;
    }
  | {
      readonly kind: 'agent_key';
      readonly tenantId: string;
      readonly id: string;
      readonly agentId: string;
      readonly agentRole: string;
      readonly ownerId: string | null;
    }
  | {
      readonly kind: 'workload_token';
      readonly tenantId: string;
      readonly id: string;
      /** The trust for which it was issued. */
      readonly trustId: string;
      /** The person who made the trust; null if an operator did. */
      readonly makerId: string | null;
      readonly scopes: readonly WorkloadScope[];
      /** The policies that it reaches: an id, or a prefix followed by `*`; null for all. */
      readonly policies: string | null;
      /** What the platform's token proved about the run. */
      readonly source: StatedSource;
      readonly ownerId: null;
    };

/**
 * The access rule of a route. A kind of credential that is not named cannot call it. `keys`: the scopes that reach it besides
 * `admin`, which reaches every route that any key can.
 */
export interface Access {
  readonly public?: true;
  readonly keys?: readonly Exclude<Scope, 'admin'>[];
  /** The lowest role of a signed-in person; `any`: every signed-in person, even without a role. */
  readonly role?: Role | 'any';
  readonly agent?: true;
  /** The scope that a workload's token needs to reach it. */
  readonly workload?: WorkloadScope;
}

export type Refusal = { code: 'UNAUTHENTICATED' | 'KEY_SCOPE' | 'FORBIDDEN'; detail: string };

/** Why this principal may not call a route with this rule; undefined if it may. */
export function refusal(access: Access, principal: Principal | null): Refusal | undefined {
  if (access.public) return undefined;
  if (!principal) return { code: 'UNAUTHENTICATED', detail: 'no valid credential was given' };
  switch (principal.kind) {
    case 'api_key': {
      if (!access.keys) return { code: 'KEY_SCOPE', detail: callers(access) };
      const allowed: readonly Scope[] = [...access.keys, 'admin'];
      if (principal.scopes.some((scope) => allowed.includes(scope))) return undefined;
      return { code: 'KEY_SCOPE', detail: `the key needs one of the scopes ${allowed.join(', ')}` };
    }
    case 'agent_key':
      return access.agent ? undefined : { code: 'KEY_SCOPE', detail: callers(access) };
    case 'workload_token':
      if (!access.workload) return { code: 'KEY_SCOPE', detail: callers(access) };
      if (principal.scopes.includes(access.workload)) return undefined;
      return { code: 'KEY_SCOPE', detail: `the token needs the scope ${access.workload}` };
    case 'session':
      if (access.role === 'any' || (access.role && hasRole(principal.roles, access.role))) return undefined;
      return { code: 'FORBIDDEN', detail: access.role ? `this needs the role ${access.role}` : callers(access) };
  }
}

/** Which credentials a route accepts: what to try next after using one of another kind. */
function callers({ keys, role, agent, workload }: Access): string {
  const kinds = [
    agent && 'an agent key',
    keys && `an API key with the scope ${[...keys, 'admin'].join(' or ')}`,
    workload && `the token of a workload with the scope ${workload}`,
    role && (role === 'any' ? 'a signed-in person' : `a signed-in person with the role ${role}`),
  ];
  return `this route takes ${kinds.filter(Boolean).join(', or ')}`;
}

/** Whether one of the roles is `least` or a higher one. */
export function hasRole(roles: readonly Role[], least: Role): boolean {
  return roles.some((role) => ROLES.indexOf(role) >= ROLES.indexOf(least));
}

/** Why no link is mailed to an address whose mailbox used to be the tenant's and now belongs to someone else. */
export const LOST_DOMAIN = 'another organization has the domain';

/** How the people of a tenant may sign in. */
export interface SignInPolicy {
  /** Why a link mailed to this address lets no one in; undefined if it does. */
  linkRefused(email: string): 'single sign-on only' | typeof LOST_DOMAIN | undefined;
  /** Whether a link first shows a button if it is opened somewhere other than where it was requested. */
  confirm: boolean;
}
export type SignInPolicyOf = (tenantId: string) => Promise<SignInPolicy>;

/** The person responsible for a credential; null for a key made by an operator, which belongs to no one. */
export function ownerOf(principal: Principal): string | null {
  return principal.kind === 'session' ? principal.userId : principal.ownerId;
}

/**
 * Who is meant by author or requester, whichever key or session is used: the person, or the key itself if it belongs to no one.
 */
export function personOf(principal: Principal): string {
  // a token lives for minutes, so the trust itself is the author
  if (principal.kind === 'workload_token') return principal.trustId;
  return ownerOf(principal) ?? principal.id;
}

/** The person whose key or session it is; of the key of the first start, which belongs to nobody, the first admin, who holds it. */
export function holderOf(principal: Principal): string | undefined {
  return ownerOf(principal) ?? (principal.kind === 'api_key' ? principal.authorId : undefined);
}

/**
 * Who counts as the author of what the principal writes. The key of the first start belongs to nobody and ends with nobody, but
 * the first admin holds it: what is written with it, or with a key made with it, is theirs, and another person approves it.
 */
export function authorOf(principal: Principal): string {
  return (principal.kind === 'api_key' && principal.authorId) || personOf(principal);
}
