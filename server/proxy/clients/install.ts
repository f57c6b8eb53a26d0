import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, lstatSync, mkdirSync, readFileSync, realpathSync, rmSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { createTwoFilesPatch } from 'diff';
import { readSecret } from '../../domain/secret.ts';
import { plainHttpFault } from '../config.ts';
import { Failure, UsageError } from '../failure.ts';
import { writeAtomically } from '../files.ts';
import {
  deviation,
  type Entry,
  type Program,
  preloader,
  readEntries,
  unwrapEntry,
  urlOf,
  wrapEntry,
} from './entries.ts';
import { escaped, holdsSecret, isPlainName, printable } from './printable.ts';
import { CLIENTS, type McpClient, type Place } from './table.ts';

const DEFAULT_URL = 'http://localhost:8080';

export const INSTALL_HELP = `Usage: svc-proxy install [--client CLIENT]… [--server NAME]… [--url URL] [--dry-run] [--json]
       svc-proxy uninstall [--client CLIENT]… [--server NAME]… [--dry-run] [--json]
       svc-proxy status [--client CLIENT]… [--json]

Puts the proxy in front of the MCP servers of desktop clients and editors, takes it away again, or shows where it is.
In a client's file only the wrapped servers change; a copy of the file is kept first. \`uninstall\` puts each server back
as it was. A client reads its file when it starts: restart it afterwards.

  --client CLIENT   only this one: ${CLIENTS.map(({ id }) => id).join(', ')}; default: all that are found
  --all             all clients that are found (the default)
  --file FILE       a file of another place, such as a project's .mcp.json
  --server NAME     only this MCP server; default: all
  --url URL         address of the control plane; default: SVC_URL, or ${DEFAULT_URL}
  --dry-run         show what would change, and change nothing. Of values only what is plainly no secret is shown
  --json            the result as JSON

Keys come from SVC_PROXY_KEY and SVC_AGENT_KEY, from the files of SVC_PROXY_KEY_FILE and SVC_AGENT_KEY_FILE, or are
asked for. They are kept in SVC_PROXY_DIR (default ~/.svc-proxy) in files that only you can read; clients' files name
those files. So are the headers of a server with an address, and an address that holds a secret.

\`status\` calls a server governed only where its entry is as \`install\` wrote it.

Exit codes: 0 done, 1 something could not be done (the rest was), 2 wrong usage.
`;

type Mode = 'install' | 'uninstall' | 'status';

/** The result for one server in one client's file. */
interface Outcome {
  client: string;
  file: string;
  server?: string;
  state: 'governed' | 'not governed' | 'skipped' | 'failed';
  changed: boolean;
  detail?: string;
}

/** What is kept of an entry in order to restore it exactly. */
interface Kept {
  file: string;
  path: readonly string[];
  original: string;
  wrapped: string;
}

/** Runs one of the three commands; resolves to the exit code. Throws a UsageError or a Failure if nothing was done. */
export async function manage(
  mode: Mode,
  argv: string[],
  at: { env: NodeJS.ProcessEnv; script: string; place?: Place; out?: (text: string) => void },
): Promise<number> {
  const { values } = parseArgs({
    args: argv,
    options: {
      client: { type: 'string', multiple: true },
      server: { type: 'string', multiple: true },
      file: { type: 'string' },
      url: { type: 'string' },
      all: { type: 'boolean' },
      'dry-run': { type: 'boolean' },
      json: { type: 'boolean' },
    },
  });
  const out = at.out ?? ((text) => void process.stdout.write(text));
  const place = at.place ?? { platform: process.platform, home: homedir(), env: at.env };
  const dir = path.resolve(at.env.SVC_PROXY_DIR || path.join(place.home, '.svc-proxy'));
  const targets = values.file === undefined ? chosen(values.client, place) : [otherFile(values.file)];
  const dryRun = values['dry-run'] === true;
  const program = mode === 'install' ? await prepare(dir, values.url, at, dryRun) : undefined;

  const kept = readKept(dir);
  const outcomes: Outcome[] = [];
  const patches: string[] = [];
  for (const target of targets) {
    try {
      const done = handle(target, { mode, program, kept, only: values.server, dir, dryRun });
      outcomes.push(...done.outcomes);
      if (done.patch !== undefined) patches.push(done.patch);
    } catch (error) {
      if (!(error instanceof Failure) && (error as NodeJS.ErrnoException).code === undefined) throw error;
      outcomes.push({
        client: target.client.id,
        file: target.file,
        state: 'failed',
        changed: false,
        detail: (error as Error).message,
      });
    }
  }
  // names, and whatever else is from the files, must not look like another line
  const print = (text: string) => out(text.split('\n').map(escaped).join('\n'));
  if (values.json) print(`${JSON.stringify({ dir, outcomes }, null, 2)}\n`);
  else {
    for (const patch of patches) print(patch);
    print(report(mode, outcomes, dryRun));
  }
  return outcomes.some(({ state }) => state === 'failed') ? 1 : 0;
}

interface Target {
  client: McpClient;
  file: string;
  /** It was requested by name, so its absence is an error. */
  named: boolean;
}

function chosen(ids: readonly string[] | undefined, place: Place): Target[] {
  const unknown = ids?.find((id) => !CLIENTS.some((client) => client.id === id));
  if (unknown !== undefined) {
    throw new UsageError(`--client: ${unknown} is unknown; there are ${CLIENTS.map(({ id }) => id).join(', ')}`);
  }
  return CLIENTS.filter(({ id }) => ids === undefined || ids.includes(id)).flatMap((client) => {
    const file = client.file(place);
    return file === undefined ? [] : [{ client, file, named: ids !== undefined }];
  });
}

/** A file of no client in the table; all names that clients use for their servers are searched. */
function otherFile(file: string): Target {
  const roots = [['mcpServers'], ['servers'], ['context_servers']];
  const client = { id: 'file', title: file, roots, comments: true, typed: false, file: () => file };
  return { client, file: path.resolve(file), named: true };
}

function handle(
  { client, file, named }: Target,
  how: {
    mode: Mode;
    program: Program | undefined;
    kept: Kept[];
    only: readonly string[] | undefined;
    dir: string;
    dryRun: boolean;
  },
): { outcomes: Outcome[]; patch?: string } {
  const { mode, program, kept, only, dir, dryRun } = how;
  if (!existsSync(file)) {
    if (named) throw new Failure('there is no such file: start the client once, and add an MCP server to it');
    return { outcomes: [] };
  }
  const before = readFile(file);
  const entries = readEntries(before.text, client);
  let { text } = before;
  const outcomes: Outcome[] = [];
  const secrets: { file: string; content: string }[] = [];
  const unused: string[] = [];
  const shown: { at: readonly string[]; from: string; to: string }[] = [];
  let keeping = kept;
  for (const { path: at, name } of entries) {
    if (only && !only.includes(name)) continue;
    // positions change with each edit
    const entry = readEntries(text, client).find((one) => one.path.join('\0') === at.join('\0')) as Entry;
    const said = { client: client.id, file: before.target, server: name };
    const known = keeping.find((one) => isOf(one, before.target, at));
    if (entry.kind === 'other') {
      outcomes.push({
        ...said,
        state: 'skipped',
        changed: false,
        ...(entry.why !== undefined && { detail: entry.why }),
      });
      continue;
    }
    if (mode === 'status') {
      outcomes.push({ ...said, ...standing(entry, known, dir), changed: false });
      continue;
    }
    const was = text;
    let wrapped: Entry | undefined;
    try {
      if (entry.wrapped) text = unwrapEntry(text, entry, known);
      const files = secretFiles(dir, client.id, before.target, at);
      if (program) {
        const plain = readEntries(text, client).find((one) => one.path.join('\0') === at.join('\0')) as Entry;
        const headers = plain.kind === 'http' && plain.value.headers;
        const headersFile = headers ? files.headers : undefined;
        if (headersFile) secrets.push({ file: headersFile, content: `${JSON.stringify(headers, null, 2)}\n` });
        const url = plain.kind === 'http' ? urlOf(plain.value)! : undefined;
        const urlFile = url !== undefined && holdsSecret(url) ? files.address : undefined;
        if (urlFile) secrets.push({ file: urlFile, content: `${url}\n` });
        text = wrapEntry(text, plain, program, { typed: client.typed, headersFile, urlFile });
        wrapped = readEntries(text, client).find((one) => one.path.join('\0') === at.join('\0')) as Entry;
        // for an entry that was wrapped before, its first original is what counts
        const original = entry.wrapped && known ? known.original : plain.text;
        keeping = [
          ...keeping.filter((one) => one !== known),
          { file: before.target, path: at, original, wrapped: wrapped.text },
        ];
      } else {
        keeping = keeping.filter((one) => one !== known);
        unused.push(files.headers, files.address);
      }
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      text = was;
      outcomes.push({ ...said, state: 'failed', changed: false, detail: error.message });
      continue;
    }
    if (text !== was) shown.push({ at, ...bothPrintable(entry, text, client, program) });
    const http = entry.kind === 'http' && program !== undefined;
    const login = `if this server asks to sign in: svc-proxy login ${isPlainName(name) ? name : 'NAME'}`;
    outcomes.push({
      ...said,
      ...(http && { detail: login }),
      ...(wrapped ? loaded(wrapped) : { state: 'not governed' }),
      changed: text !== was,
    });
  }
  if (text === before.text) return { outcomes };
  if (dryRun) {
    // nothing else of the file: clients keep more than servers in it
    const patches = shown.map(({ at, from, to }) => {
      const title = JSON.stringify(`${before.target} ${at.join('.')}`);
      return createTwoFilesPatch(title, title, from, to, 'now', 'then', { context: 100 });
    });
    return { outcomes, patch: patches.join('') };
  }
  for (const secret of secrets) {
    mkdirSync(path.dirname(secret.file), { recursive: true, mode: 0o700 });
    writeAtomically(secret.file, secret.content);
  }
  const backups = path.join(dir, 'backups');
  mkdirSync(backups, { recursive: true, mode: 0o700 });
  const stamp = new Date().toISOString().replace(/[:.]/g, '-');
  writeAtomically(path.join(backups, `${client.id}-${stamp}-${path.basename(file)}`), before.bytes);
  // first what is needed to restore it, then the change
  writeKept(dir, mergeKept(kept, keeping));
  if (!readFileSync(before.target).equals(before.bytes)) {
    throw new Failure('the client changed its file just now: close the client, and try again');
  }
  writeAtomically(before.target, before.mark + text, before.mode);
  kept.splice(0, kept.length, ...keeping);
  writeKept(dir, keeping);
  for (const one of unused) rmSync(one, { force: true });
  return { outcomes };
}

/** Whether this is certainly what `install` wrote, so that a client starts this proxy with it, and nothing else. */
function standing(entry: Entry, known: Kept | undefined, dir: string): Pick<Outcome, 'state' | 'detail'> {
  if (!entry.wrapped) return { state: 'not governed' };
  if (!known) {
    const detail = `it looks like svc-proxy, but nothing in ${dir} says that it was installed: run svc-proxy install`;
    return { state: 'not governed', detail };
  }
  const changed = deviation(entry, known.wrapped);
  if (changed !== undefined) {
    return { state: 'not governed', detail: `since svc-proxy install somebody changed ${changed}: run it again` };
  }
  const { command, args } = entry.value as { command: string; args: string[] };
  const missing = [command, args[0]!].find((file) => !existsSync(file));
  if (missing === undefined) return loaded(entry);
  return {
    state: 'failed',
    detail: `${missing} is not there any more, so the client cannot start it: run svc-proxy install`,
  };
}

/** Whether a wrapped entry runs nothing before the proxy. */
function loaded(entry: Entry): Pick<Outcome, 'state' | 'detail'> {
  const name = preloader(entry);
  if (name === undefined) return { state: 'governed' };
  const detail = `${name} in its environment can run other code before the proxy: take it out, and run svc-proxy install`;
  return { state: 'not governed', detail };
}

/** The entry before and after, in printable form. */
function bothPrintable(entry: Entry, after: string, client: McpClient, program: Program | undefined) {
  const now = readEntries(after, client).find((one) => one.path.join('\0') === entry.path.join('\0')) as Entry;
  const { SVC_URL: url = '', ...files } = program?.env ?? {};
  const own = [program?.command ?? '', ...(program?.args ?? []), ...Object.values(files), url];
  const text = ({ name, value }: Entry) => {
    const args = Array.isArray(value.args) ? (value.args as string[]) : [];
    const named = ['--headers', '--url-file'].flatMap((option) =>
      args.includes(option) ? [String(args[args.indexOf(option) + 1])] : [],
    );
    const plain = new Set([...own, ...named, `--name=${name}`].filter((word) => word !== ''));
    return `${JSON.stringify({ [name]: printable(value, plain) }, null, 2)}\n`;
  };
  return { from: text(entry), to: text(now) };
}

/** The addresses that clients have for a server of this name behind this directory's proxy. Unreadable files have none. */
export function addressesOf(name: string, place: Place, dir: string): string[] {
  const kept = readKept(dir);
  return chosen(undefined, place).flatMap(({ client, file }) => {
    try {
      if (!existsSync(file)) return [];
      const { text, target } = readFile(file);
      return readEntries(text, client).flatMap((entry) => {
        const known = kept.find((one) => isOf(one, target, entry.path));
        if (entry.name !== name || standing(entry, known, dir).state === 'not governed') return [];
        const args = entry.value.args as string[];
        const option = args.find((word) => word === '--url' || word === '--url-file' || word === '--');
        if (option === undefined || option === '--') return [];
        const said = args[args.indexOf(option) + 1]!;
        return [option === '--url' ? said : readFileSync(said, 'utf8').trim()];
      });
    } catch (error) {
      if (error instanceof Failure || (error as NodeJS.ErrnoException).code !== undefined) return [];
      throw error;
    }
  });
}

/** Both what was kept and what will be: a crash in between must lose neither. */
function mergeKept(before: readonly Kept[], after: readonly Kept[]): Kept[] {
  return [...after, ...before.filter((one) => !after.some((other) => isOf(other, one.file, one.path)))];
}

function isOf(one: Kept, file: string, at: readonly string[]): boolean {
  return one.file === file && one.path.join('\0') === at.join('\0');
}

/**
 * A client's file. If it is a link, as settings managers create them, the file behind it is changed. Throws a Failure if that is
 * not this person's own plain file: what others can change is not trusted, and what belongs to someone else would change owners.
 */
function readFile(file: string): { target: string; bytes: Buffer; text: string; mark: string; mode: number } {
  const target = realpathSync(file);
  const found = lstatSync(target);
  if (!found.isFile()) throw new Failure('it is not a file');
  const uid = process.getuid?.();
  if (uid !== undefined) {
    if (found.uid !== uid) throw new Failure('it belongs to another user: run this as that user');
    const folder = statSync(path.dirname(target));
    const open = (mode: number) => (mode & 0o002) !== 0;
    if (open(found.mode) || (open(folder.mode) && (folder.mode & 0o1000) === 0)) {
      throw new Failure('others can write to it or to its folder: take that right away first (chmod o-w)');
    }
  }
  const bytes = readFileSync(target);
  if (!isUtf8(bytes)) throw new Failure('it is not UTF-8');
  const whole = bytes.toString();
  const mark = whole.startsWith('\ufeff') ? '\ufeff' : '';
  return { target, bytes, text: whole.slice(mark.length), mark, mode: found.mode & 0o777 };
}

const keptFile = (dir: string) => path.join(dir, 'clients.json');

function readKept(dir: string): Kept[] {
  try {
    const { entries } = JSON.parse(readFileSync(keptFile(dir), 'utf8')) as { entries: Kept[] };
    return Array.isArray(entries) ? entries : [];
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw new Failure(
      `${keptFile(dir)} cannot be read: ${(error as Error).message}. Move it away to go on without it.`,
    );
  }
}

function writeKept(dir: string, entries: readonly Kept[]): void {
  if (entries.length === 0) rmSync(keptFile(dir), { force: true });
  else writeAtomically(keptFile(dir), `${JSON.stringify({ entries }, null, 2)}\n`);
}

/** What wrapped entries start: with the keys in their files, and the program in a place where it stays. */
async function prepare(
  dir: string,
  url: string | undefined,
  { env, script }: { env: NodeJS.ProcessEnv; script: string },
  dryRun: boolean,
): Promise<Program> {
  const control = url ?? (env.SVC_URL || DEFAULT_URL);
  if (!/^https?:\/\//.test(control) || !URL.canParse(control))
    throw new UsageError('--url: must be an http or https address');
  const allowed = env.SVC_ALLOW_HTTP?.trim();
  const fault = plainHttpFault(control, allowed);
  if (fault !== undefined) throw new UsageError(`--url: ${fault}`);
  // it appears in each client's file, and in the log
  if (holdsSecret(control)) throw new UsageError('--url: must hold no user, password, query or key: keys are in files');
  if (!dryRun) mkdirSync(dir, { recursive: true, mode: 0o700 });
  const proxyKey = await keyFile('SVC_PROXY_KEY', 'key', 'a proxy key (svc_key_…)', dir, env, dryRun);
  const agentKey = await keyFile('SVC_AGENT_KEY', 'agent', 'an agent key (svc_agent_…)', dir, env, dryRun);
  return {
    command: process.execPath,
    args: [lasting(script, dir, dryRun)],
    env: {
      SVC_URL: control,
      ...(allowed === '1' && { SVC_ALLOW_HTTP: allowed }),
      SVC_PROXY_KEY_FILE: proxyKey,
      SVC_AGENT_KEY_FILE: agentKey,
      SVC_PROXY_DIR: dir,
    },
  };
}

/** The file of a key: the configured one, or one in the proxy's directory, where a key that is given or typed in is stored. */
async function keyFile(
  name: 'SVC_PROXY_KEY' | 'SVC_AGENT_KEY',
  kind: 'key' | 'agent',
  title: string,
  dir: string,
  env: NodeJS.ProcessEnv,
  dryRun: boolean,
): Promise<string> {
  const set = env[`${name}_FILE`];
  if (set) {
    if (readSecret(readFileSync(set, 'utf8').trim())?.kind !== kind)
      throw new Failure(`${name}_FILE: the file does not hold such a key`);
    return path.resolve(set);
  }
  const file = path.join(dir, kind === 'key' ? 'proxy.key' : 'agent.key');
  const given = env[name]?.trim();
  if (!given && (dryRun || existsSync(file))) return file;
  const key = given || (await ask(`Enter ${title}: `));
  if (!key) throw new Failure(`Needed: ${title}: set ${name}, or ${name}_FILE. The console makes one under Keys.`);
  if (readSecret(key)?.kind !== kind) throw new Failure(`${name}: is not ${title}; it is not shown here`);
  if (!dryRun) writeAtomically(file, `${key}\n`);
  return file;
}

/** Asks at the terminal, without showing what is typed; undefined if there is no terminal. */
async function ask(question: string): Promise<string | undefined> {
  if (!process.stdin.isTTY) return undefined;
  process.stderr.write(question);
  const lines = createInterface({ input: process.stdin, terminal: true, output: undefined as never });
  try {
    for await (const line of lines) return line.trim();
    return undefined;
  } finally {
    lines.close();
    process.stderr.write('\n');
  }
}

/** A program unpacked by `npx` may be deleted at any time, so a copy is started instead. */
function lasting(script: string, dir: string, dryRun: boolean): string {
  const cached = /^(.*[\\/]_npx[\\/][^\\/]+[\\/])node_modules[\\/]/.exec(script);
  if (!cached) return script;
  const app = path.join(dir, 'app');
  if (!dryRun) {
    rmSync(app, { recursive: true, force: true });
    cpSync(path.join(cached[1]!, 'node_modules'), path.join(app, 'node_modules'), { recursive: true });
  }
  return path.join(app, script.slice(cached[1]!.length));
}

/** Separate files for each server in each file: if two servers shared one, it would send one server's credential to the other. */
function secretFiles(dir: string, client: string, file: string, at: readonly string[]) {
  const hash = createHash('sha256')
    .update(JSON.stringify([client, file, at]))
    .digest('hex')
    .slice(0, 32);
  const name = at
    .at(-1)!
    .replace(/[^\w.-]/g, '_')
    .slice(0, 50);
  const base = `${client}-${name}-${hash}`;
  return { headers: path.join(dir, 'headers', `${base}.json`), address: path.join(dir, 'addresses', base) };
}

function report(mode: Mode, outcomes: readonly Outcome[], dryRun: boolean): string {
  if (outcomes.length === 0)
    return 'No MCP servers were found. `svc-proxy status --client CLIENT` says where they are looked for.\n';
  const lines = outcomes.map(({ client, server, state, changed, detail, file }) => {
    const verb = dryRun ? `would be ${state}` : state;
    const what = mode === 'status' || !changed ? state : verb;
    const name = server === undefined ? '' : ` ${isPlainName(server) ? server : JSON.stringify(server)}`;
    return `${`${client}${name}`.padEnd(34)} ${what}${detail === undefined ? '' : ` (${escaped(detail)})`}${server === undefined ? `\n  ${escaped(file)}` : ''}`;
  });
  const changed = outcomes.some((one) => one.changed);
  const next = changed && !dryRun ? '\nRestart these clients: they read their files when they start.\n' : '';
  return `${lines.join('\n')}\n${next}`;
}
