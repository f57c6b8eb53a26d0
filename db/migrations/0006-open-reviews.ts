import { Migration } from '@mikro-orm/migrations';

/** The policies that are enforced by break glass and not reviewed by anyone else yet, derived from their machine. */
export class OpenReviews extends Migration {
  override name = '0006-open-reviews';

  override up(): void {
    this.addSql(`alter table policy add column review_open boolean not null
      generated always as (jsonb_array_length(machine_context->'openReviews') > 0) stored`);
    this.addSql(`create index policy_review on policy (tenant_id, review_open desc, updated_at desc, id)
      where review_open or status = 'pending_approval'`);
  }

  override down(): void {
    this.addSql('alter table policy drop column review_open');
  }
}
