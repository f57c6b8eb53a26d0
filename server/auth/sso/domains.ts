import { isIP } from 'node:net';
import { domainToASCII } from 'node:url';
import type { EntityManager } from '@mikro-orm/postgresql';
import type { Database, WriteAudit } from '../../../db/index.ts';
import { lockTenant } from '../../../db/locks.ts';
import { addEvent } from '../../../db/outbox.ts';
import type { Doer } from '../../domain/audit.ts';
import { AppError, invalid } from '../../errors.ts';
import type { Clock } from '../../lib/clock.ts';
import { randomBase62 } from '../../lib/crypto.ts';
import { each } from '../../lib/each.ts';
import { type Egress, EgressError } from '../../lib/egress.ts';
import type { Log } from '../../lib/log.ts';
import { assertEntitled } from '../../rpc/entitled.ts';

const DAY = 24 * 3600 * 1000;
/**
 * After its record has been missing for this long, a verified domain may be verified by another organization. A record also
 * counts as missing if no name server has answered for this long.
 */
const LAPSE_MS = 7 * DAY;
const MAX_PER_TENANT = 100;
/** Domains looked up at a time. */
const RECHECKED = 1000;
const SYSTEM: Doer = { actor: { type: 'system', id: 'domains' } };

export interface DomainRecord {
  domain: string;
  verified: boolean;
  txt_name: string;
  txt_value: string;
  created_at: string;
  verified_at?: string;
  checked_at?: string;
  /** When the record of a verified domain was first found missing. */
  record_missing_since?: string;
  /** When another organization took the domain over. */
  lost_at?: string;
}

interface Row {
  domain: string;
  token: string;
  created_at: Date;
  verified_at: Date | null;
  checked_at: Date | null;
  missing_since: Date | null;
  lost_at: Date | null;
}

/** Stops everything that is mailed to a member, in the caller's transaction. */
export type StopMail = (em: EntityManager, tenantId: string, userId: string) => Promise<void>;

const txtName = (domain: string) => `_svc-verification.${domain}`;
const txtValue = (token: string) => `svc-domain-verification=${token}`;

/**
 * A domain in its canonical form: A-labels, lower case, no trailing dot. Undefined for anything that cannot be an
 * organization's domain: an address, a single label such as `com`, characters that no host name contains. No list of
 * public suffixes is consulted: a domain covers only its own addresses, not its subdomains, and anyone who can publish
 * the record in `co.uk` does control it.
 */
export function normalDomain(text: string): string | undefined {
  const given = text.replace(/[.。．｡]$/u, '');
  // a URL parser would cut off, decode or read as a number what these characters introduce
  if (/[\s/?#@:%\\[\]]/.test(given)) return undefined;
  const domain = domainToASCII(given).toLowerCase();
  const labels = domain.split('.');
  if (domain.length > 250 - txtName('').length || labels.length < 2 || isIP(domain)) return undefined;
  if (!labels.every((label) => /^(?!-)[a-z0-9-]{1,63}(?<!-)$/.test(label))) return undefined;
  return /^[0-9]/.test(labels.at(-1)!) ? undefined : domain;
}

/**
 * An email address in canonical form, with its domain; undefined if it is not one. ASCII only: lowercasing turns some
 * other letters into ASCII (U+212A becomes k), which would merge two people.
 */
export function normalEmail(text: unknown): { email: string; domain: string } | undefined {
  if (typeof text !== 'string' || text.length > 254) return undefined;
  const [, local, host] = /^([!-~]{1,64})@([^@]+)$/.exec(text) ?? [];
  if (!local || /[\s"(),:;<>@[\\\]]/.test(local)) return undefined;
  const domain = normalDomain(host!);
  return domain === undefined ? undefined : { email: `${local.toLowerCase()}@${domain}`, domain };
}

/**
 * The email domains of tenants. People with an address in a verified domain sign in at the tenant's provider, and the
 * provider is trusted only for those addresses. At most one tenant holds a domain, even with concurrent requests: the
 * primary key of `verified_domain` enforces it.
 */
export class Domains {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #egress: Egress;
  readonly #stopMail: StopMail;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit; egress: Egress; stopMail: StopMail }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#egress = parts.egress;
    this.#stopMail = parts.stopMail;
  }

  async list(tenantId: string): Promise<DomainRecord[]> {
    return (await this.#rows(tenantId)).map(record);
  }

  /**
   * Records the tenant's claim to the domain. Idempotent: every call returns the same record. CONFLICT: see `verify`, and
   * for more than a hundred domains.
   */
  async claim(tenantId: string, given: string, by: Doer): Promise<DomainRecord> {
    const domain = normalDomain(given.trim());
    if (!domain) {
      throw invalid('/domain', 'must be a domain that you control, such as example.com');
    }
    if (await this.#holder(tenantId, domain)) {
      await this.#refuseTaken(tenantId, domain, by);
    }
    await this.#db.transaction(tenantId, async (em) => {
      await lockTenant(em, tenantId);
      const added = await em.execute<unknown[]>(
        `insert into sso_domain (tenant_id, domain, token, created_at) values (?, ?, ?, ?)
         on conflict do nothing returning domain`,
        [tenantId, domain, randomBase62(32), new Date(this.#clock.now())],
      );
      if (added.length === 0) return;
      const [all] = await em.execute<{ count: number }[]>(
        'select count(*)::int as count from sso_domain where tenant_id = ?',
        [tenantId],
      );
      if (all!.count > MAX_PER_TENANT) throw new AppError('CONFLICT', `a tenant can claim ${MAX_PER_TENANT} domains`);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'sso.domain_claimed',
        target: { type: 'sso_domain', id: domain },
      });
    });
    return record((await this.#rows(tenantId, domain))[0]!);
  }

  /**
   * Looks up the TXT record. When it resolves, this tenant alone holds the domain. NOT_FOUND if the tenant has not
   * claimed it. DOMAIN_NOT_VERIFIED names the missing record and what DNS returned. CONFLICT if another organization
   * holds it, unless that organization's record has been missing for a week and still is: then the domain passes to the
   * organization that controls the zone now.
   */
  async verify(tenantId: string, given: string, by: Doer): Promise<DomainRecord> {
    const row = await this.#claimed(tenantId, given);
    const { domain } = row;
    let texts: readonly string[] = [];
    let fault: string | undefined;
    try {
      texts = await this.#egress.txt(txtName(domain));
      fault = missing(row, texts);
    } catch (error) {
      if (!(error instanceof EgressError)) throw error;
      fault = error.failure === 'TIMEOUT' ? 'DNS did not answer in time' : 'DNS could not answer';
    }
    if (fault) {
      const detail = `There is no TXT record ${txtName(domain)} with the value ${txtValue(row.token)}: ${fault}.`;
      await this.#db.transaction(tenantId, (em) =>
        this.#audit(em, tenantId, {
          ...by,
          action: 'sso.domain_not_verified',
          target: { type: 'sso_domain', id: domain },
          detail: fault,
        }),
      );
      throw new AppError('DOMAIN_NOT_VERIFIED', detail);
    }
    const holder = await this.#holder(tenantId, domain);
    if (holder) await this.#refuseTaken(tenantId, domain, by);
    await this.#releaseLapsed(tenantId, domain, by, texts);
    const now = new Date(this.#clock.now());
    const mine = await this.#changeHolder(tenantId, async (em) => {
      await assertEntitled(em, tenantId, by.actor);
      const known = await em.execute<unknown[]>(
        'select 1 from sso_domain where tenant_id = ? and domain = ? for update',
        [tenantId, domain],
      );
      if (known.length === 0) throw new AppError('NOT_FOUND');
      const renewed = await em.execute<unknown[]>(
        'update verified_domain set checked_at = ?, failing_since = null, missing_since = null where tenant_id = ? and domain = ? returning domain',
        [now, tenantId, domain],
      );
      if (renewed.length > 0) return true;
      // another tenant's row is invisible here, but its key still conflicts
      const added = await em.execute<unknown[]>(
        `insert into verified_domain (domain, tenant_id, verified_at, checked_at) values (?, ?, ?, ?)
         on conflict do nothing returning domain`,
        [domain, tenantId, now, now],
      );
      if (added.length === 0) return false;
      await em.execute('update sso_domain set lost_at = null where tenant_id = ? and domain = ?', [tenantId, domain]);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'sso.domain_verified',
        target: { type: 'sso_domain', id: domain },
      });
      return true;
    });
    if (!mine) await this.#refuseTaken(tenantId, domain, by);
    return record((await this.#rows(tenantId, domain))[0]!);
  }

  /** Releases the domain. `assertAllowed` runs in the transaction, before the change. */
  async remove(
    tenantId: string,
    given: string,
    by: Doer & { reason?: string | undefined },
    assertAllowed: (em: EntityManager, domain: string) => Promise<void>,
  ): Promise<void> {
    const { domain } = await this.#claimed(tenantId, given);
    const target = { type: 'sso_domain', id: domain };
    await this.#changeHolder(tenantId, async (em) => {
      await assertAllowed(em, domain);
      const gone = await em.execute<unknown[]>(
        'delete from sso_domain where tenant_id = ? and domain = ? returning domain',
        [tenantId, domain],
      );
      if (gone.length === 0) throw new AppError('NOT_FOUND');
      await em.execute('delete from verified_domain where tenant_id = ? and domain = ?', [tenantId, domain]);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'sso.domain_removed',
        target,
      });
    }).catch(async (error: unknown) => {
      if (error instanceof AppError && error.problem === 'CONFLICT') {
        await this.#db.transaction(tenantId, (em) =>
          this.#audit(em, tenantId, {
            ...by,
            action: 'sso.domain_removal_refused',
            target,
            severity: 'warning',
            detail: error.message,
          }),
        );
      }
      throw error;
    });
  }

  /** The tenant that has verified this domain, if any. */
  async tenantOf(domain: string): Promise<string | undefined> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      'select tenant_id from verified_domain where domain = $1',
      [domain],
    );
    return rows[0]?.tenant_id;
  }

  /**
   * Returns a check for whether an address is in a domain that another organization took over and the tenant has not removed
   * since.
   */
  async lostOf(tenantId: string): Promise<(email: string) => boolean> {
    const rows = await this.#db.query<{ domain: string }>(
      tenantId,
      'select domain from sso_domain where tenant_id = $1 and lost_at is not null',
      [tenantId],
    );
    const lost = new Set(rows.map(({ domain }) => domain));
    // for any address that a mail server may accept, even one that no provider may name
    return (email) => lost.has(normalDomain(email.slice(email.lastIndexOf('@') + 1)) ?? '');
  }

  /**
   * Checks once a day that each verified domain still has its record. Without the record, people whose accounts are bound can
   * still sign in, so that a zone cleanup locks no one out, but no one new is bound: by now an address may belong to someone
   * else. Admins see it, the audit chain records it, subscribers are notified, and after a week another organization that proves
   * control may take the domain over. A DNS server that does not answer proves nothing for a week, and does not delay other
   * domains. `most`: how many are looked up.
   */
  async recheck(log: Log, signal: AbortSignal, most = RECHECKED): Promise<void> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string; domain: string; token: string; checked_at: Date }>(
      `select v.tenant_id, v.domain, v.checked_at, d.token from verified_domain v
       join sso_domain d on d.tenant_id = v.tenant_id and d.domain = v.domain where v.checked_at <= $1
       order by greatest(v.checked_at, v.failed_at) limit $2`,
      [new Date(this.#clock.now() - DAY), most],
    );
    await each(rows, signal, async ({ tenant_id: tenantId, domain, token, checked_at: checkedAt }) => {
      let found: boolean;
      let why: string | undefined;
      try {
        found = (await this.#egress.txt(txtName(domain))).includes(txtValue(token));
      } catch (error) {
        if (!(error instanceof EgressError)) throw error;
        log.warn(
          { tenant_id: tenantId, domain, failure: error.failure },
          'the TXT record of a domain could not be checked',
        );
        const failingSince = await this.#noteFailure(tenantId, domain);
        if (checkedAt > this.#lapsedBefore() || failingSince.getTime() > this.#lapsedBefore().getTime() + DAY) return;
        found = false;
        why = 'no name server has answered for a week';
      }
      const changed = await this.#noteCheck(tenantId, domain, found, why);
      if (changed && !found)
        log.warn({ tenant_id: tenantId, domain }, 'the TXT record of a verified domain is missing');
    });
  }

  /**
   * Resolves to the time since which no name server has answered any check. Nothing is known for periods in which this program
   * did not check, so after two days without a check the time starts over.
   */
  async #noteFailure(tenantId: string, domain: string): Promise<Date> {
    const now = new Date(this.#clock.now());
    const rows = await this.#changeHolder(tenantId, (em) =>
      em.execute<{ failing_since: Date }[]>(
        `update verified_domain set failed_at = ?,
           failing_since = case when failed_at > ? then coalesce(failing_since, ?) else ? end
         where tenant_id = ? and domain = ? returning failing_since`,
        [now, new Date(now.getTime() - 2 * DAY), now, now, tenantId, domain],
      ),
    );
    return rows[0] ? new Date(rows[0].failing_since) : now;
  }

  /** Resolves to whether the result was different before. */
  async #noteCheck(tenantId: string, domain: string, found: boolean, why?: string): Promise<boolean> {
    const now = new Date(this.#clock.now());
    return this.#changeHolder(tenantId, async (em) => {
      const [before] = await em.execute<{ missing_since: Date | null }[]>(
        'select missing_since from verified_domain where tenant_id = ? and domain = ? for update',
        [tenantId, domain],
      );
      if (!before) return false;
      await em.execute(
        `update verified_domain set checked_at = ?, failing_since = case when ? then failing_since end,
           missing_since = case when ? then null else coalesce(missing_since, ?) end
         where tenant_id = ? and domain = ?`,
        [now, why !== undefined, found, now, tenantId, domain],
      );
      if (found === !before.missing_since) return false;
      if (!found) await this.#tell(em, tenantId, 'sso.domain_record_missing', domain);
      await this.#audit(em, tenantId, {
        ...SYSTEM,
        action: found ? 'sso.domain_record_found' : 'sso.domain_record_missing',
        target: { type: 'sso_domain', id: domain },
        severity: found ? 'info' : 'warning',
        detail: why,
      });
      return true;
    });
  }

  async #tell(
    em: EntityManager,
    tenantId: string,
    type: 'sso.domain_record_missing' | 'sso.domain_lost',
    domain: string,
  ): Promise<void> {
    const at = this.#clock.now();
    await addEvent(em, tenantId, { type, at, payload: { domain, created_at: new Date(at).toISOString() } });
  }

  /** Another tenant that holds the domain and whose record has not been missing for too long. */
  async #holder(tenantId: string, domain: string): Promise<string | undefined> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      `select tenant_id from verified_domain where domain = $1 and tenant_id <> $2
       and (missing_since is null or missing_since > $3)`,
      [domain, tenantId, this.#lapsedBefore()],
    );
    return rows[0]?.tenant_id;
  }

  /**
   * Takes the domain from another tenant whose record has been missing for a week. CONFLICT if `texts`, which DNS just returned
   * for the tenant verifying it, contain that record too: it was published again since the last check.
   */
  async #releaseLapsed(tenantId: string, domain: string, by: Doer, texts: readonly string[]): Promise<void> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string; token: string }>(
      `select v.tenant_id, d.token from verified_domain v
       join sso_domain d on d.tenant_id = v.tenant_id and d.domain = v.domain
       where v.domain = $1 and v.tenant_id <> $2`,
      [domain, tenantId],
    );
    if (!rows[0]) return;
    const { tenant_id: before, token } = rows[0];
    if (texts.includes(txtValue(token))) {
      await this.#noteCheck(before, domain, true);
      await this.#refuseTaken(tenantId, domain, by);
    }
    await this.#changeHolder(before, async (em) => {
      // in the same order as others that lock them: people, then the domain
      const people = await em.execute<{ id: string }[]>(
        `select id from member where tenant_id = ? and removed_at is null
           and split_part(email, '@', -1) collate "C" = ? order by id for update`,
        [before, domain],
      );
      await em.execute('select 1 from sso_domain where tenant_id = ? and domain = ? for update', [before, domain]);
      const lost = await em.execute<unknown[]>(
        'delete from verified_domain where tenant_id = ? and domain = ? and missing_since <= ? returning domain',
        [before, domain, this.#lapsedBefore()],
      );
      if (lost.length === 0) return;
      await em.execute('update sso_domain set lost_at = ? where tenant_id = ? and domain = ?', [
        new Date(this.#clock.now()),
        before,
        domain,
      ]);
      // their mailboxes now belong to another organization
      for (const { id } of people) await this.#stopMail(em, before, id);
      await this.#tell(em, before, 'sso.domain_lost', domain);
      await this.#audit(em, before, {
        ...SYSTEM,
        action: 'sso.domain_lost',
        target: { type: 'sso_domain', id: domain },
        severity: 'critical',
        detail: 'its record was missing for a week, and another organization proved that it controls the domain',
      });
    });
  }

  /** With Citus, every server has a copy of `verified_domain`, so all of them take part in committing such a change. */
  async #changeHolder<T>(tenantId: string, work: (em: EntityManager) => Promise<T>): Promise<T> {
    this.#db.replication?.assertEverywhere();
    return this.#db.transaction(tenantId, work);
  }

  #lapsedBefore(): Date {
    return new Date(this.#clock.now() - LAPSE_MS);
  }

  async #refuseTaken(tenantId: string, domain: string, by: Doer): Promise<never> {
    await this.#db.transaction(tenantId, (em) =>
      this.#audit(em, tenantId, {
        ...by,
        action: 'sso.domain_claim_refused',
        target: { type: 'sso_domain', id: domain },
        severity: 'warning',
        detail: 'another organization has verified it',
      }),
    );
    throw new AppError('CONFLICT', 'another organization has verified this domain');
  }

  async #claimed(tenantId: string, given: string): Promise<Row> {
    const domain = normalDomain(given);
    const row = domain && (await this.#rows(tenantId, domain))[0];
    if (!row) throw new AppError('NOT_FOUND');
    return row;
  }

  #rows(tenantId: string, domain?: string): Promise<Row[]> {
    return this.#db.query<Row>(
      tenantId,
      `select d.domain, d.token, d.created_at, d.lost_at, v.verified_at, v.checked_at, v.missing_since
       from sso_domain d
       left join verified_domain v on v.tenant_id = d.tenant_id and v.domain = d.domain
       where d.tenant_id = $1 and d.domain = coalesce($2, d.domain) order by d.created_at, d.domain`,
      [tenantId, domain ?? null],
    );
  }
}

/** What DNS returned instead of the record, in words; undefined if the record exists. */
function missing({ token }: Row, texts: readonly string[]): string | undefined {
  if (texts.includes(txtValue(token))) return undefined;
  if (texts.length === 0) return 'DNS has no TXT record of this name';
  const shown = texts.slice(0, 5).map((text) => JSON.stringify(text.slice(0, 100)));
  return `DNS returned ${texts.length} other ${texts.length === 1 ? 'value' : 'values'}, ${shown.join(', ')}`;
}

function record(row: Row): DomainRecord {
  return {
    domain: row.domain,
    verified: row.verified_at !== null,
    txt_name: txtName(row.domain),
    txt_value: txtValue(row.token),
    created_at: row.created_at.toISOString(),
    ...(row.verified_at && { verified_at: row.verified_at.toISOString() }),
    ...(row.checked_at && { checked_at: row.checked_at.toISOString() }),
    ...(row.missing_since && { record_missing_since: row.missing_since.toISOString() }),
    ...(row.lost_at && { lost_at: row.lost_at.toISOString() }),
  };
}
