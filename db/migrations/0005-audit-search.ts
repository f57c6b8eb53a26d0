import { Migration } from '@mikro-orm/migrations';

/** What the audit log is searched by: a policy's or a hold's own timeline, and what one person or key did. */
export class AuditSearch extends Migration {
  override name = '0005-audit-search';

  override up(): void {
    this.addSql(`create index audit_target on audit_record (tenant_id, (line::json->>'target_id'), seq)`);
    this.addSql(`create index audit_actor on audit_record (tenant_id, (line::json->>'actor_id'), seq)`);
  }

  override down(): void {
    this.addSql('drop index audit_target');
    this.addSql('drop index audit_actor');
  }
}
