import type { PolicyJson } from '@cedar-policy/cedar-wasm/nodejs';
import { type Annotations, DAY_SECONDS, type LimitKey } from '../../domain/annotations.ts';
import { type HoldKind, holdKind } from '../../domain/hold-kinds.ts';
import { quoted, visible } from '../../lib/visible.ts';
import { isGuardrail, requiredApprovals, ttlSeconds } from './annotations.ts';
import { conditionWords } from './condition-words.ts';
import { preamble, type Token } from './scan.ts';

/** One statement in plain words, for readers who do not know Cedar. */
export interface StatementSummary {
  kind: 'permit' | 'forbid' | 'guardrail';
  who: string;
  actions: string;
  tools: string;
  /** The clauses as written, without comments and line breaks. */
  conditions: string[];
  /** The same in plain words, for clauses that have a wording. */
  said: string[];
  obligations: string[];
  /** The whole statement in one or two sentences, its clauses in plain words if they have a wording. */
  text: string;
}

export function summarize(
  est: PolicyJson,
  annotations: Annotations,
  statement: Token[],
  source: string,
): StatementSummary {
  const kind = isGuardrail(est.effect, annotations) ? 'guardrail' : est.effect;
  const who = principalWords(est.principal);
  const actions = actionWords(est.action);
  const tools = resourceWords(est.resource);
  const conditions = clauses(statement, source);
  const obligations = obligationWords(annotations);

  const said = conditions.map((clause, n) => {
    const { kind: word, body } = est.conditions[n]!;
    const words = wordsOf(body);
    return words === undefined ? clause : `${word} ${words}`;
  });
  const what = `${who}: ${actions} with ${tools}${said.map((clause) => `, ${clause}`).join('')}`;
  const lead = { permit: 'Permits', forbid: 'Denies', guardrail: 'Where another rule permits it, restricts' }[kind];
  const because =
    annotations.reason === undefined ? '' : ` Reason: ${visible(annotations.reason.replace(/\s+/g, ' ').trim())}`;
  const bound = obligations.length > 0 ? ` Then: ${obligations.join('; ')}.` : '';
  return { kind, who, actions, tools, conditions, said, obligations, text: `${lead} ${what}.${bound}${because}` };
}

/** The words are a help for readers, so a fault in them must not keep a valid text from being saved: the Cedar text stands. */
function wordsOf(body: unknown): string | undefined {
  try {
    return conditionWords(body);
  } catch {
    return undefined;
  }
}

type Scope = PolicyJson['principal'] | PolicyJson['resource'];

function entity(constraint: { entity: unknown } | { slot: string }): { type: string; id: string } {
  const uid = ('entity' in constraint ? constraint.entity : {}) as { type: string; id: string };
  return { type: uid.type, id: uid.id };
}

function principalWords(scope: PolicyJson['principal']): string {
  return scopeWords(scope, 'Agent', 'any agent', (type, id) =>
    type === 'AgentRole'
      ? `agents in the role ${quoted(id)}`
      : `${type === 'Agent' ? 'the agent' : type} ${quoted(id)}`,
  );
}

function resourceWords(scope: PolicyJson['resource']): string {
  return scopeWords(scope, 'Tool', 'any tool', (type, id) =>
    type === 'ToolServer'
      ? `the tools of the server ${quoted(id)}`
      : `${type === 'Tool' ? 'the tool' : type} ${quoted(id)}`,
  );
}

function scopeWords(scope: Scope, own: string, any: string, one: (type: string, id: string) => string): string {
  if (scope.op === 'All') return any;
  if (scope.op === 'is') {
    if (scope.in) {
      const { type, id } = entity(scope.in);
      return one(type, id);
    }
    return scope.entity_type === own ? any : `anything that is ${scope.entity_type}`;
  }
  const { type, id } = entity(scope);
  return one(type, id);
}

function actionWords(scope: PolicyJson['action']): string {
  if (scope.op === 'All') return 'any action';
  const uids = 'entities' in scope ? scope.entities.map((uid) => entity({ entity: uid })) : [entity(scope)];
  const words = uids.map(({ id }) => (id === 'read' || id === 'write' ? `any ${id} action` : id));
  return words.length > 1 ? `${words.slice(0, -1).join(', ')} or ${words.at(-1)}` : (words[0] ?? 'no action');
}

/** The `when …` and `unless …` clauses, in the author's own words from the source text. */
function clauses(statement: Token[], source: string): string[] {
  const found: string[] = [];
  let depth = 0;
  let clause: { word: string; body: Token[] } | undefined;
  for (const token of statement.slice(preamble(statement).rest)) {
    if (depth === 0 && (token.text === 'when' || token.text === 'unless')) clause = { word: token.text, body: [] };
    else if (depth > 0 && !(depth === 1 && token.text === '}')) clause?.body.push(token);
    if ('([{'.includes(token.text)) depth++;
    if (')]}'.includes(token.text) && --depth === 0 && clause) {
      found.push(`${clause.word} ${joined(clause.body, source)}`);
      clause = undefined;
    }
  }
  return found;
}

function joined(body: Token[], source: string): string {
  let words = '';
  let end = body[0]?.start ?? 0;
  for (const token of body) {
    words += `${token.start > end ? ' ' : ''}${source.slice(token.start, token.end)}`;
    end = token.end;
  }
  return words;
}

function obligationWords(annotations: Annotations): string[] {
  const words: string[] = [];
  const { escrow, fact = [], rate, budget, mask, notify } = annotations;
  if (annotations.null !== undefined) words.push('an argument that is null counts as absent');
  if (rate) words.push(`at most ${rate.limit} per ${windowWords(rate)}`);
  if (budget) {
    const { amount, currency, of } = budget;
    const what = of === undefined ? '' : `, as ${of} says,`;
    words.push(`actions worth${what} at most ${amount} ${currency} per ${windowWords(budget)}`);
  }
  if (escrow) {
    words.push(holdWords(annotations, escrow));
    if (annotations.report)
      words.push('only keys of people who have nothing to do with the agent or this policy report it');
    words.push(`the hold expires after ${period(ttlSeconds(annotations))}`);
    if (annotations.execute_within !== undefined) {
      words.push(`once released it must be used within ${period(annotations.execute_within)}`);
    }
    if (notify) words.push(`${notify.join(', ')} ${notify.length === 1 ? 'is' : 'are'} notified`);
  }
  if (mask) words.push(`${visible(mask.join(', '))} masked`);
  for (const { name, key, value, tool, server, seconds, reported } of fact) {
    const from = `the answers of ${visible(tool)}${server === null ? ' on any server' : ` of ${visible(server)}`}`;
    const of = key === null ? '' : ` for each ${key}`;
    const also = reported ? ', also as the agent itself reports them' : '';
    words.push(`${from} tell ${name} (${value})${of}, known for ${period(seconds)}${also}`);
  }
  return words;
}

function windowWords({ window_seconds, per = 'agent' }: { window_seconds: number; per?: LimitKey }): string {
  const whom: Partial<Record<LimitKey, string>> = { owner: 'owner of agents', tenant: '' };
  const each = whom[per] ?? (per.includes('.') ? `value of ${per}` : per);
  return `${period(window_seconds).replace(/^1 /, '')} ${each === '' ? 'for all together' : `for each ${each}`}`;
}

function holdWords(annotations: Annotations, kind: HoldKind): string {
  const { quorum, condition = [], delay = 0 } = annotations;
  const { summary, summaryWithApprovals } = holdKind(kind);
  const approvals = requiredApprovals(annotations);
  const from = quorum ? ` (${quorum.map(({ group, count }) => `${count} of ${group}`).join(', ')})` : '';
  const words: Record<string, string> = {
    approvals: `${approvals} ${approvals === 1 ? 'approval' : 'approvals'}${from}`,
    conditions: `${condition.join(', ')} ${condition.length === 1 ? 'is' : 'are'}`,
    delay: period(delay),
  };
  const whole = approvals > 0 ? summary + summaryWithApprovals : summary;
  return whole.replace(/\{(\w+)\}/g, (_, name: string) => words[name]!);
}

/** 5400 -> "90 minutes", 60 -> "1 minute", 86400 -> "1 day". */
function period(seconds: number): string {
  const [unit, size] =
    (
      [
        ['day', DAY_SECONDS],
        ['hour', 3_600],
        ['minute', 60],
      ] as const
    ).find(([, size]) => seconds % size === 0) ?? (['second', 1] as const);
  const count = seconds / size;
  return `${count} ${unit}${count === 1 ? '' : 's'}`;
}
