import { expect, test } from 'vitest';
import { Watch } from '../server/watch.ts';
import { useDatabase } from './helpers/database.ts';

const box = useDatabase();

test('what people must notice is counted over all tenants, and what is old or seen is not', async () => {
  const { owner } = box.db;
  const watch = new Watch(owner);
  expect(watch.counts).toBeUndefined();
  const nothing = {
    proxiesSilent: 0,
    desktopProxiesSilent: 0,
    destinationsFailing: 0,
    subscriptionsDisabled: 0,
    holdsUnseen: 0,
    stopsInForce: 0,
    mailsWaiting: 0,
    mailWaitsSeconds: 0,
    backedUpAt: 0,
  };
  await watch.count();
  expect(watch.counts).toEqual(nothing);

  for (const tenant of ['one', 'two']) {
    await owner.query('insert into tenant (tenant_id, name, created_at) values ($1, $1, now())', [tenant]);
    await owner.query(
      `insert into proxy_instance (tenant_id, id, key_id, info, first_seen_at, last_seen_at, offline_at)
       select $1, id, 'k', info::jsonb, now(), now() - seen::interval, case when silent then now() end
       from (values ('silent', '{}', '1 hour', true), ('here', '{}', '1 second', false), ('gone', '{}', '8 days', true),
         ('laptop', '{"desktop": true}', '1 hour', true), ('server', '{"desktop": false}', '1 minute', false)) p (id, info, seen, silent)`,
      [tenant],
    );
    await owner.query(
      `insert into delivery_lane (tenant_id, id, failing_since)
       values ($1, 'failing', now() - interval '6 minutes'), ($1, 'hiccup', now() - interval '1 minute'), ($1, 'fine', null)`,
      [tenant],
    );
    await owner.query(
      `insert into subscription (tenant_id, id, destination_type, url_sealed, event_types, active, queues_since,
         destination_config, disabled_at, disabled_reason, created_by, owner_id, created_at, updated_at)
       select $1, id, 'webhook', '', '{}', false, case when off is null then now() end, '{}', off, case when off is not null then 'failed' end, 'u', 'u', now(), now()
       from (values ('disabled', now()), ('paused', null)) s (id, off)`,
      [tenant],
    );
    await owner.query(
      `insert into escrow_hold (tenant_id, id, status, machine_version, machine_context, agent_role, agent_id, action_type,
         action_summary, action_hash, hold_type, required_approvals, current_approvals, details, ttl_seconds, source,
         created_by, created_at, expires_at, ends_at, wake_at)
       select $1, id, status, 1, '{}', 'r', 'a', 'tool_call', 's', id, 'single', 1, votes, '{}', 600, 'proxy', 'p', now(),
         now() + ends::interval, case when status = 'held' then now() + ends::interval end,
         case when status = 'held' then now() + ends::interval end
       from (values ('soon', 'held', 0, '5 minutes'), ('later', 'held', 0, '1 hour'), ('seen', 'held', 1, '5 minutes'),
         ('over', 'expired', 0, '-1 minute')) h (id, status, votes, ends)`,
      [tenant],
    );
    await owner.query(
      `insert into mail_message (tenant_id, id, sealed, created_at, expires_at, next_at)
       values ($1, 'old', '', now() - interval '20 minutes', now() + interval '1 hour', now()), ($1, 'new', '', now(), now(), now())`,
      [tenant],
    );
    await owner.query(
      `insert into stop (tenant_id, id, seq, kind, target, mode, reason, created_by, created_at, ended_at)
       values ($1, 'on', 1, 'agent', 'a', 'deny', 'r', 'u', now(), null), ($1, 'off', 2, 'agent', 'b', 'deny', 'r', 'u', now(), now())`,
      [tenant],
    );
  }
  await watch.count();
  expect(watch.counts).toEqual({
    proxiesSilent: 2,
    desktopProxiesSilent: 2,
    destinationsFailing: 2,
    subscriptionsDisabled: 2,
    holdsUnseen: 2,
    stopsInForce: 2,
    mailsWaiting: 4,
    mailWaitsSeconds: expect.closeTo(1200, -2),
    backedUpAt: 0,
  });
  await owner.query(
    `insert into instance (canary, created_at, backed_up_at) values ('', now(), to_timestamp(1700000000))`,
  );
  await watch.count();
  expect(watch.counts?.backedUpAt).toBe(1_700_000_000);
});
