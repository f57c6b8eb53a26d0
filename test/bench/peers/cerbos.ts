import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Core } from '../../../server/app.ts';
import { createTenant } from '../../../server/provision.ts';
import { freePort } from '../../helpers/ports.ts';
import { alternate, type BenchContext, type Figure, figure, type LoadOptions, load, pick, ratios } from '../lib.ts';
import { withProgram } from '../program.ts';
import { notInstalled, peerFile } from './install.ts';

/** Rules on each tool: a permit, permits with limits, guardrails, and hard denials. */
const EACH = 10;
const CONNECTIONS = [16, 64] as const;

type Rule = { effect: 'permit' | 'forbid'; escrow?: true; amount?: ['>' | '<', number]; user?: true };

function ruleOf(i: number): Rule {
  if (i === 0) return { effect: 'permit' };
  if (i % 3 === 0) return { effect: 'forbid', escrow: true, amount: ['>', 10_000_000 + i] };
  if (i % 3 === 1) return { effect: 'forbid', amount: ['>', 20_000_000 + i] };
  return { effect: 'permit', amount: ['<', i], user: true };
}

const rules = Array.from({ length: EACH }, (_, i) => ruleOf(i));

function cedar(tool: number): string {
  const of = `principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"tool_${tool}"`;
  const amount = 'context.num.hasTag("amount") && context.num.getTag("amount")';
  return rules
    .map(({ effect, escrow, amount: limit, user }) => {
      const method = limit?.[0] === '>' ? 'greaterThan' : 'lessThan';
      const conditions = [
        ...(limit ? [`${amount}.${method}(decimal("${limit[1]}.0"))`] : []),
        ...(user ? ['context.str.hasTag("user.id")'] : []),
      ];
      const when = conditions.length > 0 ? ` when { ${conditions.join(' && ')} }` : '';
      return `${escrow ? '@escrow("single") ' : ''}${effect}(${of})${when};`;
    })
    .join('\n');
}

/** What would be held until a person approves is denied here: it has no holds. */
function cerbos(tool: number): string {
  const of = { actions: ['tool_call'], roles: ['support'] };
  const written = rules.map(({ effect, amount: limit, user }) => {
    const all = [
      ...(limit ? [{ expr: `has(R.attr.amount) && R.attr.amount ${limit[0]} ${limit[1]}.0` }] : []),
      ...(user ? [{ expr: 'has(R.attr.user.id)' }] : []),
    ];
    const condition = all.length > 0 ? { condition: { match: { all: { of: all } } } } : {};
    return { ...of, effect: effect === 'permit' ? 'EFFECT_ALLOW' : 'EFFECT_DENY', ...condition };
  });
  // YAML accepts JSON
  return JSON.stringify({
    apiVersion: 'api.cerbos.dev/v1',
    resourcePolicy: { resource: `tool_${tool}`, version: 'default', rules: written },
  });
}

/** The question for both: 7 of its digits differ each time, and a rule reads them. */
const WHAT = {
  amount: 'AMOUNT',
  user: { id: 'u_1', tier: 'gold' },
  items: [{ sku: 'a-1', count: 2 }],
  note: 'as agreed',
};
const fresh = (body: unknown) => JSON.stringify(body).replace('"AMOUNT"', 'XXXXXXX');

/**
 * Decisions over HTTP compared with Cerbos, an authorization service in Go: the same rules in its language, the same questions,
 * none of them asked twice, from the same number of connections. Both get their load from the same generator, in turn.
 *
 * Cerbos is set up as its documentation describes for a standalone service: policies on disk, decisions logged to a file. It does
 * not: require a key; wait until its log is on disk (ours is, before the response); chain its records, so that a missing one
 * shows; hold an action for a person; count what an agent did before. It decides on all processors, in Go; ours shares the
 * machine with its PostgreSQL.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const name = `cerbos-${process.platform}-${process.arch}`;
  const binary = peerFile('@cerbos', name, name);
  if (!binary) {
    ctx.print?.(notInstalled('cerbos'));
    return [];
  }
  return withProgram(ctx.url, async ({ url, core }) => {
    const figures: Figure[] = [];
    for (const size of pick(ctx, [100], [100, 1_000])) {
      const tools = size / EACH;
      const { tenant_id } = await createTenant(core, url, { name: `${size} rules`, adminEmail: 'bench@example.test' });
      const ours = { url, ...(await asked(core, tenant_id, tools)) };
      figures.push(
        ...(await withCerbos(binary, tools, (cerbosUrl) =>
          beside(ctx, `${size.toLocaleString('en')} rules`, ours, { url: cerbosUrl, ...askedOfCerbos(tools) }),
        )),
      );
    }
    return figures;
  });
}

type Target = Pick<LoadOptions, 'url' | 'path' | 'expect' | 'bodies' | 'tenants'>;

async function beside(ctx: BenchContext, of: string, ours: Target, theirs: Target): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const connections of pick<readonly number[]>(ctx, [64], CONNECTIONS)) {
    const what = `${of}, ${connections} connections`;
    const rate = async (target: Target) => {
      const measured = {
        ...target,
        connections,
        eventsPerRequest: 1,
        seconds: pick(ctx, 1, 4),
        warmSeconds: pick(ctx, 0.5, 1),
      };
      const { requestsPerSecond, errors, firstError } = await load(measured);
      if (errors > 0) throw new Error(`${target.path}: ${errors} errors, such as ${firstError}`);
      return requestsPerSecond;
    };
    // the first question about each tool, and until the hot paths are compiled
    for (const target of [ours, theirs]) {
      const warming = { ...target, connections, eventsPerRequest: 1, seconds: 0.1, warmSeconds: pick(ctx, 1, 3) };
      await load(warming).catch(() => undefined);
    }
    const rates = await alternate(pick(ctx, 1, 3, 5), { ours: () => rate(ours), cerbos: () => rate(theirs) }, (line) =>
      ctx.print?.(`${what}, ${line}`),
    );
    figures.push(
      figure(`${what}: Cerbos`, rates.cerbos, 'decisions/s'),
      figure(`${what}: ours, recorded`, rates.ours, 'decisions/s'),
      figure(`${what}: ours / Cerbos`, ratios(rates.ours, rates.cerbos), 'times', 1.3),
    );
  }
  return figures;
}

const EVERY = Array.from({ length: CONNECTIONS.at(-1)! }, (_, n) => n);

async function asked(core: Core, tenantId: string, tools: number) {
  const actor = { type: 'operator', id: 'bench' } as const;
  const by = { person: 'bench', signedIn: false, admin: false, actor };
  for (let n = 0; n < tools; n += 10) {
    const dsl_source = Array.from({ length: Math.min(10, tools - n) }, (_, i) => cedar(n + i)).join('\n');
    await core.policies.create(tenantId, { id: `p${n}`, dsl_source }, by);
    await core.policies.approve(tenantId, `p${n}`, { version: 1 }, by);
  }
  const made = { label: 'bench', agentId: 'bench', agentRole: 'support', owner: null };
  const { secret } = await core.keys.createAgentKey(tenantId, made, { actor });
  return {
    ...{ path: '/v1/evaluate', expect: '"decision":"allow"', tenants: [{ authorization: `Bearer ${secret}` }] },
    bodies: EVERY.map((n) =>
      fresh({
        ...{ action_type: 'tool_call', tool_name: `tool_${n % tools}`, method: 'POST' },
        ...{ session_id: `ses_${n}`, arguments: WHAT },
      }),
    ),
  };
}

function askedOfCerbos(tools: number) {
  return {
    ...{ path: '/api/check/resources', expect: '"tool_call":"EFFECT_ALLOW"', tenants: [{ authorization: 'none' }] },
    bodies: EVERY.map((n) =>
      fresh({
        requestId: `ses_${n}`,
        principal: { id: 'bench', roles: ['support'], attr: { session_id: `ses_${n}` } },
        resources: [{ resource: { kind: `tool_${n % tools}`, id: 'call', attr: WHAT }, actions: ['tool_call'] }],
      }),
    ),
  };
}

async function withCerbos<T>(binary: string, tools: number, work: (url: string) => Promise<T>): Promise<T> {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-bench-cerbos-'));
  const policies = path.join(dir, 'policies');
  mkdirSync(policies);
  for (let tool = 0; tool < tools; tool++) writeFileSync(path.join(policies, `tool_${tool}.yaml`), cerbos(tool));
  const [http, grpc] = [await freePort(), await freePort()];
  const config = {
    server: { httpListenAddr: `127.0.0.1:${http}`, grpcListenAddr: `127.0.0.1:${grpc}` },
    storage: { driver: 'disk', disk: { directory: policies, watchForChanges: false } },
    audit: {
      ...{ enabled: true, accessLogsEnabled: false, decisionLogsEnabled: true, backend: 'file' },
      file: { path: path.join(dir, 'audit.log') },
    },
    telemetry: { disabled: true },
  };
  const file = path.join(dir, 'cerbos.yaml');
  writeFileSync(file, JSON.stringify(config));
  const child = spawn(binary, ['server', `--config=${file}`, '--log-level=error'], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  try {
    const url = `http://127.0.0.1:${http}`;
    for (let tries = 0; ; tries++) {
      if (child.exitCode !== null) throw new Error(`Cerbos ended with ${child.exitCode}`);
      const ready = await fetch(`${url}/_cerbos/health`).catch(() => undefined);
      if (ready?.ok) break;
      if (tries > 300) throw new Error('Cerbos did not start');
      await delay(100);
    }
    return await work(url);
  } finally {
    if (child.exitCode === null) {
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    rmSync(dir, { recursive: true, force: true });
  }
}
