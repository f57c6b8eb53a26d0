import { isIP } from 'node:net';
import { domainToASCII } from 'node:url';
import type { Database, WriteAudit } from '../../../db/index.ts';
import type { Doer } from '../../domain/audit.ts';
import { AppError, invalid } from '../../errors.ts';
import type { Clock } from '../../lib/clock.ts';
import { randomBase62 } from '../../lib/crypto.ts';
import { type Egress, EgressError } from '../../lib/egress.ts';
import type { Log } from '../../lib/log.ts';

const DAY = 24 * 3600 * 1000;
/** A verified domain whose record has been gone for this long may be verified by another organization. */
const LAPSE_MS = 7 * DAY;
const SYSTEM: Doer = { actor: { type: 'system', id: 'domains' } };

export interface DomainRecord {
  domain: string;
  verified: boolean;
  txt_name: string;
  txt_value: string;
  created_at: string;
  verified_at?: string;
  checked_at?: string;
  /** Since when a verified domain has been without its record. */
  record_missing_since?: string;
}

interface Row {
  domain: string;
  token: string;
  created_at: Date;
  verified_at: Date | null;
  checked_at: Date | null;
  missing_since: Date | null;
}

const txtName = (domain: string) => `_svc-verification.${domain}`;
const txtValue = (token: string) => `svc-domain-verification=${token}`;

/**
 * A domain in the one spelling that is stored and compared: A-labels, lower case, without the trailing dot. Undefined for
 * what cannot be a domain of an organization: an address, a single label such as `com`, letters that no host name has.
 * There is no list of public suffixes: a domain counts for its own addresses alone, not for its subdomains, and anyone who
 * can publish the record in `co.uk` does own it.
 */
export function normalDomain(text: string): string | undefined {
  const given = text.replace(/[.。．｡]$/u, '');
  // what a URL parser would cut off, decode or take for a number is not a way to write a domain
  if (/[\s/?#@:%\\[\]]/.test(given)) return undefined;
  const domain = domainToASCII(given).toLowerCase();
  const labels = domain.split('.');
  if (domain.length > 250 - txtName('').length || labels.length < 2 || isIP(domain)) return undefined;
  if (!labels.every((label) => /^(?!-)[a-z0-9-]{1,63}(?<!-)$/.test(label))) return undefined;
  return /^[0-9]/.test(labels.at(-1)!) ? undefined : domain;
}

/**
 * An e-mail address in the one spelling that members have, with its domain; undefined when it is none. Only ASCII: some
 * other letters become ASCII ones in lower case (U+212A is a k then), and two people would be one.
 */
export function normalEmail(text: unknown): { email: string; domain: string } | undefined {
  if (typeof text !== 'string' || text.length > 254) return undefined;
  const [, local, host] = /^([!-~]{1,64})@([^@]+)$/.exec(text) ?? [];
  if (!local || /[\s"(),:;<>@[\\\]]/.test(local)) return undefined;
  const domain = normalDomain(host!);
  return domain === undefined ? undefined : { email: `${local.toLowerCase()}@${domain}`, domain };
}

/**
 * The e-mail domains of tenants. A verified one sends its people's sign-ins to the tenant's provider, and only its
 * addresses are believed from there. At most one tenant has a domain verified, however many ask at once: the primary key of
 * `verified_domain` decides.
 */
export class Domains {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #egress: Egress;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit; egress: Egress }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#egress = parts.egress;
  }

  async list(tenantId: string): Promise<DomainRecord[]> {
    return (await this.#rows(tenantId)).map(record);
  }

  /** Stores that the tenant claims the domain. Every call returns the same record. CONFLICT: see `verify`. */
  async claim(tenantId: string, given: string, by: Doer): Promise<DomainRecord> {
    const domain = normalDomain(given.trim());
    if (!domain) {
      throw invalid('/domain', 'must be a domain of your own, such as example.com');
    }
    if (await this.#holder(tenantId, domain)) {
      await this.#refuseTaken(tenantId, domain, by);
    }
    await this.#db.transaction(tenantId, async (em) => {
      const added = await em.execute<unknown[]>(
        `insert into sso_domain (tenant_id, domain, token, created_at) values (?, ?, ?, ?)
         on conflict do nothing returning domain`,
        [tenantId, domain, randomBase62(32), new Date(this.#clock.now())],
      );
      if (added.length === 0) return;
      await this.#audit(em, tenantId, {
        ...by,
        action: 'sso.domain_claimed',
        target: { type: 'sso_domain', id: domain },
      });
    });
    return record((await this.#rows(tenantId, domain))[0]!);
  }

  /**
   * Looks for the TXT record. When it resolves, the domain is this tenant's and no other's. NOT_FOUND when it was not
   * claimed; DOMAIN_NOT_VERIFIED says which record is missing and what DNS answered; CONFLICT while another organization
   * has it, unless the record of that one has been gone for a week: then the domain goes to the one who controls the zone now.
   */
  async verify(tenantId: string, given: string, by: Doer): Promise<DomainRecord> {
    const row = await this.#claimed(tenantId, given);
    const { domain } = row;
    const fault = await this.#missing(row);
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
    await this.#releaseLapsed(tenantId, domain);
    const now = new Date(this.#clock.now());
    const mine = await this.#db.transaction(tenantId, async (em) => {
      const known = await em.execute<unknown[]>('select 1 from sso_domain where domain = ? for update', [domain]);
      if (known.length === 0) throw new AppError('NOT_FOUND');
      const renewed = await em.execute<unknown[]>(
        'update verified_domain set checked_at = ?, missing_since = null where domain = ? returning domain',
        [now, domain],
      );
      if (renewed.length > 0) return true;
      // a row of another tenant is invisible here, and its key still conflicts
      const added = await em.execute<unknown[]>(
        `insert into verified_domain (domain, tenant_id, verified_at, checked_at) values (?, ?, ?, ?)
         on conflict do nothing returning domain`,
        [domain, tenantId, now, now],
      );
      if (added.length === 0) return false;
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

  /** Gives the domain up. `assertMay` runs in the transaction, with the domains that stay verified. */
  async remove(
    tenantId: string,
    given: string,
    by: Doer,
    assertMay: (em: Parameters<WriteAudit>[0], verified: string[]) => Promise<void>,
  ): Promise<void> {
    const { domain } = await this.#claimed(tenantId, given);
    await this.#db.transaction(tenantId, async (em) => {
      const gone = await em.execute<unknown[]>('delete from sso_domain where domain = ? returning domain', [domain]);
      if (gone.length === 0) throw new AppError('NOT_FOUND');
      await em.execute('delete from verified_domain where domain = ?', [domain]);
      const rest = await em.execute<{ domain: string }[]>('select domain from verified_domain');
      await assertMay(
        em,
        rest.map((row) => row.domain),
      );
      await this.#audit(em, tenantId, {
        ...by,
        action: 'sso.domain_removed',
        target: { type: 'sso_domain', id: domain },
      });
    });
  }

  /** The tenant that has verified this domain; undefined when none has. */
  async tenantOf(domain: string): Promise<string | undefined> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      'select tenant_id from verified_domain where domain = $1',
      [domain],
    );
    return rows[0]?.tenant_id;
  }

  /**
   * Checks once a day whether each verified domain still has its record. A domain that lost it keeps working, so that a
   * zone cleanup locks nobody out; its admins see it, the audit chain records it, and after a week another organization
   * that proves control of the domain may take it over. A DNS server that does not answer proves nothing.
   */
  async recheck(log: Log, signal: AbortSignal): Promise<void> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string; domain: string; token: string }>(
      `select v.tenant_id, v.domain, d.token from verified_domain v
       join sso_domain d on d.tenant_id = v.tenant_id and d.domain = v.domain where v.checked_at <= $1
       order by v.checked_at limit 1000`,
      [new Date(this.#clock.now() - DAY)],
    );
    for (const { tenant_id: tenantId, domain, token } of rows) {
      if (signal.aborted) return;
      let found: boolean;
      try {
        found = (await this.#egress.txt(txtName(domain))).includes(txtValue(token));
      } catch (error) {
        if (!(error instanceof EgressError)) throw error;
        log.warn({ tenant_id: tenantId, domain, failure: error.failure }, 'a domain record could not be checked');
        continue;
      }
      await this.#noteCheck(tenantId, domain, found, log);
    }
  }

  async #noteCheck(tenantId: string, domain: string, found: boolean, log: Log): Promise<void> {
    const now = new Date(this.#clock.now());
    await this.#db.transaction(tenantId, async (em) => {
      const [before] = await em.execute<{ missing_since: Date | null }[]>(
        'select missing_since from verified_domain where domain = ? for update',
        [domain],
      );
      if (!before) return;
      await em.execute(
        `update verified_domain set checked_at = ?,
           missing_since = case when ? then null else coalesce(missing_since, ?) end where domain = ?`,
        [now, found, now, domain],
      );
      if (found === !before.missing_since) return;
      if (!found) log.warn({ tenant_id: tenantId, domain }, 'a verified domain has lost its TXT record');
      await this.#audit(em, tenantId, {
        ...SYSTEM,
        action: found ? 'sso.domain_record_found' : 'sso.domain_record_missing',
        target: { type: 'sso_domain', id: domain },
        severity: found ? 'info' : 'warning',
      });
    });
  }

  /** Another tenant that has the domain and has not lost its record for too long. */
  async #holder(tenantId: string, domain: string): Promise<string | undefined> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      `select tenant_id from verified_domain where domain = $1 and tenant_id <> $2
       and (missing_since is null or missing_since > $3)`,
      [domain, tenantId, this.#lapsedBefore()],
    );
    return rows[0]?.tenant_id;
  }

  async #releaseLapsed(tenantId: string, domain: string): Promise<void> {
    const before = await this.tenantOf(domain);
    if (!before || before === tenantId) return;
    await this.#db.transaction(before, async (em) => {
      const lost = await em.execute<unknown[]>(
        'delete from verified_domain where domain = ? and missing_since <= ? returning domain',
        [domain, this.#lapsedBefore()],
      );
      if (lost.length === 0) return;
      await this.#audit(em, before, {
        ...SYSTEM,
        action: 'sso.domain_lost',
        target: { type: 'sso_domain', id: domain },
        severity: 'critical',
        detail: 'its record was gone for a week, and another organization has shown that the domain is its own',
      });
    });
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
      `select d.domain, d.token, d.created_at, v.verified_at, v.checked_at, v.missing_since from sso_domain d
       left join verified_domain v on v.tenant_id = d.tenant_id and v.domain = d.domain
       where d.domain = coalesce($1, d.domain) order by d.created_at, d.domain`,
      [domain ?? null],
    );
  }

  /** What DNS has instead of the record, in words; undefined when the record is there. */
  async #missing({ domain, token }: Row): Promise<string | undefined> {
    let found: string[];
    try {
      found = await this.#egress.txt(txtName(domain));
    } catch (error) {
      if (error instanceof EgressError) return `DNS gave no answer (${error.failure})`;
      throw error;
    }
    if (found.includes(txtValue(token))) return undefined;
    if (found.length === 0) return 'DNS has no TXT record of this name';
    const shown = found.slice(0, 5).map((text) => JSON.stringify(text.slice(0, 100)));
    return `DNS returned ${found.length} other ${found.length === 1 ? 'value' : 'values'}, ${shown.join(', ')}`;
  }
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
  };
}
