import { Migration } from '@mikro-orm/migrations';

/** The holds that wait for people, in order of expiry. */
export class HoldsByExpiry extends Migration {
  override name = '0005-holds-by-expiry';

  override up(): void {
    this.addSql(`create index escrow_hold_expiry on escrow_hold (tenant_id, expires_at, id) where status = 'held'`);
  }

  override down(): void {
    this.addSql('drop index escrow_hold_expiry');
  }
}
