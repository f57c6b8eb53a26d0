import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, NativeSelect, Stack, Text, TextInput } from '@mantine/core';
import { IconKey, IconPlus, IconRobot } from '@tabler/icons-react';
import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import type { Scope } from '../../../server/domain/principal.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { TextFilter } from '../../ui/filters.tsx';
import { Page } from '../../ui/page.tsx';
import { SecretDialog } from '../../ui/secret.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { Expiry, ExpiryField, expiryOf, LastUsed } from './expiry.tsx';

type ApiKey = Answers['keys']['list']['keys'][number];
type AgentKey = Answers['agentKeys']['list']['agent_keys'][number];

const route = getRouteApi('/app/keys');

/** What a scope allows, and what stops when a key with it is revoked. */
const SCOPE: Record<Scope, { allows: string; stops: string }> = {
  proxy: {
    allows: 'fetch the bundle, send decisions and heartbeats, open and consume holds',
    stops: 'Its proxies cannot fetch policies, record decisions or consume holds any more: they fall back to denying.',
  },
  pipeline: {
    allows: 'write, validate and roll back policies; read decisions and the audit log',
    stops: 'Its pipeline can change and read nothing any more.',
  },
  admin: {
    allows: 'everything that a key can do, keys and settings included',
    stops: 'Whatever uses it can change nothing here any more.',
  },
};

/** Keys of programs, and keys of agents. */
export function Keys() {
  const { kind } = route.useSearch();
  const navigate = route.useNavigate();
  const agents = kind === 'agents';
  const [creating, setCreating] = useState(false);
  return (
    <Page
      title="Keys"
      lead={
        agents
          ? 'What an agent shows when it asks for a decision. The agent and its role come from the key, never from the request.'
          : 'What proxies, pipelines and other programs sign in with. A key reaches the routes of its scopes only.'
      }
      actions={
        <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setCreating(true)}>
          {agents ? 'New agent key' : 'New API key'}
        </Button>
      }
    >
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
      <div className="segments" role="group" aria-label="Kind of keys" style={{ marginBottom: 12 }}>
        <button type="button" aria-pressed={!agents} onClick={() => void navigate({ search: {} })}>
          API keys
        </button>
        <button type="button" aria-pressed={agents} onClick={() => void navigate({ search: { kind: 'agents' } })}>
          Agent keys
        </button>
      </div>
      {agents ? (
        <AgentKeys creating={creating} close={() => setCreating(false)} create={() => setCreating(true)} />
      ) : (
        <ApiKeys creating={creating} close={() => setCreating(false)} create={() => setCreating(true)} />
      )}
    </Page>
  );
}

interface Dialog {
  creating: boolean;
  close: () => void;
  create: () => void;
}

function ApiKeys({ creating, close, create }: Dialog) {
  const query = useQuery(trpc.keys.list.queryOptions({}));
  const nameOf = usePeople();
  const [revoking, setRevoking] = useState<ApiKey>();
  const [made, setMade] = useState<{ key: string; scopes: Scope[] }>();
  return (
    <>
      <DataTable<ApiKey>
        label="API keys"
        rows={query.data?.keys}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          <EmptyState icon={IconKey} title="No API key yet" action={<Button onClick={create}>New API key</Button>}>
            A proxy needs one with the scope proxy; a pipeline that keeps policies in Git one with the scope pipeline.
          </EmptyState>
        }
        columns={[
          {
            header: 'Label',
            main: true,
            cell: ({ label, prefix }) => (
              <div>
                <div style={{ fontWeight: 600 }}>{label}</div>
                <span className="mono dim">{prefix}…</span>
              </div>
            ),
          },
          {
            header: 'Scopes',
            cell: ({ scopes }) => (
              <Group gap={4}>
                {scopes.map((scope) => (
                  <Tag key={scope} tone={scope === 'admin' ? 'limit' : 'info'}>
                    {scope}
                  </Tag>
                ))}
              </Group>
            ),
          },
          {
            header: 'Made',
            cell: ({ created_at, created_by }) => (
              <span>
                <When at={created_at} />{' '}
                <span className="dim">by {created_by ? nameOf(created_by) : 'the operator'}</span>
              </span>
            ),
          },
          { header: 'Last used', cell: (key) => <LastUsed at={key.last_used_at} since={key.created_at} /> },
          { header: 'Expires', cell: ({ expires_at }) => <Expiry at={expires_at} /> },
          {
            header: 'Actions',
            align: 'right',
            cell: (key) => (
              <Button size="compact-sm" variant="default" onClick={() => setRevoking(key)}>
                Revoke
              </Button>
            ),
          },
        ]}
      />
      <CreateApiKey opened={creating} close={close} onMade={setMade} />
      <SecretDialog secret={made?.key} title="The new API key" label="API key" onClose={() => setMade(undefined)}>
        {made?.scopes.includes('proxy') ? (
          <div>
            <Text size="sm" c="dimmed" mb={4}>
              Start the reference proxy with it:
            </Text>
            <CodeBlock
              text={`SVC_URL=${window.location.origin} SVC_PROXY_KEY=${made.key} npm run proxy`}
              label="command"
            />
          </div>
        ) : null}
      </SecretDialog>
      <ConfirmDialog
        opened={revoking !== undefined}
        onClose={() => setRevoking(undefined)}
        title={`Revoke ${revoking?.label ?? ''}`}
        action="Revoke the key"
        onConfirm={async () => {
          await revoke(() => api.keys.revoke.mutate({ id: revoking!.id }));
          await queryClient.invalidateQueries(trpc.keys.pathFilter());
        }}
      >
        It ends at once, in every process, and cannot be brought back.
        <ul style={{ margin: '8px 0 0', paddingLeft: 18 }}>
          {revoking?.scopes.map((scope) => (
            <li key={scope}>{SCOPE[scope].stops}</li>
          ))}
        </ul>
      </ConfirmDialog>
    </>
  );
}

function CreateApiKey({
  opened,
  close,
  onMade,
}: {
  opened: boolean;
  close: () => void;
  onMade: (made: { key: string; scopes: Scope[] }) => void;
}) {
  const [label, setLabel] = useState('');
  const [scopes, setScopes] = useState<Scope[]>(['proxy']);
  const [days, setDays] = useState('');
  const make = useMutation(
    trpc.keys.create.mutationOptions({
      onSuccess: (made) => {
        onMade(made);
        close();
        setLabel('');
        return queryClient.invalidateQueries(trpc.keys.pathFilter());
      },
    }),
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate({ label: label.trim(), scopes, expires_at: expiryOf(days) });
  };
  return (
    <Modal opened={opened} onClose={close} title={<strong>New API key</strong>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            label="Label"
            description="What uses it, for whoever finds it in this list later"
            required
            maxLength={100}
            value={label}
            onChange={(event) => setLabel(event.currentTarget.value)}
            data-autofocus
          />
          <Checkbox.Group label="Scopes" value={scopes} onChange={(value) => setScopes(value as Scope[])}>
            <Stack gap={6} mt={4}>
              {(Object.keys(SCOPE) as Scope[]).map((scope) => (
                <Checkbox key={scope} value={scope} label={scope} description={SCOPE[scope].allows} />
              ))}
            </Stack>
          </Checkbox.Group>
          <ExpiryField value={days} onChange={setDays} />
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={close}>
              Cancel
            </Button>
            <Button type="submit" loading={make.isPending} disabled={label.trim() === '' || scopes.length === 0}>
              Create
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function AgentKeys({ creating, close, create }: Dialog) {
  const query = useQuery(trpc.agentKeys.list.queryOptions({}));
  const nameOf = usePeople();
  const { tenant } = useMe();
  const [revoking, setRevoking] = useState<AgentKey>();
  const [made, setMade] = useState<string>();
  return (
    <>
      <DataTable<AgentKey>
        label="Agent keys"
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
            An agent asks for decisions with its own key, at a proxy or here.
          </EmptyState>
        }
        columns={[
          {
            header: 'Agent',
            main: true,
            cell: ({ agent_id, agent_role }) => (
              <div>
                <div style={{ fontWeight: 600 }}>{agent_id}</div>
                <span className="dim">role {agent_role}</span>
              </div>
            ),
          },
          {
            header: 'Label',
            cell: ({ label, prefix }) => (
              <div>
                <div>{label}</div>
                <span className="mono dim">{prefix}…</span>
              </div>
            ),
          },
          {
            header: 'Answers for it',
            cell: ({ owner_id }) => (owner_id ? nameOf(owner_id) : <span className="dim">nobody</span>),
          },
          { header: 'Made', cell: ({ created_at }) => <When at={created_at} /> },
          { header: 'Last used', cell: (key) => <LastUsed at={key.last_used_at} since={key.created_at} /> },
          { header: 'Expires', cell: ({ expires_at }) => <Expiry at={expires_at} /> },
          {
            header: 'Actions',
            align: 'right',
            cell: (key) => (
              <Button size="compact-sm" variant="default" onClick={() => setRevoking(key)}>
                Revoke
              </Button>
            ),
          },
        ]}
      />
      <CreateAgentKey opened={creating} close={close} onMade={setMade} />
      <SecretDialog secret={made} title="The new agent key" label="agent key" onClose={() => setMade(undefined)}>
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
      <ConfirmDialog
        opened={revoking !== undefined}
        onClose={() => setRevoking(undefined)}
        title={`Revoke the key of ${revoking?.agent_id ?? ''}`}
        action="Revoke the key"
        onConfirm={async () => {
          await revoke(() => api.agentKeys.revoke.mutate({ id: revoking!.id }));
          await queryClient.invalidateQueries(trpc.agentKeys.pathFilter());
        }}
      >
        It ends at once here, and at every proxy within one poll interval. The agent gets no decision with it any more,
        and cannot see its holds.
      </ConfirmDialog>
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
  const [q, setQ] = useState<string>();
  const found = useQuery(
    trpc.users.list.queryOptions(
      { q, limit: 50 },
      { enabled: opened, staleTime: 60_000, placeholderData: keepPreviousData },
    ),
  );
  const nameOf = usePeople();
  const people = found.data?.users ?? [];
  const more = (found.data?.total ?? 0) > people.length;
  const [agentId, setAgentId] = useState('');
  const [agentRole, setAgentRole] = useState('');
  const [owner, setOwner] = useState('');
  const [days, setDays] = useState('');
  const make = useMutation(
    trpc.agentKeys.create.mutationOptions({
      onSuccess: (made) => {
        onMade(made.key);
        close();
        setAgentId('');
        return queryClient.invalidateQueries(trpc.agentKeys.pathFilter());
      },
    }),
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate({
      agent_id: agentId.trim(),
      agent_role: agentRole.trim(),
      owner_id: owner || me.id,
      expires_at: expiryOf(days),
    });
  };
  return (
    <Modal opened={opened} onClose={close} title={<strong>New agent key</strong>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            label="Agent"
            description="Its id in decisions, such as support-bot-1: letters, digits and . _ : @ / + = | ~ -"
            required
            maxLength={200}
            value={agentId}
            onChange={(event) => setAgentId(event.currentTarget.value)}
            data-autofocus
          />
          <TextInput
            label="Role"
            description={'What policies call it: AgentRole::"support"'}
            required
            maxLength={200}
            value={agentRole}
            onChange={(event) => setAgentRole(event.currentTarget.value)}
          />
          {q !== undefined || more ? (
            <TextFilter label="Find who answers for it, by name or address" value={q} onChange={setQ} />
          ) : null}
          <NativeSelect
            label="Who answers for it"
            description={
              more
                ? `They do not vote on what the agent has held. ${people.length} of ${found.data?.total} people are listed.`
                : 'They do not vote on what the agent has held'
            }
            value={owner || me.id}
            onChange={(event) => setOwner(event.currentTarget.value)}
            data={[
              // the chosen one stays, whoever is looked for
              ...(people.some(({ id }) => id === (owner || me.id))
                ? []
                : [{ value: owner || me.id, label: nameOf(owner || me.id) }]),
              ...people.map(({ id, name }) => ({ value: id, label: name })),
            ]}
          />
          <ExpiryField value={days} onChange={setDays} />
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={close}>
              Cancel
            </Button>
            <Button type="submit" loading={make.isPending} disabled={agentId.trim() === '' || agentRole.trim() === ''}>
              Create
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

async function revoke(call: () => Promise<unknown>): Promise<void> {
  await confirmed(call);
  toastDone('The key is revoked');
}
