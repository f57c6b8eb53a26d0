import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';
import pg from 'pg';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { openBundle } from '../../server/policy/bundle.ts';
import { mapRequest } from '../../server/policy/evaluation/request.ts';
import { CedarHost } from '../../server/policy/language/host.ts';
import { type BenchContext, type Figure, figure, inParts, median, pick, quantile, ratios } from './lib.ts';
import { withProgram } from './program.ts';

const STATEMENTS = 100;

/** 100 live statements over ten tools: permits with limits, guardrails, and hard denials. */
function policyText(tool: number): string {
  const of = `principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"tool_${tool}"`;
  const amount = 'context.num.hasTag("amount") && context.num.getTag("amount")';
  return Array.from({ length: STATEMENTS / 10 }, (_, i) => {
    if (i === 0) return `permit(${of});`;
    if (i % 3 === 0) return `@escrow("single") forbid(${of}) when { ${amount}.greaterThan(decimal("${1000 * i}.0")) };`;
    if (i % 3 === 1) return `forbid(${of}) when { ${amount}.greaterThan(decimal("${9000 + i}.0")) };`;
    return `permit(${of}) when { ${amount}.lessThan(decimal("${i}.0")) && context.str.hasTag("user.id") };`;
  }).join('\n');
}

const INPUT = {
  action_type: 'tool_call',
  tool_name: 'tool_3',
  method: 'POST',
  session_id: 'ses_bench',
  risk_score: 0.2,
  arguments: { amount: 42.5, user: { id: 'u_1', tier: 'gold' }, items: [{ sku: 'a-1', count: 2 }], note: 'as agreed' },
};

/**
 * One evaluation over HTTP, including its durable record, compared with the two things that it cannot do without: the prepared
 * Cedar calls over the same 100 statements, and one durable single-row commit. One caller, one call at a time.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProgram(ctx.url, async ({ url, core, tenantId }) => {
    const by = { person: 'bench', signedIn: false, admin: false, actor: { type: 'operator', id: 'bench' } as const };
    for (let tool = 0; tool < 10; tool++) {
      await core.policies.create(tenantId, { id: `p${tool}`, dsl_source: policyText(tool) }, by);
      await core.policies.approve(tenantId, `p${tool}`, { version: 1 }, by);
    }
    const { secret } = await core.keys.createAgentKey(
      tenantId,
      { label: 'bench', agentId: 'bench', agentRole: 'support', owner: null },
      { actor: by.actor },
    );
    const body = JSON.stringify(INPUT);
    const caller = await callerOf(
      `POST /v1/evaluate HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer ${secret}\r\nx-svc-tenant: ${tenantId}\r\n` +
        `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
      Number(new URL(url).port),
    );

    const cedar = await bareCedar(core, tenantId);
    const client = new pg.Client(ctx.url);
    await client.connect();
    await client.query('create table if not exists bench_row (id bigserial primary key, line text not null)');
    const line = 'x'.repeat(700);
    const commit = () =>
      client.query({ name: 'row', text: 'insert into bench_row (line) values ($1)', values: [line] });

    const took = { http: [] as number[], warm: [] as number[], cedar: [] as number[], commit: [] as number[] };
    const measure = async (into: number[], what: () => unknown, calls: number) => {
      for (let i = 0; i < calls; i++) {
        const began = performance.now();
        await what();
        into.push(performance.now() - began);
      }
    };
    await caller.calls('fresh', 300);
    for (const what of [cedar, commit]) await measure([], what, 300);
    // one of each in turn, so that all of them find the machine in the same state: none runs hot in a loop
    for (let i = 0; i < pick(ctx, 150, 1500); i++) {
      took.http.push(...(await caller.calls('fresh', 1)));
      took.warm.push(...(await caller.calls('warm', 1)));
      await measure(took.cedar, cedar, 1);
      await measure(took.commit, commit, 1);
    }
    await client.end();
    caller.end();
    const sorted = took.http.toSorted((a, b) => a - b);
    const p50 = (name: keyof typeof took) => inParts(took[name]).map(median);
    const [cedarMs, commitMs] = [p50('cedar'), p50('commit')];
    const limit = cedarMs.map((ms, part) => ms + commitMs[part]!);
    return [
      figure('bare prepared Cedar calls, 100 statements: p50', cedarMs, 'ms'),
      figure('durable single-row commit: p50', commitMs, 'ms'),
      figure('evaluate over HTTP, a fresh question: p50', p50('http'), 'ms'),
      figure('evaluate over HTTP, a fresh question: p99', quantile(sorted, 0.99), 'ms'),
      figure('evaluate over HTTP, a warm question: p50', p50('warm'), 'ms'),
      figure('fresh / (Cedar + commit), p50', ratios(p50('http'), limit), 'ratio', 1.5, true),
      figure('fresh / commit, p50', ratios(p50('http'), commitMs), 'ratio'),
      figure('fresh / warm, p50', ratios(p50('http'), p50('warm')), 'ratio'),
    ];
  });
}

/** The two engine calls of a decision, with all statements prepared and nothing sliced. */
async function bareCedar(core: import('../../server/app.ts').Core, tenantId: string): Promise<() => void> {
  const bundle = await core.bundles.current(tenantId, null);
  const { content } = openBundle(bundle.bytes, (kid) => core.keyring.find(kid));
  const host = new CedarHost();
  const texts = (soft: boolean) =>
    Object.fromEntries(
      content.policies
        .filter(({ effect, annotations }) => (effect === 'forbid' && annotations.escrow !== undefined) === soft)
        .map(({ id, cedar }) => [id, cedar]),
    );
  const main = {};
  const soft = {};
  const ids = [host.prepareSet(main, () => texts(false)), host.prepareSet(soft, () => texts(true))];
  const preparsedSchemaName = host.prepareSchema(content.schema);
  const action: ActionRequest = {
    ...INPUT,
    agent_id: 'bench',
    agent_role: 'support',
    now: new Date().toISOString(),
  };
  const call = mapRequest(action, content.action_entities).call({ keys: null, attributes: null });
  return () => {
    for (const preparsedPolicySetId of ids) {
      const answer = host.call('statefulIsAuthorized', { ...call, preparsedPolicySetId, preparsedSchemaName });
      if (answer.type !== 'success') throw new Error('the engine refused the request');
    }
  };
}

/**
 * A caller in its own process, with one connection and each request prepared in advance: its cost does not count as the server's.
 * No amount in a fresh question repeats while the server may remember its answer; a warm question's amount is always the same.
 * `calls` resolves with the milliseconds of each.
 */
async function callerOf(request: string, port: number) {
  const child = fork(new URL(import.meta.url), [request, String(port)]);
  await once(child, 'message');
  return {
    async calls(what: 'fresh' | 'warm', count: number): Promise<number[]> {
      child.send({ what, count });
      const [took] = (await once(child, 'message')) as [number[] | string];
      if (typeof took === 'string') throw new Error(took);
      return took;
    },
    end: () => child.disconnect(),
  };
}

if (import.meta.main) {
  const [request, port] = process.argv.slice(2) as [string, string];
  const socket = connect(Number(port), '127.0.0.1').setNoDelay(true);
  await once(socket, 'connect');
  let n = 0;
  const call = (what: string) =>
    new Promise<number>((resolve, reject) => {
      let text = '';
      // as long as what it replaces
      const next = request.replace('42.5', what === 'warm' ? '2995' : String(1000 + (n++ % 1990)));
      const began = performance.now();
      socket.on('data', function take(data) {
        text += data.toString('latin1');
        const head = text.indexOf('\r\n\r\n');
        const length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? Number.POSITIVE_INFINITY);
        if (head < 0 || text.length < head + 4 + length) return;
        socket.off('data', take);
        if (text.includes('"decision":"allow"')) resolve(performance.now() - began);
        else reject(new Error(text));
      });
      socket.write(next);
    });
  process.on('message', async ({ what, count }: { what: string; count: number }) => {
    const took: number[] = [];
    try {
      while (took.length < count) took.push(await call(what));
      process.send!(took);
    } catch (error) {
      process.send!(String(error));
    }
  });
  process.on('disconnect', () => socket.destroy());
  process.send!('ready');
}
