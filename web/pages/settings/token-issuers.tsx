import { Anchor, Button, Group, Modal, Paper, Stack, Text, TextInput, Title } from '@mantine/core';
import { IconCertificate } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { asReason, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { queryClient } from '../../lib/query.ts';
import { toastWaits } from '../../lib/settings.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { FormFoot, ReasonField } from '../../ui/form.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';

type Issuer = Answers['tokenIssuers']['get']['token_issuers'][number];

/** Issuers whose tokens proxies accept from agents in place of an agent key. */
export function TokenIssuers() {
  const query = useQuery(trpc.tokenIssuers.get.queryOptions({}));
  const name = usePeople();
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<Issuer>();
  const keep = ({ waiting, ...answer }: Answers['tokenIssuers']['replace'], ...done: Parameters<typeof toastDone>) => {
    queryClient.setQueryData(trpc.tokenIssuers.get.queryKey({}), answer);
    if (waiting) {
      toastWaits();
      void queryClient.invalidateQueries(trpc.settings.changes.pathFilter());
    } else toastDone(...done);
  };
  const issuers = query.data?.token_issuers ?? [];
  return (
    <Paper component="section" aria-label="Token issuers">
      <Group justify="space-between" align="flex-start">
        <div style={{ flex: '1 1 260px' }}>
          <Title order={2} size="h3">
            Token issuers
          </Title>
          <Text c="dimmed">
            Agents may present a JSON Web Token from one of these issuers to a proxy instead of an agent key.
          </Text>
        </div>
        <Button variant="default" onClick={() => setAdding(true)}>
          Add an issuer
        </Button>
      </Group>
      <Shown query={query} lines={2}>
        {({ token_issuers, changed_by }) =>
          token_issuers.length === 0 ? (
            <EmptyState icon={IconCertificate} title="No issuers">
              Agents sign in with agent keys. Add the issuer of your workload identities to let agents use its tokens.
            </EmptyState>
          ) : (
            <ul className="lines">
              {token_issuers.map((issuer) => (
                <li key={issuer.issuer} style={{ paddingInline: 0 }}>
                  <div className="lines-main">
                    <strong className="mono">{issuer.issuer}</strong>
                    <Text size="sm" c="dimmed">
                      audience {issuer.audience} · agent from {issuer.agent_id_claim}, role from{' '}
                      {issuer.agent_role_claim} · {issuer.allowed_algs.join(', ')}
                    </Text>
                    <Text size="sm" c="dimmed">
                      set by {(changed_by[issuer.issuer] ?? []).map(name).join(', ')}, who do not vote on holds of its
                      agents
                    </Text>
                    <Text size="sm" c="dimmed">
                      may identify agents <span className="mono">{issuer.agent_ids.join(', ')}</span> in roles{' '}
                      <span className="mono">{issuer.agent_roles.join(', ')}</span>
                      {issuer.authorized_parties ? (
                        <>
                          , for tokens issued to <span className="mono">{issuer.authorized_parties.join(', ')}</span>
                        </>
                      ) : null}
                    </Text>
                  </div>
                  <Anchor component="button" type="button" onClick={() => setRemoving(issuer)}>
                    Remove
                  </Anchor>
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
      <Modal opened={adding} onClose={() => setAdding(false)} title={<strong>Add a token issuer</strong>}>
        <AddIssuer
          issuers={issuers}
          onDone={(answer) => {
            keep(answer, 'Issuer added', 'Its keys were fetched. Proxies accept its tokens within one poll interval.');
            setAdding(false);
          }}
        />
      </Modal>
      <ConfirmDialog
        opened={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title="Remove a token issuer"
        action="Remove the issuer"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          const rest = issuers.filter(({ issuer }) => issuer !== removing?.issuer);
          const answer = await confirmed(() => api.tokenIssuers.replace.mutate({ token_issuers: rest, reason }));
          keep(answer, 'Issuer removed');
        }}
      >
        Within one poll interval, proxies stop accepting tokens from <span className="mono">{removing?.issuer}</span>.
      </ConfirmDialog>
    </Paper>
  );
}

const EMPTY = {
  issuer: '',
  audience: '',
  jwks_uri: '',
  agent_id_claim: 'sub',
  agent_role_claim: 'agent_role',
  agent_ids: '',
  agent_roles: '',
  authorized_parties: '',
  reason: '',
};
const listed = (text: string) => text.split(/[\s,]+/).filter((one) => one !== '');

function AddIssuer({
  issuers,
  onDone,
}: {
  issuers: Issuer[];
  onDone: (answer: Answers['tokenIssuers']['replace']) => void;
}) {
  const form = useServerForm({
    initialValues: EMPTY,
    pointers: {
      ...Object.fromEntries(Object.keys(EMPTY).map((name) => [name, `/token_issuers/${issuers.length}/${name}`])),
      reason: '/reason',
    },
  });
  const add = useMutation(
    trpc.tokenIssuers.replace.mutationOptions({ meta: { quiet: true }, onError: form.refused, onSuccess: onDone }),
  );
  const field = (name: keyof typeof EMPTY, label: string, description: string, required = true) => (
    <TextInput
      label={label}
      description={description}
      required={required}
      spellCheck={false}
      {...form.getInputProps(name)}
    />
  );
  const submit = form.onSubmit(({ jwks_uri, agent_ids, agent_roles, authorized_parties, reason, ...rest }) => {
    const parties = listed(authorized_parties);
    const issuer = {
      ...rest,
      agent_ids: listed(agent_ids),
      agent_roles: listed(agent_roles),
      ...(parties.length > 0 && { authorized_parties: parties }),
      ...(jwks_uri && { jwks_uri }),
    };
    add.mutate({ token_issuers: [...issuers, issuer], reason: asReason(reason) });
  });
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        {field('issuer', 'Issuer', 'Exactly the iss of its tokens')}
        {field('audience', 'Audience', 'The value that aud must contain')}
        {field('agent_id_claim', 'Claim with the agent’s id', 'Such as sub')}
        {field('agent_role_claim', 'Claim with the agent’s role', 'Policies match it as AgentRole')}
        {field('agent_ids', 'Allowed agents', 'Ids separated by spaces. One * in an id matches any text')}
        {field('agent_roles', 'Allowed roles', 'In the same form. Everything else is refused')}
        {field(
          'authorized_parties',
          'Authorized parties',
          'The allowed values of azp. Leave empty to accept any',
          false,
        )}
        {field('jwks_uri', 'Key set URL', 'Leave empty to use the one in its discovery document', false)}
        <ReasonField {...form.getInputProps('reason')} />
        <FormFoot action="Check and add" fault={form.fault} busy={add.isPending} />
      </Stack>
    </form>
  );
}
