import { Anchor, Group, Text, Title } from '@mantine/core';
import type { Answers } from '../lib/trpc.ts';
import { count } from '../lib/words.ts';
import type { ReachMark } from '../ui/editor/code-editor.tsx';
import { Diff } from '../ui/editor/diff.tsx';
import { Notice } from '../ui/notice.tsx';
import { DecisionTag, Tag } from '../ui/status.tsx';

type Run = Answers['policies']['test'];
type Coverage = Run['coverage'];
type Mutations = Answers['policies']['mutations'];

const REACH = {
  decisive: ['decides a test', 'ok'],
  hit: ['applies in a test', 'ok'],
  reached: ['never applies in a test', 'wait'],
  never: ['not tested', 'bad'],
} as const;

const SEEN = {
  both: ['true and false in tests', 'ok'],
  true: ['only true in tests', 'wait'],
  false: ['only false in tests', 'wait'],
  never: ['not tested', 'bad'],
} as const;

const MUTATION = {
  drop_statement: 'statement removed',
  flip_effect: 'permit and forbid swapped',
  widen_scope: 'scope widened',
  drop_annotation: 'annotation removed',
  negate_condition: 'condition negated',
  swap_comparison: 'comparison changed',
  move_number: 'number changed',
} as const satisfies Record<Mutations['survivors'][number]['mutation'], string>;

/** What a version's tests found: the counts, each test, and how much of the text the tests cover. */
export function TestRun({ run, goTo }: { run: Run; goTo?: (line: number) => void }) {
  const [fault] = [...run.errors, ...run.tests_errors];
  if (fault) return <Text>The tests cannot run until this is fixed: {fault.message}.</Text>;
  return (
    <>
      <TestCounts run={run} />
      <Results results={run.results} {...(goTo && { goTo })} />
      <Reach coverage={run.coverage} />
    </>
  );
}

export function TestCounts({ run: { passed, failed, coverage } }: { run: Run }) {
  return (
    <Group gap="xs" mb="xs">
      <Tag tone={failed > 0 ? 'bad' : 'ok'}>
        {failed > 0 ? `${failed} of ${count(passed + failed, 'test')} failed` : `${count(passed, 'test')} passed`}
      </Tag>
      <Tag tone="quiet">{coverage.percent}% of the statements covered</Tag>
      <Tag tone="quiet">{coverage.condition_percent}% of the conditions</Tag>
    </Group>
  );
}

/** The tests that fail, if any. */
export function Failures({ run }: { run: Run }) {
  const failures = run.results.filter(({ ok }) => !ok);
  return failures.length > 0 ? <Results results={failures} /> : null;
}

function Results({ results, goTo }: { results: Run['results']; goTo?: (line: number) => void }) {
  return (
    <ul className="plain-list test-lines" aria-label="Tests">
      {results.map(({ name, row, ok, got, differences, line }) => {
        const title = `${name}${row === undefined ? '' : `, row ${row}`}`;
        return (
          <li key={title}>
            <Tag tone={ok ? 'ok' : 'bad'}>{ok ? 'passed' : 'failed'}</Tag>
            <div>
              {goTo ? (
                <Anchor component="button" type="button" ta="left" onClick={() => goTo(line)}>
                  {title}
                </Anchor>
              ) : (
                title
              )}{' '}
              <DecisionTag decision={got.decision} />
              {differences.map((difference) => (
                <Text size="sm" key={difference}>
                  {difference}
                </Text>
              ))}
            </div>
          </li>
        );
      })}
    </ul>
  );
}

/** The coverage: each statement, and each condition that was not both true and false. */
export function Reach({ coverage, goTo }: { coverage: Coverage; goTo?: (line: number) => void }) {
  const place = (line: number) =>
    goTo ? (
      <Anchor component="button" type="button" onClick={() => goTo(line)}>
        line {line}
      </Anchor>
    ) : (
      `line ${line}`
    );
  return (
    <details>
      <summary>Coverage, rule by rule</summary>
      <ul className="plain-list reach" aria-label="Statements">
        {coverage.statements.map(({ rule_id, line, reach, conditions }) => (
          <li key={rule_id}>
            <Tag tone={REACH[reach][1]}>{REACH[reach][0]}</Tag> <span className="mono">{rule_id}</span>, {place(line)}
            <ul className="plain-list" aria-label={`Conditions of ${rule_id} that tests leave out`}>
              {conditions
                .filter(({ seen }) => seen !== 'both')
                .map((one) => (
                  <li key={`${one.line}:${one.column}`}>
                    <Tag tone={SEEN[one.seen][1]}>{SEEN[one.seen][0]}</Tag> <code className="mono">{one.text}</code>,{' '}
                    {place(one.line)}
                  </li>
                ))}
            </ul>
          </li>
        ))}
      </ul>
      {coverage.conditions_left_out > 0 ? (
        <Text size="sm">{count(coverage.conditions_left_out, 'more condition')} could not be measured.</Text>
      ) : null}
    </details>
  );
}

/** The marks of an editor: how well the tests cover each line of a policy. */
export function marksOf({ statements }: Coverage): ReachMark[] {
  return statements.flatMap(({ rule_id, line, reach, conditions }) => [
    { line, tone: REACH[reach][1], title: `${rule_id}: ${REACH[reach][0]}` },
    ...conditions.map((one) => ({
      ...{ line: one.line, tone: SEEN[one.seen][1] },
      title: `${one.text}: ${SEEN[one.seen][0]}`,
    })),
  ]);
}

/** The changes to a policy that its tests do not notice. */
export function Survivors({ run }: { run: Mutations }) {
  const [fault] = [...run.errors, ...run.tests_errors];
  if (fault) return <Text mt="sm">No change can be tried until this is fixed: {fault.message}.</Text>;
  const { tried, noticed, left_out, failing, survivors } = run;
  if (tried === 0) return <Text mt="sm">There is nothing to change in this policy.</Text>;
  return (
    <>
      <Group gap="xs" mt="sm" mb="xs">
        <Tag tone={survivors.length > 0 ? 'wait' : 'ok'}>
          {noticed} of {count(tried, 'change')} caught, {Math.floor((100 * noticed) / tried)}%
        </Tag>
        {left_out > 0 ? <Tag tone="quiet">{left_out} not tried</Tag> : null}
        {failing > 0 ? <Tag tone="bad">{count(failing, 'test')} left out: failing already</Tag> : null}
      </Group>
      <ul className="plain-list" aria-label="Changes that no test notices">
        {survivors.map(({ rule_id, mutation, line, before, after }, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the list is replaced as a whole
          <li key={n} style={{ overflowWrap: 'anywhere', marginBottom: 8 }}>
            <span className="mono">{rule_id}</span>, line {line}: {MUTATION[mutation]}
            <pre className="mutation">
              <del>{before}</del>
              {after === '' ? null : <ins>{after}</ins>}
            </pre>
          </li>
        ))}
      </ul>
    </>
  );
}

/** The tests of other live policies that a version would break. */
export function BrokenTests({ found: { errors, broken } }: { found: Answers['policies']['breaks'] }) {
  if (errors[0]) return <Text mt="sm">The tests of other policies cannot run: {errors[0].message}.</Text>;
  if (broken.length === 0) return null;
  return (
    <Notice tone="bad" title="Tests of other live policies would fail" urgent>
      The version cannot be approved while they do.
      <ul className="plain-list" aria-label="Tests of other policies that would fail">
        {broken.map(({ policy_id, name, row, differences, line, column }) => (
          <li key={`${policy_id} ${line}:${column}`} style={{ overflowWrap: 'anywhere' }}>
            <span className="mono">{policy_id}</span>: {name}
            {row === undefined ? '' : `, row ${row}`}
            {differences.map((difference) => (
              <Text size="sm" key={difference}>
                {difference}
              </Text>
            ))}
          </li>
        ))}
      </ul>
    </Notice>
  );
}

/** What changed between the test suites of two versions; nothing if neither has one. */
export function TestsDiff({
  before,
  after,
}: {
  before: { version: number; tests_source: string | null } | null;
  after: { version: number; tests_source: string | null };
}) {
  const [old, next] = [before?.tests_source ?? '', after.tests_source ?? ''];
  if (old === '' && next === '') return null;
  const from = before ? `version ${before.version}` : 'nothing';
  return (
    <>
      <Title order={3} mt="md" mb="xs">
        Tests
      </Title>
      <Diff plain before={old} after={next} label={`tests of ${from} → version ${after.version}`} />
    </>
  );
}
