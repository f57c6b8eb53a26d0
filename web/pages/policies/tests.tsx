import { Button, Paper, Text, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useBlocker } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { TestRun } from '../../parts/policy-tests.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import type { EditorHandle, Problem } from '../../ui/editor/code-editor.tsx';
import { Editor } from '../../ui/editor/editor.tsx';
import { Notice } from '../../ui/notice.tsx';
import type { PolicyDetail } from './policy.tsx';

type Run = Answers['policies']['test'];

/** A suite to begin with. */
const EXAMPLE = `format: svc-tests/1
defaults: { agent_role: support, action_type: tool_call, tool_name: refund }
tests:
  - name: what this test shows
    request: { arguments: { amount: 20 } }
    expect: { decision: allow }
`;

/** The test suite of a policy, and what its tests find while it is written. They run on the newest saved text. */
export function Tests({ policy }: { policy: PolicyDetail }) {
  const me = useMe();
  const editor = useRef<EditorHandle>(null);
  const text = useRef(policy.tests_source ?? '');
  /** The version that the editor was opened with: the newest may be another one by now. */
  const [base, setBase] = useState({ version: policy.version, source: policy.tests_source ?? '' });
  const [dirty, setDirty] = useState(false);
  const [invalid, setInvalid] = useState(false);
  const [run, setRun] = useState<Run>();
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const save = useMutation(
    trpc.policies.update.mutationOptions({
      onSuccess: (next) => {
        setBase({ version: next.version, source: next.tests_source ?? '' });
        setDirty((next.tests_source ?? '') !== text.current);
        toastDone(`Version ${next.version} saved`, 'It has the same text, with these tests.');
      },
    }),
  );
  const blocker = useBlocker({ shouldBlockFn: () => dirty, enableBeforeUnload: () => dirty, withResolver: true });
  const mayWrite = me.has('author');
  const check = async (source: string): Promise<Problem[] | undefined> => {
    if (source.trim() === '') {
      setRun(undefined);
      setInvalid(false);
      return [];
    }
    const input = { id: policy.id, dsl_source: policy.dsl_source, tests_source: source };
    const answer = await api.policies.test.mutate(input).catch(() => undefined);
    if (!answer || text.current !== source) return undefined;
    setRun(answer);
    setInvalid(answer.tests_errors.length > 0);
    return [
      ...answer.tests_errors.map((error) => ({ ...error, severity: 'error' as const })),
      ...answer.results
        .filter(({ ok }) => !ok)
        .map(({ line, column, name, row, differences }) => ({
          ...{ line, column, severity: 'error' as const },
          message: `${name}${row === undefined ? '' : `, row ${row}`}: ${differences.join('; ')}`,
        })),
    ];
  };
  const submit = () => {
    if (!dirty || invalid) return;
    const suite = text.current.trim() === '' ? null : text.current;
    save.mutate({ id: policy.id, dsl_source: policy.dsl_source, tests_source: suite });
  };
  const deploysAtOnce = policy.status === 'deployed' && settings.data?.approval_required === false;

  return (
    <>
      {policy.version !== base.version && (policy.tests_source ?? '') !== base.source ? (
        <Notice tone="wait" title={`Version ${policy.version} has other tests`}>
          You are editing the tests of version {base.version}. Saving replaces the newer ones.{' '}
          <Button
            size="compact-xs"
            variant="default"
            onClick={() => {
              editor.current?.replace(policy.tests_source ?? '');
              setBase({ version: policy.version, source: policy.tests_source ?? '' });
              setDirty(false);
            }}
          >
            Load the tests of version {policy.version}
          </Button>
        </Notice>
      ) : null}
      <div className="bench">
        <div>
          <Editor
            initial={base.source}
            policyId={policy.id}
            handle={editor}
            readOnly={!mayWrite}
            suite={check}
            onChange={(next) => {
              text.current = next;
              setDirty(next !== base.source);
            }}
            onSave={submit}
          />
          {mayWrite ? (
            <div className="bar" style={{ marginTop: 12 }}>
              <Button onClick={submit} disabled={!dirty || invalid} loading={save.isPending}>
                {deploysAtOnce ? 'Save and enforce' : 'Save draft'}
              </Button>
              <Button variant="default" disabled={text.current !== ''} onClick={() => editor.current?.replace(EXAMPLE)}>
                Insert an example
              </Button>
              <Text size="sm" c="dimmed" role="status" style={{ alignSelf: 'center' }}>
                {dirty ? (invalid ? 'Not saved: the tests have problems' : 'Not saved (Ctrl+S saves)') : 'Saved'}
              </Text>
            </div>
          ) : null}
        </div>
        <Paper component="section" aria-labelledby="tests-title">
          <Title order={2} id="tests-title">
            Results
          </Title>
          <Text size="sm" c="dimmed" mb="sm">
            The tests run on version {policy.version} together with all live policies. Nothing is recorded.
          </Text>
          <div aria-live="polite">
            {run ? <TestRun run={run} goTo={(line) => editor.current?.goTo(line)} /> : <Text>There are no tests.</Text>}
          </div>
        </Paper>
      </div>
      <ConfirmDialog
        opened={blocker.status === 'blocked'}
        onClose={() => blocker.reset?.()}
        title="Leave without saving?"
        action="Leave"
        onConfirm={async () => blocker.proceed?.()}
      >
        Your changes to the tests will be lost.
      </ConfirmDialog>
    </>
  );
}
