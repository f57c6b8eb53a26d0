import { Button, Modal, Stack, Text } from '@mantine/core';
import { IconRobot } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { filled, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { AgentLink } from '../../parts/names.tsx';
import { PersonSelect } from '../../parts/person-select.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { FormFoot } from '../../ui/form.tsx';
import { NameInput } from '../../ui/name-input.tsx';
import { SecretDialog } from '../../ui/secret.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { again, type Dialog, ExpiryField, endColumns, expiryOf, RevokeDialog, RotateDialog } from './key.tsx';

type AgentKey = Answers['agentKeys']['list']['agent_keys'][number];

/** The proxy that reported its last use. */
const usedBy = ({ last_used_by: proxy_id, last_used_at: last_seen_at }: AgentKey) =>
  proxy_id && last_seen_at ? [{ proxy_id, last_seen_at }] : [];

/** Agent keys: each names one agent and its role. */
export function AgentKeys({ creating, close, create }: Dialog) {
  const query = useQuery(trpc.agentKeys.list.queryOptions({}));
  const nameOf = usePeople();
  const { tenant } = useMe();
  const [revoking, setRevoking] = useState<AgentKey>();
  const [rotating, setRotating] = useState<AgentKey>();
  const [made, setMade] = useState<string>();
  return (
    <>
      <DataTable<AgentKey>
        label="Agent keys"
        first={50}
        rows={query.data?.agent_keys}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          <EmptyState
            icon={IconRobot}
            title="No agent key yet"
            action={<Button onClick={create}>New agent key</Button>}
          >
            Each agent asks for decisions with its own key, at a proxy or here.
          </EmptyState>
        }
        columns={[
          {
            header: 'Agent',
            main: true,
            cell: ({ agent_id, agent_role }) => (
              <div>
                <div style={{ fontWeight: 600 }}>
                  <AgentLink id={agent_id} plain />
                </div>
                <span className="dim">role {agent_role}</span>
              </div>
            ),
          },
          {
            header: 'Label',
            cell: ({ label, prefix }) => (
              <div>
                <div>{label}</div>
                <span className="mono dim whole">{prefix}…</span>
              </div>
            ),
          },
          {
            header: 'Owner',
            cell: ({ owner_id }) => (owner_id ? nameOf(owner_id) : <span className="dim">none</span>),
          },
          { header: 'Created', cell: ({ created_at }) => <When at={created_at} /> },
          ...endColumns<AgentKey>(setRotating, setRevoking, usedBy),
        ]}
      />
      <CreateAgentKey opened={creating} close={close} onMade={setMade} />
      <SecretDialog secret={made} title="Agent key created" label="agent key" onClose={() => setMade(undefined)}>
        <div>
          <Text size="sm" c="dimmed" mb={4}>
            Ask for a decision with it:
          </Text>
          <CodeBlock
            text={`curl ${window.location.origin}/v1/evaluate \\
  -H 'Authorization: Bearer ${made ?? ''}' \\
  -H 'X-Svc-Tenant: ${tenant}' -H 'Content-Type: application/json' \\
  -d '{"action_type": "tool_call", "tool_name": "read"}'`}
            label="command"
          />
        </div>
      </SecretDialog>
      <RotateDialog
        what={rotating && `the key of ${rotating.agent_id}`}
        onClose={() => setRotating(undefined)}
        rotate={async (overlap_seconds) => {
          setMade((await api.agentKeys.rotate.mutate({ id: rotating!.id, overlap_seconds })).key);
          await again();
        }}
      />
      <RevokeDialog
        what={revoking && `the key of ${revoking.agent_id}`}
        onClose={() => setRevoking(undefined)}
        revoke={async (reason) => {
          await api.agentKeys.revoke.mutate({ id: revoking!.id, reason });
          await again();
        }}
      >
        The key stops working here immediately, and at every proxy within one poll interval. The agent can no longer get
        decisions with it or see its holds.
      </RevokeDialog>
    </>
  );
}

function CreateAgentKey({
  opened,
  close,
  onMade,
}: {
  opened: boolean;
  close: () => void;
  onMade: (key: string) => void;
}) {
  const me = useMe();
  const form = useServerForm({
    initialValues: { agent_id: '', agent_role: '', owner_id: me.id, days: '' },
    pointers: { days: '/expires_at' },
  });
  const make = useMutation(
    trpc.agentKeys.create.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: (made) => {
        onMade(made.key);
        close();
        form.reset();
        return again();
      },
    }),
  );
  const { agent_id, agent_role } = form.values;
  return (
    <Modal opened={opened} onClose={close} title={<strong>New agent key</strong>}>
      <form
        onSubmit={form.onSubmit(({ agent_id, agent_role, owner_id, days }) =>
          make.mutate({
            agent_id: agent_id.trim(),
            agent_role: agent_role.trim(),
            owner_id,
            expires_at: expiryOf(days),
          }),
        )}
      >
        <Stack gap="sm">
          <NameInput
            kind="agent"
            label="Agent"
            description="Its id in decisions, such as support-bot-1: letters, digits and . _ : @ / + = | ~ -"
            required
            maxLength={200}
            data-autofocus
            {...form.getInputProps('agent_id')}
          />
          <NameInput
            kind="role"
            label="Role"
            description={'The name that policies use: AgentRole::"support"'}
            required
            maxLength={200}
            {...form.getInputProps('agent_role')}
          />
          <PersonSelect
            label="Owner"
            description="The owner cannot vote on the agent’s holds"
            {...form.getInputProps('owner_id')}
          />
          <ExpiryField {...form.getInputProps('days')} />
          <FormFoot
            action="Create"
            fault={form.fault}
            busy={make.isPending}
            disabled={!filled(agent_id) || !filled(agent_role)}
            onCancel={close}
          />
        </Stack>
      </form>
    </Modal>
  );
}
