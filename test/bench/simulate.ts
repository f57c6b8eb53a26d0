import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { performance } from 'node:perf_hooks';
import { openDatabase } from '../../db/index.ts';
import type { AppendEvent } from '../../server/chain/appender.ts';
import { copyRows } from '../../server/chain/copy.ts';
import type { DecisionEvent } from '../../server/domain/decision.ts';
import { commit } from '../../server/domain/kept-input.ts';
import { EMPTY_REGISTRY } from '../../server/domain/tools.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';
import { beginReading } from '../../server/simulation/past-decisions.ts';
import { runSimulation } from '../../server/simulation/run.ts';
import { besideIngest, filledTenant } from './beside.ts';
import { type BenchContext, type Figure, figure, pick, ratios, wireEvent } from './lib.ts';

/** Per size; the largest has one. */
const ROUNDS = 2;
const TOOLS = ['payments.refund', 'crm.contact.update', 'email.send', 'db.query', 'orders.read'] as const;
const ROLES = ['support', 'sales', 'finance', 'desk'] as const;

/** Twenty statements over five tools and four roles. */
function policyText(refund: number, more = ''): string {
  const others = TOOLS.flatMap((tool) =>
    ROLES.filter((role) => tool !== 'payments.refund' || role !== 'support').map(
      (role, n) =>
        `@id("${tool}-${role}") ${n % 3 === 0 ? '@mask("$.customer.iban")' : ''} permit(principal in AgentRole::"${role}", action, resource == Tool::"${tool}");`,
    ),
  );
  const of = 'principal in AgentRole::"support", action, resource == Tool::"payments.refund"';
  const amount = 'context.num.hasTag("amount") && context.num.getTag("amount")';
  return [
    ...others,
    `@id("small") permit(${of}) when { ${amount}.lessThanOrEqual(decimal("${refund}.0")) };`,
    `@id("large") @escrow("single") permit(${of}) when { ${amount}.greaterThan(decimal("${refund}.0")) };`,
    more,
  ].join('\n');
}
const LIVE = policyText(100);
const DRAFTS = {
  /** One limit of one role and tool: affects a twentieth of the decisions. */
  typical: policyText(150),
  /** A rule for everyone that reads an argument with few values: all decisions, few questions. */
  grouped: policyText(
    100,
    '@id("closed") forbid(principal, action, resource) when { context.str.hasTag("state") && context.str.getTag("state") == "closed" };',
  ),
  /** A rule for everyone that reads a text that differs in every call: as many questions as decisions. */
  worst: policyText(
    100,
    '@id("words") forbid(principal, action, resource) when { context.str.hasTag("note") && context.str.getTag("note") like "*99*" };',
  ),
} as const;
type Draft = keyof typeof DRAFTS;

interface Run {
  seconds: number;
  /** Processor time over all threads: on a shared machine, it is more telling than wall time. */
  processor: number;
  /** The peak memory of its process beyond what it held before, in MB. */
  peakMb: number;
  decisions: number;
  questions: number;
  changed: number;
}

/**
 * The simulation of a draft on stored decisions, compared with reading the same rows (COPY OUT, discarded) in the same run: 10 k,
 * 100 k and 1 M decisions with whole inputs; a typical draft, one that concerns all decisions in few ways, and the worst
 * possible. Each run has its own process, so that its peak memory is its own too.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  const tenants = new Map<number, string>();
  const sizes = pick(ctx, [10_000], [10_000, 100_000, 1_000_000]);
  for (const size of sizes) {
    const began = performance.now();
    tenants.set(size, await fill(ctx.url, size));
    print(`${size} decisions stored in ${((performance.now() - began) / 1000).toFixed(0)} s`);
  }
  const figures: Figure[] = [];
  for (const size of sizes) {
    const tenantId = tenants.get(size)!;
    const largest = size === 1_000_000;
    const copies: number[] = [];
    const runs: Record<Draft, Run[]> = { typical: [], grouped: [], worst: [] };
    for (let round = 0; round < (largest ? 1 : pick(ctx, 1, ROUNDS)); round++) {
      copies.push((await run('copy', ctx.url, tenantId)).seconds);
      for (const draft of Object.keys(DRAFTS) as Draft[]) {
        const one = await run(draft, ctx.url, tenantId);
        const expected = changedBy(draft, size);
        if (one.changed !== expected) throw new Error(`${draft}: ${one.changed} changes instead of ${expected}`);
        if (one.decisions !== size) throw new Error(`${one.decisions} decisions of ${size}`);
        runs[draft].push(one);
      }
      const line = Object.entries(runs).map(([draft, all]) => `${draft} ${all.at(-1)!.seconds.toFixed(2)} s`);
      print(`${size}, round ${round + 1}: copy ${copies[round]!.toFixed(2)} s, ${line.join(', ')}`);
    }
    const of = `${size / 1000} k`;
    figures.push(figure(`${of}: COPY OUT of the rows`, copies, 's'));
    for (const [draft, all] of Object.entries(runs)) {
      const seconds = all.map((one) => one.seconds);
      const target = largest ? (draft === 'typical' ? 5 : 60) : undefined;
      figures.push(
        figure(`${of}, ${draft}: ${all[0]!.questions} questions`, seconds, 's', target, true),
        figure(
          `${of}, ${draft}: processor time`,
          all.map((one) => one.processor),
          's',
        ),
        figure(`${of}, ${draft} / COPY OUT`, ratios(seconds, copies), 'ratio'),
        figure(
          `${of}, ${draft}: peak memory of the threads`,
          Math.max(...all.map((one) => one.peakMb)),
          'MB',
          300,
          true,
        ),
      );
    }
  }
  if (ctx.effort !== 'quick') figures.push(...(await beside(ctx, tenants.get(sizes.at(-1)!)!)));
  return figures;
}

/** What ingest pays for a concurrent simulation of the worst draft. */
async function beside(ctx: BenchContext, simulated: string): Promise<Figure[]> {
  const work = (signal: AbortSignal, busy: () => boolean) => simulate('worst', ctx.url, simulated, signal, busy);
  return (await besideIngest(ctx, { rate: 2000, what: 'simulation', most: 2, work })).figures;
}

/** A tenant whose decisions keep their whole inputs and no projections, as if retention or settings had removed those. */
const fill = (url: string, size: number) =>
  filledTenant(url, `simulate_${size}`, { size, batch: 500, eventAt: pastDecision });

function pastDecision(i: number, tenantId: string): AppendEvent {
  const { tool_name, agent_role, amount, state, note } = callOf(i);
  const held = tool_name === 'payments.refund' && agent_role === 'support' && amount > 100;
  const agent_id = `agt_01j9z8q4m2n7x${(i * 13) % 500}`;
  const now = new Date(Date.UTC(2026, 0, 1) + 7 * i).toISOString();
  const session_id = `ses_01j9z8q4m2n7p3r5${Math.floor(i / 25)}`;
  const request = {
    ...{ agent_id, agent_role, owner: 'usr_01j9z8q4m2n7p3r5', action_type: 'tool_call', tool_name, now, session_id },
    ...{ estimated_value: amount, value_currency: 'EUR', risk_score: (i % 100) / 100, method: 'POST' },
    arguments: {
      ...{ amount, currency: 'EUR', order_id: `ord_${i}`, state, note },
      customer: { id: `cus_${i % 9000}`, name: `Customer ${i % 9000}`, iban: `DE0212030000000020${i % 9000}` },
      items: [
        { sku: `sku-${i % 50}`, count: 1 + (i % 3) },
        { sku: `sku-${i % 70}`, count: 1 },
      ],
    },
  };
  const input = canonicalJson({ v: 1, ...request });
  const { kept, commitments } = commit({ projection: undefined, input }, `sha256:${'0'.repeat(64)}`);
  const decision = held ? 'escrow' : 'allow';
  const event = {
    ...wireEvent(i, tenantId),
    ...{ event_id: `evt_${String(i).padStart(12, '0')}`, event_type: `decision.${decision}`, decision, timestamp: now },
    ...{ agent_id, agent_role, tool_name, session_id, method: 'POST', bundle_hash: 'sha256:then' },
    ...{ input_hash: commitments.input_hash, action_ref: commitments.action_ref },
  };
  return { event: event as unknown as DecisionEvent, input: kept };
}

/** How many decisions the draft changes, counted here without policies. */
function changedBy(draft: Draft, size: number): number {
  let changed = 0;
  for (let i = 0; i < size; i++) {
    const { tool_name, agent_role, amount, state, note } = callOf(i);
    const refund = tool_name === 'payments.refund' && agent_role === 'support';
    if (draft === 'typical') changed += Number(refund && amount > 100 && amount <= 150);
    if (draft === 'grouped') changed += Number(state === 'closed');
    if (draft === 'worst') changed += Number(note.includes('99'));
  }
  return changed;
}

function callOf(i: number) {
  return {
    tool_name: TOOLS[i % TOOLS.length]!,
    agent_role: ROLES[Math.floor(i / TOOLS.length) % ROLES.length]!,
    amount: (i * 37) % 300,
    state: ['open', 'paid', 'closed'][i % 7] ?? 'open',
    note: `the customer of order ${i} called about it, and it was agreed to do this`,
  };
}

async function run(mode: Draft | 'copy', url: string, tenantId: string): Promise<Run> {
  const args = [new URL(import.meta.url).pathname, mode, url, tenantId];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let out = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the run of ${mode} failed with ${code}`);
  return JSON.parse(out) as Run;
}

async function simulate(draft: Draft, url: string, tenantId: string, signal: AbortSignal, busy: () => boolean) {
  return runSimulation(
    {
      ...{ sessionUrl: url, tenantId, policyId: 'p', text: DRAFTS[draft], from: 0, to: await lastOf(url, tenantId) },
      ...{ oneIn: 1, schema: schemaFor(), actionEntities: actionEntities(), registry: EMPTY_REGISTRY, lists: [] },
      liveTexts: [{ policyId: 'p', version: 1, text: LIVE }],
    },
    { signal, onProgress: () => {}, busy },
  );
}

async function lastOf(url: string, tenantId: string): Promise<number> {
  const db = await openDatabase(url, { poolSize: 1 });
  const { rows } = await db.owner.query<{ last: number }>(
    'select max(seq) as last from forensic_record where tenant_id = $1',
    [tenantId],
  );
  await db.close();
  return Number(rows[0]!.last);
}

/** Reads what the worst draft reads, as the simulation does. */
async function copy(url: string, tenantId: string): Promise<number> {
  const last = await lastOf(url, tenantId);
  const db = await openDatabase(url, { poolSize: 1 });
  const client = await db.connectOwner();
  await client.query(beginReading(tenantId));
  let rows = 0;
  for (let from = 0; from < last; from += 25_000) {
    await copyRows(
      client,
      `copy (select r.event_id, r.line, i.input from forensic_record r
         left join decision_input i on i.tenant_id = '${tenantId}' and i.event_id = r.event_id
       where r.tenant_id = '${tenantId}' and r.seq > ${from} and r.seq <= ${from + 25_000} and r.decision >= 0
       order by r.seq) to stdout (format binary)`,
      (_, starts) => {
        rows += starts.length;
      },
    );
  }
  await client.end();
  await db.close();
  return rows;
}

if (import.meta.main) {
  const [mode, url, tenantId] = process.argv.slice(2) as [Draft | 'copy', string, string];
  const began = performance.now();
  const beforeMb = process.memoryUsage().rss / 2 ** 20;
  const found =
    mode === 'copy'
      ? { decisions: await copy(url, tenantId), outcome: { questions: 0, changed: 0 } }
      : await simulate(mode, url, tenantId, new AbortController().signal, () => false);
  const { questions, changed } = found.outcome;
  const peakMb = process.resourceUsage().maxRSS / 1024 - beforeMb;
  const seconds = (performance.now() - began) / 1000;
  const { user, system } = process.cpuUsage();
  const processor = (user + system) / 1e6;
  console.log(
    JSON.stringify({ seconds, processor, peakMb, decisions: found.decisions, questions, changed } satisfies Run),
  );
}
