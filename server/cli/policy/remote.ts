import { setTimeout as delay } from 'node:timers/promises';
import type { StatedSource, WorkloadScope } from '../../domain/workload.ts';
import { CommandError, UsageError } from '../command.ts';
import type { FolderSettings } from './folder.ts';

/** The environment variables that are read. */
export const POLICY_VARIABLES: readonly { name: string; help: string }[] = [
  { name: 'SVC_URL', help: 'the address of the control plane, as `--url`' },
  { name: 'SVC_TOKEN', help: 'an API key with the scope `pipeline`, or what `svc policy login DIR` printed' },
  { name: 'SVC_OIDC_TOKEN', help: 'the token of the platform, where that is not GitHub; it is exchanged' },
];

type Environment = Readonly<Record<string, string | undefined>>;

interface Problem {
  code?: string;
  title?: string;
  detail?: string;
  errors?: { pointer?: string; message: string; line?: number; column?: number }[];
}

/** An error response from the server. */
export class Refused extends CommandError {
  readonly status: number;
  readonly code: string | undefined;

  constructor(status: number, problem: Problem) {
    const faults = (problem.errors ?? []).slice(0, 10).map(({ pointer, message, line }) => {
      return `\n  ${[pointer, line && `line ${line}`].filter(Boolean).join(' ')}: ${message}`;
    });
    super(`${problem.detail ?? problem.title ?? `the server answered ${status}`}${faults.join('')}`);
    this.status = status;
    this.code = problem.code;
  }
}

const TRIES = 5;
const TIMEOUT_MS = 60_000;

/** The server that a folder belongs to, with a key or an exchanged token. */
export class Remote {
  readonly base: string;
  readonly token: string;

  constructor(base: string, token: string) {
    this.base = base;
    this.token = token;
  }

  /** Retries for a while if the server asks it to wait. Throws Refused for any response but 2xx. */
  async call<T>(line: string, body?: unknown): Promise<T> {
    const headers = { authorization: `Bearer ${this.token}` };
    return send<T>(this.base, line, {
      headers: { ...headers, ...(body !== undefined && { 'content-type': 'application/json' }) },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  }
}

async function send<T>(base: string, line: string, init: RequestInit): Promise<T> {
  const [method, target] = line.split(' ') as [string, string];
  for (let tried = 1; ; tried++) {
    let response: Response;
    try {
      response = await fetch(base + target, {
        ...init,
        method,
        // a credential is sent to this address only
        redirect: 'error',
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
    } catch (error) {
      const { cause, message } = error as Error & { cause?: Error };
      throw new CommandError(`${base} cannot be reached: ${cause?.message || message}`);
    }
    const text = await response.text();
    let value: unknown;
    try {
      value = text === '' ? {} : JSON.parse(text);
    } catch {
      throw new CommandError(`${base} did not answer with JSON: is it the address of the control plane?`);
    }
    if (response.ok) return value as T;
    const wait = Number(response.headers.get('retry-after'));
    if (![429, 503].includes(response.status) || tried === TRIES || !(wait >= 0 && wait <= 60)) {
      throw new Refused(response.status, value as Problem);
    }
    await delay(Math.max(wait, 1) * 1000);
  }
}

export const REMOTE_FLAGS = {
  url: { value: 'URL', help: 'address of the control plane; default: SVC_URL' },
  tenant: { value: 'ID', help: 'id of the tenant, to sign in with a token of a pipeline; default: tenant in svc.yaml' },
  audience: {
    value: 'TEXT',
    help: 'audience of the token of the pipeline, where a trust names another than the default',
  },
} as const;

interface RemoteFlags {
  url: string | undefined;
  tenant: string | undefined;
  audience: string | undefined;
}

export const SIGNING_IN = [
  'It signs in with SVC_TOKEN (an API key, or what "svc policy login" printed), or in a pipeline without any stored key:',
  'on GitHub by itself (permissions: id-token: write), elsewhere with the token of the platform in SVC_OIDC_TOKEN.',
].join('\n');

/** Signs in with what the environment provides. CommandError if it provides nothing, or if the server does not accept it. */
export async function connect(
  flags: RemoteFlags,
  settings: Pick<FolderSettings, 'tenant'>,
  scopes: readonly WorkloadScope[],
  env: Environment = process.env,
): Promise<Remote> {
  const key = env.SVC_TOKEN;
  // INVARIANT: only whoever sets up the run says where its credential is sent, never a file under review
  const url = flags.url ?? env.SVC_URL;
  if (!url) throw new UsageError('the address of the server is missing: set SVC_URL, or use --url');
  const base = addressOf(url);
  if (key) return new Remote(base, key);
  return new Remote(base, await exchange(base, flags, settings, scopes, env));
}

function addressOf(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const local = url && /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/.test(url.hostname);
  if (!url || !(url.protocol === 'https:' || (url.protocol === 'http:' && local)) || url.username || url.search) {
    throw new UsageError(`${JSON.stringify(text)} is not an https address`);
  }
  return url.href.replace(/\/+$/, '');
}

/** Exchanges the pipeline's token for one of the server (RFC 8693). */
async function exchange(
  base: string,
  { tenant = undefined, audience = undefined }: Partial<RemoteFlags>,
  settings: Pick<FolderSettings, 'tenant'>,
  scopes: readonly WorkloadScope[],
  env: Environment,
): Promise<string> {
  const subject = env.SVC_OIDC_TOKEN ?? (await githubToken(base, audience, tenant ?? settings.tenant, env));
  const form = new URLSearchParams({
    grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
    subject_token: subject,
    subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
    scope: scopes.join(' '),
  });
  const answer = await send<{ access_token: string }>(base, 'POST /auth/token', { body: form });
  return answer.access_token;
}

/** Asks GitHub for a token of the run, with this server as its only audience. */
async function githubToken(
  base: string,
  given: string | undefined,
  tenant: string | undefined,
  env: Environment,
): Promise<string> {
  const { ACTIONS_ID_TOKEN_REQUEST_URL: url, ACTIONS_ID_TOKEN_REQUEST_TOKEN: token } = env;
  if (!url || !token) {
    const why = env.GITHUB_ACTIONS ? ' The workflow needs "permissions: id-token: write".' : '';
    throw new CommandError(`There is nothing to sign in with: set SVC_TOKEN or SVC_OIDC_TOKEN.${why}`);
  }
  if (given === undefined && tenant === undefined)
    throw new UsageError('the tenant is missing: use --tenant or svc.yaml');
  const audience = given ?? `${base}/tenants/${tenant}`;
  const address = new URL(url);
  address.searchParams.set('audience', audience);
  const answer = await send<{ value?: string }>(address.origin, `GET ${address.pathname}${address.search}`, {
    headers: { authorization: `Bearer ${token}` },
  });
  if (!answer.value) throw new CommandError('GitHub gave no token');
  return answer.value;
}

const bounded = (text: string | undefined) => (text && text.length <= 300 ? text : undefined);

/** Where the policies come from, according to the pipeline's variables. A token may or may not prove it. */
export function statedSource(env: Environment = process.env): StatedSource | undefined {
  const github = env.GITHUB_ACTIONS === 'true';
  const run =
    env.GITHUB_RUN_ID && `${env.GITHUB_SERVER_URL}/${env.GITHUB_REPOSITORY}/actions/runs/${env.GITHUB_RUN_ID}`;
  const all: StatedSource = {
    repo: bounded(github ? env.GITHUB_REPOSITORY : env.CI_PROJECT_PATH),
    commit: bounded(github ? env.GITHUB_SHA : env.CI_COMMIT_SHA),
    ref: bounded(github ? env.GITHUB_REF : env.CI_COMMIT_REF_NAME),
    run_url: bounded(github ? run : env.CI_JOB_URL),
    actor: bounded(github ? env.GITHUB_ACTOR : env.GITLAB_USER_LOGIN),
  };
  const known = Object.entries(all).filter(([, value]) => value !== undefined);
  return known.length === 0 ? undefined : Object.fromEntries(known);
}
