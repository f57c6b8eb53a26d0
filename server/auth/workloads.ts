import type { EntityManager } from '@mikro-orm/postgresql';
import { decodeJwt } from 'jose';
import { z } from 'zod';
import { apart } from '../../db/citus.ts';
import { addCredential } from '../../db/credentials.ts';
import { type SettingEffect, WorkloadTrust, type WorkloadTrustRow } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Actor, Doer, Origin } from '../domain/audit.ts';
import { newSecret, secretHash } from '../domain/secret.ts';
import {
  faultsOfMatch,
  matches,
  provenSource,
  WORKLOAD_SCOPES,
  type WorkloadScope,
  writingRefused,
} from '../domain/workload.ts';
import { AppError, invalid } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { each } from '../lib/each.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { endTokens } from './keys.ts';
import { RefusalLimit } from './refusal-limit.ts';
import type { OpenIdConnect } from './sso/oidc.ts';
import { SsoRefusal } from './sso/refusal.ts';

export interface TrustInput {
  label: string;
  issuer: string;
  audience?: string | undefined;
  jwks_uri?: string | undefined;
  match: Record<string, string>;
  scopes: readonly WorkloadScope[];
  policies?: string | undefined;
}

/** A trust as it is asked for and, if it waits for a second person, kept until then. */
const NewTrust = z.strictObject({
  id: z.string(),
  label: z.string(),
  issuer: z.string(),
  audience: z.string(),
  jwks_uri: z.string().nullable(),
  match: z.record(z.string(), z.string()),
  scopes: z.array(z.enum(WORKLOAD_SCOPES)),
  policies: z.string().nullable(),
});
export type NewTrust = z.infer<typeof NewTrust>;

/** What was issued in exchange for a platform's token. */
export interface Exchanged {
  token: string;
  seconds: number;
  scopes: readonly WorkloadScope[];
}

const TOKEN_SECONDS = 900;
const MAX_PER_TENANT = 100;
/** A platform's token that is valid for longer than this is not meant for a single run. */
const MAX_SUBJECT_SECONDS = 86_400;
/** A used token is remembered for this long after it has expired, whatever the processes' clocks say. */
const MARGIN_MS = 600_000;

/**
 * What a tenant trusts of the tokens that a platform gives its workloads, and the exchange of such a token for one issued by this
 * server (RFC 8693). No key is stored anywhere for it.
 */
export class Workloads {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #audit: WriteAudit;
  readonly #oidc: OpenIdConnect;
  readonly #base: string;
  /** For tokens of known issuers; anyone can have GitHub sign one. */
  readonly #refusals: RefusalLimit;

  constructor(parts: {
    db: Database;
    clock: Clock;
    log: Log;
    audit: WriteAudit;
    oidc: OpenIdConnect;
    baseUrl: string;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#audit = parts.audit;
    this.#oidc = parts.oidc;
    this.#refusals = new RefusalLimit(parts.clock);
    this.#base = `${parts.baseUrl.replace(/\/+$/, '')}/tenants/`;
  }

  /** The audience of a token for this tenant, unless a trust names a longer one. It belongs to this tenant alone. */
  audienceOf(tenantId: string): string {
    return `${this.#base}${tenantId}`;
  }

  list(tenantId: string): Promise<WorkloadTrustRow[]> {
    return this.#db
      .reader(tenantId)
      .find(WorkloadTrust, { revokedAt: null }, { orderBy: { createdAt: 'desc', id: 'desc' } });
  }

  /**
   * What a trust would be, under an id that is its own from then on. VALIDATION_FAILED if its tokens could belong to someone else,
   * or if the issuer's keys cannot be fetched; that is recorded too.
   */
  async checked(tenantId: string, input: TrustInput, by: Doer): Promise<NewTrust> {
    const own = this.audienceOf(tenantId);
    const audience = input.audience ?? own;
    if (audience !== own && !audience.startsWith(`${own}/`)) {
      throw invalid('/audience', `must be ${own}, or begin with ${own}/`);
    }
    const faults = faultsOfMatch(input.match, input.scopes).map(({ claim, message }) => ({
      pointer: claim === '' ? '/match' : `/match/${claim}`,
      message,
    }));
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
    await this.#assertIssuer(tenantId, input, by);
    return {
      id: newId('wlt', this.#clock.now()),
      label: input.label,
      issuer: input.issuer,
      audience,
      jwks_uri: input.jwks_uri ?? null,
      match: input.match,
      scopes: [...new Set(input.scopes)],
      policies: input.policies ?? null,
    };
  }

  /** A trust decides who can change policies, so each one counts as loosening. */
  async effects(_em: EntityManager, _tenantId: string, patch: Record<string, unknown>): Promise<SettingEffect[]> {
    return [{ setting: 'workload_trust', from: null, to: NewTrust.parse(patch.workload_trust), loosens: true }];
  }

  /** Trusts tokens from now on, in the caller's transaction, which locks the tenant's row. `maker`: the person who asked for it. */
  async apply(
    em: EntityManager,
    tenantId: string,
    { patch, by, maker, reason }: { patch: Record<string, unknown>; by: Doer; maker: string | null; reason: string },
  ): Promise<void> {
    const trust = NewTrust.parse(patch.workload_trust);
    const others = await em.count(WorkloadTrust, { tenantId, revokedAt: null });
    if (others >= MAX_PER_TENANT) throw new AppError('CONFLICT', `a tenant can trust ${MAX_PER_TENANT} workloads`);
    const row = em.create(WorkloadTrust, { tenantId, ...this.rowOf(trust, maker) });
    await em.flush();
    await this.#announce(em, 'workload_trust.created', row, by.actor);
    await this.#audit(em, tenantId, {
      ...by,
      action: 'workload_trust.created',
      target: { type: 'workload_trust', id: row.id },
      // a trust decides who can change policies
      severity: 'warning',
      reason,
      detail: inWords(row),
      afterHash: sha256Tag(canonicalJson(inHash(row))),
    });
  }

  find(tenantId: string, id: string): Promise<WorkloadTrustRow | null> {
    return this.#db.reader(tenantId).findOne(WorkloadTrust, { id });
  }

  /** The row of a trust that is made now. */
  rowOf({ jwks_uri: jwksUri, ...trust }: NewTrust, maker: string | null) {
    return { ...trust, jwksUri, createdBy: maker, createdAt: new Date(this.#clock.now()) };
  }

  /** Once this resolves, no process accepts a token that was issued for the trust. NOT_FOUND if there is no such trust. */
  async remove(tenantId: string, id: string, by: Doer, reason: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      const now = new Date(this.#clock.now());
      const live = { tenantId, id, revokedAt: null };
      const row = await em.findOne(WorkloadTrust, live);
      if (!row || (await em.nativeUpdate(WorkloadTrust, live, { revokedAt: now })) !== 1) {
        throw new AppError('NOT_FOUND', 'there is no such trust');
      }
      await endTokens(em, notify, tenantId, id, now);
      await this.#announce(em, 'workload_trust.deleted', row, by.actor);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'workload_trust.deleted',
        target: { type: 'workload_trust', id },
        reason,
        beforeHash: sha256Tag(canonicalJson(inHash(row))),
      });
    });
  }

  /**
   * Exchanges a platform's token, which names the tenant by its audience, for a token of this server with the requested scopes;
   * without any, for reading only. A token is exchanged once. UNAUTHENTICATED for a token that nothing trusts, KEY_SCOPE for a
   * scope that it does not have, UNAVAILABLE if the issuer's keys cannot be fetched.
   */
  async exchange(subject: string, asked: readonly WorkloadScope[], origin: Origin): Promise<Exchanged> {
    const read = this.#read(subject);
    const trusts = read ? await this.#trusts(read) : [];
    if (!read || trusts.length === 0) throw this.#refuse(origin, 'no trust has its issuer and its audience');
    const { tenantId, issuer, audience } = read;
    const verified = await this.#verified(subject, { issuer, audience }, trusts);
    if (!verified) throw this.#refuse(origin, 'its signature, its audience or its time is not right');
    const { claims } = verified;
    const scopes: WorkloadScope[] = asked.length > 0 ? [...new Set(asked)] : ['policies:read'];
    const refuse = async (error: AppError, detail: string) => {
      await this.#recordRefusal(tenantId, origin, `${detail}; ${sourceOf(claims)}`);
      return error;
    };
    const now = this.#clock.now();
    const { exp = 0, iat = 0, jti } = claims;
    if (exp - iat > MAX_SUBJECT_SECONDS) {
      throw await refuse(notAccepted('it is valid for longer than a day'), 'the token is valid for longer than a day');
    }
    const fitting = verified.trusts.filter(({ match }) => matches(match, claims));
    if (fitting.length === 0) {
      const why = verified.trusts.slice(0, 3).map((trust) => misfits(trust, claims));
      throw await refuse(notAccepted('no trust of this tenant has its claims; its audit log says why'), why.join('; '));
    }
    const writing = scopes.some((scope) => scope !== 'policies:read') ? writingRefused(claims) : undefined;
    if (writing !== undefined) throw await refuse(new AppError('KEY_SCOPE', writing), writing);
    const trust = fitting.find((one) => scopes.every((scope) => one.scopes.includes(scope)));
    if (!trust) {
      const detail = `what is trusted of this token does not have the scope ${scopes.join(' ')}`;
      throw await refuse(new AppError('KEY_SCOPE', detail), detail);
    }
    // the signature is left out, because an ECDSA signature can be written in two ways
    const unique = typeof jti === 'string' && jti !== '' ? `jti ${jti}` : subject.slice(0, subject.lastIndexOf('.'));
    const subjectHash = sha256Tag(JSON.stringify([issuer, unique]));
    const secret = newSecret('token', tenantId);
    const issued = await this.#db.transaction(tenantId, async (em) => {
      const [valid] = await em.execute<{ id: string }[]>(
        `select id from workload_trust where tenant_id = ? and id = ? and revoked_at is null
           and unconfirmed_since is null for update`,
        [tenantId, trust.id],
      );
      if (!valid) return 'gone';
      const id = newId('wtk', now);
      const source = provenSource(issuer, claims);
      const added = await em.execute<unknown[]>(
        `insert into workload_token (tenant_id, id, trust_id, subject_hash, scopes, policies, source, created_at,
           expires_at, forget_at)
         values (?, ?, ?, ?, string_to_array(?, ' '), ?, ?, ?, ?, ?)
         on conflict (tenant_id, subject_hash) do nothing returning id`,
        [
          ...[tenantId, id, trust.id, subjectHash, scopes.join(' '), trust.policies ?? null, JSON.stringify(source)],
          new Date(now),
          new Date(now + TOKEN_SECONDS * 1000),
          new Date(Math.max(exp * 1000, now + TOKEN_SECONDS * 1000) + MARGIN_MS),
        ],
      );
      if (added.length === 0) return 'used';
      await addCredential(em, tenantId, { hash: secretHash(secret), kind: 'workload_token', id });
      await em.execute('update workload_trust set last_used_at = ? where tenant_id = ? and id = ?', [
        new Date(now),
        tenantId,
        trust.id,
      ]);
      await this.#audit(em, tenantId, {
        actor: { type: 'workload_token', id, ip: origin.ip },
        action: 'workload_token.issued',
        target: { type: 'workload_trust', id: trust.id },
        detail: `scope ${scopes.join(' ')}; ${sourceOf(claims)}`,
        requestId: origin.requestId,
      });
      return 'issued';
    });
    if (issued === 'gone') throw this.#refuse(origin, 'its trust was deleted');
    if (issued === 'used') {
      throw await refuse(notAccepted('it was exchanged before; each works once'), 'the token was exchanged before');
    }
    return { token: secret, seconds: TOKEN_SECONDS, scopes };
  }

  /** Deletes what expired tokens leave behind. */
  async forget(signal?: AbortSignal): Promise<void> {
    const now = new Date(this.#clock.now());
    const due = 'select distinct tenant_id from workload_token where forget_at <= $1';
    await each(await apart(this.#db, due, [now]), signal, (only) =>
      deleteInBatches(
        this.#db.nearOf(only.tenantId),
        (limit) => `with due as (
           select tenant_id, id from workload_token where forget_at <= $1 ${only()} ${limit} for update skip locked),
         gone as (
           delete from credential c using due where c.tenant_id = due.tenant_id and c.id = due.id ${only('c')})
         delete from workload_token w using due where w.tenant_id = due.tenant_id and w.id = due.id ${only('w')}`,
        [now],
        signal,
      ),
    );
  }

  /** Whose token it claims to be. Nothing is fetched until a trust names the issuer: this server contacts no other address. */
  #read(subject: string): { tenantId: string; issuer: string; audience: string } | undefined {
    let claims: Record<string, unknown>;
    try {
      claims = decodeJwt(subject);
    } catch {
      return undefined;
    }
    const { iss: issuer, aud } = claims;
    const audience = Array.isArray(aud) && aud.length === 1 ? aud[0] : aud;
    if (typeof issuer !== 'string' || typeof audience !== 'string' || !audience.startsWith(this.#base))
      return undefined;
    const [tenantId] = audience.slice(this.#base.length).split('/');
    if (!tenantId || [tenantId, issuer, audience].some((text) => text.includes('\0') || text.length > 1000)) {
      return undefined;
    }
    return { tenantId, issuer, audience };
  }

  #trusts(read: { tenantId: string; issuer: string; audience: string }): Promise<WorkloadTrustRow[]> {
    const { tenantId, issuer, audience } = read;
    return this.#db
      .reader(tenantId)
      .find(
        WorkloadTrust,
        { issuer, audience, revokedAt: null, unconfirmedSince: null },
        { orderBy: { createdAt: 'asc', id: 'asc' } },
      );
  }

  /** The claims, and the trusts whose key set signed them: trusts of one issuer may name several key sets. */
  async #verified(subject: string, token: { issuer: string; audience: string }, all: readonly WorkloadTrustRow[]) {
    let unreachable = false;
    for (const [jwksUri, trusts] of Map.groupBy(all, (trust) => trust.jwksUri ?? undefined)) {
      try {
        const claims = await this.#oidc.verify(subject, { ...token, jwksUri });
        if (claims) return { claims, trusts };
      } catch (error) {
        if (!(error instanceof SsoRefusal)) throw error;
        this.#log.warn(
          { issuer: token.issuer, reason: error.detail },
          'the keys of a trusted issuer cannot be fetched',
        );
        // another key set may know the signature
        unreachable = true;
      }
    }
    if (unreachable) {
      throw new AppError('UNAVAILABLE', 'the keys of the issuer cannot be fetched', {
        headers: { 'retry-after': '10' },
      });
    }
    return undefined;
  }

  async #assertIssuer(tenantId: string, { issuer, jwks_uri }: TrustInput, by: Doer): Promise<void> {
    const fault = this.#oidc.faultOfIssuer(issuer);
    if (fault && jwks_uri === undefined) throw invalid('/issuer', fault);
    try {
      await this.#oidc.assertKeys(jwks_uri ?? (await this.#oidc.discoverKeys(issuer)).jwksUri);
    } catch (error) {
      if (!(error instanceof SsoRefusal)) throw error;
      const detail = `${jwks_uri === undefined ? 'issuer' : 'jwks_uri'} is not usable: ${error.detail}`;
      await this.#db.transaction(tenantId, (em) =>
        this.#audit(em, tenantId, {
          ...by,
          action: 'workload_trust.refused',
          target: { type: 'workload_trust', id: tenantId },
          detail,
        }),
      );
      throw invalid(jwks_uri === undefined ? '/issuer' : '/jwks_uri', `is not usable: ${error.detail}`);
    }
  }

  /** A refusal that names no tenant, so there is no chain that it could plausibly belong to. */
  #refuse(origin: Origin, reason: string): AppError {
    this.#log.warn({ ip: origin.ip, reqId: origin.requestId, reason }, 'a token of a workload was refused');
    return notAccepted();
  }

  async #recordRefusal(tenantId: string, origin: Origin, detail: string): Promise<void> {
    this.#log.warn({ ip: origin.ip, reqId: origin.requestId, tenantId, detail }, 'a token of a workload was refused');
    if (!this.#refusals.mayRecord(tenantId)) return;
    await this.#db.transaction(tenantId, (em) =>
      this.#audit(em, tenantId, {
        actor: { type: 'system', id: 'workloads', ip: origin.ip },
        action: 'workload_token.refused',
        target: { type: 'workload_trust', id: tenantId },
        severity: 'warning',
        detail,
        requestId: origin.requestId,
      }),
    );
  }

  #announce(
    em: EntityManager,
    type: 'workload_trust.created' | 'workload_trust.deleted',
    { tenantId, id, label, issuer, scopes, policies }: WorkloadTrustRow,
    actor: Actor,
  ): Promise<void> {
    const at = this.#clock.now();
    return addEvent(em, tenantId, {
      type,
      at,
      payload: {
        ...{ trust_id: id, label, issuer, scopes, policies: policies ?? null },
        actor_id: actor.id,
        created_at: new Date(at).toISOString(),
      },
    });
  }
}

const notAccepted = (why?: string) =>
  new AppError('UNAUTHENTICATED', `the token is not accepted${why === undefined ? '' : `: ${why}`}`);

const inHash = ({ issuer, audience, jwksUri, match, scopes, policies }: WorkloadTrustRow) => ({
  ...{ issuer, audience, jwks_uri: jwksUri ?? null, match, scopes, policies: policies ?? null },
});

function inWords({ issuer, match, scopes, policies }: WorkloadTrustRow): string {
  const claims = Object.entries(match).map(([claim, value]) => `${claim} ${JSON.stringify(value)}`);
  const which = policies == null ? '' : `, policies ${JSON.stringify(policies)}`;
  return `issuer ${issuer}, ${claims.join(', ')}, scopes ${scopes.join(' ')}${which}`;
}

/** The claims by which an admin recognizes a run, quoted and bounded. */
const SHOWN = ['sub', 'repository', 'project_path', 'ref', 'event_name', 'pipeline_source', 'actor', 'user_login'];

function sourceOf(claims: Readonly<Record<string, unknown>>): string {
  const shown = SHOWN.filter((name) => Object.hasOwn(claims, name)).map((name) => `${name} ${quoted(claims[name])}`);
  return `token: ${shown.join(', ') || 'no subject'}`;
}

function misfits({ label, match }: WorkloadTrustRow, claims: Readonly<Record<string, unknown>>): string {
  const wrong = Object.entries(match).filter(([name, value]) => !matches({ [name]: value }, claims));
  const words = wrong.map(([name]) => `${name} is ${Object.hasOwn(claims, name) ? quoted(claims[name]) : 'missing'}`);
  return `${JSON.stringify(label)}: ${words.join(', ')}`;
}

function quoted(value: unknown): string {
  const text = JSON.stringify(value) ?? 'null';
  return text.length > 200 ? `${text.slice(0, 200).toWellFormed()}…` : text;
}

/** The scopes of a request (RFC 6749, section 3.3). VALIDATION_FAILED for a scope that does not exist. */
export function readScopes(text: string | undefined): WorkloadScope[] {
  const words = (text ?? '').split(' ').filter((word) => word !== '');
  for (const word of words) {
    if (!(WORKLOAD_SCOPES as readonly string[]).includes(word)) {
      throw invalid('/scope', `knows only ${WORKLOAD_SCOPES.join(', ')}`);
    }
  }
  return words as WorkloadScope[];
}
