import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, Stack, Text, TextInput } from '@mantine/core';
import { IconKey } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Scope } from '../../../server/domain/principal.ts';
import { filled, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { proxyCommand } from '../../parts/proxy-command.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { FormFoot } from '../../ui/form.tsx';
import { DocsLink } from '../../ui/link.tsx';
import { SecretDialog } from '../../ui/secret.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import {
  again,
  type Dialog,
  ExpiryField,
  endColumns,
  expiryOf,
  ProxyNames,
  RevokeDialog,
  RotateDialog,
} from './key.tsx';

type ApiKey = Answers['keys']['list']['keys'][number];

/** What a scope allows, and what stops when a key with it is revoked. */
const SCOPE: Record<Scope, { allows: string; stops: string }> = {
  proxy: {
    allows: 'fetch the bundle, send decisions and heartbeats, open and consume holds',
    stops: 'Its proxies can no longer fetch policies, record decisions or consume holds: they deny everything.',
  },
  pipeline: {
    allows: 'write, validate and roll back policies; read decisions and the audit log',
    stops: 'Its pipeline can no longer read or change anything.',
  },
  stop: {
    allows: 'stop agents, tools and proxies, and see what is stopped; lift nothing',
    stops: 'Programs that use it can no longer stop anything.',
  },
  admin: {
    allows: 'everything a key can do, including keys and settings',
    stops: 'Programs that use it can no longer change anything here.',
  },
};

/** API keys: for proxies, pipelines and other programs. */
export function ApiKeys({ creating, close, create }: Dialog) {
  const query = useQuery(trpc.keys.list.queryOptions({}));
  const proxies = useQuery(trpc.proxies.list.queryOptions({}, { refetchInterval: 15_000 }));
  const usedBy = ({ id }: ApiKey) => proxies.data?.proxies.filter(({ key_id }) => key_id === id) ?? [];
  const nameOf = usePeople();
  const [revoking, setRevoking] = useState<ApiKey>();
  const [rotating, setRotating] = useState<ApiKey>();
  const [made, setMade] = useState<{ key: string; scopes: Scope[] }>();
  return (
    <>
      <DataTable<ApiKey>
        label="API keys"
        first={50}
        rows={query.data?.keys}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        empty={
          <EmptyState icon={IconKey} title="No API key yet" action={<Button onClick={create}>New API key</Button>}>
            A proxy needs a key with the proxy scope. A pipeline that keeps policies in Git needs the pipeline scope.
          </EmptyState>
        }
        columns={[
          {
            header: 'Label',
            main: true,
            cell: ({ label, prefix }) => (
              <div>
                <div style={{ fontWeight: 600 }}>{label}</div>
                <span className="mono dim whole">{prefix}…</span>
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
            header: 'Created',
            cell: ({ created_at, created_by }) => (
              <span>
                <When at={created_at} />{' '}
                <span className="dim">by {created_by ? nameOf(created_by) : 'the operator'}</span>
              </span>
            ),
          },
          ...endColumns<ApiKey>(setRotating, setRevoking, usedBy),
        ]}
      />
      <CreateApiKey opened={creating} close={close} onMade={setMade} />
      <SecretDialog secret={made?.key} title="API key created" label="API key" onClose={() => setMade(undefined)}>
        {made?.scopes.includes('proxy') ? (
          <div>
            <Text size="sm" c="dimmed" mb={4}>
              Start the reference proxy with it, and a file that says{' '}
              <DocsLink path="proxy">which routes it serves</DocsLink>:
            </Text>
            <CodeBlock text={proxyCommand(window.location.origin, made.key)} label="command" />
          </div>
        ) : null}
      </SecretDialog>
      <RotateDialog
        what={rotating?.label}
        onClose={() => setRotating(undefined)}
        rotate={async (overlap_seconds) => {
          const { key } = await api.keys.rotate.mutate({ id: rotating!.id, overlap_seconds });
          setMade({ key, scopes: rotating!.scopes });
          await again();
        }}
      />
      <RevokeDialog
        what={revoking?.label}
        onClose={() => setRevoking(undefined)}
        revoke={async (reason) => {
          await api.keys.revoke.mutate({ id: revoking!.id, reason });
          await again();
        }}
      >
        The key stops working immediately, in every process. This cannot be undone.
        {revoking && usedBy(revoking).length > 0 ? (
          <p>
            It is used <ProxyNames by={usedBy(revoking)} />.
          </p>
        ) : null}
        <ul style={{ margin: '8px 0 0', paddingLeft: 18 }}>
          {revoking?.scopes.map((scope) => (
            <li key={scope}>{SCOPE[scope].stops}</li>
          ))}
        </ul>
      </RevokeDialog>
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
  const form = useServerForm({
    initialValues: { label: '', scopes: ['proxy'] as Scope[], days: '' },
    pointers: { days: '/expires_at' },
  });
  const make = useMutation(
    trpc.keys.create.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: (made) => {
        onMade(made);
        close();
        form.reset();
        return again();
      },
    }),
  );
  const { label, scopes } = form.values;
  return (
    <Modal opened={opened} onClose={close} title={<strong>New API key</strong>}>
      <form
        onSubmit={form.onSubmit(({ label, scopes, days }) =>
          make.mutate({ label: label.trim(), scopes, expires_at: expiryOf(days) }),
        )}
      >
        <Stack gap="sm">
          <TextInput
            label="Label"
            description="What uses the key, so that others recognize it in the list"
            required
            maxLength={100}
            data-autofocus
            {...form.getInputProps('label')}
          />
          <Checkbox.Group label="Scopes" {...form.getInputProps('scopes')}>
            <Stack gap={6} mt={4}>
              {(Object.keys(SCOPE) as Scope[]).map((scope) => (
                <Checkbox key={scope} value={scope} label={scope} description={SCOPE[scope].allows} />
              ))}
            </Stack>
          </Checkbox.Group>
          <ExpiryField {...form.getInputProps('days')} />
          <FormFoot
            action="Create"
            fault={form.fault}
            busy={make.isPending}
            disabled={!filled(label) || scopes.length === 0}
            onCancel={close}
          />
        </Stack>
      </form>
    </Modal>
  );
}
