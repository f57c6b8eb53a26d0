import { Button, Paper, Text, Title } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { visible } from '../../../server/lib/visible.ts';
import { type DraftedSuite, suiteFor, suiteTaken } from '../../lib/drafted-suite.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { Survivors, TestRun } from '../../parts/policy-tests.tsx';
import type { Problem } from '../../ui/editor/code-editor.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Draft, type PolicyDetail } from './draft.tsx';

type Run = Answers['policies']['test'];

/** A suite to start from. */
const EXAMPLE = `format: svc-tests/1
defaults: { agent_role: support, action_type: tool_call, tool_name: refund }
tests:
  - name: what this test shows
    request: { arguments: { amount: 20 } }
    expect: { decision: allow }
`;

/** The test suite of a policy, and what its tests find as it is written. They run on the newest saved text. */
export function Tests({ policy }: { policy: PolicyDetail }) {
  const newest = useRef('');
  const [drafted] = useState(() => suiteFor(policy.id));
  useEffect(suiteTaken, []);
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
    <>
      {drafted && drafted.tests_source !== policy.tests_source ? <Drafted made={drafted} /> : null}
      <Draft
        policy={policy}
        {...(drafted && { drafted: { source: drafted.tests_source, line: drafted.test.line } })}
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
                  <Text>
                    {run === null
                      ? 'There are no tests. Insert an example to begin with, or make a test from a decision.'
                      : 'The tests are running.'}
                  </Text>
                )}
              </div>
            </Paper>
            {run && !invalid ? <Mutations policy={policy} text={text} /> : null}
          </div>
        )}
      />
    </>
  );
}

const KEPT: Record<DraftedSuite['kept'], string | undefined> = {
  read: undefined,
  read_then: 'It also has everything that the policies in force at the time read.',
  whole: 'It has the whole request, because with less of it the decision would differ.',
};

/** For a test made from a decision, shows what its author should know before saving it. */
function Drafted({ made: { event_id, test, kept, verified, masked, unmasked, ok } }: { made: DraftedSuite }) {
  const notes = [
    KEPT[kept],
    verified ? undefined : 'It could not be verified against the policies in force at the time.',
    masked.length > 0 ? `Placeholders replace ${masked.join(', ')}.` : undefined,
    unmasked.length > 0 ? `It shows values that are masked elsewhere: ${unmasked.join(', ')}.` : undefined,
    ok ? undefined : 'The newest version does not pass it yet.',
  ];
  return (
    <Notice tone={unmasked.length > 0 ? 'wait' : 'info'} title={`New test: ${test.name}`}>
      Made from the decision <span className="mono">{event_id}</span>, from line {test.line} on. Save the draft to keep
      it. {visible(notes.filter((note) => note !== undefined).join(' '))}
    </Notice>
  );
}

/** On request, changes the policy in many small ways, and shows which changes the tests do not notice. */
function Mutations({ policy, text }: { policy: PolicyDetail; text: () => string }) {
  const search = useMutation(trpc.policies.mutations.mutationOptions());
  return (
    <Paper component="section" aria-labelledby="mutations-title" mt="md">
      <Title order={2} id="mutations-title">
        Mutation testing
      </Title>
      <Text size="sm" c="dimmed" mb="sm">
        Makes up to 200 small changes to the policy, one at a time, and runs the tests on each. What no test catches is
        listed here. Nothing is saved.
      </Text>
      <Button
        variant="default"
        size="xs"
        loading={search.isPending}
        onClick={() => search.mutate({ id: policy.id, dsl_source: policy.dsl_source, tests_source: text() })}
      >
        {search.data ? 'Run again' : 'Run'}
      </Button>
      <div aria-live="polite">{search.data ? <Survivors run={search.data} /> : null}</div>
    </Paper>
  );
}
