import { Button, Group, Paper, Text, TextInput, Title } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { trpc } from '../../lib/trpc.ts';
import { suiteFor, TEMPLATES, toolTemplate } from '../../parts/policy-templates.ts';
import { TestRun } from '../../parts/policy-tests.tsx';
import { Gallery } from '../../parts/template-gallery.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import type { EditorHandle } from '../../ui/editor/code-editor.tsx';
import { Editor } from '../../ui/editor/editor.tsx';
import { Page } from '../../ui/page.tsx';
import { FormatButton } from './format.tsx';
import { TryIt } from './try.tsx';
import './policy.css';

const route = getRouteApi('/app/policies/new');

/** A new policy: from a template, checked and tried before it is stored as a draft. */
export function NewPolicy() {
  const { template: chosen, server, tool } = route.useSearch();
  const navigate = useNavigate();
  const template =
    server !== undefined && tool !== undefined ? toolTemplate(server, tool) : TEMPLATES.find(({ id }) => id === chosen);
  const [id, setId] = useState<string>();
  const [broken, setBroken] = useState(false);
  const text = useRef(template?.source ?? '');
  const editor = useRef<EditorHandle>(null);
  const create = useMutation(
    trpc.policies.create.mutationOptions({
      onSuccess: (policy) => {
        toastDone('Draft saved', 'Nothing is enforced yet.');
        void navigate({ to: '/policies/$id', params: { id: policy.id } });
      },
    }),
  );
  const name = id ?? (template?.id === 'blank' ? '' : (template?.id ?? ''));

  if (!template) {
    return (
      <Page
        title="New policy"
        lead="Start from the template closest to what you need."
        docs={[
          ['policy-language', 'Policy language'],
          ['cookbook', 'Cookbook'],
        ]}
      >
        <Gallery onChoose={(next) => void navigate({ to: '/policies/new', search: { template: next.id } })} />
      </Page>
    );
  }
  text.current ||= template.source;
  const tests = template.tests === '' ? null : suiteFor(template, name || template.id);
  // without an id the rules of the policy have names that no suite knows yet
  const save = () => create.mutate({ ...(name && { id: name, tests_source: tests }), dsl_source: text.current });
  return (
    <Page
      title="New policy"
      lead={template.about}
      actions={
        <>
          <Button variant="default" onClick={() => void navigate({ to: '/policies/new', search: {} })}>
            Other templates
          </Button>
          <Button onClick={save} loading={create.isPending} disabled={broken}>
            Create draft
          </Button>
        </>
      }
    >
      <Group mb="sm">
        <TextInput
          label="Id"
          description="Cannot be changed later. Leave empty to generate one."
          value={name}
          onChange={(event) => setId(event.currentTarget.value)}
          pattern="[A-Za-z0-9][A-Za-z0-9._\-]*"
          maxLength={64}
          w={320}
        />
      </Group>
      <div className="bench">
        <div>
          <Editor
            key={template.id}
            initial={template.source}
            policyId={name || undefined}
            handle={editor}
            onChange={(next) => {
              text.current = next;
            }}
            onProblems={(found) => setBroken(found.some(({ severity }) => severity === 'error'))}
            onSave={save}
          />
          <div className="bar" style={{ marginTop: 12 }}>
            <FormatButton editor={editor} text={() => text.current} disabled={broken} />
          </div>
        </div>
        <div>
          <TryIt
            key={`try ${template.id}`}
            policyId={name || undefined}
            text={() => text.current}
            example={template.denied}
            goTo={(line) => editor.current?.goTo(line)}
          />
          {tests === null ? null : (
            <TemplateTests
              key={`tests ${template.id}`}
              policyId={name || template.id}
              text={() => text.current}
              tests={tests}
            />
          )}
        </div>
      </div>
    </Page>
  );
}

/** The suite that comes with a template, run on the text as it is written. It is saved with the draft. */
function TemplateTests({ policyId, text, tests }: { policyId: string; text: () => string; tests: string }) {
  const run = useMutation(trpc.policies.test.mutationOptions());
  return (
    <Paper component="section" aria-labelledby="template-tests" mt="md">
      <Title order={2} id="template-tests">
        Tests
      </Title>
      <Text size="sm" c="dimmed" mb="sm">
        What this policy promises. The tests are saved with the draft; adapt them there when you adapt the policy.
      </Text>
      <Button
        variant="default"
        size="xs"
        mb="sm"
        loading={run.isPending}
        onClick={() => run.mutate({ id: policyId, dsl_source: text(), tests_source: tests })}
      >
        Run the tests
      </Button>
      <div aria-live="polite">{run.data ? <TestRun run={run.data} /> : null}</div>
      <CodeBlock label="test suite of the template" text={tests} wrap maxHeight={320} />
    </Paper>
  );
}
