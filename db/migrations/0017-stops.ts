import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** Stops of agents, tools and proxies, and which of them each proxy has applied. */
export class Stops extends Migration {
  override name = '0017-stops';

  override up(): void {
    this.addSql(`
      create table stop (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        seq bigint not null,
        kind text not null,
        target text collate "C" not null,
        mode text not null,
        abort boolean not null default false,
        reason text not null,
        created_by text collate "C" not null,
        created_at timestamptz(3) not null,
        until timestamptz(3),
        reach jsonb,
        ended_at timestamptz(3),
        ended_by text collate "C",
        end_reason text,
        primary key (tenant_id, id)
      )`);
    this.addSql('create index stop_in_force on stop (tenant_id, id) where ended_at is null');
    this.addSql('alter table tenant add column stops_seq bigint not null default 0');
    this.addSql('alter table proxy_instance add column stops_seq bigint, add column stops_at timestamptz(3)');
    for (const sql of wall('stop', 'select, insert, update')) this.addSql(sql);
  }

  override down(): void {
    throw new Error('stops cannot be taken back');
  }
}
