import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** Single sign-on with OpenID Connect, and the issuers whose tokens a tenant's proxies accept from agents. */
const TENANT_TABLES: Record<string, string> = {
  sso_connection: 'select, insert, update, delete',
  sso_domain: 'select, insert, update, delete',
  sso_identity: 'select, insert, update, delete',
  sso_used_state: 'select, insert, delete',
  token_issuer: 'select, insert, update',
};

export class SingleSignOn extends Migration {
  override name = '0003-sso';

  override up(): void {
    // one provider per tenant. `revision` is new whenever something that a sign-in depends on changes; `proven_at` is set once an
    // admin has signed in with this revision
    this.addSql(`
      create table sso_connection (
        tenant_id text collate "C" primary key references tenant,
        issuer text collate "C" not null,
        client_id text not null,
        client_secret bytea not null,
        revision text collate "C" not null,
        created_at timestamptz(3) not null,
        updated_at timestamptz(3) not null,
        proven_at timestamptz(3),
        proven_by text collate "C",
        check ((proven_at is null) = (proven_by is null))
      )`);
    // the tenant whose provider sends browsers back to the path without a name: the primary key allows only one. As a table of its
    // own, so that it is one across all nodes
    this.addSql(`
      create table plain_callback (
        one boolean primary key default true check (one),
        tenant_id text collate "C" not null
      )`);
    // a domain that a tenant claims; several tenants may claim it until one has proven it. `lost_at` is since when it belongs to
    // another tenant, which proved it later
    this.addSql(`
      create table sso_domain (
        tenant_id text collate "C" not null references tenant,
        domain text collate "C" not null,
        token text not null,
        created_at timestamptz(3) not null,
        lost_at timestamptz(3),
        primary key (tenant_id, domain)
      )`);
    // the tenant that has proven it: the primary key allows only one. Looked up before the tenant of a sign-in is known
    this.addSql(`
      create table verified_domain (
        domain text collate "C" primary key,
        tenant_id text collate "C" not null,
        verified_at timestamptz(3) not null,
        checked_at timestamptz(3) not null,
        -- when no name server last answered for it, and since when none has, at each check
        failed_at timestamptz(3),
        failing_since timestamptz(3),
        missing_since timestamptz(3)
      )`);
    this.addSql(`create index on verified_domain (tenant_id)`);
    // which provider account belongs to which member: one to one
    this.addSql(`
      create table sso_identity (
        tenant_id text collate "C" not null,
        issuer text collate "C" not null,
        subject text collate "C" not null,
        user_id text collate "C" not null,
        created_at timestamptz(3) not null,
        last_used_at timestamptz(3) not null,
        primary key (tenant_id, issuer, subject),
        unique (tenant_id, issuer, user_id),
        foreign key (tenant_id, user_id) references member
      )`);
    // a state works once: the callback that uses it adds its row, which stays until the state has expired
    this.addSql(`
      create table sso_used_state (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        expires_at timestamptz(3) not null,
        primary key (tenant_id, id)
      )`);
    // changed_by: the people, and keys of no one, who made or changed the entry, the last one last. An entry that is changed or
    // removed stays as ended: who made it may not vote on holds of agents that its tokens may have named until then
    this.addSql(`
      create table token_issuer (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        issuer text collate "C" not null,
        place integer not null,
        settings jsonb not null,
        changed_by text[] not null,
        ended_at timestamptz(3),
        primary key (tenant_id, id)
      )`);
    this.addSql('create unique index on token_issuer (tenant_id, issuer) where ended_at is null');
    for (const [table, grants] of Object.entries({
      ...TENANT_TABLES,
      plain_callback: 'select, insert, delete',
      verified_domain: 'select, insert, update, delete',
    })) {
      for (const sql of wall(table, grants)) this.addSql(sql);
    }
  }

  override down(): void {
    for (const table of ['plain_callback', 'verified_domain', ...Object.keys(TENANT_TABLES)])
      this.addSql(`drop table ${table}`);
  }
}
