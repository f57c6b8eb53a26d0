import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** Lists of known values that policies read, and their versions. */
export class Lists extends Migration {
  override name = '0009-lists';

  override up(): void {
    this.addSql(`
      create table reference_list (
        tenant_id text collate "C" not null references tenant,
        name text collate "C" not null,
        version integer not null,
        live_version integer,
        deleted_at timestamptz(3),
        primary key (tenant_id, name)
      )`);
    this.addSql(`
      create table reference_list_version (
        tenant_id text collate "C" not null,
        name text collate "C" not null,
        version integer not null,
        status text not null check (status in ('pending', 'approved', 'rejected')),
        items text[],
        count integer not null,
        bytes integer not null,
        hash text collate "C" not null,
        added integer not null,
        removed integer not null,
        author_id text collate "C" not null,
        created_at timestamptz(3) not null,
        decided_by text collate "C",
        decided_at timestamptz(3),
        comment text,
        primary key (tenant_id, name, version),
        foreign key (tenant_id, name) references reference_list
      )`);
    this.addSql(`alter table policy_revision add column lists text[] not null default '{}'`);
    for (const table of ['reference_list', 'reference_list_version']) {
      for (const sql of wall(table, 'select, insert, update')) this.addSql(sql);
    }
  }

  override down(): void {
    throw new Error('lists and what was approved of them cannot be taken back');
  }
}
