import { Fragment, type ReactNode } from 'react';
import { holdKind } from '../../../server/domain/hold-kinds.ts';
import { usePeople } from '../../lib/people.ts';
import { GAP_MS, type Item } from '../../lib/session-story.ts';
import { duration } from '../../lib/time.ts';
import type { Answers } from '../../lib/trpc.ts';
import { money } from '../../lib/words.ts';
import { AgentLink, RuleLink, ToolLink } from '../../parts/names.tsx';
import { TargetOf } from '../../parts/stops.tsx';
import { Clamped, Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { DECISION, DecisionTag, HoldTag, Tag, type Tone } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

type Told = Answers['sessionStory'];
type StoryDecision = Told['entries'][number];
type StoryHold = Told['holds'][number];
type StoryItem = Item<StoryDecision, StoryHold, Told['stops'][number]>;

/** Everything in order; a pause of the agent has its own line. */
export function Story({
  items,
  agents,
  whole,
}: {
  items: readonly StoryItem[];
  /** It involves several agents. */
  agents: boolean;
  /** Nothing is left out, so sums are for the whole session. */
  whole: boolean;
}) {
  if (items.length === 0) return <p className="dim">No such decision.</p>;
  return (
    <ol className="story" aria-label="What happened, in its order">
      {items.map((item) => (
        <Fragment key={item.key}>
          {item.gapMs >= GAP_MS ? <li className="story-gap">{duration(item.gapMs)} later</li> : null}
          <li data-tone={toneOf(item)}>
            <When at={item.at} exact />
            <What item={item} agents={agents} whole={whole} />
          </li>
        </Fragment>
      ))}
    </ol>
  );
}

function toneOf(item: StoryItem): Tone {
  switch (item.kind) {
    case 'decision':
      return DECISION[item.decision.decision][1];
    case 'vote':
      return item.vote.decision === 'approve' ? 'ok' : 'bad';
    case 'report':
      return item.condition.satisfied ? 'ok' : 'wait';
    case 'end':
      return { released: 'info', consumed: 'ok', rejected: 'bad', expired: 'quiet', cancelled: 'quiet' }[
        item.end
      ] as Tone;
    case 'stop':
      return item.ended ? 'quiet' : 'bad';
  }
}

function What({ item, agents, whole }: { item: StoryItem; agents: boolean; whole: boolean }) {
  const name = usePeople();
  switch (item.kind) {
    case 'decision':
      return <Decided decision={item.decision} hold={item.hold} agents={agents} />;
    case 'vote':
      return (
        <>
          <strong>{name(item.vote.user_id)}</strong> {item.vote.decision === 'approve' ? 'approved' : 'voted against'}{' '}
          <HoldLink hold={item.hold} />
          {item.vote.reason ? (
            <More>
              <Clamped text={item.vote.reason} what="reason" />
            </More>
          ) : null}
        </>
      );
    case 'report':
      return (
        <>
          A condition of <HoldLink hold={item.hold} /> was reported as {item.condition.satisfied ? 'met' : 'not met'}
          <More>
            <Hostile text={item.condition.condition_id} />
          </More>
        </>
      );
    case 'end':
      return (
        <>
          <HoldTag status={item.end} /> <HoldLink hold={item.hold} />
          {item.end === 'consumed' && item.hold.estimated_value !== null ? (
            <More>
              Stated value {money(item.hold.estimated_value, item.hold.value_currency)}
              {whole && item.sum !== undefined
                ? `; ${money(item.sum, item.hold.value_currency)} used in this session by then`
                : ''}
            </More>
          ) : null}
        </>
      );
    case 'stop':
      return (
        <>
          <Tag tone={item.ended ? 'quiet' : 'bad'}>{item.ended ? 'No longer stopped' : 'Stopped'}</Tag>{' '}
          <TargetOf stop={item.stop} />
          {item.ended ? (
            item.stop.ended_by ? (
              ` by ${name(item.stop.ended_by)}`
            ) : (
              ': its time was over'
            )
          ) : (
            <>
              {' '}
              by {name(item.stop.created_by)}
              {item.stop.mode === 'freeze' ? ': what policies permit is held' : ''}
              <More>
                <Hostile text={item.stop.reason} />
              </More>
            </>
          )}
        </>
      );
  }
}

function Decided({
  decision: event,
  hold,
  agents,
}: {
  decision: StoryDecision;
  hold: StoryHold | undefined;
  agents: boolean;
}) {
  const { facts, outcome, rule_id, deny_reason, on_behalf_of, delegation_source } = event;
  const lines: [name: string, line: ReactNode][] = [];
  if (deny_reason) lines.push(['why', <Clamped key="why" text={deny_reason} what="reason" />]);
  for (const [rule, seconds] of facts?.exceeded ?? []) {
    const room = ` had no room; there was again after ${duration(seconds * 1000)}`;
    lines.push([
      `limit ${rule}`,
      <>
        The limit of <RuleLink id={rule} />
        {room}
      </>,
    ]);
  }
  if (facts?.stop) {
    lines.push([
      'stop',
      <>
        Because of the stop{' '}
        <span className="mono">
          <Hostile text={facts.stop} />
        </span>
      </>,
    ]);
  }
  if (hold && event.decision === 'escrow') {
    const { hold_type, required_approvals: needed, estimated_value: value } = hold;
    lines.push([
      'hold',
      <>
        {holdKind(hold_type).label}
        {needed > 0 ? `, ${needed} needed` : ''}: <HoldLink hold={hold} />
        {value === null ? '' : `, stated value ${money(value, hold.value_currency)}`}
      </>,
    ]);
  }
  if (outcome) {
    lines.push([
      'outcome',
      <>
        Outcome: <Hostile text={outcome} />
      </>,
    ]);
  }
  if (on_behalf_of) {
    lines.push([
      'for',
      <>
        On behalf of <Hostile text={on_behalf_of} />
        {delegation_source === 'token' ? '' : ', as the agent says'}
      </>,
    ]);
  }
  return (
    <>
      <DecisionTag decision={event.decision} />{' '}
      <strong>
        <ToolLink name={event.tool_name} server={event.tool_server} plain />
      </strong>
      {agents ? (
        <>
          {' '}
          for <AgentLink id={event.agent_id} />
        </>
      ) : null}
      {rule_id ? (
        <>
          {' '}
          by{' '}
          <span className="mono">
            <RuleLink id={rule_id} />
          </span>
        </>
      ) : null}{' '}
      <PageLink to="/decisions/$id" params={{ id: event.id }} size="sm">
        the decision
      </PageLink>
      {lines.map(([key, line]) => (
        <More key={key}>{line}</More>
      ))}
    </>
  );
}

const More = ({ children }: { children: ReactNode }) => <div className="story-more">{children}</div>;

const HoldLink = ({ hold }: { hold: StoryHold }) => (
  <PageLink to="/approvals/$id" params={{ id: hold.id }}>
    the hold <span className="mono">…{hold.id.slice(-6)}</span>
  </PageLink>
);
