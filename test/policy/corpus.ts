import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { conditionsOf } from '../../server/policy/evaluation/cedar/parse.ts';
import { Question } from '../../server/policy/evaluation/cedar/question.ts';
import { ASK } from '../../server/policy/evaluation/cedar/values.ts';
import { mapRequest } from '../../server/policy/evaluation/request.ts';
import type { CedarHost } from '../../server/policy/language/host.ts';
import { preamble, statementTokens, tokens } from '../../server/policy/language/scan.ts';
import { actionEntities } from '../../server/policy/language/schema.ts';
import { Cases } from './cases.ts';
import { compare, newTally, type Tally } from './differential.ts';

/**
 * A folder with Cedar's public integration tests (github.com/cedar-policy/cedar-integration-tests, Apache-2.0), with its
 * `corpus-tests.tar.gz` unpacked beside it. They are read in place; nothing of them is in this repository.
 */
export const CORPUS = process.env.SVC_CEDAR_CORPUS;
export const NO_CORPUS = 'SVC_CEDAR_CORPUS names no folder with cedar-integration-tests';

export interface CorpusTally extends Tally {
  policies: number;
  /** Different conditions, whatever their scopes. */
  conditions: number;
  /** What the scanner does not take as a policy's text: templates, and what is longer than a policy may be. */
  unread: number;
  /** Answers of conditions that read nothing of a request, and are more than `true`, held against what the corpus itself says of its own requests. */
  expected: number;
  unexpected: { policy: string; compiled: unknown; expected: unknown }[];
}

interface IntegrationTest {
  policies: string;
  requests: { decision: string; reason: string[]; errors: string[] }[];
}

/** Conditions as each statement has them, under a scope that takes every request. */
function conditionsIn(text: string): { unscoped: string; free: boolean }[] {
  return statementTokens(tokens(text)).map((words) => {
    const { effect, rest } = preamble([...words]);
    let end = rest;
    for (let depth = 0; end < words.length; end++) {
      if (words[end]!.text === '(' || words[end]!.text === '[') depth++;
      if ((words[end]!.text === ')' || words[end]!.text === ']') && --depth === 0) break;
    }
    const scope = words.slice(rest, end + 1).map((word) => word.text);
    const clauses = text.slice(words[end]!.end, words.at(-1)!.end);
    return {
      unscoped: `permit(principal, action, resource)${clauses}`,
      free: effect !== '' && scope.join('') === '(principal,action,resource)',
    };
  });
}

const isPlain = (statement: string) => /\{\s*(true|false)\s*\};$/.test(statement);
const reads = (statement: string) =>
  /\b(principal|action|resource|context)\b/.test(statement.slice(statement.indexOf(')')));

/**
 * The conditions of all policies of the corpus: those in the compiled subset are asked, on random requests, of the compiled
 * ones and of Cedar. What the corpus says of its own requests is of other types than ours; of conditions that read nothing
 * of a request, it holds all the same.
 */
export function corpus(host: CedarHost, folder: string, requests: number, seed: number): CorpusTally {
  const tally: CorpusTally = {
    ...newTally(),
    ...{ policies: 0, conditions: 0, unread: 0, expected: 0, unexpected: [] },
  };
  const all = new Set<string>();
  const closed = new Map<string, string>();
  for (const file of globSync('{tests,corpus-tests}/**/*.cedar', { cwd: folder })) {
    const text = readFileSync(path.join(folder, file), 'utf8');
    try {
      const found = conditionsIn(text);
      tally.policies += found.length;
      for (const { unscoped } of found) all.add(unscoped);
      const [only] = found;
      if (found.length === 1 && only!.free && !isPlain(only!.unscoped) && !reads(only!.unscoped))
        closed.set(file, only!.unscoped);
    } catch {
      tally.unread++;
    }
  }
  const statements = [...all];
  tally.conditions = statements.length;
  for (let n = 0; n < statements.length; n += 50) {
    compare(host, new Cases(seed + n), statements.slice(n, n + 50), tally, { seed: seed + n, requests });
  }
  const now = '2026-01-02T10:00:00.000Z';
  const { values } = mapRequest(
    { agent_id: 'a', agent_role: 'r', action_type: 'tool_call', tool_name: 't', arguments: {}, now },
    actionEntities(),
    {},
  );
  const conditions = conditionsOf(() => host, [...closed.values()]);
  for (const [n, file] of [...closed.keys()].entries()) {
    const condition = conditions[n];
    const test = path.join(folder, file.replace(/\.cedar$/, '.json'));
    if (!condition || !file.startsWith('corpus-tests')) continue;
    const { requests } = JSON.parse(readFileSync(test, 'utf8')) as IntegrationTest;
    const compiled = condition(new Question(values, new Set()));
    for (const { reason, errors } of requests) {
      tally.expected++;
      const expected = errors.length > 0 ? ASK : reason.length > 0;
      if (compiled !== ASK && compiled !== expected) tally.unexpected.push({ policy: file, compiled, expected });
    }
  }
  return tally;
}
