import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { IconGitBranch } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { WORKLOAD_SCOPES, type WorkloadScope } from '../../../server/domain/workload.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { asReason, filled, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { toastWaits } from '../../lib/settings.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { FormFoot, ReasonField } from '../../ui/form.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { Dialog } from './key.tsx';

type Trust = Answers['workloadTrust']['list']['workload_trust'][number];

const SCOPE: Record<WorkloadScope, string> = {
  'policies:read': 'read, plan and test policies',
  'policies:write': 'write new versions of policies, and revoke them where no approval is required',
  'policies:submit': 'submit what it wrote for review, although nobody is signed in',
};

/** Pipelines that sign in with a token of their platform: no key is stored anywhere. */
export function Workloads({ creating, close, create }: Dialog) {
  const query = useQuery(trpc.workloadTrust.list.queryOptions({}));
  const nameOf = usePeople();
  const [removing, setRemoving] = useState<Trust>();
  return (
    <>
      {query.data ? (
        <Text size="sm" c="dimmed" mb="sm">
          The audience of their tokens must be <span className="mono">{query.data.audience}</span>
        </Text>
      ) : null}
      <DataTable<Trust>
        label="Trusted pipelines"
        rows={query.data?.workload_trust}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          <EmptyState
            icon={IconGitBranch}
            title="No pipeline is trusted yet"
            action={<Button onClick={create}>Trust a pipeline</Button>}
          >
            A pipeline on GitHub, GitLab or elsewhere can sign in with the token that its platform gives each run. There
            is no key to store or to lose.
          </EmptyState>
        }
        columns={[
          {
            header: 'Pipeline',
            main: true,
            cell: ({ label, issuer, unconfirmed }) => (
              <div>
                <div style={{ fontWeight: 600 }}>
                  {label} {unconfirmed ? <Tag tone="wait">not confirmed since a restore</Tag> : null}
                </div>
                <span className="mono dim">{issuer}</span>
              </div>
            ),
          },
          {
            header: 'Claims',
            cell: ({ match }) => (
              <div className="mono">
                {Object.entries(match).map(([claim, value]) => (
                  <div key={claim}>
                    {claim}: {value}
                  </div>
                ))}
              </div>
            ),
          },
          {
            header: 'May',
            cell: ({ scopes, policies }) => (
              <Group gap={4}>
                {scopes.map((scope) => (
                  <Tag key={scope} tone={scope === 'policies:read' ? 'info' : 'limit'}>
                    {scope}
                  </Tag>
                ))}
                {policies === null ? null : <span className="mono dim">{policies}</span>}
              </Group>
            ),
          },
          {
            header: 'Created',
            cell: ({ created_at, created_by }) => (
              <span>
                <When at={created_at} />{' '}
                <span className="dim">by {created_by ? nameOf(created_by) : 'the operator'}</span>
              </span>
            ),
          },
          {
            header: 'Last used',
            cell: ({ last_used_at }) =>
              last_used_at ? <When at={last_used_at} /> : <span className="dim">never</span>,
          },
          {
            header: 'Actions',
            align: 'right',
            cell: (one) => (
              <Button size="compact-sm" variant="default" onClick={() => setRemoving(one)}>
                Remove
              </Button>
            ),
          },
        ]}
      />
      <Modal opened={creating} onClose={close} title={<strong>Trust a pipeline</strong>} size="lg">
        <Create close={close} />
      </Modal>
      <ConfirmDialog
        opened={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title={`Stop trusting ${removing?.label ?? ''}`}
        action="Remove the trust"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await confirmed(() => api.workloadTrust.remove.mutate({ id: removing!.id, reason }));
          await queryClient.invalidateQueries(trpc.workloadTrust.pathFilter());
          toastDone('The pipeline is no longer trusted');
        }}
      >
        Its tokens stop working immediately, also those of runs that are under way. What it wrote stays.
      </ConfirmDialog>
    </>
  );
}

/** `claim: value` on each line. */
function claimsOf(text: string): Record<string, string> {
  const lines = text.split('\n').filter((line) => line.trim() !== '');
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf(':');
      return at < 0 ? [line.trim(), ''] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

function Create({ close }: { close: () => void }) {
  const form = useServerForm({
    initialValues: {
      label: '',
      issuer: 'https://token.actions.githubusercontent.com',
      match: '',
      policies: '',
      scopes: ['policies:read'] as string[],
      reason: '',
    },
    pointers: {
      reason: '/reason',
      match: '/match',
      scopes: '/scopes',
      policies: '/policies',
      issuer: '/issuer',
      label: '/label',
    },
  });
  const add = useMutation(
    trpc.workloadTrust.create.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: ({ waiting }) => {
        close();
        if (waiting) toastWaits();
        else toastDone('The pipeline is trusted', 'The keys of its platform were fetched.');
        return queryClient.invalidateQueries(trpc.workloadTrust.pathFilter());
      },
    }),
  );
  const { label, issuer, match, scopes, reason } = form.values;
  return (
    <form
      onSubmit={form.onSubmit(({ match, policies, scopes, reason, ...rest }) =>
        add.mutate({
          ...rest,
          reason: asReason(reason),
          match: claimsOf(match),
          scopes: scopes as WorkloadScope[],
          ...(policies.trim() !== '' && { policies: policies.trim() }),
        }),
      )}
    >
      <Stack gap="sm">
        <TextInput
          label="Label"
          description="What reviewers and the audit log call it"
          required
          maxLength={100}
          data-autofocus
          {...form.getInputProps('label')}
        />
        <TextInput
          label="Issuer"
          description="Exactly the iss of its tokens, such as https://gitlab.com"
          required
          spellCheck={false}
          {...form.getInputProps('issuer')}
        />
        <Textarea
          label="Claims"
          description="One per line, all of them exact. A name such as repository needs its id beside it, and so does the sub of GitHub or GitLab"
          placeholder={'repository: acme/policies\nrepository_id: 7001\nref: refs/heads/main'}
          required
          autosize
          minRows={3}
          spellCheck={false}
          {...form.getInputProps('match')}
        />
        <Checkbox.Group label="It may" {...form.getInputProps('scopes')}>
          <Stack gap={6} mt={6}>
            {WORKLOAD_SCOPES.map((scope) => (
              <Checkbox key={scope} value={scope} label={`${scope}: ${SCOPE[scope]}`} />
            ))}
          </Stack>
        </Checkbox.Group>
        <TextInput
          label="Policies"
          description="An id, or a prefix followed by *, such as payments-*. Leave empty for all"
          spellCheck={false}
          {...form.getInputProps('policies')}
        />
        <ReasonField {...form.getInputProps('reason')} />
        <FormFoot
          action="Check and trust"
          fault={form.fault}
          busy={add.isPending}
          disabled={!filled(label) || !filled(issuer) || !filled(match) || !filled(reason) || scopes.length === 0}
          onCancel={close}
        />
      </Stack>
    </form>
  );
}
