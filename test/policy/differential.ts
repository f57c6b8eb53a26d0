import { conditionsOf } from '../../server/policy/evaluation/cedar/parse.ts';
import { Question } from '../../server/policy/evaluation/cedar/question.ts';
import { ASK } from '../../server/policy/evaluation/cedar/values.ts';
import { mapRequest, RequestError } from '../../server/policy/evaluation/request.ts';
import type { CedarHost } from '../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';
import { Cases } from './cases.ts';

const ACTIONS = actionEntities();
const SCHEMA = schemaFor();

/** Which statement and request were found to differ, so that they can be looked at. */
export interface Difference {
  seed: number;
  statement: string;
  request: unknown;
  compiled: unknown;
  cedar: unknown;
}

export interface Tally {
  /** Statement × request, both asked. */
  cases: number;
  true: number;
  false: number;
  errors: number;
  /** Compiled, but the request has no exact answer: Cedar is asked. Of these, Cedar found an error in `errors`. */
  asked: number;
  statements: number;
  /** Statements outside the compiled subset. */
  outside: number;
  refused: number;
  differences: Difference[];
}

export const newTally = (): Tally => ({
  ...{ cases: 0, true: 0, false: 0, errors: 0, asked: 0, statements: 0, outside: 0, refused: 0, differences: [] },
});

const PREFIX = 's';

/** One round: random statements, each on random requests, asked of the compiled conditions and of Cedar. */
export function round(
  host: CedarHost,
  seed: number,
  tally: Tally,
  size: { statements: number; requests: number },
): void {
  const cases = new Cases(seed);
  compare(
    host,
    cases,
    Array.from({ length: size.statements }, () => cases.statement()),
    tally,
    { seed, requests: size.requests },
  );
}

/** These statements on random requests, asked of the compiled conditions and of Cedar. */
export function compare(
  host: CedarHost,
  cases: Cases,
  statements: readonly string[],
  tally: Tally,
  { seed, requests }: { seed: number; requests: number },
): void {
  const conditions = conditionsOf(() => host, statements);
  tally.statements += statements.length;
  tally.outside += conditions.filter((one) => one === undefined).length;
  const key = {};
  const texts = Object.fromEntries(statements.map((text, n) => [`${PREFIX}${n}`, text]));
  for (let n = 0; n < requests; n++) {
    const { request, attributes, facts } = cases.request();
    let mapped: ReturnType<typeof mapRequest>;
    try {
      mapped = mapRequest(request, ACTIONS, attributes);
      // read as if a rule read them
      void mapped.args.values;
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      tally.refused++;
      continue;
    }
    const names = new Set(Object.keys(request.session?.facts ?? {}));
    const call = mapped.call({
      keys: null,
      attributes: null,
      facts,
      session: { facts: names, calls: new Set(request.session?.called) },
    });
    const preparsedPolicySetId = host.prepareSet(key, () => texts);
    const preparsedSchemaName = host.prepareSchema(SCHEMA);
    const answer = host.call('statefulIsAuthorized', {
      ...call,
      preparsedPolicySetId,
      preparsedSchemaName,
      validateRequest: true,
    });
    const question = new Question(mapped.values, facts);
    const differs = (n: number, compiled: unknown, cedar: unknown) =>
      tally.differences.push({
        seed,
        statement: statements[n]!,
        request: { request, attributes, facts: [...facts] },
        compiled,
        cedar,
      });
    if (answer.type !== 'success') {
      tally.refused++;
      if (question.reads(null)) differs(0, 'readable', answer.errors[0]?.message);
      continue;
    }
    if (!question.reads(null)) {
      tally.asked += statements.length;
      continue;
    }
    const held = new Set(answer.response.diagnostics.reason);
    const failed = new Map(answer.response.diagnostics.errors.map(({ policyId, error }) => [policyId, error.message]));
    for (const [n, condition] of conditions.entries()) {
      if (!condition) continue;
      const id = `${PREFIX}${n}`;
      const found = condition(question);
      const error = failed.get(id);
      tally.cases++;
      if (found === ASK) {
        tally.asked++;
        if (error !== undefined) tally.errors++;
        continue;
      }
      tally[found ? 'true' : 'false']++;
      if (error !== undefined || held.has(id) !== found) differs(n, found, error ?? held.has(id));
    }
  }
  host.releaseSet(key);
}
