import { setTimeout as delay } from 'node:timers/promises';
import { WORKLOAD_SCOPES, type WorkloadScope } from '../domain/workload.ts';
import { revisionHash } from '../policy/live.ts';
import {
  type Command,
  CommandError,
  columns,
  command,
  duration,
  JSON_FLAG,
  listOf,
  UsageError,
  whole,
} from './command.ts';
import { exportForCedar } from './policy/cedar.ts';
import { Folder, type FolderPolicy, type Known } from './policy/folder.ts';
import { checkFolder } from './policy/local.ts';
import { connect, REMOTE_FLAGS, Refused, type Remote, SIGNING_IN, statedSource } from './policy/remote.ts';
import {
  brokenOf,
  changesOf,
  checkLines,
  type Plan,
  type Planned,
  planLines,
  planMarkdown,
  summaryOf,
} from './policy/report.ts';

const DIR = { name: 'DIR', help: 'folder with <id>.cedar, <id>.test.yaml and svc.yaml' } as const;
const LAYOUT =
  'DIR holds <id>.cedar, <id>.test.yaml, svc.yaml, and svc.lock.json, which pull and push write: commit it too.';
const READ: readonly WorkloadScope[] = ['policies:read'];
const tell = (line: string) => process.stderr.write(`${line}\n`);

const pull = command({
  name: 'policy pull',
  summary: 'Write the newest versions of the policies of a tenant into a folder',
  more: [LAYOUT, 'A file that was changed here since is kept unless --theirs is used.', SIGNING_IN].join('\n'),
  args: [DIR],
  flags: { ...REMOTE_FLAGS, theirs: { help: 'overwrite files that were changed here' }, ...JSON_FLAG },
  async run({ flags, args, print }) {
    const folder = new Folder(args[0]!);
    const remote = await connect(flags, folder.settings(), READ);
    const all = await everything(remote);
    const here = new Map(folder.policies().map((one) => [one.id, one]));
    const lock = folder.lock();
    const result = {
      written: [] as string[],
      unchanged: [] as string[],
      kept: [] as string[],
      missing: [] as string[],
    };
    for (const { id, version, content_hash, dsl_source, tests_source } of all) {
      const own = here.get(id);
      const hash = own && hashOf(own);
      if (own && hash !== content_hash && hash !== lock.get(id)?.content_hash && !flags.theirs) {
        result.kept.push(id);
        continue;
      }
      if (hash === content_hash) result.unchanged.push(id);
      else {
        folder.put({ id, dsl_source, tests_source });
        result.written.push(id);
      }
      lock.set(id, { version, content_hash });
    }
    const known = new Set(all.map(({ id }) => id));
    result.missing = [...here.keys()].filter((id) => !known.has(id));
    if (all.length > 0) folder.keep(lock);
    print(result, [
      ...result.written.map((id) => `written    ${id}`),
      ...result.kept.map((id) => `kept       ${id}: changed here and on the server; --theirs overwrites it`),
      ...result.missing.map((id) => `not there  ${id}: the server has no such policy`),
      `${result.written.length} written, ${result.unchanged.length} unchanged, ${result.kept.length} kept.`,
    ]);
    return result.kept.length > 0 ? 1 : 0;
  },
});

const test = command({
  name: 'policy test',
  summary: 'Compile the policies of a folder and run their tests, without a server',
  more: [
    'The code is that of the server; the folder stands for the live policies. Exits with 3 if a file has errors, and with 4',
    'if a test fails. Action types and lists of the tenant are taken from svc.yaml.',
    '--cedar writes policies.cedar, schema.cedarschema and tests.json for "cedar run-tests" of the Cedar command line.',
  ].join('\n'),
  args: [DIR],
  flags: {
    cedar: { value: 'OUT', help: 'also export the tests for the Cedar command line into this folder' },
    ...JSON_FLAG,
  },
  async run({ flags, args, print }) {
    const folder = new Folder(args[0]!);
    const settings = folder.settings();
    const policies = some(folder);
    const checked = await checkFolder(policies, settings, (id) => process.stderr.isTTY && tell(`testing ${id}`));
    const broken = checked.some(({ errors, tests_errors }) => errors.length + tests_errors.length > 0);
    const sum = (of: 'passed' | 'failed') => checked.reduce((total, one) => total + one[of], 0);
    const exported = flags.cedar !== undefined && !broken ? exportForCedar(policies, settings, flags.cedar) : undefined;
    print({ policies: checked, passed: sum('passed'), failed: sum('failed'), ...(exported && { exported }) }, [
      ...checkLines(checked),
      '',
      `${sum('passed')} passed, ${sum('failed')} failed.`,
      ...(exported
        ? [`${exported.tests} tests written to ${flags.cedar}; ${exported.omitted.length} have no Cedar form.`]
        : []),
    ]);
    if (broken) return 3;
    return sum('failed') > 0 ? 4 : 0;
  },
});

const PRUNE = { prune: { help: 'revoke policies that were removed from this folder' } } as const;

const plan = command({
  name: 'policy plan',
  summary: 'Show what a push of a folder would change; nothing is saved',
  more: [
    'Exits with 0 if nothing would change, with 2 if something would, and with 1 on an error: a fault of a text, a test that',
    'fails, or an unreachable server.',
    SIGNING_IN,
  ].join('\n'),
  usageCode: 1,
  args: [DIR],
  flags: { ...REMOTE_FLAGS, ...PRUNE, md: { help: 'print Markdown for the comment of a review' }, ...JSON_FLAG },
  async run({ flags, args, print }) {
    if (flags.md && flags.json) throw new UsageError('use either --md or --json');
    const folder = new Folder(args[0]!);
    const settings = folder.settings();
    const prune = flags.prune || settings.prune;
    const found = await planOf(folder, await connect(flags, settings, READ));
    print(found, flags.md ? planMarkdown(found, prune) : planLines(found, prune));
    if (brokenOf(found).length > 0) return 1;
    return changesOf(found).length > 0 || (prune && found.removed.length > 0) ? 2 : 0;
  },
});

const push = command({
  name: 'policy push',
  summary: 'Create a version of each policy of a folder that differs from the newest one',
  more: [
    'Where the tenant requires approval they are drafts, which --submit sends to review; elsewhere a policy that is live is',
    'replaced at once. A policy that was changed elsewhere since the folder was in step is refused, unless --ours overwrites',
    'that change or --theirs writes it into the folder instead. Nothing is pushed while a file has a fault or a test fails.',
    LAYOUT,
    SIGNING_IN,
  ].join('\n'),
  args: [DIR],
  flags: {
    ...REMOTE_FLAGS,
    ...PRUNE,
    submit: { help: 'submit the drafts for review' },
    message: { value: 'TEXT', help: 'what the reviewers should know; needs --submit' },
    ours: { help: 'overwrite what was changed elsewhere' },
    theirs: { help: 'take over what was changed elsewhere' },
    ...JSON_FLAG,
  },
  async run({ flags, args, print }) {
    if (flags.ours && flags.theirs) throw new UsageError('use either --ours or --theirs');
    if (flags.message !== undefined && !flags.submit) throw new UsageError('--message needs --submit');
    const folder = new Folder(args[0]!);
    const settings = folder.settings();
    const scopes = flags.submit ? WORKLOAD_SCOPES : WORKLOAD_SCOPES.filter((scope) => scope !== 'policies:submit');
    const remote = await connect(flags, settings, scopes);
    const found = await planOf(folder, remote);
    const prune = flags.prune || settings.prune;
    const stop = (lines: string[], why: string) => {
      print({ ...found, pushed: [] }, lines);
      throw new CommandError(why);
    };
    if (brokenOf(found).length > 0)
      stop(planLines(found, prune), 'nothing was pushed: files have faults or tests fail');
    const drifted = found.policies.filter(({ drift }) => drift !== null);
    if (drifted.length > 0 && !flags.ours && !flags.theirs) {
      const why = drifted.map(({ id, drift }) => `${id} ${drift}`).join('; ');
      stop([], `nothing was pushed, because policies were changed elsewhere: ${why}. Use --ours or --theirs`);
    }
    const pushed: { id: string; version: number; status: string; did: string; live: boolean }[] = [];
    const lock = folder.lock();
    const note = flags.message;
    let waiting: Refused | undefined;
    const texts = new Map(folder.policies().map((one) => [one.id, one]));
    const stated = statedSource();
    try {
      for (const one of found.policies) {
        const { id } = one;
        if (one.drift !== null && flags.theirs) {
          const theirs = await remote.call<Stored>(`GET /v1/policies/${id}`);
          folder.put(theirs);
          lock.set(id, { version: theirs.version, content_hash: theirs.content_hash });
          pushed.push({ ...row(theirs), did: 'taken over from the server' });
          continue;
        }
        let now: Stored | undefined;
        let did = 'unchanged';
        if (one.change !== 'none') {
          now = await saved(remote, one, texts.get(id)!, stated);
          did = one.change === 'create' ? 'created' : 'changed';
        }
        const { status, version } = now ?? one.newest!;
        if (flags.submit && status === 'draft') {
          try {
            const body = { expected_version: version, ...(note !== undefined && { note }) };
            now = await remote.call<Stored>(`POST /v1/policies/${id}/submit`, body);
            did += ', submitted';
          } catch (error) {
            if (!(error instanceof Refused) || error.status !== 403) throw error;
            waiting = error;
          }
        }
        const { content_hash } = one;
        lock.set(id, { version: now?.version ?? version, content_hash });
        const after = now ?? { id, version, status: one.newest!.status, live_version: one.live_version };
        pushed.push({ ...row(after), did });
      }
      if (prune) {
        for (const id of found.removed) {
          const gone = await remote.call<Stored>(`DELETE /v1/policies/${id}`, { reason: 'removed from the folder' });
          lock.delete(id);
          pushed.push({ ...row(gone), did: 'revoked' });
        }
      }
    } finally {
      // even after an error, record in the folder what was done
      if (pushed.length > 0) folder.keep(lock);
    }
    print({ pushed, approval_required: found.approval_required }, [
      ...columns(pushed.map((one) => [one.id, `version ${one.version}`, one.live ? 'live' : one.status, one.did])),
      summaryOf(found, prune),
    ]);
    if (waiting) {
      throw new CommandError(`the drafts were saved but not submitted: ${waiting.message}. A person can submit them`);
    }
    return 0;
  },
});

const status = command({
  name: 'policy status',
  summary: 'Show whether the policies of a folder are live on the server and on its proxies',
  more: [
    'Exits with 0 if they are, with 2 if they are not yet, and with 1 on an error or if a version was rejected.',
    SIGNING_IN,
  ].join('\n'),
  usageCode: 1,
  args: [DIR],
  flags: {
    ...REMOTE_FLAGS,
    wait: { value: 'TIME', help: 'wait until they are, for at most this long: 10m' },
    percent: { value: 'N', help: 'how many of the proxies must enforce them, in percent; default 100' },
    ...JSON_FLAG,
  },
  async run({ flags, args, print }) {
    const folder = new Folder(args[0]!);
    const until = Date.now() + (flags.wait === undefined ? 0 : duration(flags.wait, '--wait'));
    const percent = whole(flags.percent ?? '100', '--percent', 0, 100);
    const policies = some(folder);
    const remote = await connect(flags, folder.settings(), READ);
    for (let before = ''; ; ) {
      const now = await standing(remote, policies, percent);
      const over = now.done || now.rejected || Date.now() >= until;
      if (over) {
        print(now, [
          ...columns(now.policies.map(({ id, state }) => [id, state])),
          `${now.proxies.current} of ${now.proxies.total} proxies enforce the live policies.`,
        ]);
        return now.done ? 0 : now.rejected ? 1 : 2;
      }
      const waits = now.policies.filter(({ live }) => !live).map(({ id, state }) => `${id} ${state}`);
      const line = [...waits.slice(0, 5), `${now.proxies.current} of ${now.proxies.total} proxies`].join('; ');
      if (line !== before) tell(`waiting: ${line}`);
      before = line;
      await delay(Math.min(now.poll_ms, Math.max(0, until - Date.now()) + 1));
    }
  },
});

const login = command({
  name: 'policy login',
  summary: 'Exchange the token of a pipeline and print a token for SVC_TOKEN, valid for 15 minutes',
  more: 'Where a platform gives a job one token only, sign in once: export SVC_TOKEN="$(svc policy login DIR)"',
  args: [DIR],
  flags: {
    ...REMOTE_FLAGS,
    scopes: { value: 'LIST', help: `${WORKLOAD_SCOPES.join(', ')}; default: policies:read` },
  },
  async run({ flags, args }) {
    if (process.env.SVC_TOKEN) throw new UsageError('SVC_TOKEN is set already');
    const scopes = flags.scopes === undefined ? READ : listOf(flags.scopes, '--scopes', WORKLOAD_SCOPES);
    const remote = await connect(flags, new Folder(args[0]!).settings(), scopes);
    process.stdout.write(`${remote.token}\n`);
    return 0;
  },
});

export const policyCommands: readonly Command[] = [pull, plan, test, push, status, login];

interface Stored extends FolderPolicy, Known {
  status: string;
  live_version: number | null;
}

const hashOf = ({ dsl_source, tests_source }: FolderPolicy) => revisionHash(dsl_source, tests_source);
const row = ({ id, version, status, live_version }: Pick<Stored, 'id' | 'version' | 'status' | 'live_version'>) => ({
  ...{ id, version, status, live: live_version === version },
});

function some(folder: Folder): FolderPolicy[] {
  const policies = folder.policies();
  if (policies.length === 0) throw new CommandError(`${folder.dir} has no *.cedar files`);
  return policies;
}

/** The policies that are not revoked. */
async function everything(remote: Remote): Promise<Stored[]> {
  const found = new Map<string, Stored>();
  for (let offset = 0; ; ) {
    const { policies, total } = await remote.call<{ policies: Stored[]; total: number }>(
      `GET /v1/policies?limit=200&offset=${offset}`,
    );
    for (const one of policies) if (one.status !== 'revoked') found.set(one.id, one);
    offset += policies.length;
    if (policies.length === 0 || offset >= total) return [...found.values()];
  }
}

/** The most policies in one request. */
const BATCH = 200;

async function planOf(folder: Folder, remote: Remote): Promise<Plan> {
  const policies = folder.policies();
  const lock = folder.lock();
  if (policies.length === 0 && lock.size === 0) throw new CommandError(`${folder.dir} has no *.cedar files`);
  if (policies.length > BATCH) throw new CommandError(`a folder has at most ${BATCH} policies`);
  if (process.stderr.isTTY) tell(`planning ${policies.length} policies`);
  const answer = await remote.call<{
    policies: Planned[];
    others: { id: string; source: { repo?: string } | null }[];
    approval_required: boolean;
  }>('POST /v1/policies/plan', { policies });
  const repo = statedSource()?.repo;
  /** A pipeline of this repository wrote it, or the folder is known to have been in sync with it. */
  const ours = (id: string, source: { repo?: string | undefined } | null, hash?: string) =>
    (hash !== undefined && lock.get(id)?.content_hash === hash) || (repo !== undefined && source?.repo === repo);
  const removed = answer.others.filter(({ id, source }) => lock.has(id) || ours(id, source)).map(({ id }) => id);
  return {
    policies: answer.policies.map((one) => ({ ...one, drift: driftOf(one, ours) })),
    removed,
    unmanaged: answer.others.map(({ id }) => id).filter((id) => !removed.includes(id)),
    approval_required: answer.approval_required,
  };
}

/** A description, if the newest version is neither from this folder nor known to it, and pushing would replace it. */
function driftOf(
  { id, change, newest }: Planned,
  ours: (id: string, source: { repo?: string | undefined } | null, hash?: string) => boolean,
): string | null {
  if (change !== 'update' || !newest) return null;
  // whatever its text: someone ended it
  if (newest.status === 'revoked') return `was revoked in version ${newest.version}`;
  if (ours(id, newest.source, newest.content_hash)) return null;
  const from = newest.source?.repo === undefined ? '' : ` from ${newest.source.repo}`;
  return `has version ${newest.version} by ${newest.author_id}${from}`;
}

async function saved(
  remote: Remote,
  one: Planned,
  { id, dsl_source, tests_source }: FolderPolicy,
  stated: object | undefined,
): Promise<Stored> {
  const source = { ...stated, path: `${id}.cedar` };
  const body = { dsl_source, tests_source, source };
  if (!one.newest) return remote.call<Stored>('POST /v1/policies', { id, ...body });
  // refused if it has changed since the plan
  return remote.call<Stored>(`PUT /v1/policies/${id}`, { ...body, expected_version: one.newest.version });
}

interface Version {
  version: number;
  content_hash: string;
  live: boolean;
  review?: { status: string };
}

async function standing(remote: Remote, policies: readonly FolderPolicy[], percent: number) {
  const found: { id: string; state: string; live: boolean; rejected: boolean }[] = [];
  for (const policy of policies) {
    const { id } = policy;
    const hash = hashOf(policy);
    let stored: { status: string; versions: Version[] } | undefined;
    try {
      stored = await remote.call(`GET /v1/policies/${id}`);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
    }
    const live = stored?.versions.some((one) => one.live && one.content_hash === hash) ?? false;
    const newest = stored?.versions[0];
    const ours = newest?.content_hash === hash;
    const rejected = !live && ours && ['rejected', 'changes_requested'].includes(newest?.review?.status ?? '');
    const state = live
      ? 'live'
      : !stored
        ? 'not on the server'
        : !ours
          ? `differs from version ${newest!.version}`
          : rejected
            ? `${newest!.review!.status.replaceAll('_', ' ')} in version ${newest!.version}`
            : stored.status.replaceAll('_', ' ');
    found.push({ id, state, live, rejected });
  }
  const { proxies, current, silent, poll_seconds } = await remote.call<{
    proxies: number;
    current: number;
    silent: number;
    poll_seconds: number;
  }>('GET /v1/proxies/rollout');
  const everywhere = current * 100 >= proxies * percent;
  return {
    done: found.every(({ live }) => live) && everywhere,
    rejected: found.some(({ rejected }) => rejected),
    policies: found,
    proxies: { total: proxies, current, silent },
    poll_ms: Math.min(poll_seconds * 1000, 5000),
  };
}
