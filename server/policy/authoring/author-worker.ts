import { parentPort } from 'node:worker_threads';
import type { ActionRequest, BundleContent } from '../../domain/policy.ts';
import { PolicyEngine, settle, type Verdict } from '../evaluation/evaluate.ts';
import { isGuardrail } from '../language/annotations.ts';
import { compareTexts } from '../language/compare.ts';
import { type CompiledStatement, compilePolicy, formatPolicy } from '../language/compile.ts';
import { CedarHost, cedarLanguageVersion } from '../language/host.ts';
import { storedStatements } from '../language/statements.ts';
import type { AuthorJob, AuthorResult, OthersJob, SuiteJob, Surroundings, Trace, Trial } from './author.ts';
import { explain, unfitting } from './explain.ts';
import { type PastDecision, type TestFromDecision, testFromDecision } from './from-decision.ts';
import { MUTATION_LIMITS, type MutationRun, notMutated, runMutants } from './mutants.ts';
import { brokenCases, notRun, type OthersRun, runCases, type SuiteRun } from './run-suite.ts';
import { readSuite } from './suite.ts';

/** The worker thread of `AuthorLanguage`. An author's text can harm only this thread's engine. */
const port = parentPort;
if (!port) throw new Error('this file is the entry of a worker thread');
const host = new CedarHost();

port.on('message', (job: AuthorJob) => {
  port.postMessage(answer(job));
});
port.postMessage('ready');

function answer(job: AuthorJob): AuthorResult {
  switch (job.kind) {
    case 'compile':
      return compilePolicy(host, job.policyId, job.text, job.schema, job.lists);
    case 'format':
      return formatPolicy(host, job.text);
    case 'try':
      return tryOut(job);
    case 'read-suite':
      return { errors: readSuite(job.tests).errors };
    case 'test':
      return runSuite(job);
    case 'mutate':
      return mutate(job);
    case 'from-decision':
      return fromDecision(job, job.past);
    case 'explain':
      return explain(job);
    case 'others':
      return testOthers(job);
    case 'diff':
      return compareTexts(job.policyId, job.from, job.to);
  }
}

function tryOut(job: Extract<AuthorJob, { kind: 'try' }>): Trial {
  const { errors, statements } = compilePolicy(host, job.policyId, job.text, job.schema, namesOf(job));
  if (errors.length > 0) return { errors, hits: [] };
  const content = contentOf(job, statements, job.liveTexts);
  const engine = new PolicyEngine(content);
  try {
    const match = engine.match(job.request);
    const lines = new Map(statements.map(({ id, line }) => [id, line]));
    const verdict = settle(match, { exceeded: new Map() });
    return {
      errors: [],
      verdict,
      ...(job.trace && { trace: traceOf(content, statements, job.request, verdict, engine) }),
      hits: match.hits.map(({ id, policy_id, effect, annotations }) => {
        const line = lines.get(id);
        return {
          rule_id: id,
          policy_id,
          effect,
          guardrail: isGuardrail(effect, annotations),
          ...(line !== undefined && { line }),
        };
      }),
      ...(match.detail !== undefined && { detail: match.detail }),
    };
  } finally {
    engine.dispose();
  }
}

function traceOf(
  content: BundleContent,
  own: readonly CompiledStatement[],
  request: ActionRequest,
  { rule_id, rule_ids }: Verdict,
  { registry }: PolicyEngine,
): Trace {
  const { agent_labels = [], tool_labels = [], trust = null } = registry.attributes(request);
  const named = [...(rule_id === null ? [] : [rule_id]), ...rule_ids];
  const { rules, more } = explain({ content, request, named });
  const statements = new Map(content.policies.map((statement) => [statement.id, statement]));
  const lines = new Map(own.map(({ id, line }) => [id, line]));
  return {
    rules: rules.map((rule) => {
      const { policy_id, effect, annotations, cedar } = statements.get(rule.rule_id)!;
      const line = lines.get(rule.rule_id);
      return {
        ...rule,
        ...{ policy_id, cedar, decided: rule.rule_id === rule_id, matched: named.includes(rule.rule_id) },
        effect: isGuardrail(effect, annotations) ? 'guardrail' : effect,
        ...(line !== undefined && { line }),
      };
    }),
    more,
    unfit: unfitting(content, own, request),
    set: { agent_labels, tool_labels, server_trust: trust },
  };
}

function runSuite(job: SuiteJob): SuiteRun {
  const { errors, statements } = compilePolicy(host, job.policyId, job.text, job.schema, namesOf(job));
  const { errors: faults, scope, cases } = readSuite(job.tests);
  if (errors.length > 0 || faults.length > 0) return notRun(errors, faults);
  return runCases(contentOf(job, statements, scope === 'policy' ? [] : job.liveTexts), statements, cases);
}

function mutate(job: SuiteJob): MutationRun {
  const began = processorMs();
  const { errors, statements } = compilePolicy(host, job.policyId, job.text, job.schema, namesOf(job));
  const { errors: faults, scope, cases } = readSuite(job.tests);
  if (errors.length > 0 || faults.length > 0) return notMutated(errors, faults);
  const content = contentOf(job, statements, scope === 'policy' ? [] : job.liveTexts);
  // stops before the kill timer fires, which would lose the results so far
  const left = () => 0.8 * MUTATION_LIMITS.ms - (processorMs() - began);
  return runMutants(host, content, statements, cases, left);
}

function fromDecision(job: SuiteJob, past: PastDecision): TestFromDecision {
  const { errors, statements } = compilePolicy(host, job.policyId, job.text, job.schema, namesOf(job));
  const blank = job.tests.trim() === '';
  const { errors: tests_errors, scope } = blank ? { errors: [], scope: 'live' } : readSuite(job.tests);
  if (errors.length > 0 || tests_errors.length > 0) return { errors, tests_errors };
  const content = contentOf(job, statements, scope === 'policy' ? [] : job.liveTexts);
  return { errors, tests_errors, ...testFromDecision(job.tests, content, past) };
}

function testOthers(job: OthersJob): OthersRun {
  const suites = job.suites.flatMap(({ policyId, tests }) => {
    const { scope, cases } = readSuite(tests);
    return scope === 'live' ? [{ policyId, cases }] : [];
  });
  const own = (text: string) => storedStatements(job.policyId, text);
  const before = contentOf(job, job.before === null ? [] : own(job.before), job.liveTexts);
  const after = contentOf(job, own(job.text), job.liveTexts);
  return { errors: [], broken: brokenCases(before, after, job.policyId, suites) };
}

/** The CPU time that this thread has used or, if that is unknown, the time elapsed. */
function processorMs(): number {
  const used = process.threadCpuUsage?.();
  return used ? (used.user + used.system) / 1_000 : performance.now();
}

/** The policy with the other texts, as in a bundle. */
function contentOf(
  { policyId, schema, actionEntities, registry, lists }: Surroundings & { policyId: string },
  statements: readonly Pick<CompiledStatement, 'id' | 'effect' | 'annotations' | 'scopes' | 'cedar'>[],
  liveTexts: Surroundings['liveTexts'],
): BundleContent {
  const live = liveTexts.flatMap(({ policyId, version, text }) =>
    storedStatements(policyId, text).map((one) => ({ ...one, version })),
  );
  const own = statements.map(({ id, effect, annotations, scopes, cedar }) => ({
    id,
    policy_id: policyId,
    version: 0,
    effect,
    annotations,
    scopes,
    cedar,
  }));
  return {
    format: 'svc-bundle/1',
    cedar_lang: cedarLanguageVersion(),
    tenant: '',
    scopes: null,
    schema,
    action_entities: actionEntities,
    policies: [...live, ...own],
    registry,
    lists: [...lists],
  };
}

const namesOf = ({ lists }: Surroundings) => lists.map(({ name }) => name);
