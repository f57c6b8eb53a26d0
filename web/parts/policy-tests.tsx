import { Anchor, Group, Text, Title } from '@mantine/core';
import type { Answers } from '../lib/trpc.ts';
import { count } from '../lib/words.ts';
import { Diff } from '../ui/editor/diff.tsx';
import { DecisionTag, Tag } from '../ui/status.tsx';

type Run = Answers['policies']['test'];

const REACH = {
  decisive: ['decided a test', 'ok'],
  hit: ['applied in a test', 'ok'],
  reached: ['never true in a test', 'wait'],
  never: ['not tested', 'bad'],
} as const;

/** What the tests of a version found: the counts, each test, and how far the tests reach. */
export function TestRun({ run, goTo }: { run: Run; goTo?: (line: number) => void }) {
  const [fault] = [...run.errors, ...run.tests_errors];
  if (fault) return <Text>The tests cannot be run: {fault.message}.</Text>;
  const { passed, failed, results, coverage } = run;
  return (
    <>
      <Group gap="xs" mb="xs">
        <Tag tone={failed > 0 ? 'bad' : 'ok'}>
          {failed > 0 ? `${failed} of ${count(passed + failed, 'test')} failed` : `${count(passed, 'test')} passed`}
        </Tag>
        <Tag tone="quiet">{coverage.percent} % of the statements covered</Tag>
      </Group>
      <ul className="plain-list" aria-label="Tests">
        {results.map(({ name, row, ok, got, differences, line }) => {
          const title = `${name}${row === undefined ? '' : `, row ${row}`}`;
          return (
            <li key={title} style={{ overflowWrap: 'anywhere' }}>
              <Tag tone={ok ? 'ok' : 'bad'}>{ok ? 'passed' : 'failed'}</Tag> <DecisionTag decision={got.decision} />{' '}
              {goTo ? (
                <Anchor component="button" type="button" ta="left" onClick={() => goTo(line)}>
                  {title}
                </Anchor>
              ) : (
                title
              )}
              {differences.map((difference) => (
                <Text size="sm" key={difference}>
                  {difference}
                </Text>
              ))}
            </li>
          );
        })}
      </ul>
      <details>
        <summary>How far the tests reach</summary>
        <ul className="plain-list" aria-label="Statements">
          {coverage.statements.map(({ rule_id, line, reach }) => (
            <li key={rule_id}>
              <Tag tone={REACH[reach][1]}>{REACH[reach][0]}</Tag> <span className="mono">{rule_id}</span>, line {line}
            </li>
          ))}
        </ul>
      </details>
    </>
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
