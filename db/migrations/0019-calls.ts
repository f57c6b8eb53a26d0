import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** The calls that agents name when they ask for a decision: each is held once and permitted once. */
export class Calls extends Migration {
  override name = '0019-calls';

  override up(): void {
    this.addSql(`
      create table agent_call (
        tenant_id text collate "C" not null references tenant,
        agent_id text collate "C" not null,
        call_id text collate "C" not null,
        asked text collate "C" not null,
        event_id text collate "C" not null,
        holder text collate "C" not null,
        busy_until timestamptz(3),
        hold_id text collate "C",
        consumed boolean not null default false,
        answers jsonb not null default '[]',
        expires_at timestamptz(3) not null,
        primary key (tenant_id, agent_id, call_id)
      )`);
    this.addSql('create index on agent_call (expires_at)');
    for (const sql of wall('agent_call', 'select, insert, update, delete')) this.addSql(sql);
    // an agent that comes back finds what was released for it
    this.addSql(`create index escrow_hold_released on escrow_hold (tenant_id, agent_id, agent_role, action_hash)
      where status in ('held', 'released') and source = 'evaluate'`);
  }

  override down(): void {
    throw new Error('what was permitted cannot be forgotten');
  }
}
