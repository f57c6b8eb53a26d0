import { Migration } from '@mikro-orm/migrations';
import { BLOCK_FIELDS } from '../../server/domain/decision.ts';
import { HOLD_KIND_NAMES } from '../../server/domain/hold-kinds.ts';
import { wall } from './wall.ts';

/**
 * Every table with tenant rows has `tenant_id` first in its primary key and in each unique key, and a row level security policy
 * that compares it with the setting `app.tenant`. Requests run as the role `svc_app`, which owns nothing and cannot bypass the
 * policies: without the setting it sees no row. The owner of the tables (migrations, the chain writer, jobs that serve all
 * tenants) is not subject to them; COPY FROM needs that.
 *
 * What no request may change has no grant: `svc_app` can only read chain records, and only add audit records.
 */
const TENANT_TABLES: Record<string, string> = {
  tenant: 'select, update',
  member: 'select, insert, update',
  session: 'select, insert, update, delete',
  sign_in_link: 'select, insert, update, delete',
  api_key: 'select, insert, update',
  agent_key: 'select, insert, update',
  policy: 'select, insert, update',
  policy_revision: 'select, insert, update',
  pending_comment: 'select, insert, update, delete',
  policy_bundle: 'select, insert, delete',
  chain_head: 'select, insert, update',
  chain_checkpoint: 'select, insert',
  chain_alarm: 'select',
  forensic_record: 'select',
  forensic_block: 'select',
  audit_record: 'select, insert',
  decision_input: 'select, delete',
  escrow_hold: 'select, insert, update',
  escrow_vote: 'select, insert',
  escrow_aside: 'select, insert, update, delete',
  event_outbox: 'select, insert',
  evidence_package: 'select, insert',
  evidence_chunk: 'select, insert',
  proxy_instance: 'select, insert, update, delete',
  proxy_bundle: 'select, insert, delete',
  rate_counter: 'select, insert, update, delete',
};

export class Spine extends Migration {
  override name = '0001-spine';

  override up(): void {
    this.addSql(`
      create table instance (
        one boolean primary key default true check (one),
        canary bytea not null,
        created_at timestamptz(3) not null,
        -- when the last backup by svc was complete
        backed_up_at timestamptz(3)
      )`);
    this.addSql(`
      create table signing_key (
        kid text collate "C" primary key,
        public_key bytea not null,
        private_key bytea not null,
        created_at timestamptz(3) not null,
        retired_at timestamptz(3)
      )`);
    // the hash of a secret, which names its tenant -> its credential; only the owner reads it
    this.addSql(`
      create table credential (
        tenant_id text collate "C" not null,
        hash bytea not null,
        kind text not null check (kind in ('api_key', 'agent_key', 'sign_in_link')),
        id text collate "C" not null,
        primary key (tenant_id, hash)
      )`);
    this.addSql(`create index on credential (tenant_id, id)`);
    this.addSql(`
      create table tenant (
        tenant_id text collate "C" primary key,
        name text not null,
        settings jsonb not null default '{}',
        created_at timestamptz(3) not null,
        -- what is in it is made up, see server/demo
        demo text check (demo in ('filling', 'ready')),
        -- a bundle number that a proxy has seen and this database has not: bundles are numbered above it
        bundle_floor bigint not null default 0,
        bundle_floor_at timestamptz(3),
        -- when to look next for what decisions were taken on and has to be erased
        erase_at timestamptz(3) not null default 'epoch'
      )`);
    this.addSql(`create index tenant_erase on tenant (erase_at)`);
    this.addSql(`
      create table member (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        email text not null,
        name text not null,
        avatar_url text,
        roles text[] not null,
        created_at timestamptz(3) not null,
        last_login timestamptz(3),
        removed_at timestamptz(3),
        primary key (tenant_id, id),
        unique (tenant_id, email)
      )`);
    this.addSql(`
      create table session (
        tenant_id text collate "C" not null,
        id text collate "C" not null,
        user_id text collate "C" not null,
        auth_method text not null,
        created_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        primary key (tenant_id, id),
        foreign key (tenant_id, user_id) references member
      )`);
    this.addSql(`
      create table sign_in_link (
        tenant_id text collate "C" not null,
        id text collate "C" not null,
        user_id text collate "C" not null,
        created_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        used_at timestamptz(3),
        primary key (tenant_id, id),
        foreign key (tenant_id, user_id) references member
      )`);
    this.addSql(`
      create table api_key (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        -- the first of the keys that were rotated into this one
        line_id text collate "C" not null,
        label text not null,
        prefix text not null,
        scopes text[] not null,
        created_by text collate "C",
        -- of a key of nobody: the person who counts as the author of what is written with it
        author_id text collate "C",
        -- the API key with which it was made, or made to replace another
        made_with text collate "C",
        created_at timestamptz(3) not null,
        last_used_at timestamptz(3),
        expires_at timestamptz(3),
        life_ms bigint,
        revoked_at timestamptz(3),
        unconfirmed_since timestamptz(3),
        primary key (tenant_id, id)
      )`);
    this.addSql(`
      create table agent_key (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        label text not null,
        agent_id text not null,
        agent_role text not null,
        owner_id text collate "C",
        prefix text not null,
        hash bytea not null,
        created_by text collate "C",
        created_at timestamptz(3) not null,
        last_used_at timestamptz(3),
        -- the proxy that reported it
        last_used_by text,
        expires_at timestamptz(3),
        life_ms bigint,
        revoked_at timestamptz(3),
        unconfirmed_since timestamptz(3),
        primary key (tenant_id, id)
      )`);
    this.addSql(`
      create table policy (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        status text not null check (status in ('draft', 'pending_approval', 'deployed', 'revoked')),
        version integer not null,
        live_version integer,
        machine_version integer not null,
        machine_context jsonb not null,
        roles text[] not null,
        any_role boolean not null,
        scopes text[] not null,
        created_at timestamptz(3) not null,
        updated_at timestamptz(3) not null,
        row_version integer not null default 1,
        primary key (tenant_id, id)
      )`);
    this.addSql(`
      create table policy_revision (
        tenant_id text collate "C" not null,
        policy_id text collate "C" not null,
        version integer not null,
        dsl_source text not null,
        tests_source text,
        content_hash text not null,
        squeezed_hash text collate "C" not null,
        statement_count integer not null,
        author_id text collate "C" not null,
        authors text[] not null,
        change text not null check (change in ('create', 'update', 'rollback')),
        rolled_back_from integer,
        note text,
        reviews jsonb not null default '[]',
        created_at timestamptz(3) not null,
        primary key (tenant_id, policy_id, version),
        foreign key (tenant_id, policy_id) references policy
      )`);
    this.addSql('create index on policy_revision (tenant_id, policy_id, squeezed_hash)');
    // a reviewer's unsent comments: visible only to them until each becomes a comment of the revision
    this.addSql(`
      create table pending_comment (
        tenant_id text collate "C" not null,
        id text collate "C" not null,
        policy_id text collate "C" not null,
        user_id text collate "C" not null,
        comment text,
        thread text collate "C",
        place jsonb,
        suggestion text,
        created_at timestamptz(3) not null,
        primary key (tenant_id, id),
        foreign key (tenant_id, policy_id) references policy,
        foreign key (tenant_id, user_id) references member
      )`);
    this.addSql(`create index pending_comment_own on pending_comment (tenant_id, user_id, policy_id)`);
    this.addSql(`
      create table policy_bundle (
        tenant_id text collate "C" not null references tenant,
        scope_set text collate "C" not null,
        seq bigint not null,
        hash text collate "C" not null,
        kid text collate "C" not null,
        bytes bytea not null,
        built_at timestamptz(3) not null,
        not_after timestamptz(3) not null,
        key_id text collate "C",
        primary key (tenant_id, scope_set, seq)
      )`);
    this.addSql(`create index on policy_bundle (tenant_id, hash)`);
    this.addSql(`
      create table chain_head (
        tenant_id text collate "C" not null references tenant,
        chain text not null check (chain in ('forensics', 'audit')),
        seq bigint not null,
        hash bytea not null,
        fence bigint not null,
        -- true with every record; false again once the head is signed
        unsigned boolean not null default true,
        -- true with the last record of a block of decisions; false again once the block has a summary
        unsummarized boolean not null default false,
        primary key (tenant_id, chain)
      ) with (fillfactor = 50)`);
    // an update that does not change these columns does not touch the indexes
    this.addSql(`create index chain_head_unsigned on chain_head (tenant_id, chain) where unsigned`);
    this.addSql(`create index chain_head_unsummarized on chain_head (tenant_id, chain) where unsummarized`);
    this.addSql(`
      create table chain_checkpoint (
        tenant_id text collate "C" not null references tenant,
        chain text not null check (chain in ('forensics', 'audit')),
        seq bigint not null,
        kid text collate "C" not null,
        note text not null,
        created_at timestamptz(3) not null,
        primary key (tenant_id, chain, seq)
      )`);
    // a chain that lacks records it is known to have had; the row closes it until an operator accepts the loss
    this.addSql(`
      create table chain_alarm (
        tenant_id text collate "C" not null references tenant,
        chain text not null check (chain in ('forensics', 'audit')),
        known_seq bigint not null,
        known_hash text not null,
        known_generation integer not null,
        agreed bigint not null,
        last_seq bigint not null,
        reason text not null,
        noticed_at timestamptz(3) not null,
        primary key (tenant_id, chain)
      )`);
    // fixed-width columns first; those named _h are 32-bit hashes of the ids, a third of the index size
    this.addSql(`
      create table forensic_record (
        seq bigint not null,
        received_at timestamptz(3) not null,
        agent_h integer not null,
        session_h integer not null,
        trace_h integer not null default 0,
        tool_h integer not null default 0,
        decision smallint not null,
        hash bytea not null,
        tenant_id text collate "C" not null,
        event_id text collate "C" not null,
        line text collate "C" not null,
        primary key (tenant_id, seq),
        unique (tenant_id, event_id)
      )`);
    this.addSql(`create index forensic_record_agent on forensic_record (tenant_id, agent_h, seq)`);
    this.addSql(`create index forensic_record_session on forensic_record (tenant_id, session_h, seq)`);
    this.addSql(`create index forensic_record_trace on forensic_record (tenant_id, trace_h, seq) where trace_h <> 0`);
    this.addSql(
      `create index forensic_record_decision on forensic_record (tenant_id, decision, seq) where decision > 0`,
    );
    // an agent, session or tool with many records may have few that were not allowed: only those records pay for these indexes
    this.addSql(
      `create index forensic_record_agent_decision on forensic_record (tenant_id, agent_h, decision, seq)
       where decision > 0`,
    );
    this.addSql(
      `create index forensic_record_session_decision on forensic_record (tenant_id, session_h, decision, seq)
       where decision > 0`,
    );
    this.addSql(
      `create index forensic_record_tool_decision on forensic_record (tenant_id, tool_h, decision, seq)
       where decision > 0`,
    );
    // read by searches without an index: see server/chain/blocks.ts
    this.addSql(`
      create table forensic_block (
        tenant_id text collate "C" not null,
        block integer not null,
        seen bytea not null,
        ${BLOCK_FIELDS.map((field) => `${field} text collate "C" not null`).join(', ')},
        primary key (tenant_id, block)
      )`);
    // few of them are needed at once, and compressing them would cost more than it saves
    this.addSql(
      `alter table forensic_block ${BLOCK_FIELDS.map((field) => `alter ${field} set storage external`).join(', ')}`,
    );
    this.addSql(`
      create table audit_record (
        tenant_id text collate "C" not null,
        seq bigint not null,
        id text collate "C" not null,
        received_at timestamptz(3) not null,
        actor_id text collate "C" not null,
        action text collate "C" not null,
        target_type text collate "C" not null,
        target_id text collate "C" not null,
        severity text collate "C" not null,
        hash bytea not null,
        line text collate "C" not null,
        primary key (tenant_id, seq),
        unique (tenant_id, id)
      )`);
    // columns, not expressions over the line: an expression that could fail cannot use an index under row level security
    for (const column of ['actor_id', 'action', 'target_type', 'target_id', 'severity']) {
      this.addSql(`create index audit_record_${column} on audit_record (tenant_id, ${column}, seq)`);
    }
    this.addSql(`
      create table decision_input (
        tenant_id text collate "C" not null,
        event_id text collate "C" not null,
        created_at timestamptz(3) not null,
        salt_a bytea,
        projection text,
        salt_b bytea,
        input text,
        primary key (tenant_id, event_id),
        check ((salt_a is null) = (projection is null) and (salt_b is null) = (input is null)),
        check (projection is not null or input is not null)
      )`);
    // one per retention schedule; the second is also used to read a window of decisions
    this.addSql(`create index decision_input_inputs on decision_input (tenant_id, created_at) where input is not null`);
    this.addSql(`create index decision_input_time on decision_input (tenant_id, created_at)`);
    this.addSql(`
      create table escrow_hold (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        status text not null check (status in ('held', 'released', 'rejected', 'consumed', 'expired', 'cancelled')),
        machine_version integer not null,
        machine_context jsonb not null,
        agent_role text not null,
        agent_id text not null,
        action_type text not null,
        action_summary text not null,
        action_hash text collate "C" not null,
        hold_type text not null check (hold_type in (${HOLD_KIND_NAMES.map((kind) => `'${kind}'`).join(', ')})),
        required_approvals integer not null,
        current_approvals integer not null default 0,
        details jsonb not null,
        -- what similar holds and groups are found by, beside details: under row level security no index serves an expression.
        -- empty where there is none: an index has no order beneath a null
        tool_server text collate "C" not null default '',
        tool_name text collate "C" not null default '',
        rule_id text collate "C" not null default '',
        estimated_value double precision,
        value_currency text,
        risk_score double precision,
        ttl_seconds integer not null,
        source text not null check (source in ('evaluate', 'proxy')),
        created_by text not null,
        barred_voters text[] not null default '{}',
        refused_uses jsonb not null default '{}',
        -- a key may be rotated between two attempts: the line of keys is whose attempts they are
        idempotency_line text collate "C",
        idempotency_key text collate "C",
        idempotency_hash text,
        created_at timestamptz(3) not null,
        expires_at timestamptz(3) not null,
        releases_at timestamptz(3),
        ends_at timestamptz(3),
        wake_at timestamptz(3),
        row_version integer not null default 1,
        primary key (tenant_id, id),
        check ((wake_at is null) = (ends_at is null)),
        check ((status in ('held', 'released')) = (wake_at is not null))
      )`);
    // a repeated identical action finds the hold that is still open, even when both requests arrive at once
    this.addSql(`create unique index escrow_hold_open on escrow_hold (tenant_id, agent_id, agent_role, action_hash)
      where status = 'held' and source = 'evaluate'`);
    this.addSql(`create unique index escrow_hold_idempotency on escrow_hold (tenant_id, idempotency_line, idempotency_key)
      where idempotency_key is not null`);
    this.addSql(`create index escrow_hold_status on escrow_hold (tenant_id, status, created_at)`);
    for (const like of ['agent_id', 'rule_id']) {
      this.addSql(`create index escrow_hold_like_${like} on escrow_hold
        (tenant_id, tool_name, tool_server, ${like}, created_at, id)`);
    }
    this.addSql(`create index escrow_hold_wake on escrow_hold (wake_at) where wake_at is not null`);
    // one vote per person is the primary key; a vote is never changed
    this.addSql(`
      create table escrow_vote (
        tenant_id text collate "C" not null,
        hold_id text collate "C" not null,
        user_id text collate "C" not null,
        decision text not null check (decision in ('approve', 'reject')),
        reason text not null,
        shown_hash text not null,
        created_at timestamptz(3) not null,
        primary key (tenant_id, hold_id, user_id),
        foreign key (tenant_id, hold_id) references escrow_hold,
        foreign key (tenant_id, user_id) references member
      )`);
    // who set aside which hold until when: it changes what their own list shows
    this.addSql(`
      create table escrow_aside (
        tenant_id text collate "C" not null,
        user_id text collate "C" not null,
        hold_id text collate "C" not null,
        back_at timestamptz(3) not null,
        primary key (tenant_id, user_id, hold_id),
        foreign key (tenant_id, hold_id) references escrow_hold,
        foreign key (tenant_id, user_id) references member
      )`);
    this.addSql(`create index escrow_aside_hold on escrow_aside (tenant_id, hold_id)`);
    this.addSql(`create index escrow_aside_back on escrow_aside (back_at)`);
    // events for subscribers, written with the change they report; delivered from here later
    this.addSql(`
      create table event_outbox (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        event_type text not null,
        payload jsonb not null,
        created_at timestamptz(3) not null,
        primary key (tenant_id, id)
      )`);
    this.addSql(`
      create table evidence_package (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        purpose text not null,
        chain text not null check (chain in ('forensics', 'audit')),
        from_at timestamptz(3) not null,
        to_at timestamptz(3) not null,
        session_id text,
        first_seq bigint not null,
        last_seq bigint not null,
        record_count integer not null,
        chain_intact boolean not null,
        package_hash text not null,
        public_key_fingerprint text not null,
        size bigint not null,
        created_by text collate "C" not null,
        created_at timestamptz(3) not null,
        primary key (tenant_id, id)
      )`);
    // the file in chunks, written before the summary of the whole; both are visible once the transaction commits
    this.addSql(`
      create table evidence_chunk (
        tenant_id text collate "C" not null references tenant,
        package_id text collate "C" not null,
        place integer not null,
        bytes bytea not null,
        primary key (tenant_id, package_id, place),
        foreign key (tenant_id, package_id) references evidence_package deferrable initially deferred
      )`);
    this.addSql(`
      create table proxy_instance (
        tenant_id text collate "C" not null references tenant,
        id text not null,
        key_id text collate "C" not null,
        info jsonb not null,
        first_seen_at timestamptz(3) not null,
        last_seen_at timestamptz(3) not null,
        -- when to look whether it has fallen silent
        silent_at timestamptz(3) not null default 'epoch',
        -- when it said that it stops; its next report clears it
        stopped_at timestamptz(3),
        primary key (tenant_id, id)
      )`);
    // which bundle a proxy used, and since when
    this.addSql(`
      create table proxy_bundle (
        tenant_id text collate "C" not null,
        proxy_id text not null,
        since timestamptz(3) not null,
        -- empty for one that was never issued here
        hash text collate "C" not null,
        seq bigint,
        built_at timestamptz(3),
        primary key (tenant_id, proxy_id, since),
        foreign key (tenant_id, proxy_id) references proxy_instance on delete cascade
      )`);
    this.addSql(`
      create table rate_counter (
        tenant_id text collate "C" not null,
        rule_id text not null,
        agent_id text not null,
        window_ends_at timestamptz(3) not null,
        hits integer not null,
        primary key (tenant_id, rule_id, agent_id)
      )`);
    for (const [table, grants] of Object.entries(TENANT_TABLES)) {
      for (const sql of wall(table, grants)) this.addSql(sql);
    }
    // the rows that map secret hashes change in the same transaction as the rows that they lead to
    for (const sql of wall('credential', 'select, insert, delete')) this.addSql(sql);
  }

  override down(): void {
    throw new Error('the first migration cannot be undone');
  }
}
