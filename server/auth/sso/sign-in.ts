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
import { showsSomething } from '../../lib/visible.ts';
import { RefusalLimit } from '../refusal-limit.ts';
import type { OpenedSession, Sessions } from '../sessions.ts';
import type { Connection, Connections } from './connections.ts';
import { normalEmail } from './domains.ts';
import type { AuthorizationResponse, Identity, OpenIdConnect, Provider } from './oidc.ts';
import { ForgedState, SsoRefusal, severityOf } from './refusal.ts';

/** The time limit between the redirect to the provider and the redirect back. */
export const STATE_SECONDS = 600;
const STATE_CONTEXT = 'sso/state';
/** The output of `generateCodeVerifier`: 256 bits. */
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

/** Makes a person with an open invitation for the address a member, in the transaction; undefined if there is none. */
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
 * Nothing is stored when a sign-in begins. The browser keeps a random secret in a cookie. The state, which is
 * encrypted, contains the tenant, configuration and browser it belongs to and its expiry. Code verifier and nonce are
 * MACs over the state under the browser's secret. A response is therefore accepted only with the cookie of the browser
 * that started the sign-in (no login CSRF), within ten minutes, and once: the callback stores the id of the state it
 * uses.
 *
 * A person is matched by address, only within the state's tenant, and only if the tenant has verified the address's
 * domain and its issuer says that the address belongs to the person. From then on the member is bound to issuer and
 * subject, and no other subject is accepted for that member.
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
  readonly #refusals: RefusalLimit;

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
    this.#refusals = new RefusalLimit(parts.clock);
  }

  /**
   * Starts a sign-in. Returns where to send the browser and the secret that the browser must keep for STATE_SECONDS;
   * undefined if the tenant has no provider. Throws an audited SsoRefusal if the provider is unusable.
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
      // sign-ins in several tabs share the secret but not the state
      const secret = browser && BROWSER_SECRET.test(browser) ? browser : generateCodeVerifier();
      const state = this.#seal({
        tenant: tenantId,
        revision: connection.revision,
        id: randomBytes(16).toString('base64url'),
        browser: sha256(secret).toString('base64url'),
        expires: this.#clock.now() + STATE_SECONDS * 1000,
      });
      const url = this.#oidc.authorizationUrl(provider, clientOf(connection), {
        state,
        nonce: derived(secret, 'nonce', state),
        verifier: derived(secret, 'code verifier', state),
        loginHint: request.loginHint,
      });
      return { url, browser: secret };
    });
  }

  /**
   * Finishes a sign-in with a response received at a connection's redirect URI, and opens a session. `named`: the tenant in its
   * path, if there is one. Throws SsoRefusal, audited in the tenant named by the state, or ForgedState.
   */
  async finish(
    named: string | undefined,
    response: AuthorizationResponse,
    browser: string | undefined,
    origin: Origin,
  ): Promise<OpenedSession> {
    const state = this.#unseal(response.state);
    if (!state) {
      this.#note('sso.state_forged', undefined, origin);
      throw new ForgedState('the state was not issued by this server');
    }
    const connection = await this.#connections.open(state.tenant);
    return this.#audited(state.tenant, connection, origin, async () => {
      if (this.#clock.now() >= state.expires) throw new SsoRefusal('sso.state_expired', 'the sign-in took too long');
      // Mix-up attack: a sign-in that began at one provider returns from another, to which the first redirected the
      // browser. Its code belongs to the other tenant and must never reach this tenant's token endpoint.
      if (connection && connection.redirectUri !== this.#connections.redirectUri(named)) {
        throw new SsoRefusal(
          'sso.response_of_other_connection',
          'the response came to the redirect URI of another connection',
        );
      }
      const provider = await this.#accept(state, connection, browser);
      const identity = await this.#oidc.redeem(provider, clientOf(connection!), response, {
        verifier: derived(browser!, 'code verifier', response.state!),
        nonce: derived(browser!, 'nonce', response.state!),
      });
      return this.#signIn(state, identity, origin);
    });
  }

  /** Checks the state and marks it used before anything is sent to the provider. */
  async #accept(state: State, connection: Connection | undefined, browser: string | undefined): Promise<Provider> {
    const now = this.#clock.now();
    const hash = Buffer.from(state.browser, 'base64url');
    if (!browser || !equalSecret(sha256(browser), hash)) {
      throw new SsoRefusal('sso.state_of_other_browser', 'the sign-in was started in another browser');
    }
    const added = await this.#db.transaction(state.tenant, async (em) => {
      await em.execute('delete from sso_used_state where tenant_id = ? and expires_at < ?', [
        state.tenant,
        new Date(now),
      ]);
      return em.execute<unknown[]>(
        `insert into sso_used_state (tenant_id, id, expires_at) values (?, ?, ?) on conflict do nothing returning id`,
        [state.tenant, state.id, new Date(state.expires)],
      );
    });
    if (added.length === 0) throw new SsoRefusal('sso.state_replayed', 'the response was already used');
    if (connection?.revision !== state.revision) throw outdated();
    return this.#oidc.discover(connection.issuer);
  }

  async #signIn(state: State, identity: Identity, origin: Origin): Promise<OpenedSession> {
    const { tenant: tenantId } = state;
    const address = normalEmail(identity.email);
    if (!address) {
      throw identity.email === undefined
        ? new SsoRefusal('sso.email_missing', 'the provider sends no email address: it must release the claim email')
        : new SsoRefusal('sso.email_malformed', 'the address that the provider sends is not a valid member address');
    }
    const { email, domain } = address;
    const refuse = (reason: ConstructorParameters<typeof SsoRefusal>[0], detail: string) =>
      new SsoRefusal(reason, `${detail} (${email}, subject ${identity.subject})`);
    if (!identity.emailVerified) {
      throw refuse('sso.email_unverified', 'the provider does not state that the address is verified');
    }
    const now = new Date(this.#clock.now());
    return this.#db.transaction(tenantId, async (em, notify) => {
      // Held until the commit, so that the configuration cannot change meanwhile. This serializes a tenant's sign-ins
      // from here: an admin's first one updates this row, and locking it later, after the audit chain, could deadlock.
      const current = await em.execute<unknown[]>(
        'select 1 from sso_connection where tenant_id = ? and revision = ? for update',
        [tenantId, state.revision],
      );
      if (current.length === 0) throw outdated();
      // another tenant's domain is invisible here, so it is refused like an unverified one
      const [own] = await em.execute<{ missing_since: Date | null }[]>(
        'select missing_since from verified_domain where tenant_id = ? and domain = ?',
        [tenantId, domain],
      );
      if (!own) {
        throw refuse('sso.email_of_other_domain', 'the tenant has not verified the domain of the address');
      }
      const { issuer, subject } = identity;
      const [bound] = await em.execute<{ user_id: string }[]>(
        'select user_id from sso_identity where tenant_id = ? and issuer = ? and subject = ?',
        [tenantId, issuer, subject],
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
      // the provider sets the person's name at each sign-in; a name it omits stays, a picture it omits is removed
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
        await em.execute(
          'update sso_identity set last_used_at = ? where tenant_id = ? and issuer = ? and subject = ?',
          [now, tenantId, issuer, subject],
        );
      } else {
        // the unique keys guarantee one subject per member and one member per subject
        const added = await em.execute<unknown[]>(
          `insert into sso_identity (tenant_id, issuer, subject, user_id, created_at, last_used_at)
           values (?, ?, ?, ?, ?, ?) on conflict do nothing returning subject`,
          [tenantId, issuer, subject, member.id, now, now],
        );
        if (added.length === 0) {
          throw refuse('sso.subject_changed', 'the member is bound to another account of the provider');
        }
        // whoever holds the domain now has its addresses at every provider that takes a mailbox as proof
        if (own.missing_since) {
          throw refuse(
            'sso.email_of_doubtful_domain',
            'the DNS record of the domain is missing, so nobody signs in with an address in it for the first time',
          );
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

  /**
   * Runs `work`. A refusal is in the tenant's audit chain before the caller sees it, though not every refusal of a kind (see
   * RefusalLimit), because anyone can get themselves refused.
   */
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
      if (!this.#refusals.mayRecord(`${tenantId} ${action}`)) throw error;
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

const clientOf = ({ clientId: id, secret, redirectUri }: Connection) => ({ id, secret, redirectUri });
const outdated = () => new SsoRefusal('sso.state_outdated', 'the configuration changed after the sign-in began');

function derived(secret: string, purpose: string, state: string): string {
  return createHmac('sha256', secret).update(`${purpose} ${state}`).digest('base64url');
}

/**
 * A name that is safe to show to other people: one line, at most 200 characters, without control characters or
 * characters that change text direction. Joiners stay, since some scripts need them. Undefined if nothing remains.
 */
function nameOf(claim: unknown): string | undefined {
  if (typeof claim !== 'string') return undefined;
  const text = claim
    .slice(0, 2000)
    .toWellFormed()
    .normalize('NFC')
    .replace(/(?![\u200c\u200d])[\p{C}\p{Zl}\p{Zp}\ufffd]/gu, ' ')
    .replace(/\s+/g, ' ');
  const name = [...text].slice(0, 200).join('').trim();
  return showsSomething(name) ? name : undefined;
}

/** A picture URL that other people's browsers may load: https, no user name, bounded length. */
function pictureOf(claim: unknown): string | undefined {
  if (typeof claim !== 'string' || claim.length > 2000) return undefined;
  const url = URL.parse(claim);
  if (url?.protocol !== 'https:' || url.username || url.password || url.href.length > 2000) return undefined;
  return url.href;
}
