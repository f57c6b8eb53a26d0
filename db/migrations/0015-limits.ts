import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** Counters of rates and budgets, for all decision points together; what single calls took from them. */
export class Limits extends Migration {
  override name = '0015-limits';

  override up(): void {
    this.addSql('drop table rate_counter');
    this.addSql(`
      create table limit_counter (
        tenant_id text collate "C" not null,
        rule_id text collate "C" not null,
        kind text collate "C" not null check (kind in ('rate', 'budget', 'values')),
        key text collate "C" not null,
        window_ends_at timestamptz(3) not null,
        units bigint not null,
        shares jsonb not null,
        primary key (tenant_id, rule_id, kind, key)
      )`);
    this.addSql('create index on limit_counter (window_ends_at)');
    this.addSql(`
      create table limit_take (
        tenant_id text collate "C" not null,
        id text collate "C" not null,
        source text collate "C" not null,
        expires_at timestamptz(3) not null,
        counts jsonb not null,
        primary key (tenant_id, id)
      )`);
    this.addSql('create index on limit_take (expires_at)');
    for (const table of ['limit_counter', 'limit_take']) {
      for (const sql of wall(table, 'select, insert, update, delete')) this.addSql(sql);
    }
  }

  override down(): void {
    throw new Error('what was spent cannot be forgotten');
  }
}
