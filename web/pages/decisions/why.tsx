import { Button, Text, Title, VisuallyHidden } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { DEFINITION_RULE } from '../../../server/domain/tools.ts';
import { visible } from '../../../server/lib/visible.ts';
import { RECORDED } from '../../lib/live.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';

type Event = Answers['events']['get'];
type Rule = Answers['events']['rules']['rules'][number];
type Condition = NonNullable<Rule['conditions']>[number];

/**
 * Why it was decided so: the rules of that time that the record names. Who may see requests can have it say what each condition was,
 * also of rules that did not match; that is recorded, as reading the request is.
 */
export function Why({ event }: { event: Event }) {
  const me = useMe();
  const [asked, setAsked] = useState(false);
  const query = useQuery(
    trpc.events.rules.queryOptions(
      { id: event.id, conditions: asked ? 'true' : 'false' },
      { staleTime: Number.POSITIVE_INFINITY, gcTime: 0, retry: false, meta: RECORDED, placeholderData: (old) => old },
    ),
  );
  const denied = event.decision === 'deny';
  return (
    <section aria-labelledby="why">
      <Title order={2} id="why" className="part">
        {denied ? 'Why it was not allowed' : 'Why'}
      </Title>
      <Text size="sm" mb="xs">
        <Because event={event} />
      </Text>
      <Shown query={query} lines={3}>
        {({ rules, known, more, asked: from }) => (
          <>
            {known ? null : (
              <Text size="sm" className="dim">
                The policies of this decision are not stored here, so their text cannot be shown.
              </Text>
            )}
            {rules.map((rule) => (
              <RuleText key={rule.rule_id} rule={rule} />
            ))}
            {more > 0 ? (
              <Text size="sm" className="dim">
                {more} more {more === 1 ? 'rule' : 'rules'} could have applied by agent, action and tool.
              </Text>
            ) : null}
            {asked && known && from === null && !query.isFetching ? (
              <Text size="sm" className="dim">
                The conditions cannot be shown: the request is no longer kept.
              </Text>
            ) : null}
            {asked && from !== null && rules.length === 0 ? (
              <Text size="sm" className="dim">
                No rule applies to this agent, action and tool.
              </Text>
            ) : null}
          </>
        )}
      </Shown>
      {me.has('approver') && !asked && query.data?.known ? (
        <>
          <Button size="xs" variant="default" onClick={() => setAsked(true)}>
            {denied ? 'Show which conditions failed' : 'Show which conditions held'}
          </Button>
          <Text className="dim" size="sm" mt={4}>
            The audit log records who looked.
          </Text>
        </>
      ) : null}
    </section>
  );
}

/** The decision in a sentence. */
function Because({ event }: { event: Event }): ReactNode {
  const { decision, rule_id, deny_reason, facts } = event;
  const rule =
    rule_id === DEFINITION_RULE ? (
      'the tool registry'
    ) : (
      <span className="mono">
        <Hostile text={rule_id ?? ''} />
      </span>
    );
  if (facts?.stop) return <>A stop was in force.</>;
  switch (decision) {
    case 'allow':
    case 'allow_with_masking':
      return (
        <>
          {rule_id ? <>{rule} permits it</> : 'A rule permits it'}
          {facts?.covered ? ', after its hold was released' : ''}
          {decision === 'allow_with_masking' ? ', with values masked' : ''}.
        </>
      );
    case 'escrow':
      return rule_id ? <>{rule} holds it until it is released.</> : <>It is held until it is released.</>;
    case 'rate_limited':
      return rule_id ? <>{rule} was over its limit.</> : <>A limit was exceeded.</>;
    case 'deny':
      return (
        <>
          {rule_id ? <>{rule} denies it: </> : ''}
          <Hostile text={deny_reason ?? 'no policy permits this action'} />
        </>
      );
  }
}

const EFFECT = { permit: ['permits', 'ok'], forbid: ['denies', 'bad'], guardrail: ['guardrail', 'wait'] } as const;
const OUTCOME = {
  true: ['✓', 'true', 'ok'],
  false: ['✗', 'false', 'bad'],
  not_asked: ['·', 'not asked', 'quiet'],
  masked: ['?', 'masked', 'quiet'],
} as const;

function RuleText({ rule }: { rule: Rule }) {
  const [word, tone] = EFFECT[rule.effect];
  return (
    <div className="rule-text">
      <div className="rule-head">
        <Tag tone={tone}>{word}</Tag>
        <PageLink to="/policies/$id" params={{ id: rule.policy_id }} className="mono">
          {rule.rule_id}
        </PageLink>
        <span className="dim">version {rule.version}</span>
        {rule.decided ? <Tag tone="info">decided</Tag> : rule.matched ? <Tag tone="quiet">matched too</Tag> : null}
        {rule.conditions && !rule.matched ? <Tag tone="quiet">did not decide</Tag> : null}
      </div>
      {/* biome-ignore-start lint/a11y: it may scroll, so the keyboard must reach it, and then it has a name */}
      <section
        className="code"
        tabIndex={0}
        aria-label={`Text of ${rule.rule_id}`}
        style={{ maxHeight: 320, overflow: 'auto' }}
      >
        <pre data-wrap>
          {partsOf(rule.cedar, rule.conditions ?? []).map(({ at, text, condition }) =>
            condition ? <Clause key={at} text={lines(text)} condition={condition} /> : lines(text),
          )}
        </pre>
      </section>
      {/* biome-ignore-end lint/a11y: as above */}
      {rule.conditions?.some(({ outcome }) => outcome === 'masked') ? (
        <Text size="sm" className="dim">
          The values of these conditions are hidden, because the rule may read a masked value.
        </Text>
      ) : null}
    </div>
  );
}

function Clause({ text, condition: { outcome } }: { text: string; condition: Condition }) {
  const [sign, word, tone] = OUTCOME[outcome];
  return (
    <mark className="clause" data-tone={tone} title={word}>
      <span aria-hidden>{`${sign}\u00A0`}</span>
      <VisuallyHidden component="span">({word}) </VisuallyHidden>
      {text}
    </mark>
  );
}

/** Nothing in the text of a policy is invisible. */
const lines = (text: string) => text.split('\n').map(visible).join('\n');

/** The text with its conditions, which do not overlap, in their places. */
function partsOf(
  text: string,
  conditions: readonly Condition[],
): { at: number; text: string; condition?: Condition }[] {
  const starts = [0];
  for (let n = text.indexOf('\n'); n >= 0; n = text.indexOf('\n', n + 1)) starts.push(n + 1);
  const parts: { at: number; text: string; condition?: Condition }[] = [];
  let end = 0;
  for (const condition of conditions) {
    const at = (starts[condition.line - 1] ?? 0) + condition.column - 1;
    if (at < end || !text.startsWith(condition.text, at)) continue;
    parts.push({ at: end, text: text.slice(end, at) });
    parts.push({ at, text: condition.text, condition });
    end = at + condition.text.length;
  }
  parts.push({ at: end, text: text.slice(end) });
  return parts.filter((part) => part.text !== '');
}
