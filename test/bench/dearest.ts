import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { type BenchContext, type Figure, figure, median, pick } from './lib.ts';
import { withProgram } from './program.ts';

/** What an accepted and a refused request may take of the thread that serves all tenants. */
const MOST_MS = { accepted: 25, refused: 5 } as const;

/** Some kernels count processor time in steps of milliseconds. */
const TOGETHER = 8;

const POLICY = `
@id("amounts") permit(principal, action, resource == Tool::"limited")
unless { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("masks") @mask("$.card.number,$..ssn") permit(principal, action, resource == Tool::"masked");
@id("holds") @escrow("single") permit(principal, action, resource == Tool::"held");
@id("rest") permit(principal, action, resource == Tool::"unread");
`;

const members = (count: number, nameOf: (n: number) => string, value: unknown = 1) =>
  Object.fromEntries(Array.from({ length: count }, (_, n) => [nameOf(n), value]));

/** Arguments that are dear in one way each, as large as is still accepted; and beyond that. */
const ARGUMENTS: Record<string, unknown> = {
  'brackets in names': members(1_900, (n) => `a[bcd][e]${n}`),
  'many brackets in names': members(120, (n) => `a${'[a]'.repeat(15)}${n}`),
  'too many brackets in names': members(1_900, (n) => `a${'[a]'.repeat(15)}${n}`),
  'letters that fold': members(1_900, (n) => `\u212A${n}`),
  'ligatures in names': members(500, (n) => `${'\uFDFA'.repeat(30)}${n}`),
  'long names': members(500, (n) => `${'k'.repeat(1_000)}${n}`),
  'long names of letters that fold': members(3_450, (n) => `\u212A${'y'.repeat(90)}${n}`),
  'names in reverse order': Object.fromEntries(Object.entries(members(3_450, (n) => `k${n}`)).reverse()),
  cells: { rows: Array.from({ length: 100 }, () => Array.from({ length: 65 }, () => 1)) },
  'one long text': { text: 'x'.repeat(1_000_000) },
  'quotes in a text': { text: '"'.repeat(450_000) },
  'invisible characters': { text: '\u202e'.repeat(300_000) },
  'texts that are JSON': { texts: Array.from({ length: 1_900 }, () => '{"a":["{\\"b\\":1}"]}'.padEnd(400)) },
  'too many values': { values: Array.from({ length: 450_000 }, () => 1) },
  'too many names': members(60_000, (n) => `k${n}`),
};

/** Each route that agents reach, with its dearest accepted request and its dearest refused one, in processor time. */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const rounds = pick(ctx, 3, 9, 25);
  // in another process, whose work does not count
  const caller = fork(import.meta.filename, [CALLER]);
  try {
    return await measured(ctx, caller, rounds);
  } finally {
    caller.kill();
  }
}

interface Calls {
  url: string;
  key: string;
  body: string;
  times: number;
}

/** Makes calls one after the other; resolves with the status of the last one. */
async function called(caller: ChildProcess, calls: Calls): Promise<number> {
  const answer = once(caller, 'message') as Promise<[number]>;
  caller.send(calls);
  return (await answer)[0];
}

function measured(ctx: BenchContext, caller: ChildProcess, rounds: number): Promise<Figure[]> {
  return withProgram(ctx.url, async ({ url, core, tenantId, adminKey }) => {
    const send = (target: string, key: string, body: string) =>
      fetch(url + target, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body,
      });
    const made = async <T>(target: string, body: object) => {
      const response = await send(target, adminKey, JSON.stringify(body));
      if (!response.ok) throw new Error(`${target}: ${response.status} ${await response.text()}`);
      return (await response.json()) as T;
    };
    await made('/v1/policies', { id: 'p', dsl_source: POLICY });
    await made('/v1/policies/p/approve', { version: 1 });
    const { secret } = await core.keys.createAgentKey(
      tenantId,
      { label: 'bench', agentId: 'bench', agentRole: 'any', owner: null },
      { actor: { type: 'operator', id: 'bench' } },
    );
    const action = (tool_name: string, args: unknown) => ({ action_type: 'tool_call', tool_name, arguments: args });
    const evaluated = await send('/v1/evaluate', secret, JSON.stringify(action('unread', {})));
    const { event_id } = (await evaluated.json()) as { event_id: string };
    const routes: Record<string, [target: string, body: (args: unknown) => object]> = {};
    for (const tool of ['limited', 'masked', 'held', 'unread']) {
      routes[`POST /v1/evaluate, ${tool}`] = ['/v1/evaluate', (args) => action(tool, args)];
    }
    routes['POST /v1/evaluate/batch'] = ['/v1/evaluate/batch', (args) => ({ requests: [action('limited', args)] })];
    routes['POST /v1/outcomes'] = ['/v1/outcomes', (answer) => ({ event_id, outcome: 'succeeded', answer })];
    const figures: Figure[] = [];
    for (const [route, [target, bodyOf]] of Object.entries(routes)) {
      const dearest: Record<'accepted' | 'refused', { what: string; ms: number[] }> = {
        accepted: { what: 'nothing', ms: [0] },
        refused: { what: 'nothing', ms: [0] },
      };
      for (const [what, args] of Object.entries(ARGUMENTS)) {
        const body = JSON.stringify(bodyOf(args));
        const ms: number[] = [];
        let status = 0;
        for (let n = 0; n <= rounds; n++) {
          const before = process.threadCpuUsage();
          status = await called(caller, { url: url + target, key: secret, body, times: TOGETHER });
          const { user, system } = process.threadCpuUsage(before);
          if (status === 401 || status >= 500) throw new Error(`${route}: ${what}: ${status}`);
          // the first ones may compile
          if (n > 0) ms.push((user + system) / 1000 / TOGETHER);
        }
        const kind = status < 400 || status === 409 ? 'accepted' : 'refused';
        ctx.print?.(`${route}: ${what}: ${status}, ${median(ms).toFixed(1)} ms`);
        if (median(ms) > median(dearest[kind].ms)) dearest[kind] = { what, ms };
      }
      for (const kind of ['accepted', 'refused'] as const) {
        const { what, ms } = dearest[kind];
        figures.push(figure(`${route}: ${kind}: ${what}`, ms, 'ms', MOST_MS[kind], true));
      }
    }
    return figures;
  });
}

const CALLER = 'calls';
if (process.argv[2] === CALLER && process.send) {
  process.on('message', async ({ url, key, body, times }: Calls) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    let status = 0;
    for (let n = 0; n < times; n++) {
      const response = await fetch(url, { method: 'POST', headers, body });
      await response.arrayBuffer();
      status = response.status;
    }
    process.send!(status);
  });
}
