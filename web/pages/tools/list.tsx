import '@mantine/core/styles/Checkbox.css';
import '@mantine/core/styles/NumberInput.css';
import './tools.css';
import { Button, Checkbox, Group, Modal, NativeSelect, NumberInput, Paper, Stack, Text, Title } from '@mantine/core';
import { IconTools } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { TOOL_STATUSES, type ToolStatus } from '../../../server/domain/tools.ts';
import { visible } from '../../../server/lib/visible.ts';
import { toastDone } from '../../lib/errors.tsx';
import { asReason, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { PersonSelect } from '../../parts/person-select.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { choicesOf, FilterBar } from '../../ui/filter-bar.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { FormFoot, ReasonField } from '../../ui/form.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { ToolFilter } from './search.ts';
import { MODES, TOOL_STATUS, ToolTag } from './words.tsx';

const route = getRouteApi('/app/tools');
const PER_PAGE = 100;

type Tool = Answers['tools']['list']['tools'][number];
type Server = Answers['tools']['servers']['servers'][number];

/** The tools that proxies observed, by server, and those that need a decision. */
export function Tools() {
  const filter = route.useSearch();
  const navigate = route.useNavigate();
  const servers = useQuery(trpc.tools.servers.queryOptions({}));
  const query = useQuery(
    trpc.tools.list.queryOptions({ ...filter, limit: PER_PAGE }, { placeholderData: keepPreviousData }),
  );
  const set = (change: Partial<ToolFilter>) =>
    void navigate({ search: (old) => ({ ...old, after: undefined, ...change }) });
  const clear = () => void navigate({ search: {} });
  const filtered = Object.keys(filter).length > 0;
  const next = query.data?.next;
  return (
    <Page
      title="Tools"
      lead="The tools that tool servers list, and the definitions that people approved. A tool that changed after its review shows up here."
      docs={[['tools', 'About tools']]}
    >
      {servers.data && servers.data.servers.length > 0 ? (
        <ul className="tool-servers" aria-label="Tool servers">
          {servers.data.servers.map((server) => (
            <li key={server.id}>
              <ServerCard server={server} show={(status) => set({ server: server.id, status, review: undefined })} />
            </li>
          ))}
        </ul>
      ) : null}
      <FilterBar
        label="Filter tools"
        clear={filtered ? clear : undefined}
        fields={[
          {
            label: 'Server',
            value: filter.server,
            set: (server) => set({ server }),
            choices: choicesOf('all', servers.data?.servers.map(({ id }) => id) ?? [], visible),
            width: 180,
          },
          {
            label: 'Status',
            value: filter.status,
            set: (status) => set({ status: status as ToolStatus | undefined }),
            choices: choicesOf('all', TOOL_STATUSES, (status) => TOOL_STATUS[status as ToolStatus][0]),
            width: 150,
          },
          { label: 'Name contains', value: filter.q, set: (q) => set({ q }), width: 180 },
          {
            label: 'Review',
            value: filter.review && 'needed',
            set: () => set({ review: undefined }),
            elsewhere: true,
          },
        ]}
      />
      <DataTable<Tool>
        label="Tools by server and name"
        rows={query.data?.tools}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ server, name }) => JSON.stringify([server, name])}
        onOpen={({ server, name }) => void navigate({ to: '/tools/tool', search: { server, name } })}
        empty={
          filtered ? (
            <NothingMatches icon={IconTools} title="No tools match the filters" clear={clear} />
          ) : (
            <EmptyState icon={IconTools} title="No tools yet">
              <p>
                Tools appear here when an agent lists them through a proxy in front of an MCP server. Put one in front
                of a server, and let the agent connect:
              </p>
              <div style={{ textAlign: 'left' }}>
                <CodeBlock
                  text="svc-proxy mcp --name files -- npx @modelcontextprotocol/server-filesystem ."
                  label="command"
                />
              </div>
            </EmptyState>
          )
        }
        columns={[
          {
            header: 'Tool',
            main: true,
            cell: ({ server, name }) => (
              <PageLink to="/tools/tool" search={{ server, name }} fw={600} c="inherit">
                <Hostile text={name} name />
              </PageLink>
            ),
          },
          { header: 'Server', cell: ({ server }) => <Hostile text={server} name /> },
          { header: 'Status', bare: true, cell: ({ status }) => <ToolTag status={status} />, width: 140 },
          {
            header: 'Change',
            cell: ({ change, status, same_arguments_as: [twin] }) => (
              <>
                {status !== 'changed' ? null : change.kind === 'introduced' ? 'new behavior' : 'only reworded'}
                {twin !== undefined && status === 'pending' ? (
                  <span className="dim">
                    {' '}
                    same arguments as <Hostile text={twin} name />
                  </span>
                ) : null}
              </>
            ),
          },
          {
            header: 'Labels',
            cell: ({ labels }) =>
              labels.map((label) => (
                <span key={label} style={{ marginRight: 4 }}>
                  <Tag tone="quiet">{label}</Tag>
                </span>
              )),
          },
          { header: 'Seen', cell: ({ last_seen }) => <When at={last_seen} />, align: 'right', width: 120 },
        ]}
      />
      {next || filter.after ? (
        <Group component="nav" mt="sm" aria-label="Pages of the list">
          <Button variant="default" size="xs" disabled={!filter.after} onClick={() => set({ after: undefined })}>
            First page
          </Button>
          <Button variant="default" size="xs" disabled={!next} onClick={() => set({ after: next ?? undefined })}>
            Next page
          </Button>
        </Group>
      ) : null}
    </Page>
  );
}

function ServerCard({ server, show }: { server: Server; show: (status: ToolStatus) => void }) {
  const me = useMe();
  const name = usePeople();
  const [opened, open] = useState(false);
  const counts = TOOL_STATUSES.filter((status) => server.counts[status] > 0);
  return (
    <Paper component="section" aria-label={`Server ${visible(server.id)}`}>
      <Group justify="space-between" wrap="nowrap" align="start">
        <Title order={2} size="h4">
          <Hostile text={server.id} name />
        </Title>
        {me.has('admin') ? (
          <Button
            size="compact-xs"
            variant="default"
            onClick={() => open(true)}
            aria-label={`Settings of ${visible(server.id)}`}
          >
            Settings
          </Button>
        ) : null}
      </Group>
      <Text size="sm" c="dimmed" mb={6}>
        {MODES[server.mode]}
        {server.trust === null ? '' : `, trust ${server.trust}`}
        {server.check_arguments ? ', arguments checked' : ''}
        {server.proxy_keys.length > 0 ? ', facts from its proxies' : ''}
        {server.owner_id === null ? null : (
          <>
            <br />
            Owner: {name(server.owner_id)}
          </>
        )}
      </Text>
      <Group gap={6} ml={-7}>
        {counts.map((status) => (
          <Button
            key={status}
            size="compact-xs"
            variant="subtle"
            color="gray"
            onClick={() => show(status)}
            aria-label={`${server.counts[status]} ${TOOL_STATUS[status][0]} of ${visible(server.id)}`}
          >
            {server.counts[status]} {TOOL_STATUS[status][0].toLowerCase()}
          </Button>
        ))}
      </Group>
      {server.proposal ? (
        <Text size="sm" mt={6}>
          <strong>{name(server.proposal.by)}</strong> proposed: {MODES[server.proposal.what.mode]}, trust{' '}
          {server.proposal.what.trust ?? 'none'}
          {server.proposal.what.check_arguments ? ', arguments checked' : ''}
          {server.proposal.what.proxy_keys.length > 0
            ? `, facts from ${server.proposal.what.proxy_keys.join(', ')}`
            : ''}
          . A second person sets the same.
        </Text>
      ) : null}
      <Modal
        opened={opened}
        onClose={() => open(false)}
        title={
          <strong>
            Settings of <Hostile text={server.id} name />
          </strong>
        }
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        <ServerForm server={server} onDone={() => open(false)} />
      </Modal>
    </Paper>
  );
}

function ServerForm({ server, onDone }: { server: Server; onDone: () => void }) {
  const wanted = server.proposal?.what ?? server;
  const keys = useQuery(trpc.keys.list.queryOptions({}));
  const ofProxies = (keys.data?.keys ?? []).filter(
    ({ id, scopes }) => scopes.includes('proxy') || wanted.proxy_keys.includes(id),
  );
  const form = useServerForm({
    initialValues: {
      mode: wanted.mode as string,
      trust: (wanted.trust ?? '') as number | string,
      check_arguments: wanted.check_arguments,
      proxy_keys: wanted.proxy_keys,
      owner_id: server.owner_id ?? '',
      reason: '',
    },
  });
  return (
    <form
      onSubmit={form.onSubmit(async ({ mode, trust, check_arguments, proxy_keys, owner_id, reason }) => {
        try {
          const after = await api.tools.changeServer.mutate({
            server: server.id,
            mode: mode as Server['mode'],
            trust: trust === '' ? null : Number(trust),
            check_arguments,
            proxy_keys,
            owner_id: owner_id || null,
            reason: asReason(reason),
          });
          await queryClient.invalidateQueries(trpc.tools.pathFilter());
          toastDone(after.proposal ? 'Waiting for a second person' : 'Saved');
          onDone();
        } catch (error) {
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        <NativeSelect
          label="A call of a definition that nobody approved"
          data={Object.entries(MODES).map(([value, label]) => ({ value, label }))}
          {...form.getInputProps('mode')}
        />
        <NumberInput
          label="Trust"
          description="From 0 to 100, for policies to read as resource.server.trust. Empty: none."
          min={0}
          max={100}
          allowDecimal={false}
          {...form.getInputProps('trust')}
        />
        <Checkbox
          label="Proxies check arguments against the approved schema"
          {...form.getInputProps('check_arguments', { type: 'checkbox' })}
        />
        {ofProxies.length > 0 ? (
          <Checkbox.Group
            label="Keys of the proxies in front of it"
            description="Facts about its calls that another enforcement point reads in a session count only from these."
            {...form.getInputProps('proxy_keys')}
          >
            <Stack gap={6} mt={6} mah={200} style={{ overflowY: 'auto' }}>
              {ofProxies.map(({ id, label }) => (
                <Checkbox key={id} value={id} label={label} />
              ))}
            </Stack>
          </Checkbox.Group>
        ) : null}
        <PersonSelect
          label="Owner"
          description="Whom others ask about its tools. It decides nothing"
          none="nobody"
          {...form.getInputProps('owner_id')}
        />
        <ReasonField {...form.getInputProps('reason')} />
        <FormFoot fault={form.fault} action="Save" busy={form.submitting} onCancel={onDone} />
      </Stack>
    </form>
  );
}
