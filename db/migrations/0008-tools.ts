import { Migration } from '@mikro-orm/migrations';
import { DRIFT_MODES, TOOL_STATUSES } from '../../server/domain/tools.ts';
import { wall } from './wall.ts';

const list = (words: readonly string[]) => words.map((word) => `'${word}'`).join(', ');

/** The tools that proxies saw, with the definitions that people approved; labels of tools and agents. */
export class Tools extends Migration {
  override name = '0008-tools';

  override up(): void {
    this.addSql(`
      create table tool_server (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        -- null: the default, which depends on whether an action writes
        mode text check (mode in (${list(DRIFT_MODES)})),
        trust integer,
        check_arguments boolean not null default false,
        -- the lines of the keys of the proxies in front of it; empty: any
        proxy_keys text[] not null default '{}',
        owner_id text collate "C",
        proposal jsonb,
        first_seen timestamptz(3) not null,
        last_seen timestamptz(3) not null,
        reviewed_at timestamptz(3),
        primary key (tenant_id, id)
      )`);
    this.addSql(`
      create table tool (
        tenant_id text collate "C" not null,
        server text collate "C" not null,
        name text collate "C" not null,
        status text not null check (status in (${list(TOOL_STATUSES)})),
        pin text collate "C" not null,
        approved_pin text collate "C",
        approved_by text collate "C",
        approved_at timestamptz(3),
        accepted_pins text[] not null default '{}',
        rejected_pins text[] not null default '{}',
        waiting_pin text collate "C",
        change jsonb not null,
        shape text collate "C",
        labels text[] not null default '{}',
        proposals jsonb not null default '{}',
        listed boolean not null default true,
        first_seen timestamptz(3) not null,
        last_seen timestamptz(3) not null,
        primary key (tenant_id, server, name),
        foreign key (tenant_id, server) references tool_server
      )`);
    this.addSql(`create index tool_status on tool (tenant_id, status, server, name)`);
    this.addSql(`create index tool_shape on tool (tenant_id, server, shape) where shape is not null`);
    // the text is the canonical one that the pin hashes
    this.addSql(`
      create table tool_definition (
        tenant_id text collate "C" not null,
        server text collate "C" not null,
        tool text collate "C" not null,
        pin text collate "C" not null,
        definition text not null,
        reported_by text collate "C" not null,
        first_seen timestamptz(3) not null,
        last_seen timestamptz(3) not null,
        primary key (tenant_id, server, tool, pin),
        foreign key (tenant_id, server, tool) references tool on delete cascade deferrable initially deferred
      )`);
    this.addSql(`create index tool_definition_pin on tool_definition (tenant_id, pin)`);
    this.addSql(`
      create table agent (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        labels text[] not null default '{}',
        proposal jsonb,
        updated_at timestamptz(3) not null,
        updated_by text collate "C" not null,
        primary key (tenant_id, id)
      )`);
    for (const [table, grants] of [
      ['tool_server', 'select, insert, update'],
      ['tool', 'select, insert, update, delete'],
      ['tool_definition', 'select, insert, update, delete'],
      ['agent', 'select, insert, update'],
    ] as const) {
      for (const sql of wall(table, grants)) this.addSql(sql);
    }
  }

  override down(): void {
    throw new Error('tools and what was approved of them cannot be taken back');
  }
}
