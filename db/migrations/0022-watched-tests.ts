import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/**
 * The results of the tests of enforced policies when they last ran on their own (server/policy/suite-watch.ts); saved questions.
 */
export class WatchedTests extends Migration {
  override name = '0022-watched-tests';

  override up(): void {
    this.addSql(`
      create table policy_tests (
        tenant_id text collate "C" not null,
        policy_id text collate "C" not null,
        version integer not null,
        basis text collate "C" not null,
        failing jsonb not null,
        primary key (tenant_id, policy_id),
        foreign key (tenant_id, policy_id) references policy
      )`);
    // named requests: see server/policy/questions.ts
    this.addSql(`
      create table saved_question (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        name text collate "C" not null,
        request jsonb not null,
        created_by text collate "C" not null,
        created_at timestamptz(3) not null,
        primary key (tenant_id, id),
        unique (tenant_id, name)
      )`);
    for (const [table, grants] of [
      ['policy_tests', 'select, insert, update, delete'],
      ['saved_question', 'select, insert, delete'],
    ] as const) {
      for (const sql of wall(table, grants)) this.addSql(sql);
    }
  }

  override down(): void {
    this.addSql('drop table saved_question');
    this.addSql('drop table policy_tests');
  }
}
