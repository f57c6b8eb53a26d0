import { Anchor, Text } from '@mantine/core';
import { useCallback, useEffect, useRef, useState } from 'react';
import { type Answers, api, type Inputs } from '../../lib/trpc.ts';
import { RuleText } from '../../parts/rule-text.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';

export type Tried = Answers['policies']['try'];
export type Question = Inputs['policies']['try'];
type Trace = NonNullable<Tried['trace']>;

/** How long nothing must change before the question is asked, and how often that is checked. */
const STILL_MS = 400;
/** How long to wait after an error, such as an overloaded server. */
const PAUSE_MS = 5_000;
/** The most characters of a question that is asked automatically. */
const MOST = 200_000;

/**
 * The decision on the question, asked again once the text or the question has changed and typing has paused: one request at a
 * time, and none while the page is hidden. `question` is undefined while it is incomplete.
 */
export function useTrace(question: () => Question | undefined): {
  tried: Tried | undefined;
  /** Asks at once. Rejects with the problem. */
  ask: (question: Question) => Promise<void>;
} {
  const [tried, show] = useState<Tried>();
  const newest = useRef(question);
  newest.current = question;
  const state = useRef({ asked: '', busy: false, turn: 0 });
  const ask = useCallback(async (input: Question) => {
    const { current } = state;
    current.asked = JSON.stringify(input);
    current.busy = true;
    const turn = ++current.turn;
    try {
      const answer = await api.policies.try.mutate(input);
      // an older response says nothing about the current question
      if (turn === current.turn) show(answer);
    } finally {
      if (turn === current.turn) current.busy = false;
    }
  }, []);
  useEffect(() => {
    let seen = '';
    let until = 0;
    const timer = setInterval(() => {
      const { asked, busy } = state.current;
      if (busy || document.hidden || Date.now() < until) return;
      const input = newest.current();
      const key = input ? JSON.stringify(input) : '';
      const still = key === seen;
      seen = key;
      if (!input || !still || key === asked || key.length > MOST) return;
      ask(input).catch(() => {
        state.current.asked = '';
        until = Date.now() + PAUSE_MS;
      });
    }, STILL_MS);
    return () => clearInterval(timer);
  }, [ask]);
  return { tried, ask };
}

const PART = { principal: 'agent', action: 'action', resource: 'tool' } as const;

/** How the request fared, rule by rule: the conditions of the rules that apply to it, and why the others do not. */
export function TraceView({ trace, goTo }: { trace: Trace; goTo: (line: number) => void }) {
  const { rules, more, unfit, set } = trace;
  return (
    <section aria-label="Rule by rule" className="trace">
      {rules.map((rule) => (
        <div key={rule.rule_id}>
          <RuleText rule={rule}>
            {rule.line === undefined ? (
              <PageLink to="/policies/$id" params={{ id: rule.policy_id }} className="mono">
                {rule.rule_id}
              </PageLink>
            ) : (
              <Line id={rule.rule_id} line={rule.line} goTo={goTo} />
            )}
          </RuleText>
          <SetValues cedar={rule.cedar} set={set} />
        </div>
      ))}
      {more > 0 ? (
        <Text size="sm" className="dim">
          {more} more {more === 1 ? 'rule is' : 'rules are'} for this agent, action and tool.
        </Text>
      ) : null}
      {unfit.length === 0 ? null : (
        <ul aria-label="Rules that are not for this request">
          {unfit.map(({ rule_id, line, parts }) => (
            <li key={rule_id}>
              <Line id={rule_id} line={line} goTo={goTo} />{' '}
              <span className="dim">does not apply: another {parts.map((part) => PART[part]).join(' and ')}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** Values set by people that the rule reads and that are not part of the request. */
function SetValues({ cedar, set: { agent_labels, tool_labels, server_trust } }: { cedar: string; set: Trace['set'] }) {
  const read = [
    ['principal.labels', agent_labels.join(', ') || 'none'],
    ['resource.labels', tool_labels.join(', ') || 'none'],
    ['resource.server.trust', server_trust === null ? 'not set' : String(server_trust)],
  ].filter(([name]) => cedar.includes(name!));
  return read.map(([name, value]) => (
    <Text key={name} size="sm" className="dim">
      <code>{name}</code>: {value}
    </Text>
  ));
}

function Line({ id, line, goTo }: { id: string; line: number; goTo: (line: number) => void }) {
  return (
    <Anchor component="button" type="button" ta="left" className="mono" onClick={() => goTo(line)}>
      <Hostile text={id} />, line {line}
    </Anchor>
  );
}
