import { Migration } from '@mikro-orm/migrations';
import { MAIL_KINDS, MAIL_PACES } from '../../server/domain/mail.ts';
import { wall } from './wall.ts';

const list = (words: readonly string[]) => words.map((word) => `'${word}'`).join(', ');

/** Sessions that can be listed, links that a browser requests, invitations, and the outbox of mails. */
export class People extends Migration {
  override name = '0002-people';

  override up(): void {
    this.addSql(`alter table credential drop constraint credential_kind_check`);
    this.addSql(`alter table credential add constraint credential_kind_check
      check (kind in ('api_key', 'agent_key', 'sign_in_link', 'invitation'))`);
    // the owner looks people up by address across tenants in one place: a person who asks for a sign-in link names no tenant
    this.addSql(`create index member_email on member (email)`);
    // lists show the handle: the id is the hash by which the session is found
    this.addSql(`alter table session add column handle text collate "C", add column ip text,
      add column user_agent text, add column last_used_at timestamptz(3)`);
    this.addSql(`update session set handle = 'ses_' || replace(gen_random_uuid()::text, '-', '')`);
    this.addSql(`alter table session alter column handle set not null`);
    this.addSql(`create unique index session_handle on session (tenant_id, handle)`);
    this.addSql(`create index session_member on session (tenant_id, user_id)`);
    this.addSql(`create index session_end on session (expires_at)`);
    // a mailed link works once for the person who opens it, and once for the browser that asked
    this.addSql(`alter table sign_in_link add column source text not null default 'operator'
        check (source in ('operator', 'mail')),
      add column request_id text collate "C", add column nonce_hash bytea, add column asker_used_at timestamptz(3), add column session_id text collate "C"`);
    // a request that is processed again after a crash creates no second link
    this.addSql(`create unique index sign_in_link_request on sign_in_link (tenant_id, user_id, request_id)
      where request_id is not null`);
    this.addSql(`create index sign_in_link_member on sign_in_link (tenant_id, user_id)`);
    this.addSql(`create index sign_in_link_end on sign_in_link (expires_at)`);
    // requests for links, before anyone has checked whether the address is known; they belong to no tenant
    this.addSql(`
      create table sign_in_request (
        id text collate "C" primary key,
        sealed bytea not null,
        created_at timestamptz(3) not null,
        next_at timestamptz(3) not null
      )`);
    this.addSql(`create index on sign_in_request (next_at)`);
    this.addSql(`
      create table invitation (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        email text not null,
        roles text[] not null,
        token_hash bytea not null,
        invited_by text not null,
        invited_by_id text collate "C",
        created_at timestamptz(3) not null,
        sent_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        accepted_at timestamptz(3),
        accepted_by text collate "C",
        revoked_at timestamptz(3),
        primary key (tenant_id, id),
        foreign key (tenant_id, accepted_by) references member
      )`);
    this.addSql(`create index credential_invitation on credential (tenant_id, id) where kind = 'invitation'`);
    this.addSql(`create unique index invitation_open on invitation (tenant_id, email)
      where accepted_at is null and revoked_at is null`);
    this.addSql(`create index invitation_inviter on invitation (tenant_id, invited_by_id)
      where accepted_at is null and revoked_at is null`);
    // a change that removes a safeguard waits here for a second person
    this.addSql(`
      create table settings_change (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        status text not null check (status in ('pending', 'approved', 'rejected', 'withdrawn', 'superseded')),
        part text not null check (part in ('settings', 'sso', 'token_issuers', 'workload_trust')),
        patch jsonb not null,
        changes jsonb not null,
        secret_sealed bytea,
        reason text not null,
        proposed_by text collate "C" not null,
        created_at timestamptz(3) not null,
        decided_by text collate "C",
        decided_at timestamptz(3),
        comment text,
        primary key (tenant_id, id),
        foreign key (tenant_id, proposed_by) references member,
        check ((status = 'pending') = (decided_at is null)),
        check (status = 'pending' or secret_sealed is null),
        check (decided_by is distinct from proposed_by or status = 'withdrawn')
      )`);
    this.addSql(`create index settings_change_newest on settings_change (tenant_id, created_at desc, id desc)`);
    // sealed, since a mail may contain a sign-in link
    this.addSql(`
      create table mail_message (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        -- whose news it brings: it is not sent once they were removed
        user_id text collate "C",
        sealed bytea not null,
        attempts integer not null default 0,
        created_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        next_at timestamptz(3) not null,
        primary key (tenant_id, id)
      )`);
    this.addSql(`create index mail_message_next on mail_message (next_at)`);
    // mails that a person waits for, such as a link, go before news
    this.addSql(`create index mail_message_first on mail_message ((user_id is not null), next_at)`);
    // who wants to be mailed about what, and how many letters of each kind they got since when; no row, no mail
    this.addSql(`
      create table mail_preference (
        tenant_id text collate "C" not null references tenant,
        user_id text collate "C" not null,
        pace text not null check (pace in (${list(MAIL_PACES)})),
        kinds text[] not null,
        daily_hour integer not null check (daily_hour between 0 and 23),
        sent jsonb not null default '{}',
        primary key (tenant_id, user_id),
        foreign key (tenant_id, user_id) references member
      )`);
    // what to mail to whom. No reference to the person: anyone who holds an action must not wait for a concurrent change to that
    // person
    this.addSql(`
      create table mail_notice (
        tenant_id text collate "C" not null references tenant,
        user_id text collate "C" not null,
        kind text not null check (kind in (${list(MAIL_KINDS)})),
        subject_id text collate "C" not null,
        version integer not null,
        created_at timestamptz(3) not null,
        due_at timestamptz(3) not null,
        primary key (tenant_id, user_id, kind, subject_id, version)
      )`);
    this.addSql(`create index mail_notice_due on mail_notice (due_at)`);
    for (const [table, grants] of [
      ['invitation', 'select, insert, update'],
      ['settings_change', 'select, insert, update'],
      ['mail_message', 'select, insert, delete'],
      ['mail_preference', 'select, insert, update, delete'],
      ['mail_notice', 'select, insert, update, delete'],
    ] as const) {
      for (const sql of wall(table, grants)) this.addSql(sql);
    }
  }

  override down(): void {
    throw new Error('sessions and links of people cannot be taken back');
  }
}
