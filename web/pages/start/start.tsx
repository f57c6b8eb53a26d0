import { Button, Group, Paper, Text, TextInput, Title } from '@mantine/core';
import { IconCheck, IconCircleDashed } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { type ReactNode, useState } from 'react';
import { useStream } from '../../lib/decision-stream.ts';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { useMe } from '../../lib/session.ts';
import { api, trpc } from '../../lib/trpc.ts';
import { DecisionLines } from '../../parts/decision-lines.tsx';
import type { Template } from '../../parts/policy-templates.ts';
import { Gallery } from '../../parts/template-gallery.tsx';
import { TEMPLATES } from '../../parts/templates.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Practice } from './practice.tsx';
import './start.css';

/**
 * From an empty tenant to a denied, an allowed, a held and an approved call in a few minutes, all on this page; then the key for
 * a real agent, and its first call.
 */
export function Start() {
  const me = useMe();
  const policies = useQuery(trpc.policies.list.queryOptions({ limit: 200 }));
  const [template, setTemplate] = useState<Template>();
  const [practiced, setPracticed] = useState(false);
  const [key, setKey] = useState<{ secret: string; agent: string; role: string }>();
  const keys = useQuery(trpc.agentKeys.list.queryOptions({}, { enabled: me.has('admin') }));
  const hasKey = key !== undefined || (keys.data?.agent_keys.length ?? 0) > 0;
  const known = policies.data?.policies.filter(({ id }) => TEMPLATES.some((one) => one.id === id)) ?? [];
  const existing = known.find(({ live_version }) => live_version !== null) ?? known[0];
  const chosen = template ?? TEMPLATES.find(({ id }) => id === existing?.id);
  const live = policies.data?.policies.find(({ id }) => id === chosen?.id)?.live_version != null;
  if (!me.has('admin')) {
    return (
      <Page title="First call">
        <Paper>Ask an admin to set this up: it needs an agent key, which only admins can create.</Paper>
      </Page>
    );
  }
  return (
    <Page title="The first governed call" lead="About three minutes. You can leave and come back.">
      <ol className="steps">
        <Step n={1} title="Say what agents may do" done={live}>
          {live ? (
            <Text>
              <PageLink to="/policies/$id" params={{ id: chosen!.id }}>
                {chosen!.id}
              </PageLink>{' '}
              is enforced. {chosen!.about}
            </Text>
          ) : chosen ? (
            <PolicyStep template={chosen} onBack={() => setTemplate(undefined)} exists={existing?.id === chosen.id} />
          ) : (
            <Gallery onChoose={setTemplate} shown={({ allowed }) => allowed !== undefined} />
          )}
        </Step>
        <Step n={2} title="Send calls from here, and decide one yourself" done={practiced} waits={!live}>
          {chosen ? <Practice key={chosen.id} template={chosen} onDone={() => setPracticed(true)} /> : null}
        </Step>
        <Step n={3} title="Give an agent a key, and let it ask" done={hasKey} waits={!live}>
          {chosen ? <KeyStep role={chosen.denied.agent_role} made={key} onMade={setKey} /> : null}
          {key && chosen ? <FirstCall tenant={me.tenant} agentKey={key} template={chosen} /> : null}
        </Step>
      </ol>
      {live && practiced && hasKey ? (
        <Notice tone="ok" title="That is all there is to it">
          Each of these decisions is now in the chain. See <Link to="/decisions">all decisions</Link>, or write{' '}
          <Link to="/policies">more policies</Link>. People who made or own the key of a real agent cannot vote on its
          actions:{' '}
          <Link to="/team" search={{ tab: 'invitations' }}>
            invite a second person
          </Link>
          .
        </Notice>
      ) : null}
    </Page>
  );
}

/** The call for the new agent to send, and its result as it arrives. */
function FirstCall(props: { tenant: string; agentKey: { secret: string; agent: string }; template: Template }) {
  const { tenant, agentKey, template } = props;
  const stream = useStream({ agent_id: agentKey.agent });
  const decided = stream.rows ?? [];
  return (
    <>
      <Text my="xs">Copy this into a terminal. This policy denies it:</Text>
      <CodeBlock label="a call that is denied" text={curl(tenant, agentKey.secret, template.denied)} wrap />
      {template.allowed ? (
        <>
          <Text my="xs">And this one it allows:</Text>
          <CodeBlock label="a call that is allowed" text={curl(tenant, agentKey.secret, template.allowed)} wrap />
        </>
      ) : null}
      <div className="arrivals" aria-live="polite">
        {decided.length === 0 ? (
          <Text c="dimmed">Waiting for the first decision of {agentKey.agent}…</Text>
        ) : (
          <DecisionLines label="Decisions that arrived" events={decided.slice(0, 6)} arriving />
        )}
      </div>
    </>
  );
}

function Step(props: { n: number; title: string; done: boolean; waits?: boolean; children: ReactNode }) {
  const { n, title, done, waits = false, children } = props;
  return (
    <Paper component="li" className="step" aria-current={!done && !waits ? 'step' : undefined}>
      <Group gap="xs" mb={waits ? 0 : 'sm'} wrap="nowrap">
        <span data-tone={done ? 'ok' : 'quiet'} className="step-mark">
          {done ? <IconCheck size={18} aria-label="done" /> : <IconCircleDashed size={18} aria-hidden />}
        </span>
        <Title order={2}>
          {n}. {title}
        </Title>
      </Group>
      {waits ? null : children}
    </Paper>
  );
}

function PolicyStep({ template, onBack, exists }: { template: Template; onBack: () => void; exists: boolean }) {
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const enforce = useMutation({
    mutationFn: async () => {
      const policy = exists
        ? await api.policies.get.query({ id: template.id })
        : await api.policies.create.mutate({
            ...{ id: template.id, dsl_source: template.source, tests_source: template.tests || null },
          });
      await api.policies.approve.mutate({ id: policy.id, version: policy.version });
    },
    onSuccess: () => toastDone('Policy enforced'),
  });
  if (settings.data?.approval_required) {
    return (
      <Text>
        This tenant requires a second person:{' '}
        <PageLink to="/policies/new" search={{ template: template.id }}>
          write the policy
        </PageLink>
        , submit it, and have it approved. Then come back.
      </Text>
    );
  }
  return (
    <>
      <Text mb="xs">{template.about}</Text>
      <CodeBlock label={`policy ${template.id}`} text={template.source} wrap maxHeight={320} />
      <Group mt="sm" gap="xs">
        <Button onClick={() => enforce.mutate()} loading={enforce.isPending}>
          Enforce this policy
        </Button>
        <ButtonLink to="/policies/new" search={{ template: template.id }} variant="default" disabled={exists}>
          Edit it first
        </ButtonLink>
        <Button variant="subtle" color="gray" onClick={onBack}>
          Another template
        </Button>
      </Group>
    </>
  );
}

function KeyStep(props: {
  role: string;
  made: { secret: string; agent: string; role: string } | undefined;
  onMade: (key: { secret: string; agent: string; role: string }) => void;
}) {
  const { role, made, onMade } = props;
  const form = useServerForm({ initialValues: { agent: 'first-agent' }, pointers: { agent: '/agent_id' } });
  const create = useMutation(
    trpc.agentKeys.create.mutationOptions({
      meta: { quiet: true },
      onError: form.refused,
      onSuccess: ({ key, agent_id, agent_role }) => onMade({ secret: key, agent: agent_id, role: agent_role }),
    }),
  );
  if (made) {
    return (
      <>
        <Text mb="xs">
          The key of {made.agent} in the role {made.role}. It is shown only once: the server stores just its hash.
        </Text>
        <CodeBlock label="agent key" text={made.secret} wrap />
      </>
    );
  }
  return (
    <form
      onSubmit={form.onSubmit(({ agent }) =>
        create.mutate({ agent_id: agent.trim(), agent_role: role, label: `first run: ${agent.trim()}` }),
      )}
    >
      <Text mb="xs">
        An agent’s identity comes from its key alone, never from what it says. This policy applies to the role{' '}
        <span className="mono">{role}</span>.
      </Text>
      <div className="bar">
        <TextInput label="Agent name" required maxLength={100} {...form.getInputProps('agent')} />
        <Button type="submit" loading={create.isPending}>
          Create the key
        </Button>
      </div>
      {form.fault ? (
        <Text c="var(--mantine-color-error)" role="alert">
          {form.fault}
        </Text>
      ) : null}
    </form>
  );
}

function curl(tenant: string, key: string, call: { tool_name: string; arguments: Record<string, unknown> }): string {
  const body = JSON.stringify({ action_type: 'tool_call', tool_name: call.tool_name, arguments: call.arguments });
  return [
    `curl -sS ${window.location.origin}/v1/evaluate \\`,
    `  -H 'Authorization: Bearer ${key}' \\`,
    `  -H 'X-Svc-Tenant: ${tenant}' -H 'Content-Type: application/json' \\`,
    `  -d '${body}'`,
  ].join('\n');
}
