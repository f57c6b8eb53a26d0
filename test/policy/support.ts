import type { Annotations } from '../../server/domain/annotations.ts';
import type { BundleList } from '../../server/domain/lists.ts';
import type { ActionRequest, BundleContent, BundleStatement } from '../../server/domain/policy.ts';
import { bundleContent } from '../../server/policy/bundle.ts';
import type { Match } from '../../server/policy/evaluation/evaluate.ts';
import { type Compilation, compilePolicy } from '../../server/policy/language/compile.ts';
import { CedarHost, cedarLanguageVersion } from '../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';

/** The engine that texts are compiled on in the tests; decisions have their own. */
export const host = new CedarHost();

export function compile(source: string, policyId = 'pol'): Compilation {
  return compilePolicy(host, policyId, source, schemaFor());
}

/** The content of a bundle of these texts, by policy id; a text with errors fails the test. */
export function contentOf(
  policies: Record<string, string>,
  scopes: string[] | null = null,
  lists: BundleList[] = [],
): BundleContent {
  return bundleContent({
    tenant: 'ten_test',
    scopes,
    policies: Object.entries(policies).map(([policy_id, source]) => {
      const { errors, statements } = compile(source, policy_id);
      if (errors.length > 0) throw new Error(`${policy_id}: ${JSON.stringify(errors)}`);
      return { policy_id, version: 1, statements };
    }),
    schema: schemaFor(),
    action_entities: actionEntities(),
    cedar_lang: cedarLanguageVersion(),
    lists,
  });
}

export function request(change: Partial<ActionRequest> = {}): ActionRequest {
  return {
    agent_id: 'agent-1',
    agent_role: 'bot',
    action_type: 'tool_call',
    tool_name: 'refund',
    tool_server: 'crm',
    risk_score: 0.1,
    now: '2026-01-02T10:00:00.000Z',
    ...change,
  };
}

/** A statement that was hit, for the tests of `settle`. */
export function hit(
  id: string,
  annotations: Annotations = {},
  effect: 'permit' | 'forbid' = 'permit',
): BundleStatement {
  return {
    id: `pol#${id}`,
    policy_id: 'pol',
    version: 1,
    effect,
    annotations,
    scopes: [],
    cedar: `${id} ${JSON.stringify(annotations)}`,
  };
}

export function permitted(...hits: BundleStatement[]): Match {
  const sorted = [...hits].sort((a, b) => (a.id < b.id ? -1 : 1));
  return { outcome: 'permitted', hits: sorted, limits: [] };
}

export const NO_STATE = { exceeded: new Map<string, { retry_after: number }>() };
