import { Anchor, Button, Group, Modal, Paper, Stack, Text, TextInput, Title } from '@mantine/core';
import { IconCertificate } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { confirmed, problemOf, toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';

type Issuer = Answers['tokenIssuers']['get']['token_issuers'][number];

/** Whose tokens the proxies take from agents instead of an agent key. */
export function TokenIssuers() {
  const query = useQuery(trpc.tokenIssuers.get.queryOptions({}));
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<Issuer>();
  const keep = (answer: Answers['tokenIssuers']['get']) =>
    queryClient.setQueryData(trpc.tokenIssuers.get.queryKey({}), answer);
  const issuers = query.data?.token_issuers ?? [];
  return (
    <Paper component="section" aria-label="Token issuers">
      <Group justify="space-between" align="flex-start">
        <div style={{ flex: '1 1 260px' }}>
          <Title order={2} size="h3">
            Token issuers
          </Title>
          <Text c="dimmed">Agents may show a proxy a JSON Web Token of one of these instead of an agent key.</Text>
        </div>
        <Button variant="default" onClick={() => setAdding(true)}>
          Add an issuer
        </Button>
      </Group>
      <Shown query={query} lines={2}>
        {({ token_issuers }) =>
          token_issuers.length === 0 ? (
            <EmptyState icon={IconCertificate} title="No issuer">
              Agents sign in with agent keys. Add the issuer of your workload identity to let them come with its tokens.
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
                      may name the agents <span className="mono">{issuer.agent_ids.join(', ')}</span> in the roles{' '}
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
            keep(answer);
            setAdding(false);
            toastDone(
              'The issuer is added',
              'Its keys were fetched. Proxies take its tokens within one poll interval.',
            );
          }}
        />
      </Modal>
      <ConfirmDialog
        opened={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title="Remove a token issuer"
        action="Remove the issuer"
        onConfirm={async () => {
          const rest = issuers.filter(({ issuer }) => issuer !== removing?.issuer);
          keep(await confirmed(() => api.tokenIssuers.replace.mutate({ token_issuers: rest })));
        }}
      >
        Within one poll interval no proxy takes tokens of <span className="mono">{removing?.issuer}</span> any more.
      </ConfirmDialog>
    </Paper>
  );
}

const listed = (text: string) => text.split(/[\s,]+/).filter((one) => one !== '');

function AddIssuer({
  issuers,
  onDone,
}: {
  issuers: Issuer[];
  onDone: (answer: Answers['tokenIssuers']['get']) => void;
}) {
  const [given, setGiven] = useState({
    issuer: '',
    audience: '',
    jwks_uri: '',
    agent_id_claim: 'sub',
    agent_role_claim: 'agent_role',
    agent_ids: '',
    agent_roles: '',
    authorized_parties: '',
  });
  const add = useMutation(trpc.tokenIssuers.replace.mutationOptions({ meta: { quiet: true }, onSuccess: onDone }));
  const field = (name: keyof typeof given, label: string, description: string, required = true) => (
    <TextInput
      label={label}
      description={description}
      required={required}
      spellCheck={false}
      value={given[name]}
      onChange={(event) => setGiven({ ...given, [name]: event.currentTarget.value })}
    />
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const { jwks_uri, agent_ids, agent_roles, authorized_parties, ...rest } = given;
    const parties = listed(authorized_parties);
    const issuer = {
      ...rest,
      agent_ids: listed(agent_ids),
      agent_roles: listed(agent_roles),
      ...(parties.length > 0 && { authorized_parties: parties }),
      ...(jwks_uri && { jwks_uri }),
    };
    add.mutate({ token_issuers: [...issuers, issuer] });
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        {field('issuer', 'Issuer', 'The iss of its tokens, letter by letter')}
        {field('audience', 'Audience', 'What aud must name')}
        {field('agent_id_claim', 'Claim with the agent’s id', 'Such as sub')}
        {field('agent_role_claim', 'Claim with the agent’s role', 'Policies match it as AgentRole')}
        {field('agent_ids', 'Agents that it may name', 'Ids, with a space between; one * in an id stands for any text')}
        {field('agent_roles', 'Roles that it may name', 'In the same form. Whatever is not listed is refused')}
        {field('authorized_parties', 'Parties', 'What azp must be one of; empty: not asked for', false)}
        {field('jwks_uri', 'Address of its keys', 'Empty: as its discovery says', false)}
        {add.error ? (
          <Text c="var(--mantine-color-error)" role="alert">
            {problemOf(add.error)
              .errors?.map(({ message }) => message)
              .join('; ') || problemOf(add.error).detail}
          </Text>
        ) : null}
        <Group justify="flex-end">
          <Button type="submit" loading={add.isPending}>
            Check and add
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
