import { Migration } from '@mikro-orm/migrations';

/** When a tool last came back to a definition that is approved, so that one that alternates is told from one that was put right. */
export class ReturnedTools extends Migration {
  override name = '0014-returned-tools';

  override up(): void {
    this.addSql('alter table tool add column returned_at timestamptz(3)');
  }

  override down(): void {
    this.addSql('alter table tool drop column returned_at');
  }
}
