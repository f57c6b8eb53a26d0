import {
  applyEdits,
  findNodeAtLocation,
  modify,
  type Node,
  type ParseError,
  parseTree,
  printParseErrorCode,
} from 'jsonc-parser';
import { Failure } from '../failure.ts';
import type { McpClient } from './table.ts';

/** How a wrapped entry starts the proxy. */
export interface Program {
  command: string;
  /** The arguments before `mcp`. */
  args: readonly string[];
  /** The proxy settings that each entry gets; names begin with SVC_. No secrets: those are in files. */
  env: Readonly<Record<string, string>>;
}

/** One MCP server in a client's file. */
export interface Entry {
  /** The path of members that lead to it. */
  path: readonly string[];
  name: string;
  /** As it is written in the file. */
  text: string;
  value: Record<string, unknown>;
  /** `other`: not something that can be wrapped; `why` states the reason. */
  kind: 'stdio' | 'http' | 'other';
  /**
   * Whether it has the form that `install` writes. Whether `install` wrote it, and it is still as written, is a separate
   * question.
   */
  wrapped: boolean;
  why?: string;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const isTexts = (value: unknown): value is string[] =>
  Array.isArray(value) && value.every((one) => typeof one === 'string');

/**
 * The servers in a client's file. Throws a Failure for a file that the client would not read, or would read differently than this
 * program.
 */
export function readEntries(text: string, client: Pick<McpClient, 'roots' | 'comments'>): Entry[] {
  const root = parse(text, client.comments);
  if (!root) return [];
  if (root.type !== 'object') throw new Failure('the file does not hold a JSON object');
  return client.roots
    .flatMap((path) => expand(root, path))
    .flatMap((path) => {
      const servers = findNodeAtLocation(root, path);
      if (servers?.type !== 'object') return [];
      return (servers.children ?? []).flatMap((property) => {
        const [key, value] = property.children ?? [];
        if (!key || !value) return [];
        return [entryOf(text, [...path, String(key.value)], value)];
      });
    });
}

function entryOf(text: string, path: readonly string[], node: Node): Entry {
  const value = read(node);
  const found = {
    path,
    name: path.at(-1)!,
    text: text.slice(node.offset, node.offset + node.length),
    value: isObject(value) ? value : {},
  };
  const other = (why: string): Entry => ({ ...found, kind: 'other', wrapped: false, why });
  if (found.name === '' || found.name.length > 200) return other('its name has not 1 to 200 characters');
  const { command, args, env, type } = found.value;
  const url = urlOf(found.value);
  // clients differ in which of them counts: one that takes the address would bypass the proxy
  const addresses = ['url', 'serverUrl', 'httpUrl'].filter((key) => Object.hasOwn(found.value, key));
  if (addresses.length + (command === undefined ? 0 : 1) > 1) return other('it has several commands or addresses');
  if (typeof command === 'string') {
    if (args !== undefined && !isTexts(args)) return other('its arguments are not a list of texts');
    if (env !== undefined && !isObject(env)) return other('its environment is not an object');
    return { ...found, kind: 'stdio', wrapped: isWrapped(found.value) };
  }
  if (url === undefined) return other('it has neither a command nor an address');
  const { username, password } = new URL(url);
  if (username || password) {
    return other(
      'its address has a user or a password: take them out, and give the server a header Authorization instead',
    );
  }
  if (type === 'sse' || /\/sse\/?$/.test(url)) return other('its transport (SSE) was replaced by Streamable HTTP');
  const { headers } = found.value;
  if (headers !== undefined && !(isObject(headers) && Object.values(headers).every((one) => typeof one === 'string'))) {
    return other('its headers are not texts');
  }
  if (/\$\{/.test(JSON.stringify([url, headers ?? {}])))
    return other('its address or headers use variables of the client');
  return { ...found, kind: 'http', wrapped: false };
}

/** The address of a remote server, under any of the names that clients use for it. */
export function urlOf(value: Record<string, unknown>): string | undefined {
  const url = value.url ?? value.serverUrl ?? value.httpUrl;
  return typeof url === 'string' && /^https?:\/\//.test(url) && URL.canParse(url) ? url : undefined;
}

function isWrapped({ args, env }: Record<string, unknown>): boolean {
  if (!isTexts(args) || !isObject(env) || typeof env.SVC_PROXY_DIR !== 'string') return false;
  const at = args.indexOf('mcp');
  return at >= 0 && args[at + 1]?.startsWith('--name=') === true;
}

/** Variables that make Node.js, or the linker that loads it, run code that is not the proxy's. Windows ignores their case. */
const PRELOADERS =
  /^(?:NODE_(?:OPTIONS|PATH|COMPILE_CACHE|REPL_EXTERNAL_MODULE)$|OPENSSL_|LD_|DYLD_|GLIBC_TUNABLES$|GCONV_PATH$|LOCPATH$)/i;

/** Variables that make some program run, or trust, something other than its command says. */
const LOADERS = new RegExp(
  [
    PRELOADERS.source,
    '^(?:NODE_|SSL_CERT_|SSLKEYLOGFILE$)',
    '^PYTHON(?:PATH|HOME|STARTUP|USERBASE|PLATLIBDIR|EXECUTABLE|BREAKPOINT|WARNINGS|PYCACHEPREFIX)$',
    '^(?:RUBYOPT|RUBYLIB|GEM_HOME|GEM_PATH|BUNDLE_GEMFILE|PERL5OPT|PERL5LIB|PERLLIB|PERL5DB)$',
    '^(?:JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|CLASSPATH)$',
    '^(?:BASH_ENV$|npm_config_)',
  ].join('|'),
  'i',
);

/** A variable in the environment of a wrapped entry that may run other code before the proxy; undefined if there is none. */
export function preloader({ value }: Pick<Entry, 'value'>): string | undefined {
  return Object.keys(value.env ?? {}).find((name) => PRELOADERS.test(name));
}

/**
 * What in this entry differs from what `install` wrote and determines what a client starts; undefined if nothing does. The
 * server's own arguments and environment belong to their owner.
 */
export function deviation({ value }: Entry, written: string): string | undefined {
  const then = objectOf(written) as Record<string, unknown>;
  const [args, first] = [value.args, then.args] as [string[], string[]];
  const own = first.includes('--') ? first.indexOf('--') + 1 : first.length;
  const fixed = first.includes('--') ? args.slice(0, own) : args;
  if (value.command !== then.command) return 'its command';
  if (fixed.length !== own || fixed.some((word, n) => word !== first[n])) return 'its arguments';
  const [env, before] = [value.env, then.env] as [Record<string, unknown>, Record<string, unknown>];
  const names = [...new Set([...Object.keys(env), ...Object.keys(before)])];
  const name = names.find((one) => (one.startsWith('SVC_') || LOADERS.test(one)) && env[one] !== before[one]);
  if (name !== undefined) return `${name} in its environment`;
  // some clients use these to choose what they start, or to fill in more of the environment
  return ['type', 'transport', 'url', 'serverUrl', 'httpUrl', 'envFile', 'cwd', 'shell', 'inputs', 'sandbox'].find(
    (member) => JSON.stringify(value[member]) !== JSON.stringify(then[member]),
  );
}

/**
 * The file with one of its servers wrapped. For an entry with a command, only `command`, `args` and the proxy's own `env` change;
 * one with an address is replaced. `headersFile` is where the headers for an address are kept, `urlFile` the address itself if it
 * is a secret.
 */
export function wrapEntry(
  text: string,
  entry: Entry,
  program: Program,
  more: { typed: boolean; headersFile?: string | undefined; urlFile?: string | undefined },
): string {
  const { value, name } = entry;
  const front = [...program.args, 'mcp', `--name=${name}`];
  if (entry.kind === 'http') {
    const address = more.urlFile ? ['--url-file', more.urlFile] : ['--url', urlOf(value)!];
    const args = [...front, ...address, ...(more.headersFile ? ['--headers', more.headersFile] : [])];
    // nothing of it that would become the proxy's
    const { url: _u, serverUrl: _s, httpUrl: _h, headers: _hs, type: _t, args: _a, env: _e, ...rest } = value;
    const wrapped = { ...(more.typed && { type: 'stdio' }), command: program.command, args, env: program.env, ...rest };
    return set(text, entry.path, wrapped);
  }
  const { command, args = [], env = {} } = value as { command: string; args?: string[]; env?: object };
  let next = set(text, [...entry.path, 'command'], program.command);
  next = set(next, [...entry.path, 'args'], [...front, '--', command, ...args]);
  for (const [key, setting] of Object.entries(program.env)) {
    if ((env as Record<string, unknown>)[key] !== setting) next = set(next, [...entry.path, 'env', key], setting);
  }
  return next;
}

/**
 * The file with one wrapped server restored: from what was kept of it, or else from what the wrapped entry says. If someone has
 * turned the entry into something else, none of that is carried over.
 */
export function unwrapEntry(
  text: string,
  entry: Entry,
  kept: { original: string; wrapped: string } | undefined,
): string {
  const whole = kept && (kept.wrapped === entry.text || !('command' in objectOf(kept.original)));
  if (whole || (kept && deviation(entry, kept.wrapped) !== undefined)) return splice(text, entry, kept.original);
  const { args, env } = entry.value as { args: string[]; env: Record<string, unknown> };
  const [command, ...rest] = args.slice(args.indexOf('--') + 1);
  if (!args.includes('--') || command === undefined) {
    throw new Failure(`${entry.name}: what it was before is not known; it is left as it is`);
  }
  let next = set(text, [...entry.path, 'command'], command);
  next = set(next, [...entry.path, 'args'], rest);
  const own = Object.keys(env).filter((key) => key.startsWith('SVC_'));
  if (own.length === Object.keys(env).length) return set(next, [...entry.path, 'env'], undefined);
  for (const key of own) next = set(next, [...entry.path, 'env', key], undefined);
  return next;
}

function objectOf(text: string): object {
  const node = parseTree(text, [], { allowTrailingComma: true });
  const value = node && read(node);
  return isObject(value) ? value : {};
}

function splice(text: string, entry: Entry, replacement: string): string {
  const node = findNodeAtLocation(parse(text, true)!, [...entry.path])!;
  return text.slice(0, node.offset) + replacement + text.slice(node.offset + node.length);
}

/** Formatted like the rest of the file; in a single-line file, on that line. */
function set(text: string, path: readonly string[], value: unknown): string {
  if (!text.trim().includes('\n')) return applyEdits(text, modify(text, [...path], value, {}));
  const indent = /\n(\t| {1,8})\S/.exec(text)?.[1] ?? '  ';
  const formattingOptions = {
    insertSpaces: indent !== '\t',
    tabSize: indent.length,
    eol: text.includes('\r\n') ? '\r\n' : '\n',
  };
  return applyEdits(text, modify(text, [...path], value, { formattingOptions }));
}

/**
 * Throws a Failure on a syntax error, and on an object with two members of the same name, because it is unclear which one counts.
 */
function parse(text: string, comments: boolean): Node | undefined {
  const errors: ParseError[] = [];
  const root = parseTree(text, errors, {
    allowTrailingComma: comments,
    disallowComments: !comments,
    allowEmptyContent: true,
  });
  const [error] = errors;
  if (error) {
    const line = text.slice(0, error.offset).split('\n').length;
    throw new Failure(`line ${line} is not valid JSON (${printParseErrorCode(error.error)})`);
  }
  const visit = (node: Node): void => {
    if (node.type === 'object') {
      const names = (node.children ?? []).map((property) => property.children?.[0]?.value);
      const twice = names.find((name, n) => names.indexOf(name) < n);
      if (twice !== undefined) throw new Failure(`it has ${JSON.stringify(twice)} twice in one object`);
    }
    node.children?.forEach(visit);
  };
  if (root) visit(root);
  return root;
}

/** The paths that a root expands to. */
function expand(root: Node, path: readonly string[]): string[][] {
  const star = path.indexOf('*');
  if (star < 0) return [[...path]];
  const node = findNodeAtLocation(root, path.slice(0, star));
  const names =
    node?.type === 'object' ? (node.children ?? []).map((property) => String(property.children?.[0]?.value)) : [];
  return names.map((name) => [...path.slice(0, star), name, ...path.slice(star + 1)]);
}

function read(node: Node): unknown {
  if (node.type === 'array') return (node.children ?? []).map(read);
  if (node.type !== 'object') return node.value;
  return Object.fromEntries(
    (node.children ?? []).map(({ children = [] }) => [String(children[0]?.value), children[1] && read(children[1])]),
  );
}
