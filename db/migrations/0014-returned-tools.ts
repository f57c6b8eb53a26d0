import { Migration } from '@mikro-orm/migrations';

/** When a tool last returned to an approved definition, which distinguishes one that alternates from one that was fixed. */
export class ReturnedTools extends Migration {
  override name = '0014-returned-tools';

  override up(): void {
    this.addSql('alter table tool add column returned_at timestamptz(3)');
  }

  override down(): void {
    this.addSql('alter table tool drop column returned_at');
  }
}
