import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** What the tests of enforced policies found when they last ran by themselves: see server/policy/suite-watch.ts. */
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
    for (const sql of wall('policy_tests', 'select, insert, update, delete')) this.addSql(sql);
  }

  override down(): void {
    this.addSql('drop table policy_tests');
  }
}
