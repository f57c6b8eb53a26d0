import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { BundleContent, BundleStatement } from '../../domain/policy.ts';
import { readSuite, type TestCase } from '../../policy/authoring/suite.ts';
import type { EngineCall } from '../../policy/evaluation/cedar/call.ts';
import { decisionHost, PolicyEngine } from '../../policy/evaluation/evaluate.ts';
import { factsOf } from '../../policy/evaluation/facts.ts';
import { Registry } from '../../policy/evaluation/registry.ts';
import { mapRequest } from '../../policy/evaluation/request.ts';
import { isGuardrail } from '../../policy/language/annotations.ts';
import { readHead } from '../../policy/language/head.ts';
import { cedarLanguageVersion } from '../../policy/language/host.ts';
import { compilePattern } from '../../policy/language/patterns.ts';
import { preamble, tokens } from '../../policy/language/scan.ts';
import { storedStatements } from '../../policy/language/statements.ts';
import type { FolderPolicy, FolderSettings } from './folder.ts';
import { surroundingsOf } from './local.ts';

/** One test in the format of `cedar run-tests`. */
export interface CedarTest {
  name: string;
  request: { principal: string; action: string; resource: string; context: unknown };
  entities: unknown[];
  decision: 'allow' | 'deny';
  reason: string[];
  num_errors: number;
}

/** The files written for the Cedar command line. */
export interface Exported {
  tests: number;
  omitted: { policy: string; name: string; why: string }[];
}

/**
 * Writes the policies and tests of a folder, which must be free of faults, as `policies.cedar`, `schema.cedarschema` and
 * `tests.json` for `cedar run-tests`. It confirms which statements match: holds, masks and limits are derived from them, and
 * Cedar does not know them. A guardrail is written as the permit that it is evaluated as.
 *
 * INVARIANT: every test was evaluated here in exactly the form that is written, with and without the schema, and led to the match
 * that decides. Anything without such a form is left out and listed.
 */
export function exportForCedar(policies: readonly FolderPolicy[], settings: FolderSettings, out: string): Exported {
  const { schema, actionEntities, registry, lists } = surroundingsOf(settings);
  const statements = policies.flatMap(({ id, dsl_source }) =>
    storedStatements(id, dsl_source).map((one): BundleStatement => ({ ...one, version: 0 })),
  );
  const content: BundleContent = {
    format: 'svc-bundle/1',
    cedar_lang: cedarLanguageVersion(),
    tenant: '',
    scopes: null,
    schema,
    action_entities: actionEntities,
    policies: statements,
    registry,
    lists: [...lists],
  };
  const texts = Object.fromEntries(statements.map((one) => [one.id, plainText(one)]));
  const heads = statements.map(({ cedar }) => readHead(tokens(cedar)));
  const facts = heads.flatMap((head) => head.facts);
  const patterns = new Map(
    facts.flatMap((fact) => ('pattern' in fact ? [[fact.pattern, compilePattern(fact.pattern)] as const] : [])),
  );
  const values = new Map(lists.map((list) => [list.name, new Set(list.values)]));
  const known = new Registry(registry);
  const engine = new PolicyEngine(content);
  const tests: CedarTest[] = [];
  const omitted: Exported['omitted'] = [];
  try {
    for (const { id, tests_source } of policies) {
      const { scope, cases } = readSuite(tests_source ?? 'tests: []');
      for (const one of cases) {
        const name = nameOf(id, one);
        const omit = (why: string) => omitted.push({ policy: id, name: one.name, why });
        if (scope === 'policy') {
          omit('its suite is evaluated without the other policies');
          continue;
        }
        const match = engine.match(one.request);
        if (!['permitted', 'forbidden', 'unpermitted'].includes(match.outcome)) {
          omit(`it is refused before Cedar is asked, or because of an error: ${match.outcome}`);
          continue;
        }
        const mapped = mapRequest(one.request, actionEntities, known.attributes(one.request));
        const call = mapped.call({
          keys: null,
          attributes: null,
          facts: factsOf(facts, mapped.args, values, patterns),
          session: {
            facts: new Set(heads.flatMap((head) => head.sessionFacts.map(({ tag }) => tag))),
            calls: new Set(heads.flatMap((head) => head.calls.map(({ tag }) => tag))),
          },
        });
        const entities = [...(call.entities as unknown[]), ...actionsOf(actionEntities)];
        const expected = {
          decision: match.outcome === 'permitted' ? ('allow' as const) : ('deny' as const),
          reason: match.hits.map((hit) => hit.id).sort(),
        };
        const found = asked(call, entities, texts, schema);
        const withoutSchema = asked(call, entities, texts, undefined);
        if (
          match.outcome === 'unpermitted' &&
          found.decision === 'allow' &&
          guardrailsAlone(found.reason, statements)
        ) {
          omit('only guardrails match, which permit nothing here');
          continue;
        }
        for (const answer of [found, withoutSchema]) {
          if (JSON.stringify(answer) !== JSON.stringify({ ...expected, num_errors: 0 })) {
            throw new Error(`${name}: the exported form gives ${JSON.stringify(answer)}`);
          }
        }
        tests.push({ name, request: requestOf(call), entities, ...expected, num_errors: 0 });
      }
    }
  } finally {
    engine.dispose();
  }
  mkdirSync(out, { recursive: true });
  const write = (file: string, text: string) => writeFileSync(path.join(out, file), text);
  write('policies.cedar', `${Object.values(texts).join('\n\n')}\n`);
  write('schema.cedarschema', schema);
  write('tests.json', `${JSON.stringify(tests, null, 2)}\n`);
  return { tests: tests.length, omitted };
}

const nameOf = (id: string, { name, row }: TestCase) => `${id}: ${name}${row === undefined ? '' : ` (row ${row})`}`;

/** A statement as Cedar evaluates it here, identified by the one annotation that the Cedar command line reads. */
function plainText({ id, effect, annotations, cedar }: BundleStatement): string {
  const read = tokens(cedar);
  const word = read[preamble(read).rest - 1]!;
  const as = isGuardrail(effect, annotations) ? 'permit' : effect;
  return `@id(${quoted(id)})\n${as}${cedar.slice(word.end)}`;
}

/** The actions with their groups: without a schema, Cedar knows only groups that an entity names. */
function actionsOf(actions: Readonly<Record<string, readonly string[]>>) {
  const uid = (id: string) => ({ type: 'Action', id });
  return Object.entries(actions).map(([id, groups]) => ({ uid: uid(id), attrs: {}, parents: groups.map(uid) }));
}

function asked(call: EngineCall, entities: unknown[], staticPolicies: Record<string, string>, schema?: string) {
  const answer = decisionHost().call('isAuthorized', {
    ...call,
    entities: entities as EngineCall['entities'],
    policies: { staticPolicies },
    ...(schema !== undefined && { schema, validateRequest: true }),
  });
  if (answer.type !== 'success') throw new Error(answer.errors.map(({ message }) => message).join('; '));
  const { decision, diagnostics } = answer.response;
  return { decision, reason: [...diagnostics.reason].sort(), num_errors: diagnostics.errors.length };
}

const guardrailsAlone = (ids: readonly string[], statements: readonly BundleStatement[]) =>
  ids.every((id) => statements.some((one) => one.id === id && isGuardrail(one.effect, one.annotations)));

function requestOf({ principal, action, resource, context }: EngineCall): CedarTest['request'] {
  const text = (uid: unknown) => {
    const { type, id } = uid as { type: string; id: string };
    return `${type}::${quoted(id)}`;
  };
  return { principal: text(principal), action: text(action), resource: text(resource), context };
}

/** Text as a Cedar string literal. */
function quoted(text: string): string {
  const escaped = (one: string) => (/["\\]/.test(one) ? `\\${one}` : `\\u{${one.codePointAt(0)!.toString(16)}}`);
  return `"${text.replace(/["\\]|[^\x20-\x7e]/gu, escaped)}"`;
}
