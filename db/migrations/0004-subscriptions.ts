import { Migration } from '@mikro-orm/migrations';
import { wall } from './wall.ts';

/** Subscriptions, the deliveries to them, and what the workers know about each destination. */
export class Subscriptions extends Migration {
  override name = '0004-subscriptions';

  override up(): void {
    // URLs and secrets are stored sealed: a chat URL is itself the secret. The types, and which of them have a secret, are
    // defined only in server/domain/destinations.ts: a new type needs no migration, and a server of the previous version may run
    // alongside one of the next.
    this.addSql(`
      create table subscription (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        destination_type text not null,
        url_sealed bytea not null,
        secret_sealed bytea,
        previous_secret_sealed bytea,
        previous_secret_until timestamptz(3),
        event_types text[] not null,
        active boolean not null,
        queues_since timestamptz(3),
        destination_config jsonb not null,
        disabled_at timestamptz(3),
        disabled_reason text,
        created_by text collate "C" not null,
        -- who last chose where it sends: it is paused when they are no longer an admin
        owner_id text collate "C" not null,
        created_at timestamptz(3) not null,
        updated_at timestamptz(3) not null,
        row_version integer not null default 1,
        primary key (tenant_id, id),
        check (secret_sealed is not null or previous_secret_sealed is null),
        check ((previous_secret_sealed is null) = (previous_secret_until is null)),
        check ((disabled_at is null) = (disabled_reason is null)),
        check (not (active and disabled_at is not null)),
        check (not (active and queues_since is null)),
        check (queues_since is null or disabled_at is null)
      )`);
    // One row per destination: a subscription (with the same id), or a notify target of holds, whose URL is here. Only the holder
    // of the lease sends there; anything that takes the lease away raises the fence. The room is how many more events may wait
    // while the subscription is paused; null until they are counted.
    this.addSql(`
      create table delivery_lane (
        tenant_id text collate "C" not null references tenant,
        id text collate "C" not null,
        target_sealed bytea,
        due_at timestamptz(3),
        not_before timestamptz(3),
        leased_until timestamptz(3),
        fence bigint not null default 0,
        room integer check (room >= 0),
        resend jsonb,
        failing_since timestamptz(3),
        gone_since timestamptz(3) check (gone_since is null or failing_since is not null),
        primary key (tenant_id, id)
      ) with (fillfactor = 50)`);
    // When each can be served, indexed separately for failing ones: lanes are looked up in order of that time, overall and per
    // tenant. The per-tenant index has a differently phrased predicate, so that the planner does not mistake it for another index
    // or vice versa: to a planner that last counted none of these rows, all of them seem equally good, and they are not.
    const readyAt = 'greatest(due_at, not_before, leased_until)';
    this.addSql(`create index delivery_lane_due on delivery_lane ((${readyAt}))
      where due_at is not null and failing_since is null`);
    this.addSql(`create index delivery_lane_retry on delivery_lane ((${readyAt}))
      where due_at is not null and failing_since is not null`);
    this.addSql(`create index delivery_lane_turn on delivery_lane (tenant_id, (${readyAt}))
      where num_nulls(due_at, failing_since) = 0`);
    this.addSql(`create index delivery_lane_failing on delivery_lane (failing_since) where failing_since is not null`);
    this.addSql(`create index delivery_lane_target on delivery_lane (tenant_id, id) where target_sealed is not null`);
    this.addSql(`create index delivery_lane_resend on delivery_lane (tenant_id, id)
      where resend is not null and resend->>'ended_at' is null`);
    this.addSql(`create index subscription_disabled on subscription (disabled_at) where disabled_at is not null`);
    // The columns describe the last attempt, and the history the ones before it: most have only one. An event's id sorts by its
    // time, which is the order of delivery to a destination. The tenant is that of the lane: a reference of its own would be
    // looked up for each row. So would one to the event, which is deleted after its deliveries. As a rule, each index is written
    // twice per delivery: when it is queued and when it has arrived.
    this.addSql(`
      create table delivery (
        tenant_id text collate "C" not null,
        lane_id text collate "C" not null,
        event_id text collate "C" not null,
        event_type text not null,
        is_test boolean not null default false,
        status text not null check (status in ('retrying', 'delivered', 'failed')),
        machine_version integer not null,
        machine_context jsonb not null,
        attempts integer not null,
        http_status integer,
        result text,
        failure_reason text,
        next_attempt_at timestamptz(3),
        created_at timestamptz(3) not null,
        last_attempt_at timestamptz(3),
        duration_ms integer,
        sent bytea,
        answer jsonb,
        history jsonb,
        primary key (tenant_id, lane_id, event_id),
        foreign key (tenant_id, lane_id) references delivery_lane on delete cascade,
        check ((status = 'retrying') = (next_attempt_at is not null))
      ) with (fillfactor = 80)`);
    this.addSql(`create index delivery_waiting on delivery (tenant_id, lane_id, event_id) where status = 'retrying'`);
    this.addSql(`create index delivery_failed on delivery (tenant_id, lane_id, event_id) where status = 'failed'`);
    this.addSql(`create index delivery_missed on delivery (tenant_id, lane_id, event_id)
      where status <> 'delivered' and attempts > 0`);
    // what was written before there were subscriptions concerns none of them
    this.addSql(`alter table event_outbox add column fanned_out_at timestamptz(3)`);
    // the one destination that an example is for; null for real events, which go to everyone who asks for their type
    this.addSql(`alter table event_outbox add column lane_id text collate "C"`);
    // whether its fan-out caused a delivery; null before that
    this.addSql(`alter table event_outbox add column wanted boolean`);
    this.addSql(`update event_outbox set fanned_out_at = created_at, wanted = false`);
    this.addSql(`create index event_outbox_unwanted on event_outbox (created_at) where not wanted`);
    this.addSql(`create index event_outbox_waiting on event_outbox (tenant_id, created_at, id)
      where fanned_out_at is null`);
    this.addSql(`create index event_outbox_age on event_outbox (created_at)`);
    // set when a proxy's silence was reported; its next heartbeat clears it
    this.addSql(`alter table proxy_instance add column offline_at timestamptz(3)`);
    this.addSql(`create index proxy_instance_silent on proxy_instance (silent_at)
      where offline_at is null and stopped_at is null`);
    this.addSql(`create index proxy_instance_offline on proxy_instance (last_seen_at) where offline_at is not null`);
    for (const [table, grants] of [
      ['subscription', 'select, insert, update, delete'],
      ['delivery_lane', 'select, insert, update, delete'],
      ['delivery', 'select, update, delete'],
    ] as const) {
      for (const sql of wall(table, grants)) this.addSql(sql);
    }
  }

  override down(): void {
    throw new Error('subscriptions and their deliveries cannot be taken back');
  }
}
