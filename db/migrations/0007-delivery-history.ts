import { Migration } from '@mikro-orm/migrations';

/** Every attempt of a delivery, and not its last one alone. What was attempted before stays unknown. */
export class DeliveryHistory extends Migration {
  override name = '0007-delivery-history';

  override up(): void {
    this.addSql(`alter table delivery add column history jsonb not null default '[]'`);
  }

  override down(): void {
    this.addSql('alter table delivery drop column history');
  }
}
