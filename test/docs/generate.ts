import { globSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { COMMANDS } from '../../server/cli/main.ts';
import { POLICY_VARIABLES } from '../../server/cli/policy/remote.ts';
import { serverSettingsHelp } from '../../server/config.ts';
import { ANNOTATIONS, escrowNeededBy, isAnnotationName } from '../../server/domain/annotations.ts';
import { AUDIT_ACTIONS } from '../../server/domain/audit.ts';
import { FIELD_NAMES, fieldOf } from '../../server/domain/decision.ts';
import { DESTINATIONS } from '../../server/domain/destinations.ts';
import { EVENTS } from '../../server/domain/events.ts';
import { HOLD_KIND_NAMES, holdKind } from '../../server/domain/hold-kinds.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';
import { proxySettingsHelp } from '../../server/proxy/config.ts';
import { memberTable } from '../../server/proxy/mcp/members.ts';
import { GUARDED_SETTINGS, Settings, settingsOf } from '../../server/tenants/settings.ts';
import { BENCHES, benchOf } from '../bench/list.ts';
import { duration } from '../bench/report.ts';

/**
 * The tables of the documentation that are made from the code: `npm run docs` writes them between their markers
 * (`<!-- begin NAME -->`, `<!-- end NAME -->`), `--check` exits with 1 where one is stale.
 */
export const root = path.resolve(import.meta.dirname, '../..');

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |\n`;
  return `${line(head)}|${'---|'.repeat(head.length)}\n${rows.map(line).join('')}`;
}

const code = (text: string) => (text === '' ? '' : `\`${text}\``);
const settings = (list: ReturnType<typeof serverSettingsHelp>) =>
  table(
    ['setting', 'default', 'meaning'],
    list.map(({ name, fallback, meaning }) => [code(name), code(fallback), meaning]),
  );

function tenantSettings(): string {
  const { poll_seconds: _, ...defaults } = settingsOf({}, { poll_seconds: 1 });
  const rows = Object.entries(Settings.shape).map(([name, { description }]) => [
    code(name),
    name === 'poll_seconds' ? '`SVC_POLL_SECONDS`' : code(JSON.stringify(defaults[name as keyof typeof defaults])),
    (GUARDED_SETTINGS as string[]).includes(name) ? 'yes' : '',
    description ?? '',
  ]);
  return table(['setting', 'default', 'guarded', 'meaning'], rows);
}

function annotations(): string {
  const rows = Object.entries(ANNOTATIONS).map(([name, { example, form, meaning, obligation }]) => {
    const needs = isAnnotationName(name) ? escrowNeededBy(name) : undefined;
    const on = needs ? `with ${code(needs)}` : obligation ? 'any; makes a forbid a guardrail' : 'any';
    return [code(`@${name}("${example || '…'}")`), on, form, meaning];
  });
  return table(['annotation', 'on', 'value', 'meaning'], rows);
}

function recordFields(): string {
  const types = {
    decision: 'a decision',
    text: 'text',
    time: 'time',
    count: 'integer',
    sequence: 'integer',
    number: 'number',
    texts: 'list of texts',
    flag: '`true`',
    facts: '[facts](#facts)',
  } satisfies Record<ReturnType<typeof fieldOf>['type'], string>;
  const presences = { required: 'always', empty: 'always, empty or 0 if there is none', optional: 'if known' };
  return table(
    ['member', 'value', 'there', 'meaning'],
    FIELD_NAMES.map((name) => {
      const { type, presence, label, unit, description } = fieldOf(name);
      const meaning = description === undefined ? label : `${label}: ${description}`;
      return [code(name), unit ? `${types[type]}, ${unit}` : types[type], presences[presence], meaning];
    }),
  );
}

/** Each template of the dashboard with its suite, in the order of the alphabet. */
function templates(): string {
  return globSync('web/templates/*/policy.cedar', { cwd: root })
    .sort()
    .map((file) => {
      const id = path.basename(path.dirname(file));
      const read = (name: string) => readFileSync(path.join(root, 'web/templates', id, name), 'utf8');
      const title = id[0]!.toUpperCase() + id.slice(1).replaceAll('-', ' ');
      return `## ${title}\n\n\`\`\`cedar\n${read('policy.cedar')}\`\`\`\n\n\`\`\`yaml\n${read('tests.yaml')}\`\`\`\n`;
    })
    .join('\n');
}

/** Every generated part by the name of its markers, with the page that it is on. */
export const PARTS: Record<string, { page: string; text: () => string }> = {
  'server-settings': { page: 'docs/operation.md', text: () => settings(serverSettingsHelp()) },
  'proxy-settings': { page: 'docs/proxy.md', text: () => settings(proxySettingsHelp()) },
  'mcp-members': {
    page: 'docs/proxy.md',
    text: () =>
      table(
        ['message', 'revision', 'decided on', 'also forwarded'],
        memberTable().map(({ message, era, decided, others }) => [
          message,
          era,
          decided.map(code).join(', '),
          others.map(code).join(', '),
        ]),
      ),
  },
  'tenant-settings': { page: 'docs/people.md', text: tenantSettings },
  commands: {
    page: 'docs/operation.md',
    text: () =>
      table(
        ['command', 'what it does'],
        COMMANDS.map(({ name, args, summary }) => [
          code([name, ...(args ?? []).map((arg) => arg.name)].join(' ')),
          summary,
        ]),
      ),
  },
  templates: { page: 'docs/templates.md', text: templates },
  'policy-variables': {
    page: 'docs/policy-as-code.md',
    text: () =>
      table(
        ['variable', 'meaning'],
        POLICY_VARIABLES.map(({ name, help }) => [code(name), help]),
      ),
  },
  schema: { page: 'docs/policy-language.md', text: () => `\`\`\`cedarschema\n${schemaFor()}\`\`\`\n` },
  annotations: { page: 'docs/policy-language.md', text: annotations },
  'record-fields': { page: 'docs/formats.md', text: recordFields },
  'hold-kinds': {
    page: 'docs/holds.md',
    text: () =>
      table(
        ['hold type', 'what releases it', 'approvals, at least'],
        HOLD_KIND_NAMES.map((name) => [code(name), holdKind(name).description, String(holdKind(name).leastApprovals)]),
      ),
  },
  destinations: {
    page: 'docs/webhooks.md',
    text: () =>
      table(
        ['`destination_type`', 'what it gets', 'signed'],
        Object.entries(DESTINATIONS).map(([type, { description, proof }]) => [
          code(type),
          description,
          proof === 'signature' ? 'yes, with `secret`' : 'no secret needed',
        ]),
      ),
  },
  'event-types': {
    page: 'docs/webhooks.md',
    text: () =>
      table(
        ['event', 'when'],
        Object.entries(EVENTS).map(([type, { description }]) => [code(type), description]),
      ),
  },
  decisions: {
    page: 'docs/decisions/README.md',
    text: () =>
      table(
        ['', 'decision'],
        globSync('docs/decisions/0*.md', { cwd: root })
          .sort()
          .map((file) => {
            const [, title = ''] = /^# (.+)$/m.exec(readFileSync(path.join(root, file), 'utf8')) ?? [];
            const name = path.basename(file);
            return [name.slice(0, 4), `[${title}](${name})`];
          }),
      ),
  },
  benchmarks: {
    page: 'docs/benchmarks.md',
    text: () =>
      table(
        ['name', 'what', 'takes about'],
        Object.keys(BENCHES).map((name) => [code(name), benchOf(name)!.line, duration(benchOf(name)!.seconds[1])]),
      ),
  },
  'audit-actions': {
    page: 'docs/errors.md',
    text: () =>
      table(
        ['code', 'action'],
        Object.entries(AUDIT_ACTIONS).map(([action, number]) => [code(number), code(action)]),
      ),
  },
};

/** The page with the part between its markers. Throws where the page lacks them. */
export function withPart(page: string, name: string, text: string): string {
  const [begin, end] = [`<!-- begin ${name} -->\n`, `<!-- end ${name} -->`];
  const [from, to] = [page.indexOf(begin), page.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`there is no place for ${name}`);
  return page.slice(0, from + begin.length) + text + page.slice(to);
}

/** The names of the parts that are stale; writes them when told to. */
export function refresh(write: boolean): string[] {
  return Object.entries(PARTS).flatMap(([name, { page, text }]) => {
    const file = path.join(root, page);
    const before = readFileSync(file, 'utf8');
    const after = withPart(before, name, text());
    if (after !== before && write) writeFileSync(file, after);
    return after === before ? [] : [`${name} in ${page}`];
  });
}

if (import.meta.main) {
  const check = process.argv.includes('--check');
  const stale = refresh(!check);
  for (const name of stale) console.log(`${check ? 'stale' : 'written'}: ${name}`);
  if (check && stale.length > 0) console.error('run "npm run docs"');
  process.exitCode = check && stale.length > 0 ? 1 : 0;
}
