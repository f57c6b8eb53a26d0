import { randomBytes } from 'node:crypto';
import type { EntityManager } from '@mikro-orm/postgresql';
import { apart } from '../../db/citus.ts';
import { addCredential, tenantOfCredential } from '../../db/credentials.ts';
import { Member, type MemberRow } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import type { Doer, Origin } from '../domain/audit.ts';
import type { SignInPolicy, SignInPolicyOf } from '../domain/principal.ts';
import { newSecret, secretHash } from '../domain/secret.ts';
import type { Clock } from '../lib/clock.ts';
import { equalSecret, type SecretBox, sha256 } from '../lib/crypto.ts';
import { each } from '../lib/each.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { Letter, QueueMail } from '../lib/mail.ts';
import { html, page } from '../lib/page.ts';
import { networkOf, type RateLimiter } from '../lib/rate-limit.ts';
import type { OpenedSession, SessionPrincipal, Sessions } from './sessions.ts';

/** How long a mailed link works. */
const LINK_SECONDS = 15 * 60;
/** How long a link printed for an operator works. */
export const OPERATOR_LINK_SECONDS = 7 * 24 * 3600;

/** After this long, another process takes over the request of a process that died. */
const LEASE_SECONDS = 30;
const BATCH = 20;
/** How long an expired link is kept, so that using it is still recorded in the tenant's audit chain. */
const EXPIRED_LINK_SECONDS = 24 * 3600;

export type Redeemed =
  | ({ kind: 'session'; tenantId: string } & OpenedSession)
  /** The link works, but the person must first confirm with a button that they want to sign in as this person. */
  | { kind: 'confirm'; email: string; tenantName: string }
  | { kind: 'refused' };

interface LinkRow {
  user_id: string;
  source: 'operator' | 'mail';
  expires_at: Date;
  used_at: Date | null;
  asker_used_at: Date | null;
  nonce_hash: Buffer | null;
  session_id: string | null;
}

interface Parts {
  db: Database;
  clock: Clock;
  audit: WriteAudit;
  sessions: Sessions;
  box: SecretBox;
  queueMail: QueueMail;
  log: Log;
  policy: SignInPolicyOf;
  baseUrl: string;
  limits: { address: RateLimiter; ip: RateLimiter };
  /** Counts and logs a failed sign-in: an unknown link or address belongs to no tenant whose chain could record it. */
  failed: (reason: string, origin: { ip: string; requestId: string }) => void;
}

/**
 * One-time links that sign a person in. The database stores the SHA-256 of a link's token.
 *
 * Requesting a link takes the same work for every address: the request is encrypted, stored and answered. A job checks
 * later whether anyone has the address, so neither the answer nor its timing reveals that.
 *
 * A mailed link works once for the first client that opens it, which may be a mail scanner, and once for the browser
 * that requested it, which a cookie identifies. After both have used it, only the requesting browser's session remains.
 */
export class MagicLinks {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * Creates a link that an operator hands over. The token is returned only here. With `only`, links that were handed over earlier
   * for this person end in the same transaction.
   */
  async create(
    tenantId: string,
    userId: string,
    seconds: number,
    by: Doer,
    { only = false }: { only?: boolean } = {},
  ): Promise<string> {
    const { db, audit } = this.#parts;
    const token = newSecret('link', tenantId);
    await db.transaction(tenantId, async (em) => {
      if (only) {
        // the person first, as when a link is used: that use either comes before this, or finds no link
        await em.execute('select 1 from member where tenant_id = ? and id = ? for update', [tenantId, userId]);
        const gone = await em.execute<{ id: string }[]>(
          `delete from sign_in_link where tenant_id = ? and user_id = ? and source = 'operator' returning id`,
          [tenantId, userId],
        );
        await em.execute(
          `delete from credential where tenant_id = ? and id in (select json_array_elements_text(?::json))`,
          [tenantId, JSON.stringify(gone.map(({ id }) => id))],
        );
      }
      await this.#store(em, tenantId, { token, userId, seconds, source: 'operator' });
      await audit(em, tenantId, { ...by, action: 'session.link_created', target: { type: 'user', id: userId } });
    });
    return token;
  }

  /**
   * Accepts a request for links, whether or not anyone has the address. Durable when it resolves, unless the rate limit
   * was exceeded: then it is dropped silently. Resolves to the cookie that identifies the browser.
   */
  async request(email: string, origin: Origin, cookies: string | undefined): Promise<string> {
    const { db, clock, limits, failed } = this.#parts;
    // a browser that requests twice keeps its nonce, so that the first link still recognizes it
    const nonce = this.#nonceOf(cookies) ?? randomBytes(32).toString('base64url');
    const address = email.toLowerCase();
    // one after the other: a network that has exhausted its own limit must not exhaust that of other people's addresses
    const mayAsk =
      (await limits.ip.take(networkOf(origin.ip))).allowed &&
      (await limits.address.take(sha256(address).toString('base64url'))).allowed;
    if (mayAsk) {
      const now = new Date(clock.now());
      const id = newId('req', now.getTime());
      const request: Request = {
        email: address,
        nonce_hash: sha256(nonce).toString('hex'),
        ip: origin.ip,
        request_id: origin.requestId,
      };
      await db.owner.query('insert into sign_in_request (id, sealed, created_at, next_at) values ($1, $2, $3, $3)', [
        id,
        this.#seal(id, request),
        now,
      ]);
    } else failed('too many sign-in links requested', origin);
    const secure = this.#secure ? '; Secure' : '';
    return `${this.#nonceCookie}=${nonce}; Path=/; Max-Age=${LINK_SECONDS}; HttpOnly; SameSite=Lax${secure}`;
  }

  get #secure(): boolean {
    return this.#parts.baseUrl.startsWith('https:');
  }

  /** The cookie that identifies the browser that requested a link; on https, one that no other host of the domain can plant. */
  get #nonceCookie(): string {
    return this.#secure ? '__Host-svc_sign_in' : 'svc_sign_in';
  }

  #nonceOf(cookies: string | undefined): string | undefined {
    return new RegExp(`(?:^|;\\s*)${this.#nonceCookie}=([\\w-]{43})(?:;|$)`).exec(cookies ?? '')?.[1];
  }

  /**
   * Mails links for waiting requests; resolves to the number of requests. Safe to run concurrently and to be killed at
   * any point: a request is deleted only once its mails are queued.
   */
  async serveRequests(): Promise<number> {
    const { db, clock, log } = this.#parts;
    const now = clock.now();
    const { rows } = await db.owner.query<{ id: string; sealed: Buffer; created_at: Date }>(
      `update sign_in_request r set next_at = $2
       from (select id from sign_in_request where next_at <= $1 order by next_at limit ${BATCH}
             for update skip locked) due
       where r.id = due.id returning r.id, r.sealed, r.created_at`,
      [new Date(now), new Date(now + LEASE_SECONDS * 1000)],
    );
    for (const row of rows) {
      try {
        await this.#serve(row);
        await db.owner.query('delete from sign_in_request where id = $1', [row.id]);
      } catch (err) {
        log.error({ err, id: row.id }, 'a request for a sign-in link failed and will be retried');
      }
    }
    return rows.length;
  }

  /**
   * Uses a link and starts a session in one transaction. However many requests present the same token concurrently, one
   * session remains. A request that is only shown a page with a button (`confirm`) uses nothing up; this happens if the
   * tenant requires it, or if another person is signed in (`signedIn`), since a link that someone sent them must not
   * sign them in as someone else. The new session replaces the browser's previous one.
   */
  async redeem(
    token: string,
    request: {
      cookies: string | undefined;
      posted: boolean;
      signedIn: SessionPrincipal | undefined;
      origin: Origin;
    },
  ): Promise<Redeemed> {
    const { db, clock, audit, sessions, policy, failed, log } = this.#parts;
    const { origin, signedIn } = request;
    const tenantId = await tenantOfCredential(db, 'link', token);
    if (!tenantId) {
      failed('unknown link', origin);
      return { kind: 'refused' };
    }
    const id = secretHash(token).toString('hex');
    const { linkRefused, confirm } = await policy(tenantId);
    const result = await db.transaction(tenantId, async (em, notify): Promise<Redeemed> => {
      const now = new Date(clock.now());
      // the person first, then the link: the lock order of a removal
      const found = await em.execute<{ user_id: string }[]>(
        'select user_id from sign_in_link where tenant_id = ? and id = ?',
        [tenantId, id],
      );
      const userId = found[0]?.user_id;
      if (!userId) return { kind: 'refused' };
      await em.execute('select 1 from member where tenant_id = ? and id = ? for update', [tenantId, userId]);
      const [link] = await em.execute<LinkRow[]>(
        'select * from sign_in_link where tenant_id = ? and id = ? for update',
        [tenantId, id],
      );
      const member = await em.findOne(Member, { tenantId, id: userId });
      const nonce = this.#nonceOf(request.cookies);
      const fromRequester = !!link?.nonce_hash && !!nonce && equalSecret(sha256(nonce), link.nonce_hash);
      const reason = refusalReason(link, member, now, fromRequester, linkRefused);
      if (!link || !member || reason) {
        await audit(em, tenantId, {
          actor: { type: 'system', id: 'sign-in', ip: origin.ip },
          action: 'magic_link.refused',
          target: { type: 'user', id: userId },
          severity: 'warning',
          reason,
          requestId: origin.requestId,
        });
        return { kind: 'refused' };
      }
      const another = signedIn && (signedIn.tenantId !== tenantId || signedIn.userId !== userId);
      if (!request.posted && (another || (confirm && !fromRequester))) {
        const [tenant] = await em.execute<{ name: string }[]>('select name from tenant where tenant_id = ?', [
          tenantId,
        ]);
        return { kind: 'confirm', email: member.email, tenantName: tenant!.name };
      }
      const first = link.session_id && (await sessions.endWithin(em, tenantId, { id: link.session_id }));
      if (first) await notify('credential', link.session_id!);
      const session = await sessions.open(em, tenantId, { member, authMethod: 'magic_link', now, origin });
      await em.execute(
        `update sign_in_link set used_at = coalesce(used_at, ?), asker_used_at = ?, session_id = ?
         where tenant_id = ? and id = ?`,
        [now, fromRequester ? now : null, session.id, tenantId, id],
      );
      return { kind: 'session', tenantId, ...session };
    });
    if (result.kind === 'refused') failed('dead link', origin);
    if (result.kind === 'session' && signedIn) {
      // the new cookie replaces it, so nothing else would end this session
      await sessions.end(signedIn, origin).catch((err) => log.warn({ err }, 'the previous session could not be ended'));
    }
    return result;
  }

  /** Revokes all links of a person, in the caller's transaction. */
  async revokeWithin(em: EntityManager, tenantId: string, userId: string): Promise<void> {
    await em.execute(
      `delete from credential where tenant_id = ?
       and id in (select id from sign_in_link where tenant_id = ? and user_id = ?)`,
      [tenantId, tenantId, userId],
    );
  }

  /** Deletes long-expired links and requests that were never served. */
  async forget(signal?: AbortSignal): Promise<void> {
    const { db, clock } = this.#parts;
    const before = new Date(clock.now() - EXPIRED_LINK_SECONDS * 1000);
    const requests = (limit: string) => `delete from sign_in_request where id in (
      select id from sign_in_request where created_at < $1 ${limit} for update skip locked)`;
    await deleteInBatches(db.owner, requests, [before], signal);
    const due = await apart(db, 'select distinct tenant_id from sign_in_link where expires_at < $1', [before]);
    await each(due, signal, (only) =>
      deleteInBatches(
        db.nearOf(only.tenantId),
        (limit) => `with due as (
           select tenant_id, id from sign_in_link where expires_at < $1 ${only()} ${limit} for update skip locked),
         gone as (
           delete from credential c using due where c.tenant_id = due.tenant_id and c.id = due.id ${only('c')})
         delete from sign_in_link l using due where l.tenant_id = due.tenant_id and l.id = due.id ${only('l')}`,
        [before],
        signal,
      ),
    );
  }

  /** Sends one mail per tenant in which the address is a member; each names its tenant, and its link signs in there. */
  async #serve(row: { id: string; sealed: Buffer; created_at: Date }): Promise<void> {
    const { db, clock, box, log, failed } = this.#parts;
    if (row.created_at.getTime() + LINK_SECONDS * 1000 <= clock.now()) {
      log.error({ id: row.id }, 'a request for a sign-in link was not served in time and is dropped');
      return;
    }
    const request = JSON.parse(box.open(row.sealed, sealContext(row.id)).toString()) as Request;
    // the only place where an address is looked up across tenants
    const { rows } = await db.owner.query<{ tenant_id: string; id: string; tenant_name: string }>(
      `select m.tenant_id, m.id, t.name as tenant_name from member m join tenant t using (tenant_id)
       where m.email = $1 and m.removed_at is null order by m.tenant_id`,
      [request.email],
    );
    if (rows.length === 0) failed('unknown address', { ip: request.ip, requestId: request.request_id });
    const served = new Set(request.served);
    const left = rows.filter((member) => !served.has(member.tenant_id));
    try {
      await each(left, undefined, async (member) => {
        await this.#mail(row, request, member);
        served.add(member.tenant_id);
      });
    } catch (error) {
      // one tenant's failure neither holds back the mail of the others nor repeats it
      await db.owner.query('update sign_in_request set sealed = $2 where id = $1', [
        row.id,
        this.#seal(row.id, { ...request, served: [...served] }),
      ]);
      throw error;
    }
  }

  #seal(id: string, request: Request): Buffer {
    return this.#parts.box.seal(JSON.stringify(request), sealContext(id));
  }

  async #mail(
    row: { id: string; created_at: Date },
    request: Request,
    to: { tenant_id: string; id: string; tenant_name: string },
  ): Promise<void> {
    const { db, audit, policy, queueMail, baseUrl } = this.#parts;
    const { tenant_id: tenantId, id: userId } = to;
    const until = new Date(row.created_at.getTime() + LINK_SECONDS * 1000);
    const { linkRefused } = await policy(tenantId);
    const common = {
      actor: { type: 'system', id: 'sign-in', ip: request.ip } as const,
      target: { type: 'user', id: userId },
      requestId: request.request_id,
    };
    await db.transaction(tenantId, async (em) => {
      const member = await em.findOne(Member, { tenantId, id: userId, removedAt: null });
      if (!member) return;
      const reason = linkRefused(member.email);
      if (reason !== undefined) {
        // a mailbox in a lost domain gets no mail
        if (reason === 'single sign-on only')
          await queueMail(em, tenantId, ssoLetter(member.email, to.tenant_name, baseUrl), until);
        await audit(em, tenantId, { ...common, action: 'magic_link.withheld', reason });
        return;
      }
      const token = newSecret('link', tenantId);
      const stored = await this.#store(em, tenantId, {
        token,
        userId,
        until,
        source: 'mail',
        requestId: row.id,
        nonceHash: Buffer.from(request.nonce_hash, 'hex'),
      });
      if (!stored) return;
      const address = `${baseUrl}/auth/magic-link/verify?token=${token}`;
      await queueMail(em, tenantId, linkLetter(member.email, to.tenant_name, address), until);
      await audit(em, tenantId, { ...common, action: 'magic_link.sent' });
    });
  }

  /** Stores the link and its credential; false if the request already has a link. */
  async #store(
    em: EntityManager,
    tenantId: string,
    link: {
      token: string;
      userId: string;
      source: LinkRow['source'];
      seconds?: number;
      until?: Date;
      requestId?: string;
      nonceHash?: Buffer;
    },
  ): Promise<boolean> {
    const now = this.#parts.clock.now();
    const hash = secretHash(link.token);
    const id = hash.toString('hex');
    const stored = await em.execute<unknown[]>(
      `insert into sign_in_link (tenant_id, id, user_id, created_at, expires_at, source, request_id, nonce_hash)
       values (?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing returning id`,
      [
        tenantId,
        id,
        link.userId,
        new Date(now),
        link.until ?? new Date(now + (link.seconds ?? LINK_SECONDS) * 1000),
        link.source,
        link.requestId ?? null,
        link.nonceHash ?? null,
      ],
    );
    if (stored.length === 0) return false;
    await addCredential(em, tenantId, { hash, kind: 'sign_in_link', id });
    return true;
  }
}

/** The encrypted part of a request for a link. */
interface Request {
  email: string;
  nonce_hash: string;
  ip: string;
  request_id: string;
  /** The tenants whose mail was already queued when the attempt for another one failed. */
  served?: string[];
}

const sealContext = (id: string) => `sign_in_request/${id}/sealed`;

function refusalReason(
  link: LinkRow | undefined,
  member: MemberRow | null,
  now: Date,
  fromRequester: boolean,
  linkRefused: SignInPolicy['linkRefused'],
): string | undefined {
  if (!link) return 'unknown';
  if (!member || member.removedAt) return 'the person was removed';
  if (new Date(link.expires_at) <= now) return 'expired';
  if (fromRequester ? link.asker_used_at : link.used_at) return 'used already';
  return link.source === 'mail' ? linkRefused(member.email) : undefined;
}

function linkLetter(to: string, tenant: string, address: string): Letter {
  const minutes = LINK_SECONDS / 60;
  return {
    to,
    subject: `Sign in to ${tenant}`,
    text: `Open this link to sign in to ${tenant}:

${address}

It works once, for ${minutes} minutes, and best in the browser where you requested it.
If you did not request it, ignore this mail: nothing happens.
`,
    html: page(
      `Sign in to ${tenant}`,
      html`<p><a href="${address}">Sign in</a></p>
<p>The link works once, for ${minutes} minutes, and best in the browser where you requested it.</p>
<p>If you did not request it, ignore this mail: nothing happens.</p>`,
    ),
  };
}

function ssoLetter(to: string, tenant: string, baseUrl: string): Letter {
  const address = `${baseUrl}/auth/sso/start?email=${encodeURIComponent(to)}`;
  return {
    to,
    subject: `Sign in to ${tenant}`,
    text: `${tenant} uses single sign-on instead of links by mail. Start here:

${address}
`,
    html: page(
      `Sign in to ${tenant}`,
      html`<p>${tenant} uses single sign-on instead of links by mail.</p>
<p><a href="${address}">Sign in</a></p>`,
    ),
  };
}
