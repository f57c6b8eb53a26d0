import { createReadStream, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { readConfig } from '../config.ts';
import { AgentName } from '../domain/agent-names.ts';
import { OPERATOR } from '../domain/audit.ts';
import { faultLines } from '../lib/faults.ts';
import { createTenant } from '../provision.ts';
import { CommandError, columns, command, JSON_FLAG, UsageError, whole } from './command.ts';
import { cleanups, localAddress, withCore } from './installation.ts';
import { assertTenant } from './tenants.ts';

const replay = command({
  name: 'replay',
  summary: 'Send recorded tool calls to a running server and show what the policies decide',
  more: [
    'FILE has one JSON object per line: session_id, agent_role, agent_id, tool_name, arguments, and step if the lines are',
    'not in session order. The *.cedar files of --policies become live policies named after the files. Every call is a',
    'real evaluation: it is decided, counted and recorded. The calls of a session keep their order. Without --url the',
    'locally configured server is used, with a new tenant unless --tenant names one.',
  ].join('\n'),
  args: [{ name: 'FILE', help: 'the recorded calls, as JSON lines' }],
  flags: {
    policies: { value: 'DIR', required: true, help: 'directory of *.cedar files' },
    'agent-role': { value: 'ROLE', help: 'role for every agent, instead of the recorded ones' },
    'agent-per-session': { help: 'treat each session as a separate agent, so that @rate counts per session' },
    tenant: { value: 'ID', help: 'tenant to replay into; default: a new one' },
    url: { value: 'URL', help: 'address of the server; needs --api-key' },
    'api-key': { value: 'KEY', help: 'API key with the scope admin on that server' },
    limit: { value: 'N', help: 'replay the first N calls only' },
    concurrency: { value: 'N', help: 'concurrent sessions; default 4' },
    'skip-bad': { help: 'exit with 0 even if some lines could not be replayed' },
    ...JSON_FLAG,
  },
  async run({ flags, args, print }) {
    if (Boolean(flags.url) !== Boolean(flags['api-key']))
      throw new UsageError('--url and --api-key must be used together');
    const concurrency = whole(flags.concurrency ?? '4', '--concurrency', 1, 256);
    const limit = flags.limit === undefined ? Number.POSITIVE_INFINITY : whole(flags.limit, '--limit', 1, 999_999_999);
    const policies = readPolicies(flags.policies);
    const { sessions, bad } = await readCalls(args[0]!, limit, {
      role: flags['agent-role'],
      perSession: flags['agent-per-session'],
    });
    for (const { line, reason } of bad) process.stderr.write(`line ${line}: ${reason}\n`);
    if (sessions.length === 0) throw new CommandError('the file has no calls to replay');

    const target = flags.url
      ? await remoteTarget(flags.url, flags['api-key']!, flags.tenant)
      : await localTarget(flags.tenant);
    cleanups.add(target.release);
    try {
      const installed = await install(target.api, policies);
      const agents = new AgentKeys(target.api);
      cleanups.add(agents.revoke);
      const tally = new Tally();
      try {
        await run(sessions, concurrency, target, agents, tally);
      } finally {
        cleanups.delete(agents.revoke);
        await agents.revoke();
      }
      const result = {
        tenant_id: target.tenantId,
        url: target.api.base,
        policies: installed,
        sessions: sessions.length,
        ...tally.result(),
        bad_lines: [...bad, ...tally.refused].sort((a, b) => a.line - b.line),
      };
      print(result, report(result));
      return result.bad_lines.length > 0 && !flags['skip-bad'] ? 1 : 0;
    } finally {
      cleanups.delete(target.release);
      await target.release();
    }
  },
});

export const replayCommands = [replay];

interface ToolCall {
  line: number;
  session_id: string;
  step: number;
  agent_id: string;
  agent_role: string;
  tool_name: string;
  arguments: Record<string, unknown>;
}

interface BadLine {
  line: number;
  reason: string;
}

const id = z.string().min(1).max(200);
const Line = z.object({
  session_id: id,
  step: z.number().optional(),
  agent_role: AgentName.optional(),
  agent_id: AgentName,
  tool_name: id,
  arguments: z.record(z.string(), z.unknown()).default({}),
});

/** The calls of the file by session, in session order, and the lines that could not be read. */
async function readCalls(
  file: string,
  limit: number,
  agent: { role: string | undefined; perSession: boolean },
): Promise<{ sessions: ToolCall[][]; bad: BadLine[] }> {
  const sessions = new Map<string, ToolCall[]>();
  const bad: BadLine[] = [];
  let line = 0;
  let calls = 0;
  const input = createReadStream(file, 'utf8');
  for await (const text of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
    line++;
    if (text.trim() === '') continue;
    if (calls >= limit) break;
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (error) {
      bad.push({ line, reason: `not JSON: ${(error as Error).message}` });
      continue;
    }
    const parsed = Line.safeParse(value);
    const role = agent.role ?? parsed.data?.agent_role;
    if (!parsed.success || !role) {
      const faults = parsed.success
        ? ['agent_role: missing; add it or use --agent-role']
        : faultLines(parsed.error, 'line');
      bad.push({ line, reason: faults.join('; ') });
      continue;
    }
    const { step, ...call } = parsed.data;
    const agent_id = agent.perSession ? `${call.agent_id}/${call.session_id}`.slice(0, 200) : call.agent_id;
    const session = sessions.get(call.session_id) ?? [];
    sessions.set(call.session_id, session);
    session.push({ ...call, line, agent_id, agent_role: role, step: step ?? 0 });
    calls++;
  }
  input.destroy();
  // the sort is stable, so calls without steps keep the order of the file
  for (const session of sessions.values()) session.sort((a, b) => a.step - b.step);
  return { sessions: [...sessions.values()], bad };
}

function readPolicies(dir: string): { id: string; text: string }[] {
  const files = readdirSync(dir)
    .filter((name) => name.endsWith('.cedar'))
    .sort();
  if (files.length === 0) throw new CommandError(`${dir} has no *.cedar files`);
  return files.map((name) => ({ id: path.basename(name, '.cedar'), text: readFileSync(path.join(dir, name), 'utf8') }));
}

interface Reply<T> {
  status: number;
  body: T;
  /** The duration of the final attempt, without preceding waits. */
  ms: number;
}

interface Problem {
  code?: string;
  title?: string;
  detail?: string;
  errors?: { pointer?: string; message: string; line?: number; column?: number }[];
}

/** A client of the REST API that waits when the server asks for it. */
export class Api {
  readonly base: string;
  readonly #key: string;
  /** How often the server asked to wait, and the total wait in milliseconds. */
  waits = 0;
  waitedMs = 0;
  readonly #heldUntil = new Map<string, number>();

  constructor(base: string, key: string) {
    this.base = base.replace(/\/+$/, '');
    this.#key = key;
  }

  /**
   * The response, if its status is one of `expected`, with the server's response time in milliseconds (without waits). Otherwise
   * throws a CommandError with the server's message.
   */
  async call<T>(
    expected: readonly number[],
    line: string,
    body?: unknown,
    as?: { key: string; tenant: string },
  ): Promise<Reply<T>> {
    const [method, target] = line.split(' ') as [string, string];
    const key = as?.key ?? this.#key;
    for (let tries = 0; ; ) {
      const held = (this.#heldUntil.get(key) ?? 0) - performance.now();
      if (held > 0) {
        this.waitedMs += held;
        await delay(held);
        continue;
      }
      const began = performance.now();
      const response = await this.#fetch(method, target, key, body, as?.tenant);
      const text = await response.text();
      const ms = performance.now() - began;
      const { status } = response;
      const json = (text && /json/.test(response.headers.get('content-type') ?? '') ? JSON.parse(text) : {}) as T;
      if (expected.includes(status)) return { status, body: json, ms };
      const after = Number(response.headers.get('retry-after') ?? Number.NaN);
      if (!(status === 429 || (status === 503 && ++tries <= 5)) || !(after > 0)) {
        throw new CommandError(`${line} answered ${status}: ${problemText(json as Problem)}`);
      }
      this.waits++;
      this.#heldUntil.set(key, performance.now() + after * 1000);
    }
  }

  async #fetch(
    method: string,
    target: string,
    key: string,
    body: unknown,
    tenant: string | undefined,
  ): Promise<Response> {
    try {
      return await fetch(this.base + target, {
        method,
        redirect: 'error',
        signal: AbortSignal.timeout(60_000),
        headers: {
          authorization: `Bearer ${key}`,
          ...(body !== undefined && { 'content-type': 'application/json' }),
          ...(tenant !== undefined && { 'x-svc-tenant': tenant }),
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
    } catch (error) {
      const { message, cause } = error as Error & { cause?: Error };
      throw new CommandError(`no answer from ${this.base}: ${cause?.message || message}`);
    }
  }
}

function problemText({ code, title, detail, errors }: Problem): string {
  const faults = (errors ?? []).map(
    (e) => `${e.line ? `line ${e.line}, column ${e.column}` : e.pointer}: ${e.message}`,
  );
  return [`${code ?? ''} ${detail ?? title ?? ''}`.trim(), ...faults].join('\n  ');
}

/** The server and tenant of a replay. `release` removes what was created only for the replay. */
interface Target {
  api: Api;
  tenantId: string;
  release(): Promise<void>;
}

async function remoteTarget(url: string, key: string, tenant: string | undefined): Promise<Target> {
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) throw new UsageError('--url must be an http or https URL');
  const api = new Api(url, key);
  const tenantId = await tenantOf(api);
  if (tenant !== undefined && tenant !== tenantId)
    throw new CommandError(`the key belongs to the tenant ${tenantId}, not ${tenant}`);
  return { api, tenantId, release: async () => undefined };
}

/** The locally configured server, with a temporary admin key. */
async function localTarget(tenant: string | undefined): Promise<Target> {
  const config = readConfig();
  const base = localAddress(config);
  try {
    await fetch(`${base}/healthz`, { signal: AbortSignal.timeout(5000) });
  } catch {
    throw new CommandError(`no server answers at ${base}: start it, or use --url and --api-key`);
  }
  const made = await withCore({}, async (core) => {
    if (tenant === undefined) {
      const id = `replay-${new Date().toISOString().replace(/\D/g, '').slice(0, 17)}`;
      const fresh = await createTenant(core, config.baseUrl, { id, name: 'Replay', adminEmail: 'replay@localhost' });
      return { tenantId: id, key: fresh.api_key, release: async () => undefined };
    }
    await assertTenant(core, tenant);
    const { row, secret } = await core.keys.createApiKey(
      tenant,
      { label: 'svc replay', scopes: ['admin'], owner: null, expiresAt: new Date(Date.now() + 24 * 3_600_000) },
      { actor: OPERATOR },
    );
    const release = () =>
      withCore({}, (later) => later.keys.revoke(tenant, 'api_key', row.id, { actor: OPERATOR }, { reason: OVER }));
    return { tenantId: tenant, key: secret, release };
  });
  const api = new Api(base, made.key);
  if ((await tenantOf(api)) !== made.tenantId) {
    throw new CommandError(`the server at ${base} uses a different database than the settings of this command`);
  }
  return { api, tenantId: made.tenantId, release: made.release };
}

async function tenantOf(api: Api): Promise<string> {
  const { status, body } = await api.call<{ tenant_id: string }>([200, 401], 'GET /auth/me');
  if (status === 200) return body.tenant_id;
  throw new CommandError(`the server at ${api.base} does not accept the key; does it use another database?`);
}

interface PolicyBody {
  status: string;
  version: number;
  live_version: number | null;
  dsl_source: string;
}

/** Deploys each text as the live version of its policy. */
async function install(api: Api, policies: readonly { id: string; text: string }[]) {
  const installed: { id: string; version: number; change: string }[] = [];
  for (const { id, text } of policies) {
    const at = `/v1/policies/${encodeURIComponent(id)}`;
    const body = { dsl_source: text };
    const made = await api.call<PolicyBody>([201, 409], 'POST /v1/policies', { id, ...body });
    let change = 'created';
    let policy = made.body;
    if (made.status === 409) {
      policy = (await api.call<PolicyBody>([200], `GET ${at}`)).body;
      change = 'unchanged';
      if (policy.dsl_source !== text || policy.status === 'revoked') {
        policy = (await api.call<PolicyBody>([200], `PUT ${at}`, body)).body;
        change = 'updated';
      }
    }
    if (policy.live_version !== policy.version) {
      policy = (await api.call<PolicyBody>([200], `POST ${at}/approve`, { version: policy.version })).body;
    }
    installed.push({ id, version: policy.version, change });
  }
  return installed;
}

/** One key per agent, created on its first call. */
class AgentKeys {
  readonly #api: Api;
  readonly #keys = new Map<string, Promise<{ id: string; key: string }>>();
  #owner: Promise<string> | undefined;

  constructor(api: Api) {
    this.#api = api;
  }

  async of({ agent_id, agent_role }: ToolCall): Promise<string> {
    const name = JSON.stringify([agent_id, agent_role]);
    let made = this.#keys.get(name);
    if (!made) {
      made = this.#make({ agent_id, agent_role, label: 'svc replay' });
      this.#keys.set(name, made);
    }
    return (await made).key;
  }

  /** They are an admin's, since the key of this program may belong to no one. */
  async #make(input: object): Promise<{ id: string; key: string }> {
    this.#owner ??= this.#api
      .call<{ users: { id: string }[] }>([200], 'GET /v1/users?role=admin&limit=1')
      .then(({ body }) => body.users[0]!.id);
    const owned = { ...input, owner_id: await this.#owner };
    return (await this.#api.call<{ id: string; key: string }>([201], 'POST /v1/agent-keys', owned)).body;
  }

  /** Revokes all of them, because their plaintext is lost when the program ends. */
  readonly revoke = async (): Promise<void> => {
    const made = await Promise.allSettled(this.#keys.values());
    this.#keys.clear();
    for (const key of made) {
      if (key.status === 'fulfilled')
        await this.#api.call([204, 404], `DELETE /v1/agent-keys/${key.value.id}?reason=${OVER}`);
    }
  };
}

interface Evaluation {
  decision: string;
  rule_id: string | null;
  deny_reason?: string;
}

/** Counts the decisions. */
class Tally {
  readonly #tools = new Map<string, Map<string, number>>();
  readonly #rules = new Map<string, Map<string, number>>();
  readonly #decisions = new Map<string, number>();
  readonly #reasons = new Map<string, number>();
  readonly #ms: number[] = [];
  readonly refused: BadLine[] = [];
  seconds = 0;
  waits = 0;
  waitedSeconds = 0;

  add(tool: string, { decision, rule_id, deny_reason }: Evaluation, ms: number): void {
    count(this.#decisions, decision);
    count(within(this.#tools, tool), decision);
    count(within(this.#rules, rule_id ?? '(no rule)'), decision);
    if (deny_reason !== undefined) count(this.#reasons, deny_reason);
    this.#ms.push(ms);
  }

  get done(): number {
    return this.#ms.length + this.refused.length;
  }

  result() {
    const ms = this.#ms.sort((a, b) => a - b);
    const at = (share: number) => round(ms[Math.max(0, Math.ceil(share * ms.length) - 1)] ?? 0);
    const nested = (map: Map<string, Map<string, number>>) =>
      Object.fromEntries(
        [...map].sort(byName).map(([name, counts]) => [name, Object.fromEntries([...counts].sort(byName))]),
      );
    return {
      calls: ms.length,
      decisions: Object.fromEntries([...this.#decisions].sort(byName)),
      tools: nested(this.#tools),
      rules: nested(this.#rules),
      deny_reasons: Object.fromEntries([...this.#reasons].sort(byName)),
      latency_ms: { p50: at(0.5), p99: at(0.99), max: at(1) },
      seconds: round(this.seconds),
      calls_per_second: round(ms.length / this.seconds),
      rate_limit_waits: this.waits,
      waited_seconds: round(this.waitedSeconds),
    };
  }
}

/** The recorded reason for ending the replay's own keys. */
const OVER = 'replayed';
const byName = ([a]: [string, unknown], [b]: [string, unknown]) => (a < b ? -1 : 1);
const round = (value: number) => Math.round(value * 100) / 100;

function count(map: Map<string, number>, name: string): void {
  map.set(name, (map.get(name) ?? 0) + 1);
}

function within<T>(map: Map<string, Map<T, number>>, name: string): Map<T, number> {
  const inner = map.get(name) ?? new Map<T, number>();
  map.set(name, inner);
  return inner;
}

/** Sends the calls: sessions run concurrently, the calls of a session in order. */
async function run(
  sessions: readonly ToolCall[][],
  concurrency: number,
  { api, tenantId }: Target,
  agents: AgentKeys,
  tally: Tally,
): Promise<void> {
  const total = sessions.reduce((sum, session) => sum + session.length, 0);
  const terminal = process.stderr.isTTY;
  let next = 0;
  let failed = false;
  const worker = async () => {
    while (next < sessions.length) {
      for (const call of sessions[next++]!) {
        if (failed) return;
        const { session_id, tool_name } = call;
        const body = { action_type: 'tool_call', tool_name, arguments: call.arguments, session_id };
        try {
          const as = { key: await agents.of(call), tenant: tenantId };
          const reply = await api.call<Evaluation & Problem>([200, 400, 413], 'POST /v1/evaluate', body, as);
          if (reply.status === 200) tally.add(tool_name, reply.body, reply.ms);
          else tally.refused.push({ line: call.line, reason: problemText(reply.body) });
        } catch (error) {
          failed = true;
          throw error;
        }
        if (terminal) process.stderr.write(`\r${tally.done} of ${total}`);
      }
    }
  };
  const before = { waits: api.waits, waitedMs: api.waitedMs };
  const began = performance.now();
  const ends = await Promise.allSettled(Array.from({ length: Math.min(concurrency, sessions.length) }, worker));
  if (terminal) process.stderr.write('\n');
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
  for (const { line, reason } of tally.refused) process.stderr.write(`line ${line}: ${reason}\n`);
  tally.seconds = (performance.now() - began) / 1000;
  tally.waits = api.waits - before.waits;
  tally.waitedSeconds = (api.waitedMs - before.waitedMs) / 1000;
}

type Result = ReturnType<Tally['result']> & { tenant_id: string; url: string; sessions: number; bad_lines: BadLine[] };

function report(r: Result): string[] {
  const kinds = Object.keys(r.decisions);
  const table = (what: string, rows: Record<string, Record<string, number>>) =>
    columns([
      [what, ...kinds],
      ...Object.entries(rows).map(([name, counts]) => [name, ...kinds.map((kind) => counts[kind] ?? '')]),
    ]);
  const { p50, p99, max } = r.latency_ms;
  return [
    `${r.calls} calls of ${r.sessions} sessions to ${r.url}, tenant ${r.tenant_id}`,
    '',
    ...table('tool', { ...r.tools, total: r.decisions }),
    '',
    ...table('rule that decided', r.rules),
    ...(Object.keys(r.deny_reasons).length > 0 ? ['', 'denied because'] : []),
    ...Object.entries(r.deny_reasons).map(([reason, times]) => `${String(times).padStart(6)}  ${reason}`),
    '',
    `latency p50 ${p50} ms, p99 ${p99} ms, max ${max} ms; ${r.calls_per_second} calls/s in ${r.seconds} s`,
    ...(r.rate_limit_waits > 0
      ? [
          `the server asked to wait ${r.rate_limit_waits} times (${r.waited_seconds} s in total, over concurrent sessions); not included in the latency`,
        ]
      : []),
    ...(r.bad_lines.length > 0 ? [`${r.bad_lines.length} lines could not be replayed`] : []),
  ];
}
