import { Anchor, Paper, Title } from '@mantine/core';
import { IconAlertTriangle, IconCircleCheck, IconCircleDashed, IconCircleX } from '@tabler/icons-react';
import type { Answers } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import type { useSimulation } from '../../parts/simulation.tsx';
import { Hostile } from '../../ui/hostile.tsx';

type State = 'passed' | 'failed' | 'warns' | 'open';
interface Check {
  name: string;
  state: State;
  words: string;
  /** The id of the section with the details. */
  more: string;
}

const STATE = {
  passed: ['ok', 'passed', IconCircleCheck],
  failed: ['bad', 'failed', IconCircleX],
  warns: ['wait', 'needs a look', IconAlertTriangle],
  open: ['quiet', 'not known yet', IconCircleDashed],
} as const;

/** What is known about a version, in one place: each line links to the section that it sums up. */
export function Checks({ checks }: { checks: readonly Check[] }) {
  return (
    <Paper component="section" aria-labelledby="checks" mb="md">
      <Title order={2} id="checks" mb="xs">
        Checks
      </Title>
      <ul className="checks">
        {checks.map(({ name, state, words, more }) => {
          const [tone, word, Shape] = STATE[state];
          return (
            <li key={name} data-tone={tone}>
              <Shape size={17} aria-label={word} role="img" />
              <Anchor href={`#${more}`} c="inherit" fw={600}>
                {name}
              </Anchor>
              <span>
                <Hostile text={words} />
              </span>
            </li>
          );
        })}
      </ul>
    </Paper>
  );
}

/** Undefined while loading, `unknown` if the server did not answer. */
type Asked<T> = T | 'unknown' | undefined;

interface Known {
  lint: Asked<Answers['policies']['validate']>;
  /** Null for a version without tests. */
  run: Asked<Answers['policies']['test'] | null>;
  breaks: Asked<Answers['policies']['breaks']>;
  simulation: ReturnType<typeof useSimulation>['data'];
  threads: number;
}

const UNKNOWN = 'could not be checked: reload the page';

export function checksOf({ lint, run, breaks, simulation, threads }: Known): Check[] {
  return [textCheck(lint), testCheck(run), othersCheck(breaks), simulationCheck(simulation), threadCheck(threads)];
}

function textCheck(lint: Known['lint']): Check {
  const check = { name: 'Text', more: 'changes' };
  if (!lint) return { ...check, state: 'open', words: 'is being checked' };
  if (lint === 'unknown') return { ...check, state: 'warns', words: UNKNOWN };
  const { errors, warnings } = lint;
  if (errors[0]) return { ...check, state: 'failed', words: `line ${errors[0].line}: ${errors[0].message}` };
  if (warnings[0]) {
    return {
      ...check,
      state: 'warns',
      words: `${count(warnings.length, 'warning')}; line ${warnings[0].line}: ${warnings[0].message}`,
    };
  }
  return { ...check, state: 'passed', words: 'compiles, without impossible rules or doubtful names' };
}

function testCheck(run: Known['run']): Check {
  const check = { name: 'Tests', more: 'tests' };
  if (run === undefined) return { ...check, state: 'open', words: 'are being run' };
  if (run === 'unknown') return { ...check, state: 'warns', words: UNKNOWN };
  if (run === null) return { ...check, state: 'warns', words: 'this version has none' };
  const [fault] = [...run.errors, ...run.tests_errors];
  if (fault) return { ...check, state: 'failed', words: `cannot be run: ${fault.message}` };
  const { passed, failed, coverage } = run;
  const covered = `${coverage.percent}% of the statements covered`;
  if (failed > 0) {
    return { ...check, state: 'failed', words: `${failed} of ${count(passed + failed, 'test')} failed; ${covered}` };
  }
  return { ...check, state: 'passed', words: `${count(passed, 'test')} passed; ${covered}` };
}

function othersCheck(breaks: Known['breaks']): Check {
  const check = { name: 'Tests of other policies', more: 'tests' };
  if (!breaks) return { ...check, state: 'open', words: 'are being run' };
  if (breaks === 'unknown') return { ...check, state: 'warns', words: UNKNOWN };
  if (breaks.errors[0]) return { ...check, state: 'open', words: breaks.errors[0].message };
  const { length } = breaks.broken;
  return length > 0
    ? { ...check, state: 'failed', words: `${count(length, 'test')} would fail` }
    : { ...check, state: 'passed', words: 'none would fail' };
}

function simulationCheck(simulation: Known['simulation']): Check {
  const check = { name: 'Past decisions', more: 'simulation' };
  if (simulation === undefined) return { ...check, state: 'open', words: 'are being looked up' };
  if (simulation === null) return { ...check, state: 'warns', words: 'it was not simulated on past decisions' };
  const { status, decisions = 0, changed = 0, unknown = 0, groups = [], current } = simulation;
  if (status === 'queued' || status === 'running') return { ...check, state: 'open', words: 'the simulation runs' };
  if (status !== 'done')
    return { ...check, state: 'warns', words: `the simulation ${status === 'failed' ? 'failed' : 'was cancelled'}` };
  const opened = groups
    .filter(({ direction }) => direction === 'newly_allowed' || direction === 'hold_lifted')
    .reduce((sum, group) => sum + group.count, 0);
  const words = [
    changed === 0 ? 'none would change' : `${changed.toLocaleString()} would change`,
    ...(opened > 0 ? [`${opened.toLocaleString()} that were denied or held would be allowed`] : []),
    ...(unknown > 0 ? [`${unknown.toLocaleString()} cannot be simulated`] : []),
    ...(current ? [] : ['the live policies have changed since']),
  ].join('; ');
  return {
    ...check,
    state: opened > 0 || unknown > 0 || !current ? 'warns' : 'passed',
    words: `of ${count(decisions, 'decision')}, ${words}`,
  };
}

function threadCheck(threads: number): Check {
  const check = { name: 'Threads', more: 'remarks' };
  return threads > 0
    ? { ...check, state: 'warns', words: `${count(threads, 'thread')} not resolved` }
    : { ...check, state: 'passed', words: 'none is open' };
}
