import { Migration } from '@mikro-orm/migrations';

/** Tenants that move to another installation, and what those that arrived brought along. Only the owner reads these. */
export class TenantMoves extends Migration {
  override name = '0023-tenant-moves';

  override up(): void {
    // `out` where a tenant leaves, and remains as the record of where it went; `in` where it arrives
    this.addSql(`
      create table tenant_move (
        tenant_id text collate "C" not null,
        direction text not null check (direction in ('out', 'in')),
        id text collate "C" not null,
        state text not null,
        other text collate "C" not null,
        address text not null,
        changed_at timestamptz(3) not null,
        -- of a departure all of it, with its last records: see db/moves.ts
        sealed bytea,
        primary key (tenant_id, direction),
        check ((direction = 'out') = (sealed is not null)),
        check (state in ('fencing', 'fenced', 'moved') and direction = 'out'
          or state in ('copying', 'arrived', 'cancelled') and direction = 'in')
      )`);
    // the rows of a departing tenant, removed from their tables in one transaction: no job and no request finds them there
    this.addSql(`
      create table tenant_parcel (
        tenant_id text collate "C" not null,
        source text collate "C" not null,
        place bigint not null,
        content jsonb not null,
        primary key (tenant_id, source, place)
      )`);
    // only holders of a credential are ever looked up here
    this.addSql(`create index tenant_parcel_credential on tenant_parcel (tenant_id, source, (content->>'id'))
      where source in ('session', 'api_key', 'agent_key', 'workload_token')`);
    this.addSql(
      `create index tenant_parcel_member on tenant_parcel (tenant_id, (content->>'id')) where source = 'member'`,
    );
    this.addSql(`create index tenant_parcel_hash on tenant_parcel (tenant_id, (content->>'hash'))
      where source = 'credential'`);
    // these verify what the tenant's former installation signed
    this.addSql(`
      create table former_key (
        tenant_id text collate "C" not null,
        kid text collate "C" not null,
        sealed bytea not null,
        primary key (tenant_id, kid)
      )`);
    // no policy and no grant: as svc_app, no row is visible
    for (const table of ['tenant_move', 'tenant_parcel', 'former_key']) {
      this.addSql(`alter table ${table} enable row level security`);
    }
  }

  override down(): void {
    throw new Error('where a tenant went cannot be forgotten');
  }
}
