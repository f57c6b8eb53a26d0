import { parentPort } from 'node:worker_threads';
import { PolicyEngine, settle } from '../evaluation/evaluate.ts';
import { isGuardrail } from '../language/annotations.ts';
import { compareTexts } from '../language/compare.ts';
import { compilePolicy, formatPolicy } from '../language/compile.ts';
import { CedarHost, cedarLanguageVersion } from '../language/host.ts';
import { storedStatements } from '../language/statements.ts';
import type { AuthorJob, AuthorResult, Trial } from './author.ts';

/** The thread of `AuthorLanguage`: what an author's text does to the engine, it does to this one. */
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
      return compilePolicy(host, job.policyId, job.text, job.schema);
    case 'format':
      return formatPolicy(host, job.text);
    case 'try':
      return tryOut(job);
    case 'diff':
      return compareTexts(job.policyId, job.from, job.to);
  }
}

function tryOut({
  policyId,
  text,
  schema,
  beside,
  actionEntities,
  request,
}: Extract<AuthorJob, { kind: 'try' }>): Trial {
  const { errors, statements } = compilePolicy(host, policyId, text, schema);
  if (errors.length > 0) return { errors, hits: [] };
  const live = beside.flatMap(({ policyId, version, text }) =>
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
  const engine = new PolicyEngine({
    format: 'svc-bundle/1',
    cedar_lang: cedarLanguageVersion(),
    tenant: '',
    scopes: null,
    schema,
    action_entities: actionEntities,
    policies: [...live, ...own],
  });
  try {
    const match = engine.match(request);
    const lines = new Map(statements.map(({ id, line }) => [id, line]));
    return {
      errors: [],
      verdict: settle(match, { exceeded: new Map() }),
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
