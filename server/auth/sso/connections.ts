import type { EntityManager } from '@mikro-orm/postgresql';
import { z } from 'zod';
import type { SettingEffect } from '../../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../../db/index.ts';
import type { AuditAction, Doer } from '../../domain/audit.ts';
import { AppError, invalid } from '../../errors.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import type { Clock } from '../../lib/clock.ts';
import { type SecretBox, sha256Tag } from '../../lib/crypto.ts';
import { newId } from '../../lib/ids.ts';
import type { OpenIdConnect } from './oidc.ts';
import { SsoRefusal, severityOf } from './refusal.ts';

/** A tenant's provider as shown to its admins. */
export interface ConnectionView {
  configured: boolean;
  /** The URI to register at the provider; no other connection has it. Before there is one, what it will be. */
  redirect_uri: string;
  issuer_url?: string;
  client_id?: string;
  updated_at?: string;
  /** When an admin first signed in with this configuration. Enforcing single sign-on requires it. */
  proven_at?: string;
}

/** A tenant's provider as a sign-in uses it. */
export interface Connection {
  issuer: string;
  clientId: string;
  secret: string;
  /** Where its provider redirects browsers. */
  redirectUri: string;
  /** Changes with every update; a sign-in that began under an older revision cannot finish. */
  revision: string;
}

export interface IdentityView {
  user_id: string;
  email: string;
  issuer: string;
  subject: string;
  created_at: string;
  last_used_at: string;
}

interface Row {
  issuer: string;
  client_id: string;
  client_secret: Buffer;
  revision: string;
  updated_at: Date;
  proven_at: Date | null;
  proven_by: string | null;
  /** Whether the path without a name is this connection's. */
  plain: boolean;
}

const FIND = `select c.*, exists (select 1 from plain_callback p where p.tenant_id = c.tenant_id) as plain
  from sso_connection c where c.tenant_id = $1`;

/** A change to who can sign in as whom: a new provider, no provider, or a member unbound from their account. */
const SsoChange = z.union([
  z.strictObject({ sso_provider: z.object({ issuer_url: z.string(), client_id: z.string() }).nullable() }),
  z.strictObject({ sso_identity: z.string() }),
]);
export type SsoChange = z.infer<typeof SsoChange>;

export const secretContext = (tenantId: string) => `${tenantId}/sso_connection/client_secret`;
const fingerprint = (row: { issuer: string; client_id: string; revision: string } | undefined) =>
  row && sha256Tag(canonicalJson({ issuer: row.issuer, client_id: row.client_id, revision: row.revision }));

/**
 * A tenant's identity provider and the bindings between its accounts and members. The client secret is stored
 * encrypted. Changes and the setting "SSO only" lock the tenant's row, so that each sees the other's effect before it
 * checks.
 */
export class Connections {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #box: SecretBox;
  readonly #oidc: OpenIdConnect;
  readonly #baseUrl: string;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    box: SecretBox;
    oidc: OpenIdConnect;
    baseUrl: string;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#box = parts.box;
    this.#oidc = parts.oidc;
    this.#baseUrl = parts.baseUrl;
  }

  /**
   * Where a provider redirects browsers: the path of the tenant's connection, or without a tenant the path of the first connection
   * that was made. It stays with that one until it is removed, so a second connection changes no registration at a provider.
   * INVARIANT: no two tenants share a redirect URI at any time, so the path of a response identifies the connection that it was
   * issued for (RFC 9700, section 4.4.2.2); a provider sends a client's codes only to URIs registered for that client.
   */
  redirectUri(tenantId?: string): string {
    const name = tenantId === undefined ? '' : `/${encodeURIComponent(tenantId)}`;
    // providers compare redirect URIs character by character, so every use takes this one spelling
    return new URL(`${this.#baseUrl}/auth/callback${name}`).href;
  }

  async view(tenantId: string): Promise<ConnectionView> {
    const [row] = await this.#db.query<Row>(tenantId, FIND, [tenantId]);
    if (!row) {
      // another tenant's row is invisible to this one
      const { rows: taken } = await this.#db.owner.query('select 1 from plain_callback');
      return { configured: false, redirect_uri: this.redirectUri(taken.length > 0 ? tenantId : undefined) };
    }
    return {
      configured: true,
      redirect_uri: this.redirectUri(row.plain ? undefined : tenantId),
      issuer_url: row.issuer,
      client_id: row.client_id,
      updated_at: row.updated_at.toISOString(),
      ...(row.proven_at && { proven_at: row.proven_at.toISOString() }),
    };
  }

  /** The provider including the client secret; undefined if the tenant has none. */
  async open(tenantId: string): Promise<Connection | undefined> {
    const [row] = await this.#db.query<Row>(tenantId, FIND, [tenantId]);
    if (!row) return undefined;
    const secret = this.#box.open(row.client_secret, secretContext(tenantId)).toString();
    const redirectUri = this.redirectUri(row.plain ? undefined : tenantId);
    return { issuer: row.issuer, clientId: row.client_id, secret, redirectUri, revision: row.revision };
  }

  /** Tenants that have a provider, at most `limit`. */
  async tenants(limit: number): Promise<string[]> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      'select tenant_id from sso_connection order by tenant_id limit $1',
      [limit],
    );
    return rows.map((row) => row.tenant_id);
  }

  /** Fetches the issuer's discovery document and key set. Throws an audited VALIDATION_FAILED if they are unusable. */
  async assertIssuer(tenantId: string, issuer: string, by: Doer): Promise<void> {
    const fault = this.#oidc.faultOfIssuer(issuer);
    if (fault) throw invalid('/issuer_url', fault);
    try {
      const provider = await this.#oidc.discover(issuer, { fresh: true });
      await this.#oidc.assertKeys(provider.jwks_uri);
    } catch (error) {
      if (!(error instanceof SsoRefusal)) throw error;
      await this.#db.transaction(tenantId, (em) =>
        this.#audit(em, tenantId, {
          ...by,
          action: error.reason,
          target: { type: 'sso_connection', id: issuer },
          severity: severityOf(error),
          detail: `on saving: ${error.detail}`,
        }),
      );
      throw invalid('/issuer_url', `the issuer is not usable: ${error.detail}`);
    }
  }

  /**
   * The effects of a change given the current state, determined in the caller's transaction, which holds the lock on
   * the tenant's row; empty if there is nothing to change. Everything except a new secret counts as loosening: anyone
   * who chooses the provider, or frees an account for binding, can become anyone through it. A stored secret is reused
   * only for the issuer and client it was entered for, because it is sent to whatever endpoint the issuer names.
   */
  async effects(
    em: EntityManager,
    tenantId: string,
    change: unknown,
    secret: string | undefined,
  ): Promise<readonly SettingEffect[] | { error: AppError; action: AuditAction }> {
    const patch = SsoChange.parse(change);
    if ('sso_identity' in patch) {
      const error = await this.#objectionToShutOut(em, tenantId, ({ id }) => id === patch.sso_identity);
      if (error) return { error, action: 'sso.configuration_refused' };
      const accounts = await em.execute<{ issuer: string; subject: string }[]>(
        'select issuer, subject from sso_identity where tenant_id = ? and user_id = ? order by issuer for update',
        [tenantId, patch.sso_identity],
      );
      const of = (list: object[]) => ({ user_id: patch.sso_identity, accounts: list });
      if (accounts.length === 0) return [];
      return [{ setting: 'sso_identity', from: of(accounts), to: of([]), loosens: true }];
    }
    const enforced = await lockTenant(em, tenantId);
    const [row] = await em.execute<Row[]>('select * from sso_connection where tenant_id = ?', [tenantId]);
    const [before, after] = [row ? { issuer_url: row.issuer, client_id: row.client_id } : null, patch.sso_provider];
    if (!before && !after) return [];
    const other = canonicalJson(before) !== canonicalJson(after);
    if (other && after && secret === undefined) {
      throw invalid('/client_secret', 'is required for a new issuer or client');
    }
    if (other && enforced) {
      const error = new AppError(
        'CONFLICT',
        'turn off "SSO only" first: nobody could sign in if the new provider did not work',
      );
      return { error, action: 'sso.configuration_refused' };
    }
    return [{ setting: 'sso_provider', from: before, to: after, loosens: other }];
  }

  /** Applies a change whose effects were determined in the same transaction. */
  async apply(
    em: EntityManager,
    tenantId: string,
    change: { patch: unknown; secret: string | undefined; by: Doer; reason: string },
  ): Promise<void> {
    const { secret, by, reason } = change;
    const patch = SsoChange.parse(change.patch);
    if ('sso_identity' in patch) await this.#unbind(em, tenantId, patch.sso_identity, by, reason);
    else if (patch.sso_provider) await this.#save(em, tenantId, { ...patch.sso_provider, secret }, by, reason);
    else await this.#remove(em, tenantId, by, reason);
  }

  async #save(
    em: EntityManager,
    tenantId: string,
    input: { issuer_url: string; client_id: string; secret: string | undefined },
    by: Doer,
    reason: string,
  ): Promise<void> {
    const { issuer_url: issuer, client_id: clientId, secret } = input;
    const [before] = await em.execute<Row[]>('select * from sso_connection where tenant_id = ?', [tenantId]);
    const other = !before || before.issuer !== issuer || before.client_id !== clientId;
    const now = new Date(this.#clock.now());
    const revision = newId('sso', now.getTime());
    const sealed = secret === undefined ? before!.client_secret : this.#box.seal(secret, secretContext(tenantId));
    await em.execute(
      `insert into sso_connection (tenant_id, issuer, client_id, client_secret, revision, created_at, updated_at)
       values (?, ?, ?, ?, ?, ?, ?) on conflict (tenant_id) do update
       set issuer = excluded.issuer, client_id = excluded.client_id, client_secret = excluded.client_secret,
         revision = excluded.revision, updated_at = excluded.updated_at, proven_at = null, proven_by = null`,
      [tenantId, issuer, clientId, sealed, revision, now, now],
    );
    if (!before)
      await em.execute('insert into plain_callback (tenant_id) values (?) on conflict do nothing', [tenantId]);
    await this.#audit(em, tenantId, {
      ...by,
      action: 'sso.configured',
      target: { type: 'sso_connection', id: issuer },
      // anyone who chooses the provider can become anyone through it
      severity: other ? 'critical' : 'warning',
      reason,
      detail: other ? `issuer ${issuer}, client ${clientId}` : 'client secret',
      beforeHash: fingerprint(before),
      afterHash: fingerprint({ issuer, client_id: clientId, revision }),
    });
  }

  /** Removes the provider and all bindings of members to its accounts. */
  async #remove(em: EntityManager, tenantId: string, by: Doer, reason: string): Promise<void> {
    const [before] = await em.execute<Row[]>('delete from sso_connection where tenant_id = ? returning *', [tenantId]);
    await em.execute('delete from plain_callback where tenant_id = ?', [tenantId]);
    await em.execute('delete from sso_identity where tenant_id = ?', [tenantId]);
    await this.#audit(em, tenantId, {
      ...by,
      action: 'sso.removed',
      target: { type: 'sso_connection', id: before!.issuer },
      severity: 'warning',
      reason,
      beforeHash: fingerprint(before),
    });
  }

  /**
   * Why single sign-on cannot be enforced; undefined if it can. Unless a current admin has signed in with the present
   * configuration, and their domain still has its record, it may lock everyone out. Call it in the transaction that
   * enables enforcement.
   */
  async objectionToEnforcing(
    em: EntityManager,
    tenantId: string,
  ): Promise<{ error: AppError; action: AuditAction } | undefined> {
    const proven = await em.execute<unknown[]>(
      `${adminsWhoCanSignIn('?')} and m.id = c.proven_by and d.missing_since is null`,
      [tenantId],
    );
    if (proven.length > 0) return undefined;
    const error = new AppError(
      'CONFLICT',
      'an admin with a verified domain, whose record is in DNS, must first sign in through the identity provider with its current configuration',
    );
    return { error, action: 'sso.enforcement_refused' };
  }

  /**
   * Throws CONFLICT if single sign-on is enforced and the change that the caller's transaction makes next would shut out the last
   * admins who can sign in. If none can sign in any longer, because their domain was lost, nothing is refused: someone who came
   * in with a link from the operator must be able to put things right. `shutOut`: whether the change shuts out this admin.
   */
  async assertAdminStays(em: EntityManager, tenantId: string, shutOut: (admin: SignedAdmin) => boolean): Promise<void> {
    const error = await this.#objectionToShutOut(em, tenantId, shutOut);
    if (error) throw error;
  }

  async #objectionToShutOut(em: EntityManager, tenantId: string, shutOut: (admin: SignedAdmin) => boolean) {
    if (!(await lockTenant(em, tenantId))) return undefined;
    const all = await em.execute<SignedAdmin[]>(adminsWhoCanSignIn('?'), [tenantId]);
    // a domain without its record may be lost within a week, along with its admins
    const safe = all.filter(({ missing_since }) => missing_since === null);
    const admins = safe.length > 0 ? safe : all;
    if (admins.length === 0 || !admins.every(shutOut)) return undefined;
    return new AppError('CONFLICT', 'turn off "SSO only" first: no admin could sign in any more');
  }

  /** Records that this member, an admin, has signed in through the provider; once per configuration. */
  async prove(
    em: EntityManager,
    tenantId: string,
    proof: { revision: string; userId: string; by: Doer },
  ): Promise<void> {
    const first = await em.execute<{ issuer: string }[]>(
      `update sso_connection c set proven_at = ?, proven_by = ? where c.tenant_id = ? and c.revision = ?
         and (c.proven_by is null or not exists (select 1 from member m where m.tenant_id = ?
           and m.id = c.proven_by and m.removed_at is null and 'admin' = any (m.roles)))
       returning c.issuer`,
      [new Date(this.#clock.now()), proof.userId, tenantId, proof.revision, tenantId],
    );
    if (!first[0]) return;
    await this.#audit(em, tenantId, {
      ...proof.by,
      action: 'sso.proven',
      target: { type: 'sso_connection', id: first[0].issuer },
    });
  }

  async identities(tenantId: string): Promise<IdentityView[]> {
    const rows = await this.#db.query<{
      user_id: string;
      email: string;
      issuer: string;
      subject: string;
      created_at: Date;
      last_used_at: Date;
    }>(
      tenantId,
      `select i.user_id, m.email, i.issuer, i.subject, i.created_at, i.last_used_at from sso_identity i
       join member m on m.tenant_id = i.tenant_id and m.id = i.user_id
       where i.tenant_id = $1 order by m.email, i.issuer limit 10000`,
      [tenantId],
    );
    return rows.map((row) => ({
      ...row,
      created_at: row.created_at.toISOString(),
      last_used_at: row.last_used_at.toISOString(),
    }));
  }

  /** Unbinds a member from their account at the provider so that another account can be bound. */
  async #unbind(em: EntityManager, tenantId: string, userId: string, by: Doer, reason: string): Promise<void> {
    const gone = await em.execute<{ issuer: string; subject: string }[]>(
      'delete from sso_identity where tenant_id = ? and user_id = ? returning issuer, subject',
      [tenantId, userId],
    );
    await this.#audit(em, tenantId, {
      ...by,
      action: 'sso.identity_unbound',
      target: { type: 'user', id: userId },
      severity: 'warning',
      reason,
      detail: gone.map((row) => `subject ${row.subject} of ${row.issuer}`).join(', '),
    });
  }
}

/** An admin who can sign in through the provider, and their address's domain. */
export interface SignedAdmin {
  id: string;
  domain: string;
  /** Since when the domain's record has been missing. */
  missing_since: Date | null;
}

/** The admins of one tenant who have signed in: an address alone does not prove that the provider has an account for it. */
export const adminsWhoCanSignIn = (
  tenant: '?' | 't.tenant_id',
) => `select m.id, d.domain, d.missing_since from sso_connection c
  join sso_identity i on i.tenant_id = c.tenant_id and i.issuer = c.issuer
  join member m on m.tenant_id = i.tenant_id and m.id = i.user_id
  join verified_domain d on d.tenant_id = m.tenant_id and d.domain = split_part(m.email, '@', -1) collate "C"
  where c.tenant_id = ${tenant} and m.removed_at is null and 'admin' = any (m.roles)`;

/** Locks the tenant's settings until the commit. Resolves to whether single sign-on is enforced. */
async function lockTenant(em: EntityManager, tenantId: string): Promise<boolean> {
  const [row] = await em.execute<{ enforced: boolean }[]>(
    `select coalesce((settings->>'sso_only')::boolean, false) as enforced from tenant where tenant_id = ?
     for no key update`,
    [tenantId],
  );
  return row?.enforced === true;
}
