import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** Facts that tool results established in agent sessions, and the outcomes that agents reported for their own calls. */
export class SessionFacts extends Migration {
  override name = '0012-session-facts';

  override up(): void {
    this.addSql(`
      create table session_fact (
        tenant_id text collate "C" not null references tenant,
        agent_id text collate "C" not null,
        session_id text collate "C" not null,
        source text collate "C" not null,
        name text collate "C" not null,
        key text collate "C" not null,
        reported boolean not null,
        value jsonb,
        event_id text collate "C" not null,
        observed_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        primary key (tenant_id, agent_id, session_id, source, name, key, reported)
      )`);
    this.addSql('create index session_fact_expiry on session_fact (expires_at)');
    this.addSql('create index session_fact_session on session_fact (tenant_id, session_id)');
    this.addSql(`
      create table reported_outcome (
        tenant_id text collate "C" not null references tenant,
        event_id text collate "C" not null,
        hash text collate "C" not null,
        reported_at timestamptz(3) not null,
        primary key (tenant_id, event_id)
      )`);
    this.addSql('create index reported_outcome_age on reported_outcome (reported_at)');
    for (const sql of wall('session_fact', 'select, insert, update, delete')) this.addSql(sql);
    for (const sql of wall('reported_outcome', 'select, insert')) this.addSql(sql);
  }

  override down(): void {
    throw new Error('facts that decisions were taken on cannot be taken back');
  }
}
