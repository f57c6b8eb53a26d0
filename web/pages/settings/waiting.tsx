import { Button, Group, Paper, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Said } from '../../ui/hostile.tsx';
import { When } from '../../ui/time.tsx';

type Change = Answers['settings']['changes']['changes'][number];
type Issuer = Answers['tokenIssuers']['get']['token_issuers'][number];
type Trust = Answers['workloadTrust']['list']['workload_trust'][number];

const NAMES: Record<string, string> = {
  approval_required: 'Policies need approval by another person',
  self_approval: 'Authors approve their own versions',
  reasons_required: 'Changes need a reason',
  tests_required: 'Policies need tests',
  min_coverage: 'Percentage of statements that tests cover',
  simulation_required: 'Policies need a simulation',
  policy_author_may_vote: 'Policy authors vote on holds of their rules',
  sso_only: 'Single sign-on is the only way in',
  input_retention_days: 'Days to keep decision inputs',
  projection_retention_days: 'Days to keep what policies read of them',
  approver_groups: 'Approver groups',
  poll_seconds: 'Seconds between proxy polls',
  stop_grace_seconds: 'Seconds until a proxy without contact denies writes',
  magic_link_confirm: 'Sign-in links show a button first',
  action_types: 'Action types',
};

/** Changes that remove a safeguard and need a second person: what each would do, and the decision. */
export function WaitingChanges() {
  const { data } = useQuery(trpc.settings.changes.queryOptions({ status: 'pending' }));
  const [deciding, setDeciding] = useState<{ change: Change; verdict: 'approve' | 'reject' }>();
  const name = usePeople();
  const me = useMe();
  if (!data || data.changes.length === 0) return null;
  const own = deciding?.change.proposed_by === me.id;
  return (
    <Paper component="section" aria-label="Waiting changes">
      <Title order={2} size="h3">
        Waiting for a second person
      </Title>
      <Text c="dimmed" mb="sm">
        These changes remove a safeguard. They take effect only when someone other than the requester approves them.
      </Text>
      <ul className="lines">
        {data.changes.map((change) => (
          <li key={change.id} style={{ paddingInline: 0 }}>
            <div className="lines-main">
              <span>
                <strong>{name(change.proposed_by)}</strong> asked <When at={change.created_at} />
              </span>
              <p className="remark">
                <Said text={change.reason} />
              </p>
              <Effects change={change} />
            </div>
            {me.has('approver') ? (
              <Group gap={6}>
                {change.proposed_by === me.id ? null : (
                  <Button size="compact-sm" onClick={() => setDeciding({ change, verdict: 'approve' })}>
                    Approve
                  </Button>
                )}
                <Button size="compact-sm" variant="default" onClick={() => setDeciding({ change, verdict: 'reject' })}>
                  {change.proposed_by === me.id ? 'Withdraw' : 'Reject'}
                </Button>
              </Group>
            ) : null}
          </li>
        ))}
      </ul>
      <ConfirmDialog
        opened={deciding !== undefined}
        onClose={() => setDeciding(undefined)}
        title={
          deciding?.verdict === 'approve'
            ? 'Approve the settings change'
            : `${own ? 'Withdraw' : 'Reject'} the settings change`
        }
        action={deciding?.verdict === 'approve' ? 'Approve' : own ? 'Withdraw' : 'Reject'}
        reason={
          deciding?.verdict === 'approve' ? { label: 'Comment', comment: true } : { label: 'Reason', required: true }
        }
        onConfirm={async (words) => {
          const { change, verdict } = deciding!;
          try {
            await confirmed(() =>
              verdict === 'approve'
                ? api.settings.approveChange.mutate({ id: change.id, ...(words && { comment: words }) })
                : api.settings.rejectChange.mutate({ id: change.id, reason: words }),
            );
            toastDone(verdict === 'approve' ? 'Settings changed' : 'Settings unchanged');
          } finally {
            await queryClient.invalidateQueries(trpc.settings.pathFilter());
          }
        }}
      >
        {deciding ? <Effects change={deciding.change} /> : null}
      </ConfirmDialog>
    </Paper>
  );
}

/** The differences, setting by setting. For groups: who joins and who leaves. */
function Effects({ change }: { change: Change }) {
  const name = usePeople();
  return (
    <ul className="plain-list" aria-label="What would change">
      {change.changes.flatMap(({ setting, from, to, loosens }) =>
        describeSetting(setting, from, to, name).map((words) => (
          <li key={`${setting} ${words}`}>
            {words}
            {loosens ? null : <span className="dim"> (takes no safeguard away)</span>}
          </li>
        )),
      )}
    </ul>
  );
}

function describeSetting(setting: string, from: unknown, to: unknown, name: (id: string) => string): string[] {
  const label = NAMES[setting] ?? setting;
  if (setting === 'approver_groups') {
    const [before, after] = [from, to].map((groups) => new Map(Object.entries(groups as Record<string, string[]>)));
    return [...new Set([...before!.keys(), ...after!.keys()])].flatMap((group) => {
      const [old, now] = [before!.get(group) ?? [], after!.get(group) ?? []];
      const come = now.filter((id) => !old.includes(id)).map((id) => `+ ${name(id)}`);
      const go = old.filter((id) => !now.includes(id)).map((id) => `− ${name(id)}`);
      const moves = [...(after!.has(group) ? [] : ['the group is deleted']), ...come, ...go];
      return moves.length > 0 ? [`Group ${group}: ${moves.join(', ')}`] : [];
    });
  }
  if (setting === 'sso_provider') {
    const [before, after] = [from, to].map((value) => {
      const provider = value as { issuer_url: string; client_id: string } | null;
      return provider ? `${provider.issuer_url}, client ${provider.client_id}` : 'none';
    });
    return [`Identity provider: ${before} → ${after}`];
  }
  if (setting === 'sso_identity') {
    const { user_id, accounts } = from as { user_id: string; accounts: { issuer: string; subject: string }[] };
    return accounts.map(({ issuer, subject }) => `${name(user_id)} is no longer ${subject} at ${issuer}`);
  }
  if (setting === 'token_issuers') {
    const [before, after] = [from, to].map((value) => value as Issuer | null);
    const { issuer } = (after ?? before)!;
    if (!after) return [`Token issuer ${issuer} is removed`];
    const names = `agents ${after.agent_ids.join(', ')} in roles ${after.agent_roles.join(', ')}`;
    const keys = `audience ${after.audience}, keys at ${after.jwks_uri}`;
    return [`Token issuer ${issuer} ${before ? 'is changed: it' : ''} may name ${names}; ${keys}`];
  }
  if (setting === 'workload_trust') {
    const { label, issuer, match, scopes, policies } = to as Trust;
    const claims = Object.entries(match).map(([claim, value]) => `${claim} ${value}`);
    return [
      `Pipeline ${label} is trusted: tokens of ${issuer} with ${claims.join(', ')} may ${scopes.join(', ')} for ${policies ?? 'all policies'}`,
    ];
  }
  const word = (value: unknown) =>
    typeof value === 'boolean'
      ? value
        ? 'on'
        : 'off'
      : typeof value === 'number'
        ? String(value)
        : JSON.stringify(value);
  return [`${label}: ${word(from)} → ${word(to)}`];
}
