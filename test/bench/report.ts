import { type Effort, type Figure, shown } from './lib.ts';
import { BENCHES, benchOf } from './list.ts';

export interface Machine {
  cpu: string;
  cores: number;
  memory_gb: number;
  node: string;
  postgres: string;
  redis: string;
  commit: string;
  /** The working tree differs from the commit. */
  dirty: boolean;
  /** The load average of the last minute, when the run started. */
  load: number;
  effort: Effort;
}

type Report = Readonly<Record<string, readonly Figure[]>>;
type Failed = Readonly<Record<string, string>>;

export const duration = (seconds: number) => (seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`);

export function help(): string {
  const lines = Object.keys(BENCHES).map((name) => {
    const { line, seconds, named } = benchOf(name)!;
    const [quick, usual, long] = seconds;
    const takes = long === usual ? duration(usual) : `${duration(usual)}, --long ${duration(long)}`;
    return `  ${name.padEnd(13)} ${line.padEnd(58)} ${takes}${quick === usual ? '' : `, --quick ${duration(quick)}`}${named ? '; only where named' : ''}`;
  });
  return `npm run bench -- [option…] [name…]

${lines.join('\n')}

Without a name, all that need not be named. Each measures beside a limit of this machine, in the same run.

  --quick     a short form of each, in three to four minutes together
  --long      the largest sizes too
  --json      the report as JSON
  --markdown  the report as the table of docs/benchmarks.md
  --strict    exit with 1 where a figure missed its aim, not only where a benchmark failed`;
}

/** The exit status of the program. */
export function statusOf(report: Report, failed: Failed, { strict }: { strict: boolean }): 0 | 1 {
  const missed = Object.values(report).some((figures) => figures.some(({ pass }) => pass === false));
  return Object.keys(failed).length > 0 || (strict && missed) ? 1 : 0;
}

function about(machine: Machine): string {
  const { cpu, cores, memory_gb, node, postgres, redis, commit, dirty, load, effort } = machine;
  return [
    `${cores} × ${cpu}, ${memory_gb} GB`,
    ...[`Node ${node}`, `PostgreSQL ${postgres}`, `Redis ${redis}`],
    ...[`commit ${commit}${dirty ? ' (dirty)' : ''}`, `load ${load.toFixed(2)} at the start`],
    ...(effort === 'usual' ? [] : [`--${effort}`]),
  ].join(', ');
}

const span = ({ min, max }: Figure) => (min === undefined ? '' : `${shown(min)} – ${shown(max!)}`);
const aim = ({ target, atMost }: Figure) =>
  target === undefined ? '' : `${atMost ? 'at most' : 'at least'} ${shown(target)}`;

export function table(machine: Machine, report: Report, failed: Failed): string {
  const all = Object.values(report).flat();
  const width = Math.max(0, ...all.map(({ name }) => name.length));
  const lines = Object.entries(report).flatMap(([name, figures]) => [
    `\n${name}`,
    ...figures.map((one) => {
      const verdict = one.pass === undefined ? '' : `${one.pass ? 'met' : 'MISSED'} (${aim(one)})`;
      const value = `${shown(one.value).padStart(11)} ${one.unit.padEnd(10)}`;
      return `  ${one.name.padEnd(width)} ${value} ${span(one).padEnd(24)} ${verdict}`.trimEnd();
    }),
  ]);
  const failures = Object.entries(failed).map(([name, message]) => `\n${name} FAILED: ${message}`);
  const aims = all.filter(({ pass }) => pass !== undefined);
  const met = `\n${aims.filter(({ pass }) => pass).length} of ${aims.length} aims were met`;
  return [about(machine), ...lines, ...failures, met].join('\n');
}

/** The figures for docs/benchmarks.md: those with an aim, and ratios. */
export function markdown(machine: Machine, report: Report, failed: Failed): string {
  const row = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  const rows = Object.entries(report).flatMap(([name, figures]) =>
    figures
      .filter(({ pass, unit }) => pass !== undefined || unit === 'ratio' || unit === 'times')
      .map((one) => {
        const verdict = one.pass === undefined ? '' : one.pass ? 'yes' : '**no**';
        return row([name, one.name, `${shown(one.value)} ${one.unit}`.trim(), span(one), aim(one), verdict]);
      }),
  );
  const failures = Object.entries(failed).map(([name, message]) => row([name, `failed: ${message}`, '', '', '', '']));
  return [
    `${about(machine)}.`,
    '',
    row(['bench', 'figure', 'median', 'least – most', 'aim', 'met']),
    `|${'---|'.repeat(6)}`,
    ...rows,
    ...failures,
  ].join('\n');
}
