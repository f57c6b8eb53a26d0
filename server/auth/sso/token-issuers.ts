import { z } from 'zod';
import type { Database, WriteAudit } from '../../../db/index.ts';
import { lockTenant } from '../../../db/locks.ts';
import { AgentNamePattern } from '../../domain/agent-names.ts';
import type { Doer } from '../../domain/audit.ts';
import { AppError } from '../../errors.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { sha256Tag } from '../../lib/crypto.ts';
import { assertEntitled } from '../../rpc/entitled.ts';
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

const DEFAULT_ALGORITHMS: TokenIssuer['allowed_algs'] = ['RS256', 'PS256', 'ES256', 'EdDSA'];

/**
 * The issuers whose tokens a tenant's proxies accept as proof of an agent's identity. The proxies check the tokens. An
 * issuer may name only the agents and roles listed in its entry; a missing list allows nothing.
 */
export class TokenIssuers {
  readonly #db: Database;
  readonly #audit: WriteAudit;
  readonly #oidc: OpenIdConnect;

  constructor(db: Database, audit: WriteAudit, oidc: OpenIdConnect) {
    this.#db = db;
    this.#audit = audit;
    this.#oidc = oidc;
  }

  async list(tenantId: string): Promise<TokenIssuer[]> {
    const rows = await this.#db.query<{ settings: TokenIssuer }>(
      tenantId,
      'select settings from token_issuer where tenant_id = $1 order by place',
      [tenantId],
    );
    return rows.map((row) => row.settings);
  }

  /**
   * Replaces the list if the keys of every issuer in it can be fetched. Proxies apply it within one poll interval.
   * VALIDATION_FAILED names each refused issuer and changes nothing.
   */
  async replace(
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
    if (faults.length > 0) {
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
    await this.#db.transaction(tenantId, async (em, notify) => {
      await assertEntitled(em, tenantId, by.actor);
      // serialized, so that two lists cannot be merged
      await lockTenant(em, tenantId);
      const before = await em.execute<{ settings: TokenIssuer }[]>(
        'select settings from token_issuer where tenant_id = ? order by place',
        [tenantId],
      );
      await em.execute('delete from token_issuer where tenant_id = ?', [tenantId]);
      for (const [position, issuer] of issuers.entries()) {
        await em.execute('insert into token_issuer (tenant_id, issuer, place, settings) values (?, ?, ?, ?)', [
          tenantId,
          issuer.issuer,
          position,
          JSON.stringify(issuer),
        ]);
      }
      await notify('settings');
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
