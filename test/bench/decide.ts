import { performance } from 'node:perf_hooks';
import type { ActionRequest, BundleContent } from '../../server/domain/policy.ts';
import { bundleContent } from '../../server/policy/bundle.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { cedarLanguageVersion } from '../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';
import { storedStatements } from '../../server/policy/language/statements.ts';
import { NO_STATE } from '../policy/support.ts';
import { type BenchContext, type Figure, figure, growth, median, pick, quantile } from './lib.ts';
import { type Engine, engines, type Rule } from './peers/engines.ts';

/** How many statements, and over how many tools. */
interface Size {
  name: string;
  tools: number;
  each: number;
  /** The most microseconds that are accepted. */
  most: number;
  /** Peers are measured too. */
  peers?: true;
}
const SIZES: readonly Size[] = [
  { name: '10 statements', tools: 1, each: 10, most: 15, peers: true },
  { name: '100 statements', tools: 10, each: 10, most: 15, peers: true },
  { name: '1,000 statements', tools: 100, each: 10, most: 15, peers: true },
  { name: '10,000 statements', tools: 1_000, each: 10, most: 15 },
  // each tool has its own statements: as many different slices of the bundle as tools
  { name: '500 tools, one statement each', tools: 500, each: 1, most: 15 },
  { name: '1,000 tools, one statement each', tools: 1_000, each: 1, most: 15 },
  { name: '10,000 tools, one statement each', tools: 10_000, each: 1, most: 15 },
  { name: '1,000 statements on one tool', tools: 1, each: 1_000, most: 150, peers: true },
];

/** Permits with limits, guardrails, and hard denials, as in `bench evaluate`. No question meets the last. */
function ruleOf(tool: number, i: number): Rule & { escrow?: true } {
  const name = `tool_${tool}`;
  if (i === 0) return { tool: name, effect: 'permit' };
  if (i % 3 === 0) return { tool: name, effect: 'forbid', escrow: true, amount: { is: '>', than: 900_000 + i } };
  if (i % 3 === 1) return { tool: name, effect: 'forbid', amount: { is: '>', than: 990_000 + i } };
  return { tool: name, effect: 'permit', amount: { is: '<', than: i }, user: true };
}

function statement({ tool, effect, escrow, amount, user }: ReturnType<typeof ruleOf>): string {
  const of = `principal in AgentRole::"support", action == Action::"tool_call", resource == Tool::"${tool}"`;
  const read = 'context.num.hasTag("amount") && context.num.getTag("amount")';
  const conditions = [
    ...(amount ? [`${read}.${amount.is === '>' ? 'greaterThan' : 'lessThan'}(decimal("${amount.than}.0"))`] : []),
    ...(user ? ['context.str.hasTag("user.id")'] : []),
  ];
  const when = conditions.length > 0 ? ` when { ${conditions.join(' && ')} }` : '';
  return `${escrow ? '@escrow("single") ' : ''}${effect}(${of})${when};`;
}

function contentOf({ tools, each }: Size): BundleContent {
  const policies = Array.from({ length: tools * Math.ceil(each / 100) }, (_, n) => {
    const policy_id = `p${n}`;
    const first = Math.floor(n / tools) * 100;
    const rules = Array.from({ length: Math.min(each, 100) }, (_, i) => ruleOf(n % tools, first + i));
    return { policy_id, version: 1, statements: storedStatements(policy_id, rules.map(statement).join('\n')) };
  });
  const common = { tenant: 'ten_bench', scopes: null, schema: schemaFor(), action_entities: actionEntities() };
  return bundleContent({ ...common, policies, cedar_lang: cedarLanguageVersion() });
}

let asked = 0;
/** No two questions are alike. */
function question(tools: number): ActionRequest {
  const n = asked++;
  return {
    ...{ agent_id: 'bench', agent_role: 'support', action_type: 'tool_call', tool_name: `tool_${n % tools}` },
    ...{ method: 'POST', session_id: 'ses_bench', risk_score: 0.2, now: new Date(1_767_348_000_000 + n).toISOString() },
    arguments: {
      amount: 1000 + (n % 800_000),
      user: { id: 'u_1', tier: 'gold' },
      items: [{ sku: 'a-1', count: 2 }],
      note: `n ${n}`,
    },
  };
}

/** Microseconds per decision; questions are prepared in advance, and must be permitted. */
async function took(decide: Engine['decide'], requests: readonly ActionRequest[]): Promise<number[]> {
  const times: number[] = [];
  for (const request of requests) {
    const began = performance.now();
    const answer = decide(request);
    const permitted = answer instanceof Promise ? await answer : answer;
    times.push((performance.now() - began) * 1000);
    if (!permitted) throw new Error(`not permitted: ${JSON.stringify(request)}`);
  }
  return times;
}

interface Contender extends Engine {
  /** Divides the number of questions. */
  slow: number;
  /** The same question is asked repeatedly. */
  warm?: true;
  rounds: number[][];
}

/**
 * Decisions in this process: ours, compared with the same decisions made entirely by Cedar's own engine, and with peers if they
 * are installed (`npm run bench -- peers`), all with the same rules and questions. A *fresh* question was never asked before, a
 * *warm* one was asked just before; the *first* about a tool finds none of its rules compiled. The contenders' rounds alternate.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const { print = () => {} } = ctx;
  const figures: Figure[] = [];
  const fresh = new Map<string, number[]>();
  const sizes = SIZES.filter(({ tools, each }) => tools * each <= pick(ctx, 1_000, 10_000));
  // Cedar's engine starts with the first question
  new PolicyEngine(contentOf({ name: 'other', tools: 1, each: 1, most: 0 })).match(question(1));
  for (const size of sizes) {
    const content = contentOf(size);
    const engine = new PolicyEngine(content);
    // with a different schema nothing is compiled
    const cedar = new PolicyEngine({ ...content, schema: `${content.schema}// as it was\n` });
    const decide = (of: PolicyEngine) => (request: ActionRequest) =>
      settle(of.match(request), NO_STATE).decision === 'allow';
    const all = size.tools * size.each;
    const rules = Array.from({ length: all }, (_, n) => ruleOf(n % size.tools, Math.floor(n / size.tools)));
    const contenders: Contender[] = [
      { name: 'ours', decide: decide(engine), slow: 1, rounds: [] },
      { name: 'ours, warm', decide: decide(engine), slow: 1, warm: true, rounds: [] },
      { name: 'Cedar', decide: decide(cedar), slow: size.each > 100 ? 20 : 3, rounds: [] },
      ...(size.peers ? await engines(rules) : []).map((one) => ({
        ...{ ...one, slow: all > 100 ? 20 : 1, rounds: [] },
      })),
    ];
    const some = (count: number) => Array.from({ length: count }, () => question(size.tools));
    const first = await took(contenders[0]!.decide, some(size.tools));
    await took(contenders[0]!.decide, some(Math.max(size.tools, 2_000)));
    for (const { name, decide, slow } of contenders) {
      const tooMuch = { ...question(size.tools), arguments: { amount: 999_999, user: { id: 'u_1' } } };
      if (size.each > 1 && (await decide(tooMuch))) throw new Error(`${name} permits what a rule forbids`);
      await took(decide, some(Math.ceil(pick(ctx, 60, 300) / slow)));
    }
    for (let round = 0; round < pick(ctx, 2, 7); round++) {
      for (const { decide, slow, warm, rounds } of contenders) {
        const questions = some(Math.ceil(pick(ctx, 100, 300, 1000) / slow));
        const again = questions.map(() => questions[0]!);
        if (warm) await took(decide, again.slice(0, 10));
        rounds.push(await took(decide, warm ? again : questions));
      }
    }
    const [own, warm, ...others] = contenders.map(({ name, rounds }) => ({ name, p50: rounds.map(median) }));
    fresh.set(size.name, own!.p50);
    const sorted = contenders[0]!.rounds.flat().sort((a, b) => a - b);
    figures.push(
      figure(`${size.name}: fresh, p50`, own!.p50, 'µs', size.most, true),
      figure(`${size.name}: fresh, p99`, quantile(sorted, 0.99), 'µs'),
      figure(`${size.name}: warm, p50`, warm!.p50, 'µs', size.most, true),
      figure(`${size.name}: the first about a tool, p50`, median(first), 'µs'),
      ...others.map(({ name, p50 }) =>
        figure(
          `${size.name}: ${name} / ours`,
          p50.map((time, round) => time / own!.p50[round]!),
          'times',
          1,
        ),
      ),
    );
    print(
      [own!, warm!, ...others].map(({ name, p50 }) => `${size.name}, ${name}: ${median(p50).toFixed(1)} µs`).join('; '),
    );
    for (const one of [engine, cedar]) one.dispose();
  }
  const bends = [/statements$/, /one statement each$/].flatMap((those) => {
    const steps = [...fresh].filter(([name]) => those.test(name)).map(([of, cost]) => ({ of, cost }));
    return growth('growth', steps, 'µs', 2).slice(-1);
  });
  return [...figures, ...bends];
}
