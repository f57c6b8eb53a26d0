import { Anchor, Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { IconAlertTriangle, IconCheck, IconCircleDashed } from '@tabler/icons-react';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { filled, useServerForm } from '../../lib/form.ts';
import { problemOf } from '../../lib/problem.ts';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { Step } from './step.tsx';

type Domain = Answers['sso']['domains']['domain_records'][number];

/** The second step: the domains whose people sign in through the provider. */
export function Domains({ domains }: { domains: readonly Domain[] }) {
  const form = useServerForm({ initialValues: { domain: '' } });
  const again = () => queryClient.invalidateQueries(trpc.sso.domains.pathFilter());
  const claim = useMutation(
    trpc.sso.claimDomain.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: form.reset,
      onSettled: again,
    }),
  );
  return (
    <Step
      number={2}
      title="Your domains"
      done={domains.some(({ verified }) => verified)}
      lead="Publish a TXT record in DNS to prove that you own a domain. Only one organization can have each domain."
    >
      <Stack gap="md">
        {domains.map((domain) => (
          <DomainRow key={domain.domain} domain={domain} again={again} />
        ))}
        <form onSubmit={form.onSubmit(({ domain }) => claim.mutate({ domain: domain.trim() }))}>
          <Group align="flex-end" gap="xs">
            <TextInput
              label="Add a domain"
              placeholder="example.com"
              spellCheck={false}
              style={{ flex: '1 1 220px' }}
              {...form.getInputProps('domain')}
            />
            <Button type="submit" variant="default" loading={claim.isPending} disabled={!filled(form.values.domain)}>
              Add
            </Button>
          </Group>
          {form.fault ? (
            <Text mt={6} c="var(--mantine-color-error)" role="alert">
              {form.fault}
            </Text>
          ) : null}
        </form>
      </Stack>
    </Step>
  );
}

function DomainRow({ domain, again }: { domain: Domain; again: () => Promise<void> }) {
  const [removing, setRemoving] = useState(false);
  const check = useMutation(
    trpc.sso.verifyDomain.mutationOptions({
      meta: { quiet: true },
      onSuccess: () => toastDone(`${domain.domain} is yours`, 'Its people can sign in through your provider.'),
      onSettled: again,
    }),
  );
  return (
    <section aria-label={domain.domain} style={{ borderTop: '1px solid var(--line)', paddingTop: 12 }}>
      <Group justify="space-between">
        <Group gap={8}>
          <strong>{domain.domain}</strong>
          <Tag tone={domain.verified ? 'ok' : 'wait'} icon={domain.verified ? IconCheck : IconCircleDashed}>
            {domain.verified ? 'verified' : 'waiting for its record'}
          </Tag>
          {domain.record_missing_since ? (
            <Tag tone="bad" icon={IconAlertTriangle}>
              record missing since <When at={domain.record_missing_since} />
            </Tag>
          ) : null}
          {domain.lost_at ? (
            <Tag tone="bad" icon={IconAlertTriangle}>
              taken over by another organization <When at={domain.lost_at} />
            </Tag>
          ) : null}
        </Group>
        <Group gap={6}>
          <Button
            size="compact-sm"
            variant="default"
            loading={check.isPending}
            onClick={() => check.mutate({ domain: domain.domain })}
          >
            Check now
          </Button>
          <Anchor component="button" type="button" size="sm" onClick={() => setRemoving(true)}>
            Remove
          </Anchor>
        </Group>
      </Group>
      <Stack gap={6} mt={8}>
        <Text size="sm" c="dimmed">
          Add a TXT record with this name and value. DNS changes can take a few minutes to appear.
        </Text>
        <CodeBlock text={domain.txt_name} label="name of the record" />
        <CodeBlock text={domain.txt_value} label="value of the record" wrap />
      </Stack>
      <div role="status">
        {check.error ? (
          <Text mt={6} c="var(--mantine-color-error)">
            {problemOf(check.error).detail ?? problemOf(check.error).title}
          </Text>
        ) : null}
        {domain.checked_at ? (
          <Text size="xs" c="dimmed" mt={4}>
            last checked <When at={domain.checked_at} />
          </Text>
        ) : null}
      </div>
      <ConfirmDialog
        opened={removing}
        onClose={() => setRemoving(false)}
        title={`Remove ${domain.domain}`}
        action="Remove the domain"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await confirmed(() => api.sso.removeDomain.mutate({ domain: domain.domain, reason }));
          await again();
        }}
      >
        {domain.lost_at
          ? 'First remove the people with addresses in this domain: sign-in links are mailed to those who stay, and their mailboxes may be somebody else’s.'
          : 'People in this domain can no longer sign in through your provider, and another organization may claim it.'}
      </ConfirmDialog>
    </section>
  );
}
