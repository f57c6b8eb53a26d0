import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** The issuers whose tokens a tenant accepts from pipelines, the tokens issued in exchange, and the origin of versions. */
export class Workloads extends Migration {
  override name = '0013-workloads';

  override up(): void {
    this.addSql(`alter table credential drop constraint credential_kind_check`);
    this.addSql(`alter table credential add constraint credential_kind_check
      check (kind in ('api_key', 'agent_key', 'sign_in_link', 'invitation', 'workload_token'))`);
    this.addSql(`
      create table workload_trust (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        label text not null,
        issuer text collate "C" not null,
        audience text collate "C" not null,
        jwks_uri text,
        match jsonb not null,
        scopes text[] not null,
        policies text,
        created_by text collate "C",
        created_at timestamptz(3) not null,
        last_used_at timestamptz(3),
        revoked_at timestamptz(3),
        unconfirmed_since timestamptz(3),
        primary key (tenant_id, id)
      )`);
    // a platform's token is exchanged once: the row stays until that token has expired
    this.addSql(`
      create table workload_token (
        tenant_id text collate "C" not null,
        id text collate "C" not null,
        trust_id text collate "C" not null,
        subject_hash text collate "C" not null,
        scopes text[] not null,
        policies text,
        source jsonb not null,
        created_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        forget_at timestamptz(3) not null,
        last_used_at timestamptz(3),
        revoked_at timestamptz(3),
        primary key (tenant_id, id),
        unique (tenant_id, subject_hash),
        foreign key (tenant_id, trust_id) references workload_trust
      )`);
    this.addSql(`create index workload_token_trust on workload_token (tenant_id, trust_id)`);
    this.addSql(`create index workload_token_end on workload_token (forget_at)`);
    this.addSql(`alter table policy_revision add column source jsonb`);
    for (const sql of wall('workload_trust', 'select, insert, update')) this.addSql(sql);
    for (const sql of wall('workload_token', 'select, insert, update, delete')) this.addSql(sql);
  }

  override down(): void {
    throw new Error('who may change policies, and where they came from, cannot be taken back');
  }
}
