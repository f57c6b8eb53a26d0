import type { StatedSource } from '../../domain/workload.ts';
import { columns, plain } from '../command.ts';
import type { Checked } from './local.ts';

export interface Place {
  line: number;
  column: number;
  message: string;
}

/** A policy in the response of `POST /v1/policies/plan`, as far as it is shown. */
export interface Planned {
  id: string;
  change: 'create' | 'update' | 'none';
  content_hash: string;
  newest: {
    status: string;
    version: number;
    content_hash: string;
    author_id: string;
    source: (StatedSource & { proven: string[] }) | null;
  } | null;
  live_version: number | null;
  errors: Place[];
  tests_errors: Place[];
  warnings: Place[];
  diff: { unified: string; rules_added: string[]; rules_removed: string[]; rules_changed: string[] } | null;
  tests_changed: boolean;
  tests: {
    passed: number;
    failed: number;
    results: { name: string; row?: number; ok: boolean; differences: string[]; line: number; column: number }[];
    coverage: { percent: number };
  } | null;
  objections: string[];
}

/** What a push of a folder would do. */
export interface Plan {
  policies: (Planned & { drift: string | null })[];
  /** Policies that this folder used to have; `--prune` revokes them. */
  removed: string[];
  /** Policies on the server that were never in this folder. */
  unmanaged: string[];
  approval_required: boolean;
}

export const changesOf = ({ policies }: Plan) => policies.filter(({ change }) => change !== 'none');
export const brokenOf = ({ policies }: Plan) =>
  policies.filter(({ errors, tests_errors, tests }) => errors.length + tests_errors.length + (tests?.failed ?? 0) > 0);

const SIGN = { create: '+', update: '~', none: ' ' } as const;

function words(plan: Plan['policies'][number]): string {
  const { change, newest, live_version, diff, tests } = plan;
  const rules = diff
    ? [
        ...diff.rules_added.map((rule) => `+${ruleOf(rule)}`),
        ...diff.rules_changed.map((rule) => `~${ruleOf(rule)}`),
        ...diff.rules_removed.map((rule) => `-${ruleOf(rule)}`),
      ]
    : [];
  return [
    change === 'create'
      ? 'new'
      : change === 'none'
        ? `no change, version ${newest!.version} is ${state(newest!.status, newest!.version === live_version)}`
        : `changes version ${newest!.version}${live_version === null ? '' : `, version ${live_version} is live`}`,
    ...(rules.length > 0 ? [rules.join(' ')] : []),
    ...(plan.tests_changed && change !== 'create' ? ['tests changed'] : []),
    tests
      ? `${tests.passed} of ${tests.passed + tests.failed} tests pass, coverage ${tests.coverage.percent} %`
      : 'no tests',
  ].join('; ');
}

const state = (status: string, live: boolean) => (live ? 'live' : status.replaceAll('_', ' '));
const ruleOf = (rule: string) => rule.slice(rule.indexOf('#') + 1);

function faultsOf(plan: Planned): string[] {
  const at = (file: string) => (one: Place) => `${plan.id}${file}:${one.line}:${one.column}: ${one.message}`;
  const failed = (plan.tests?.results ?? []).filter(({ ok }) => !ok);
  return [
    ...plan.errors.map(at('.cedar')),
    ...plan.tests_errors.map(at('.test.yaml')),
    ...failed.map(failureLine(plan.id)),
  ];
}

const failureLine =
  (id: string) =>
  (one: { name: string; row?: number | undefined; differences: string[]; line: number; column: number }) =>
    `${id}.test.yaml:${one.line}:${one.column}: ${JSON.stringify(one.name)}${one.row === undefined ? '' : `, row ${one.row}`}: ${one.differences.join('; ')}`;

const warningsOf = ({ id, warnings }: Pick<Planned, 'id' | 'warnings'>) =>
  warnings.map(({ line, column, message }) => `${id}.cedar:${line}:${column}: warning: ${message}`);

/** One sentence about the whole plan. */
export function summaryOf(plan: Plan, prune: boolean): string {
  const count = (kind: string) => plan.policies.filter(({ change }) => change === kind).length;
  const drifted = plan.policies.filter(({ drift }) => drift !== null).length;
  const parts = [
    `${count('create')} to create, ${count('update')} to change, ${count('none')} unchanged`,
    ...(plan.removed.length > 0 ? [`${plan.removed.length} ${prune ? 'to revoke' : 'no longer in the folder'}`] : []),
    ...(drifted > 0 ? [`${drifted} changed elsewhere`] : []),
    ...(brokenOf(plan).length > 0 ? [`${brokenOf(plan).length} with faults`] : []),
  ];
  return `${parts.join('; ')}.`;
}

/** A plan for a terminal. */
export function planLines(plan: Plan, prune: boolean): string[] {
  const rows = plan.policies.map((one) => [`${SIGN[one.change]} ${one.id}`, words(one)]);
  const gone = plan.removed.map((id) => [
    `- ${id}`,
    prune ? 'would be revoked' : 'is not in the folder; --prune revokes it',
  ]);
  return [
    ...columns([...rows, ...gone]),
    ...changesOf(plan).flatMap(({ diff }) => (diff && diff.unified !== '' ? ['', ...linesOf(diff.unified)] : [])),
    ...section('Changed elsewhere since this folder was in step (push needs --ours or --theirs):', driftLines(plan)),
    ...section('Faults:', plan.policies.flatMap(faultsOf)),
    ...section('Warnings:', plan.policies.flatMap(warningsOf)),
    ...section('In the way of a release:', objectionLines(plan)),
    '',
    summaryOf(plan, prune),
    ...(plan.approval_required && changesOf(plan).length > 0
      ? ['This tenant requires approval: nothing is enforced before a person has approved it.']
      : []),
  ];
}

const driftLines = ({ policies }: Plan) => policies.flatMap(({ id, drift }) => (drift ? [`${id}: ${drift}`] : []));
const objectionLines = ({ policies }: Plan) =>
  policies
    .filter(({ change }) => change !== 'none')
    .flatMap(({ id, objections }) => objections.map((one) => `${id}: ${one}`));
const section = (title: string, lines: string[]) =>
  lines.length > 0 ? ['', title, ...lines.map((line) => `  ${line}`)] : [];
const linesOf = (text: string) =>
  text
    .replace(/\n$/, '')
    .replaceAll('\t', '    ')
    .split(/\r\n|\n|\r/);

/** A plan as Markdown for a review comment. Nothing that comes from a file or a server can break out of its code or its table. */
export function planMarkdown(plan: Plan, prune: boolean): string[] {
  const changed = changesOf(plan);
  const listed = (title: string, lines: string[]) =>
    lines.length > 0 ? ['', `**${title}**`, '', ...lines.map((line) => `- ${code(line)}`)] : [];
  return [
    `### Policies: ${summaryOf(plan, prune)}`,
    ...(changed.length > 0
      ? [
          '',
          '| policy | | what |',
          '|---|---|---|',
          ...changed.map((one) => `| ${code(one.id)} | ${one.change} | ${cell(words(one))} |`),
        ]
      : []),
    ...plan.removed.map(
      (id, n) => `${n === 0 ? '\n' : ''}- ${code(id)} ${prune ? 'would be revoked' : 'is no longer in the folder'}`,
    ),
    ...listed('Changed elsewhere since this folder was in step', driftLines(plan)),
    ...listed('Faults', plan.policies.flatMap(faultsOf)),
    ...listed('Warnings', plan.policies.flatMap(warningsOf)),
    ...listed('In the way of a release', objectionLines(plan)),
    ...changed.flatMap(({ id, diff }) => (diff && diff.unified !== '' ? ['', ...details(id, diff.unified)] : [])),
    ...(plan.approval_required && changed.length > 0
      ? ['', 'Nothing is enforced before a person has approved it.']
      : []),
  ];
}

/** Review comments have a size limit. */
const MAX_DIFF_LINES = 400;

function details(id: string, diff: string): string[] {
  const all = linesOf(diff);
  const shown = all.slice(0, MAX_DIFF_LINES).map(plain);
  const fence = '`'.repeat(Math.max(3, ...[...shown.join('\n').matchAll(/`+/g)].map(([run]) => run.length + 1)));
  const more = all.length > MAX_DIFF_LINES ? [`… ${all.length - MAX_DIFF_LINES} more lines`] : [];
  return [`<details><summary>${plain(id)}</summary>`, '', `${fence}diff`, ...shown, ...more, fence, '', '</details>'];
}

/** A code span: it links nothing, mentions no one and ends where it should. */
function code(text: string): string {
  const safe = plain(text).replaceAll('|', '\\|');
  const tick = '`'.repeat(1 + Math.max(0, ...[...safe.matchAll(/`+/g)].map(([run]) => run.length)));
  return `${tick} ${safe} ${tick}`;
}
const cell = code;

/** The results of a local check, for a terminal. */
export function checkLines(checked: readonly Checked[]): string[] {
  const rows = checked.map(({ id, errors, tests_errors, passed, failed, coverage }) => [
    id,
    errors.length > 0
      ? 'does not compile'
      : tests_errors.length > 0
        ? 'its tests cannot be read'
        : coverage === null
          ? 'no tests'
          : `${passed} of ${passed + failed} tests pass, coverage ${coverage.percent} %`,
  ]);
  const faults = checked.flatMap((one) => [
    ...one.errors.map(({ line, column, message }) => `${one.id}.cedar:${line}:${column}: ${message}`),
    ...one.tests_errors.map(({ line, column, message }) => `${one.id}.test.yaml:${line}:${column}: ${message}`),
    ...one.failures.map(failureLine(one.id)),
  ]);
  return [...columns(rows), ...section('Faults:', faults), ...section('Warnings:', checked.flatMap(warningsOf))];
}
