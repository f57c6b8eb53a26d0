-- Distribution over several PostgreSQL servers with Citus (https://docs.citusdata.com). Written down and not run by the
-- program: once, on the coordinator, as the owner of the tables, after `svc migrate` (`psql -f db/citus.sql`).
--
-- The schema is made for it: a tenant is the unit of everything. Each table of a tenant has `tenant_id` first in its
-- primary key and in every unique key, and each foreign key contains it. So all rows of a tenant lie on one server
-- (`colocate_with`), and a request's transaction, which is of one tenant, stays there.
-- test/distribution.test.ts holds the lists below against the schema; it runs on plain PostgreSQL. The rest was not run:
-- try it with your load first, and expect to look at the statements that serve several tenants at once:
--
-- * the chain writer moves the heads of several tenants in one transaction. Citus commits that in two phases; give each
--   tenant group its own process, or the writer more shards, when that costs too much;
-- * the timer of holds looks for due rows of all tenants with FOR UPDATE SKIP LOCKED, which Citus allows within one
--   shard only: it has to ask tenant by tenant there;
-- * so do the workers that look for events to fan out and destinations to serve;
-- * LISTEN, NOTIFY and advisory locks are those of the coordinator: every process connects to it.

begin;

-- Asked before the tenant is known, or the same for all: a copy on every server.
select create_reference_table('instance');
select create_reference_table('signing_key');
select create_reference_table('credential');
select create_reference_table('verified_domain');
select create_reference_table('sign_in_request');

-- Of one tenant each. Foreign keys lead only to tables above in this list, or to themselves.
select create_distributed_table('tenant', 'tenant_id');
select create_distributed_table('member', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('session', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('sign_in_link', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('invitation', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('settings_change', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('mail_message', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('api_key', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('agent_key', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('workload_trust', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('workload_token', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('policy', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('policy_revision', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('policy_simulation', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('policy_bundle', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('chain_head', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('chain_checkpoint', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('chain_alarm', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('forensic_record', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('audit_record', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('decision_input', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('escrow_hold', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('escrow_vote', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('event_outbox', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('evidence_package', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('evidence_chunk', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('proxy_instance', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('limit_counter', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('limit_take', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('sso_connection', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('sso_domain', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('sso_identity', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('sso_used_state', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('token_issuer', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('subscription', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('delivery_lane', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('delivery', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('agent', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('tool_server', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('tool', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('tool_definition', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('stop', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('reference_list', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('reference_list_version', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('session_fact', 'tenant_id', colocate_with => 'tenant');
select create_distributed_table('reported_outcome', 'tenant_id', colocate_with => 'tenant');

commit;
