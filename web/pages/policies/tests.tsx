import { Button, Paper, Text, Title } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useRef, useState } from 'react';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { Survivors, TestRun } from '../../parts/policy-tests.tsx';
import type { Problem } from '../../ui/editor/code-editor.tsx';
import { Draft, type PolicyDetail } from './draft.tsx';

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
  const newest = useRef('');
  /** Null: there are no tests. */
  const [run, setRun] = useState<Run | null | undefined>(policy.tests_source === null ? null : undefined);
  const check = async (source: string): Promise<Problem[] | undefined> => {
    newest.current = source;
    if (source.trim() === '') {
      setRun(null);
      return [];
    }
    const input = { id: policy.id, dsl_source: policy.dsl_source, tests_source: source };
    const answer = await api.policies.test.mutate(input).catch(() => undefined);
    if (!answer || newest.current !== source) return undefined;
    setRun(answer);
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
  const invalid = (run?.tests_errors.length ?? 0) > 0;

  return (
    <Draft
      policy={policy}
      part="tests"
      broken={invalid}
      editor={{ suite: check }}
      buttons={({ editor, text }) => (
        <Button variant="default" disabled={text() !== ''} onClick={() => editor.current?.replace(EXAMPLE)}>
          Insert an example
        </Button>
      )}
      beside={({ editor, text }) => (
        <div>
          <Paper component="section" aria-labelledby="tests-title">
            <Title order={2} id="tests-title">
              Results
            </Title>
            <Text size="sm" c="dimmed" mb="sm">
              The tests run on version {policy.version} together with all live policies. Nothing is recorded.
            </Text>
            <div aria-live="polite">
              {run ? (
                <TestRun run={run} goTo={(line) => editor.current?.goTo(line)} />
              ) : (
                <Text>{run === null ? 'There are no tests.' : 'The tests are running.'}</Text>
              )}
            </div>
          </Paper>
          {run && !invalid ? <Mutations policy={policy} text={text} /> : null}
        </div>
      )}
    />
  );
}

/** Changes the policy in many small ways when asked to, and shows which of them the tests do not notice. */
function Mutations({ policy, text }: { policy: PolicyDetail; text: () => string }) {
  const search = useMutation(trpc.policies.mutations.mutationOptions());
  return (
    <Paper component="section" aria-labelledby="mutations-title" mt="md">
      <Title order={2} id="mutations-title">
        Changes that no test would notice
      </Title>
      <Text size="sm" c="dimmed" mb="sm">
        Changes the policy in up to 200 small ways, one at a time, and runs the tests on each. Nothing is saved.
      </Text>
      <Button
        variant="default"
        size="xs"
        loading={search.isPending}
        onClick={() => search.mutate({ id: policy.id, dsl_source: policy.dsl_source, tests_source: text() })}
      >
        Search
      </Button>
      <div aria-live="polite">{search.data ? <Survivors run={search.data} /> : null}</div>
    </Paper>
  );
}
