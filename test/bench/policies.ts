import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { LedgerRow } from '../../server/domain/session-facts.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { textValue } from '../../server/proxy/sessions.ts';
import { contentOf, NO_STATE } from '../policy/support.ts';
import { type BenchContext, type Figure, figure } from './lib.ts';

const root = path.resolve(import.meta.dirname, '../..');
const DATA = process.env.SVC_TEST_DATA ?? path.join(root, '../shared/data');

interface Call {
  session_id: string;
  step: number;
  agent_id: string;
  agent_role: string;
  tool_name: string;
  arguments: unknown;
}
interface Label {
  session_id: string;
  step: number;
  rightful: boolean;
  executed: boolean;
}

const DECISIONS = ['denied', 'held', 'let through'] as const;
type Came = (typeof DECISIONS)[number];

function lines<T>(name: string): T[] {
  const text = readFileSync(path.join(DATA, name), 'utf8').trim();
  return text.split('\n').map((line) => JSON.parse(line) as T);
}

const idOf = ({ session_id, step }: { session_id: string; step: number }) => `${session_id} ${step}`;

/**
 * What policies do with recorded calls that change something: how many of the wrong ones they stop or hold, and how many of the
 * legitimate ones they let through. Which is which is read only for the count; no policy was written from it.
 *
 * Each call is decided after the recorded responses of the calls before it. The clock is the recording's.
 */
export async function bench({ print = () => {} }: BenchContext): Promise<Figure[]> {
  if (!existsSync(path.join(DATA, 'airline-labels.jsonl'))) {
    print(`${DATA} is not at hand (SVC_TEST_DATA): nothing is measured`);
    return [];
  }
  const calls = lines<Call>('airline-agent-tool-calls.jsonl');
  const answers = new Map(
    lines<Call & { result: unknown }>('airline-results.jsonl').map((one) => [idOf(one), one.result]),
  );
  const labels = new Map(lines<Label>('airline-labels.jsonl').map((label) => [idOf(label), label]));
  const sessions = [...Map.groupBy(calls, ({ session_id }) => session_id).values()];
  const figures: Figure[] = [];
  for (const [name, dir] of [
    ['arguments alone', 'policies'],
    ['with facts of the session', 'facts'],
  ] as const) {
    const of = path.join(root, 'test/airline', dir);
    const sources = readdirSync(of).map((file) => [
      file.replace('.cedar', ''),
      readFileSync(path.join(of, file), 'utf8'),
    ]);
    const engine = new PolicyEngine(contentOf(Object.fromEntries(sources)));
    const counts = { wrong: tally(), rightful: tally(), refused: tally() };
    const byTool = new Map<string, Record<string, number>>();
    let holds = 0;
    for (const session of sessions) {
      let rows: LedgerRow[] = [];
      for (const call of session.toSorted((a, b) => a.step - b.step)) {
        const came = decide(engine, call, rows);
        if (came === 'held') holds++;
        const label = labels.get(idOf(call));
        if (label) {
          const kind = label.executed ? (label.rightful ? 'rightful' : 'wrong') : 'refused';
          counts[kind][came]++;
          const tool = byTool.get(call.tool_name) ?? {};
          tool[`${kind}, ${came}`] = (tool[`${kind}, ${came}`] ?? 0) + 1;
          byTool.set(call.tool_name, tool);
        }
        // what follows it in the recording builds on it, no matter who approved it
        if (came !== 'denied') rows = [...rows, ...learned(engine, call, answers.get(idOf(call)))];
      }
    }
    engine.dispose();
    print(name);
    print(`  ${''.padEnd(32)}${DECISIONS.map((one) => one.padStart(13)).join('')}`);
    for (const [kind, words] of [
      ['wrong', 'wrong, carried out'],
      ['rightful', 'rightful, carried out'],
      ['refused', 'refused by the airline itself'],
    ] as const) {
      print(`  ${words.padEnd(32)}${DECISIONS.map((one) => String(counts[kind][one]).padStart(13)).join('')}`);
    }
    for (const [tool, of] of [...byTool].sort()) {
      const words = Object.entries(of)
        .sort()
        .map(([what, count]) => `${what} ${count}`);
      print(`  ${tool}: ${words.join('; ')}`);
    }
    const { wrong, rightful } = counts;
    figures.push(
      figure(`${name}: wrong writes stopped or held`, wrong.denied + wrong.held, 'calls'),
      figure(`${name}: wrong writes stopped`, wrong.denied, 'calls'),
      figure(`${name}: rightful writes let through`, rightful['let through'], 'calls'),
      figure(`${name}: rightful writes held`, rightful.held, 'calls'),
      figure(`${name}: rightful writes stopped`, rightful.denied, 'calls'),
      figure(`${name}: holds`, (100 * holds) / sessions.length, 'per 100 tasks'),
    );
  }
  return figures;
}

const tally = (): Record<Came, number> => ({ denied: 0, held: 0, 'let through': 0 });
const NOW = '2024-05-15T15:00:00.000Z';

function decide(engine: PolicyEngine, { step: _, ...call }: Call, rows: readonly LedgerRow[]): Came {
  const request = { ...call, action_type: 'tool_call', now: NOW };
  const session = engine.session(request, { call_count: 0, started: NOW }, { rows, complete: true });
  const { decision } = settle(engine.match({ ...request, session }), NO_STATE);
  return decision === 'escrow' ? 'held' : decision.startsWith('allow') ? 'let through' : 'denied';
}

function learned(engine: PolicyEngine, call: Call, answer: unknown): LedgerRow[] {
  const failed = typeof answer === 'string' && answer.startsWith('Error');
  const entries = engine.sessions.entries({
    tool: call.tool_name,
    server: undefined,
    arguments: call.arguments,
    outcome: failed ? 'failed' : 'succeeded',
    answer: typeof answer === 'string' ? textValue(answer) : answer,
    answered: true,
    trust: undefined,
    at: Date.parse(NOW) + call.step,
  });
  return entries.map((entry) => ({ ...entry, event_id: idOf(call), reported: false }));
}
