import { createHmac, randomBytes } from 'node:crypto';
import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { generateCodeVerifier } from 'arctic';
import { z } from 'zod';
import { Member, type MemberRow } from '../../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../../db/index.ts';
import type { Doer, Origin } from '../../domain/audit.ts';
import type { Clock } from '../../lib/clock.ts';
import { equalSecret, type SecretBox, sha256 } from '../../lib/crypto.ts';
import type { Log } from '../../lib/log.ts';
import type { OpenedSession, Sessions } from '../sessions.ts';
import type { Connection, Connections } from './connections.ts';
import { normalEmail } from './domains.ts';
import type { AuthorizationResponse, Identity, OpenIdConnect, Provider } from './oidc.ts';
import { ForgedState, SsoRefusal, severityOf } from './refusal.ts';

/** From leaving for the provider to coming back. */
export const STATE_SECONDS = 600;
const STATE_CONTEXT = 'sso/state';
/** What `generateCodeVerifier` makes: 256 bits. */
const BROWSER_SECRET = /^[A-Za-z0-9_-]{43}$/;

const State = z.strictObject({
  tenant: z.string(),
  /** The revision of the connection under which the sign-in began. */
  revision: z.string(),
  id: z.string(),
  /** sha256 of the browser's secret. */
  browser: z.string(),
  expires: z.number(),
});
type State = z.infer<typeof State>;

/** Makes a person with an open invitation for the address a member, in the transaction; undefined without one. */
export type AcceptInvitation = (
  em: EntityManager,
  notify: Notify,
  tenantId: string,
  email: string,
  origin: Origin,
  name?: string,
) => Promise<MemberRow | undefined>;

/**
 * Signing in through a tenant's identity provider.
 *
 * Nothing is stored when a sign-in begins. The browser keeps a random secret in a cookie; the state says, sealed, to
 * which tenant, configuration and browser it belongs and until when; code verifier and nonce are MACs over the state
 * under the browser's secret. So a response is accepted only with the cookie of the browser that asked (no login CSRF),
 * within ten minutes, and once: its state's id is stored by the callback that uses it.
 *
 * A person is matched by address within the tenant of the state alone, when the tenant has verified the address's domain
 * and the tenant's issuer says that the address is the person's. From then on the member is bound to issuer and subject,
 * and no other subject is taken for that member.
 */
export class SingleSignOn {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #audit: WriteAudit;
  readonly #box: SecretBox;
  readonly #oidc: OpenIdConnect;
  readonly #connections: Connections;
  readonly #sessions: Sessions;
  readonly #acceptInvitation: AcceptInvitation;
  readonly #count: (reason: string) => void;

  constructor(parts: {
    db: Database;
    clock: Clock;
    log: Log;
    audit: WriteAudit;
    box: SecretBox;
    oidc: OpenIdConnect;
    connections: Connections;
    sessions: Sessions;
    acceptInvitation: AcceptInvitation;
    /** Counts a refusal. */
    count: (reason: string) => void;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#audit = parts.audit;
    this.#box = parts.box;
    this.#oidc = parts.oidc;
    this.#connections = parts.connections;
    this.#sessions = parts.sessions;
    this.#acceptInvitation = parts.acceptInvitation;
    this.#count = parts.count;
  }

  /**
   * Begins a sign-in: where to send the browser, and the secret that it must keep for STATE_SECONDS. Undefined when the
   * tenant has no provider. Throws SsoRefusal, audited, when the provider cannot be used.
   */
  async begin(
    tenantId: string,
    browser: string | undefined,
    request: { loginHint?: string | undefined; origin: Origin },
  ): Promise<{ url: string; browser: string } | undefined> {
    const connection = await this.#connections.open(tenantId);
    if (!connection) return undefined;
    return this.#audited(tenantId, connection, request.origin, async () => {
      const provider = await this.#oidc.discover(connection.issuer);
      // sign-ins in several tabs share the secret; each has a state of its own
      const secret = browser && BROWSER_SECRET.test(browser) ? browser : generateCodeVerifier();
      const state = this.#seal({
        tenant: tenantId,
        revision: connection.revision,
        id: randomBytes(16).toString('base64url'),
        browser: sha256(secret).toString('base64url'),
        expires: this.#clock.now() + STATE_SECONDS * 1000,
      });
      const url = this.#oidc.authorizationUrl(provider, this.#client(tenantId, connection), {
        state,
        nonce: derived(secret, 'nonce', state),
        verifier: derived(secret, 'code verifier', state),
        loginHint: request.loginHint,
      });
      return { url, browser: secret };
    });
  }

  /**
   * Finishes a sign-in with a response that came to the redirect URI of a connection, and opens a session. Throws
   * SsoRefusal, audited in the tenant that the state names, or ForgedState.
   */
  async finish(
    connectionId: string,
    response: AuthorizationResponse,
    browser: string | undefined,
    origin: Origin,
  ): Promise<OpenedSession> {
    const state = this.#unseal(response.state);
    if (!state) {
      this.#note('sso.state_forged', undefined, origin);
      throw new ForgedState('the state was not made here');
    }
    const connection = await this.#connections.open(state.tenant);
    return this.#audited(state.tenant, connection, origin, async () => {
      // Mix-up: a sign-in that began at one provider comes back from another one, which the first had sent the browser
      // on to. Its code is the other tenant's, and must never reach the token endpoint of this one.
      if (state.tenant !== connectionId) {
        throw new SsoRefusal(
          'sso.response_of_other_connection',
          'the response came to the redirect URI of another connection than the one that was asked',
        );
      }
      const provider = await this.#accept(state, connection, browser);
      const identity = await this.#oidc.redeem(provider, this.#client(state.tenant, connection!), response, {
        verifier: derived(browser!, 'code verifier', response.state!),
        nonce: derived(browser!, 'nonce', response.state!),
      });
      return this.#signIn(state, identity, origin);
    });
  }

  /** Checks the state and marks it used, before anything is sent to the provider. */
  async #accept(state: State, connection: Connection | undefined, browser: string | undefined): Promise<Provider> {
    const now = this.#clock.now();
    if (now >= state.expires) throw new SsoRefusal('sso.state_expired', 'the sign-in took too long');
    const hash = Buffer.from(state.browser, 'base64url');
    if (!browser || !equalSecret(sha256(browser), hash)) {
      throw new SsoRefusal('sso.state_of_other_browser', 'the sign-in was begun in another browser');
    }
    const added = await this.#db.transaction(state.tenant, async (em) => {
      await em.execute('delete from sso_used_state where expires_at < ?', [new Date(now)]);
      return em.execute<unknown[]>(
        `insert into sso_used_state (tenant_id, id, expires_at) values (?, ?, ?) on conflict do nothing returning id`,
        [state.tenant, state.id, new Date(state.expires)],
      );
    });
    if (added.length === 0) throw new SsoRefusal('sso.state_replayed', 'the response was used before');
    if (connection?.revision !== state.revision) throw outdated();
    return this.#oidc.discover(connection.issuer);
  }

  async #signIn(state: State, identity: Identity, origin: Origin): Promise<OpenedSession> {
    const { tenant: tenantId } = state;
    const address = normalEmail(identity.email);
    if (!address) {
      throw identity.email === undefined
        ? new SsoRefusal('sso.email_missing', 'the provider gives no address: it must release the claim email')
        : new SsoRefusal('sso.email_malformed', 'the address that the provider gives is not one that members have');
    }
    const { email, domain } = address;
    const refuse = (reason: ConstructorParameters<typeof SsoRefusal>[0], detail: string) =>
      new SsoRefusal(reason, `${detail} (${email}, subject ${identity.subject})`);
    if (!identity.emailVerified) {
      throw refuse('sso.email_unverified', 'the provider does not say that the address was verified');
    }
    const now = new Date(this.#clock.now());
    return this.#db.transaction(tenantId, async (em, notify) => {
      // held until the commit: the configuration does not change meanwhile. A tenant's sign-ins come one after the other
      // from here, since an admin's first one notes itself in this row: later would be after the audit chain's lock
      const current = await em.execute<unknown[]>('select 1 from sso_connection where revision = ? for update', [
        state.revision,
      ]);
      if (current.length === 0) throw outdated();
      // another tenant's domain is invisible here, and so refused like one that nobody has
      const own = await em.execute<unknown[]>('select 1 from verified_domain where domain = ?', [domain]);
      if (own.length === 0) {
        throw refuse('sso.email_of_other_domain', 'the tenant has not verified the domain of the address');
      }
      const { issuer, subject } = identity;
      const [bound] = await em.execute<{ user_id: string }[]>(
        'select user_id from sso_identity where issuer = ? and subject = ?',
        [issuer, subject],
      );
      const find = (where: { id: string } | { email: string }) =>
        em.findOne(Member, { tenantId, ...where }, { lockMode: LockMode.PESSIMISTIC_WRITE });
      let member = await find(bound ? { id: bound.user_id } : { email });
      if (bound && member?.email !== email && (await em.count(Member, { email })) > 0) {
        throw refuse('sso.email_of_other_member', 'the account is bound to one member and has the address of another');
      }
      if (!member || member.removedAt) {
        const removed = member !== null;
        const invited = member?.email ?? email;
        const joined = await this.#acceptInvitation(em, notify, tenantId, invited, origin, nameOf(identity.name));
        if (!joined) {
          throw removed
            ? refuse('sso.account_removed', 'the member was removed')
            : refuse('sso.account_unknown', 'there is no member and no invitation with this address');
        }
        member = joined;
      }
      // the provider decides the person's name at each sign-in; what it omits stays, except for a picture
      const name = nameOf(identity.name) ?? member.name;
      const avatarUrl = pictureOf(identity.picture) ?? null;
      if (name !== member.name || avatarUrl !== (member.avatarUrl ?? null)) {
        Object.assign(member, { name, avatarUrl });
        await notify('members');
      }
      const by: Doer = {
        actor: { type: 'user', id: member.id, email: member.email, ip: origin.ip },
        requestId: origin.requestId,
      };
      if (bound) {
        await em.execute('update sso_identity set last_used_at = ? where issuer = ? and subject = ?', [
          now,
          issuer,
          subject,
        ]);
      } else {
        // the unique keys hold it, whatever else there is: one subject a member, one member a subject
        const added = await em.execute<unknown[]>(
          `insert into sso_identity (tenant_id, issuer, subject, user_id, created_at, last_used_at)
           values (?, ?, ?, ?, ?, ?) on conflict do nothing returning subject`,
          [tenantId, issuer, subject, member.id, now, now],
        );
        if (added.length === 0) {
          throw refuse('sso.subject_changed', 'the member is bound to another account of the provider');
        }
        await this.#audit(em, tenantId, {
          ...by,
          action: 'sso.identity_bound',
          target: { type: 'user', id: member.id },
          detail: `subject ${subject} of ${issuer}`,
        });
      }
      if (member.roles.includes('admin')) {
        await this.#connections.prove(em, tenantId, { revision: state.revision, userId: member.id, by });
      }
      return this.#sessions.open(em, tenantId, { member, authMethod: 'oidc', now, origin });
    });
  }

  #client(tenantId: string, connection: Connection) {
    const redirectUri = this.#connections.redirectUri(tenantId);
    return { id: connection.clientId, secret: connection.secret, redirectUri };
  }

  #seal(state: State): string {
    return this.#box.seal(JSON.stringify(state), STATE_CONTEXT).toString('base64url');
  }

  #unseal(text: string | undefined): State | undefined {
    if (!text || !/^[A-Za-z0-9_-]+$/.test(text)) return undefined;
    try {
      return State.parse(JSON.parse(this.#box.open(Buffer.from(text, 'base64url'), STATE_CONTEXT).toString()));
    } catch {
      return undefined;
    }
  }

  /** Does the work; a refusal is in the tenant's audit chain before the caller sees it. */
  async #audited<T>(
    tenantId: string,
    connection: Connection | undefined,
    origin: Origin,
    work: () => Promise<T>,
  ): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof SsoRefusal)) throw error;
      const { reason: action, detail } = error;
      this.#note(action, tenantId, origin);
      await this.#db.transaction(tenantId, (em) =>
        this.#audit(em, tenantId, {
          actor: { type: 'system', id: 'sso', ip: origin.ip },
          action,
          target: { type: 'sso_connection', id: connection?.issuer ?? 'none' },
          severity: severityOf(error),
          detail,
          requestId: origin.requestId,
        }),
      );
      throw error;
    }
  }

  #note(reason: string, tenantId: string | undefined, origin: Origin): void {
    this.#count(reason);
    this.#log.warn(
      { reason, tenant_id: tenantId, ip: origin.ip, reqId: origin.requestId },
      'a sign-in through an identity provider was refused',
    );
  }
}

const outdated = () => new SsoRefusal('sso.state_outdated', 'the configuration was changed since the sign-in began');

function derived(secret: string, purpose: string, state: string): string {
  return createHmac('sha256', secret).update(`${purpose} ${state}`).digest('base64url');
}

/**
 * A name as it is shown to other people, on one line: without control characters and those that turn the direction of the
 * text around it, and not longer than 200 characters. Joiners stay: some scripts need them. Undefined when nothing is left.
 */
function nameOf(claim: unknown): string | undefined {
  if (typeof claim !== 'string') return undefined;
  const text = claim
    .slice(0, 2000)
    .toWellFormed()
    .normalize('NFC')
    .replace(/(?![\u200c\u200d])[\p{C}\p{Zl}\p{Zp}\ufffd]/gu, ' ')
    .replace(/\s+/g, ' ');
  return [...text].slice(0, 200).join('').trim() || undefined;
}

/** An address of a picture that other people's browsers may be given: https, without a user name, of bounded length. */
function pictureOf(claim: unknown): string | undefined {
  if (typeof claim !== 'string' || claim.length > 2000) return undefined;
  const url = URL.parse(claim);
  if (url?.protocol !== 'https:' || url.username || url.password || url.href.length > 2000) return undefined;
  return url.href;
}
