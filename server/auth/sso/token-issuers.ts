import type { EntityManager } from '@mikro-orm/postgresql';
import { z } from 'zod';
import { isKeyOf } from '../../../db/credentials.ts';
import type { SettingEffect } from '../../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../../db/index.ts';
import { AgentNamePattern } from '../../domain/agent-names.ts';
import type { Doer } from '../../domain/audit.ts';
import { AppError } from '../../errors.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import type { Clock } from '../../lib/clock.ts';
import { sha256Tag } from '../../lib/crypto.ts';
import { newId } from '../../lib/ids.ts';
import { text } from '../../rpc/fields.ts';
import { ALGORITHMS, type OpenIdConnect } from './oidc.ts';
import { SsoRefusal } from './refusal.ts';

const Given = z.strictObject({
  issuer: text(500).describe('the exact `iss` of the tokens'),
  audience: text(500).describe('the required `aud`'),
  jwks_uri: text(2000).optional().describe('the URL of the keys; default: from the discovery document of the issuer'),
  agent_id_claim: text(200).describe('the claim that contains the agent id'),
  agent_role_claim: text(200).describe('the claim that contains the agent role'),
  agent_ids: z
    .array(AgentNamePattern)
    .min(1)
    .max(100)
    .describe(
      'the agent ids that this issuer may name; one `*` per entry matches any text, and `*` alone matches every id',
    ),
  agent_roles: z
    .array(AgentNamePattern)
    .min(1)
    .max(100)
    .describe('the agent roles that this issuer may name, in the same format'),
  authorized_parties: z
    .array(text(500))
    .min(1)
    .max(100)
    .optional()
    .describe('the allowed values of `azp`; default: not required, and tokens for several audiences are refused'),
  allowed_algs: z
    .array(z.enum(ALGORITHMS))
    .min(1)
    .optional()
    .describe('the accepted signature algorithms; default: from the discovery document, or RS256, PS256, ES256, EdDSA'),
});
export const TokenIssuersInput = z.strictObject({ token_issuers: z.array(Given).max(20) });

export const TokenIssuer = z
  .object({
    issuer: z.string(),
    audience: z.string(),
    jwks_uri: z.string(),
    agent_id_claim: z.string(),
    agent_role_claim: z.string(),
    agent_ids: z.array(z.string()),
    agent_roles: z.array(z.string()),
    authorized_parties: z.array(z.string()).optional(),
    allowed_algs: z.array(z.enum(ALGORITHMS)),
  })
  .meta({ id: 'TokenIssuer' });
export type TokenIssuer = z.infer<typeof TokenIssuer>;
/** The list of a change that waits for a second person. */
const Stored = z.object({ token_issuers: z.array(TokenIssuer) });

interface Row {
  id: string;
  settings: TokenIssuer;
  changed_by: string[];
}

const DEFAULT_ALGORITHMS: TokenIssuer['allowed_algs'] = ['RS256', 'PS256', 'ES256', 'EdDSA'];

/**
 * The issuers whose tokens a tenant's proxies accept as proof of an agent's identity. The proxies check the tokens. An
 * issuer may name only the agents and roles listed in its entry; a missing list allows nothing.
 */
export class TokenIssuers {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #oidc: OpenIdConnect;

  constructor(db: Database, clock: Clock, audit: WriteAudit, oidc: OpenIdConnect) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
    this.#oidc = oidc;
  }

  async list(tenantId: string): Promise<TokenIssuer[]> {
    const rows = await this.#db.query<{ settings: TokenIssuer }>(
      tenantId,
      'select settings from token_issuer where tenant_id = $1 and ended_at is null order by place',
      [tenantId],
    );
    return rows.map((row) => row.settings);
  }

  /** The list with the people who made or changed each entry, for admins. */
  async listed(tenantId: string): Promise<{ token_issuers: TokenIssuer[]; changed_by: Record<string, string[]> }> {
    const rows = await this.#db.query<Row>(
      tenantId,
      'select settings, changed_by from token_issuer where tenant_id = $1 and ended_at is null order by place',
      [tenantId],
    );
    return {
      token_issuers: rows.map(({ settings }) => settings),
      changed_by: Object.fromEntries(rows.map(({ settings, changed_by }) => [settings.issuer, changed_by])),
    };
  }

  /**
   * The list with what the issuers themselves publish, if the keys of each can be fetched. VALIDATION_FAILED names each refused
   * issuer; that is recorded too.
   */
  async checked(
    tenantId: string,
    given: z.infer<typeof TokenIssuersInput>,
    reason: string,
    by: Doer,
  ): Promise<TokenIssuer[]> {
    const issuers: TokenIssuer[] = [];
    const faults: { pointer: string; message: string }[] = [];
    const checked = await Promise.all(
      given.token_issuers.map(async (issuer, at) => {
        if (given.token_issuers.findIndex((other) => other.issuer === issuer.issuer) < at) {
          return { pointer: 'issuer', message: 'is listed twice' };
        }
        return this.#check(issuer);
      }),
    );
    checked.forEach((result, at) => {
      if ('message' in result) faults.push({ ...result, pointer: `/token_issuers/${at}/${result.pointer}` });
      else issuers.push(result);
    });
    if (faults.length === 0) return issuers;
    const detail = faults.map(({ pointer, message }) => `${pointer} ${message}`).join('; ');
    await this.#db.transaction(tenantId, (em) =>
      this.#audit(em, tenantId, {
        ...by,
        action: 'token_issuers.refused',
        target: { type: 'token_issuers', id: tenantId },
        detail,
        reason,
      }),
    );
    throw new AppError('VALIDATION_FAILED', undefined, { faults });
  }

  /**
   * The entries that a new list adds, changes or removes, determined in the caller's transaction, which locks the tenant's row.
   * Whoever is trusted to name an agent can act as that agent, so every entry that is not just removed counts as loosening.
   */
  async effects(em: EntityManager, tenantId: string, patch: Record<string, unknown>): Promise<SettingEffect[]> {
    const { token_issuers: after } = Stored.parse(patch);
    const before = (await stored(em, tenantId)).map(({ settings }) => settings);
    const of = (list: readonly TokenIssuer[], issuer: string) => list.find((one) => one.issuer === issuer) ?? null;
    return [...new Set([...before, ...after].map(({ issuer }) => issuer))].flatMap((issuer) => {
      const [from, to] = [of(before, issuer), of(after, issuer)];
      if (canonicalJson(from) === canonicalJson(to)) return [];
      return [{ setting: 'token_issuers', from, to, loosens: to !== null }];
    });
  }

  /**
   * Replaces the list in the caller's transaction, which locks the tenant's row, so that two lists cannot be merged. Proxies apply
   * it within one poll interval. An entry that changed or was removed is kept as ended: until then its tokens may have named
   * agents, so those who made it stay barred from the holds of those. `maker`: the person who asked for it.
   */
  async apply(
    em: EntityManager,
    tenantId: string,
    { patch, by, maker, reason }: { patch: Record<string, unknown>; by: Doer; maker: string | null; reason: string },
  ): Promise<void> {
    const { token_issuers: issuers } = Stored.parse(patch);
    const before = await stored(em, tenantId);
    const kept = new Set<string>();
    const entries = issuers.map((settings, place) => {
      const old = before.find((row) => row.settings.issuer === settings.issuer);
      if (old && canonicalJson(old.settings) === canonicalJson(settings)) {
        kept.add(old.id);
        return { ...old, place };
      }
      // the last one last: they answer for the entry
      return { settings, place, changed_by: withLast(old?.changed_by ?? [], maker ?? by.actor.id) };
    });
    const ended = before.filter(({ id }) => !kept.has(id));
    await end(em, tenantId, ended, this.#clock.now());
    for (const entry of entries) {
      if ('id' in entry) {
        await em.execute('update token_issuer set place = ? where tenant_id = ? and id = ?', [
          ...[entry.place, tenantId, entry.id],
        ]);
      } else await put(em, tenantId, entry, this.#clock.now());
    }
    await this.#audit(em, tenantId, {
      ...by,
      action: 'token_issuers.changed',
      target: { type: 'token_issuers', id: tenantId },
      // the trusted issuers decide who can act as an agent
      severity: 'warning',
      reason,
      detail: issuers.map((issuer) => issuer.issuer).join(', ') || 'none',
      beforeHash: sha256Tag(canonicalJson(before.map((row) => row.settings))),
      afterHash: sha256Tag(canonicalJson(issuers)),
    });
  }

  /**
   * Ends, in the caller's transaction, which locks the tenant's row, the entries that this person was the last to make or change,
   * by themselves or with a key of theirs, because they are no longer an admin. With `heir`, they stay and are the heir's.
   * Resolves to the issuers.
   */
  async leave(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    { userId, heir }: { userId: string; heir: string | null },
    by: Doer,
  ): Promise<string[]> {
    const before = await stored(em, tenantId);
    const keys = await em.execute<{ id: string }[]>(`select id from api_key where tenant_id = ? and ${isKeyOf('?')}`, [
      tenantId,
      userId,
      userId,
    ]);
    const theirs = new Set([userId, ...keys.map(({ id }) => id)]);
    const left = before.filter(({ changed_by }) => theirs.has(changed_by.at(-1) ?? ''));
    if (left.length === 0) return [];
    if (heir === null) await end(em, tenantId, left, this.#clock.now());
    else {
      for (const { id, changed_by } of left) {
        await em.execute(
          `update token_issuer set changed_by = array(select jsonb_array_elements_text(?::jsonb))
           where tenant_id = ? and id = ?`,
          [JSON.stringify(withLast(changed_by, heir)), tenantId, id],
        );
      }
    }
    await notify('settings');
    const issuers = left.map(({ settings }) => settings.issuer);
    const rest = heir === null ? before.filter((row) => !left.includes(row)) : before;
    await this.#audit(em, tenantId, {
      ...by,
      action: 'token_issuers.changed',
      target: { type: 'token_issuers', id: tenantId },
      severity: 'warning',
      reason: heir === null ? `last changed by ${userId}` : `taken over from ${userId}`,
      detail: `${heir === null ? 'ended: ' : ''}${issuers.join(', ')}`,
      beforeHash: sha256Tag(canonicalJson(before.map((row) => row.settings))),
      afterHash: sha256Tag(canonicalJson(rest.map((row) => row.settings))),
    });
    return issuers;
  }

  async #check(given: z.infer<typeof Given>): Promise<TokenIssuer | { pointer: string; message: string }> {
    let { jwks_uri, allowed_algs } = given;
    const pointer = jwks_uri === undefined ? 'issuer' : 'jwks_uri';
    try {
      if (jwks_uri === undefined) {
        const keys = await this.#oidc.discoverKeys(given.issuer);
        jwks_uri = keys.jwksUri;
        allowed_algs ??= keys.algorithms;
      }
      await this.#oidc.assertKeys(jwks_uri);
    } catch (error) {
      if (error instanceof SsoRefusal) return { pointer, message: `is not usable: ${error.detail}` };
      throw error;
    }
    return { ...given, jwks_uri, allowed_algs: allowed_algs ?? DEFAULT_ALGORITHMS };
  }
}

/** These people with one as the last, each once. */
const withLast = (people: readonly string[], last: string) => [...people.filter((one) => one !== last), last];

const stored = (em: EntityManager, tenantId: string) =>
  em.execute<Row[]>(
    'select id, settings, changed_by from token_issuer where tenant_id = ? and ended_at is null order by place',
    [tenantId],
  );

const end = (em: EntityManager, tenantId: string, rows: Row[], now: number) =>
  em.execute(
    `update token_issuer set ended_at = ?
     where tenant_id = ? and id in (select jsonb_array_elements_text(?::jsonb))`,
    [new Date(now), tenantId, JSON.stringify(rows.map(({ id }) => id))],
  );

async function put(
  em: EntityManager,
  tenantId: string,
  { settings, place, changed_by }: Omit<Row, 'id'> & { place: number },
  now: number,
) {
  await em.execute(
    `insert into token_issuer (tenant_id, id, issuer, place, settings, changed_by)
     values (?, ?, ?, ?, ?, array(select jsonb_array_elements_text(?::jsonb)))`,
    [tenantId, newId('tki', now), settings.issuer, place, JSON.stringify(settings), JSON.stringify(changed_by)],
  );
}
