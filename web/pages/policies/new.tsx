import { Button, Group, Paper, Text, TextInput, Title } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { POLICY_ID } from '../../../server/domain/policy.ts';
import { toastDone, toastProblem } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { problemOf } from '../../lib/problem.ts';
import { trpc } from '../../lib/trpc.ts';
import { suiteFor, type Template, toolTemplate } from '../../parts/policy-templates.ts';
import { TestRun } from '../../parts/policy-tests.tsx';
import { Gallery } from '../../parts/template-gallery.tsx';
import { TEMPLATES } from '../../parts/templates.ts';
import { CodeBlock } from '../../ui/code.tsx';
import type { EditorHandle } from '../../ui/editor/code-editor.tsx';
import { Editor } from '../../ui/editor/editor.tsx';
import { AskBeforeLeaving } from '../../ui/leave.tsx';
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
  if (template) return <Writing key={`${template.id} ${server}`} template={template} />;
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

function Writing({ template }: { template: Template }) {
  const navigate = useNavigate();
  const form = useServerForm({ initialValues: { id: template.id === 'blank' ? '' : template.id } });
  const [broken, setBroken] = useState(false);
  const [written, setWritten] = useState(false);
  const stored = useRef(false);
  const text = useRef(template.source);
  const editor = useRef<EditorHandle>(null);
  const create = useMutation(
    trpc.policies.create.mutationOptions({
      meta: { quiet: true },
      onError: (error) => {
        if (problemOf(error).errors?.some(({ pointer }) => pointer === '/id')) form.refused(error);
        else toastProblem(error);
      },
      onSuccess: (policy, { dsl_source }) => {
        // it does not include what was typed since
        stored.current = text.current === dsl_source;
        toastDone('Draft saved', 'Nothing is enforced yet.');
        void navigate({ to: '/policies/$id', params: { id: policy.id } });
      },
    }),
  );
  const name = form.values.id;
  const named = name === '' || POLICY_ID.test(name);
  const policyId = named && name !== '' ? name : undefined;
  const tests = template.tests === '' ? null : suiteFor(template, policyId ?? template.id);
  // without an id, the rules of the policy have names that no suite can refer to yet
  const save = () => {
    if (create.isPending || broken || !named) return;
    create.mutate({ ...(name && { id: name, tests_source: tests }), dsl_source: text.current });
  };
  return (
    <Page
      title="New policy"
      lead={template.about}
      actions={
        <>
          <Button variant="default" onClick={() => void navigate({ to: '/policies/new', search: {} })}>
            Other templates
          </Button>
          <Button onClick={save} loading={create.isPending} disabled={broken || !named}>
            Create draft
          </Button>
        </>
      }
    >
      <Group mb="sm">
        <TextInput
          label="Id"
          description="Cannot be changed later. Leave empty to generate one."
          maxLength={64}
          w={320}
          {...form.getInputProps('id')}
          {...(!named && { error: 'Letters, digits, “.”, “_” and “-”, and a letter or digit first.' })}
        />
      </Group>
      <div className="bench">
        <div>
          <Editor
            initial={template.source}
            policyId={policyId}
            handle={editor}
            onChange={(next) => {
              text.current = next;
              setWritten(next !== template.source);
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
            policyId={policyId}
            text={() => text.current}
            example={template.denied}
            goTo={(line) => editor.current?.goTo(line)}
          />
          {tests === null ? null : (
            <TemplateTests
              policyId={policyId ?? template.id}
              text={() => text.current}
              tests={tests}
              saved={policyId !== undefined}
            />
          )}
        </div>
      </div>
      <AskBeforeLeaving dirty={() => written && !stored.current}>
        What you wrote is not saved anywhere and will be lost.
      </AskBeforeLeaving>
    </Page>
  );
}

/** The suite that comes with a template, run on the text as it is written. It is saved only if the draft is given an id. */
function TemplateTests(props: { policyId: string; text: () => string; tests: string; saved: boolean }) {
  const { policyId, text, tests, saved } = props;
  const run = useMutation(trpc.policies.test.mutationOptions());
  return (
    <Paper component="section" aria-labelledby="template-tests" mt="md">
      <Title order={2} id="template-tests">
        Tests
      </Title>
      <Text size="sm" c="dimmed" mb="sm">
        What this policy promises.{' '}
        {saved
          ? 'The tests are saved with the draft; adapt them there when you adapt the policy.'
          : 'Give the policy an id to save the tests with the draft: they name its rules by it.'}
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
