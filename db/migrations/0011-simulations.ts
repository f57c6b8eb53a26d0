import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** What drafts of policies would have decided on past decisions. */
export class Simulations extends Migration {
  override name = '0011-simulations';

  override up(): void {
    this.addSql(`
      create table policy_simulation (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        policy_id text collate "C" not null,
        version integer,
        automatic boolean not null,
        dsl_source text not null,
        draft_hash text collate "C" not null,
        live_hash text collate "C",
        status text not null check (status in ('queued', 'running', 'done', 'failed', 'cancelled')),
        window_from timestamptz(3) not null,
        window_to timestamptz(3) not null,
        created_at timestamptz(3) not null,
        created_by text collate "C" not null,
        started_at timestamptz(3),
        finished_at timestamptz(3),
        lease_until timestamptz(3),
        attempt integer not null default 0,
        checked bigint not null default 0,
        total bigint,
        result jsonb,
        result_hash text collate "C",
        failure text,
        primary key (tenant_id, id),
        foreign key (tenant_id, policy_id) references policy
      )`);
    this.addSql(`create index on policy_simulation (tenant_id, policy_id, created_at)`);
    this.addSql(`create index on policy_simulation (created_at) where status in ('queued', 'running')`);
    this.addSql(`create index on policy_simulation (created_at) where status in ('done', 'failed', 'cancelled')`);
    // INVARIANT: one at a time per tenant
    this.addSql(`create unique index on policy_simulation (tenant_id) where status = 'running'`);
    for (const sql of wall('policy_simulation', 'select, insert, update, delete')) this.addSql(sql);
  }

  override down(): void {
    this.addSql('drop table policy_simulation');
  }
}
