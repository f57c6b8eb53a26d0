import { Button, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { DEFINITION_RULE } from '../../../server/domain/tools.ts';
import { RECORDED } from '../../lib/live.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { RuleText } from '../../parts/rule-text.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Shown } from '../../ui/states.tsx';

type Event = Answers['events']['get'];

/**
 * Why it was decided this way: the rules of that time that the record names. People who may see requests can also ask for the
 * outcome of each condition, including those of rules that did not match; that is recorded, just like reading the request.
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
              <RuleText key={rule.rule_id} rule={rule}>
                <PageLink to="/policies/$id" params={{ id: rule.policy_id }} className="mono">
                  {rule.rule_id}
                </PageLink>
                <span className="dim">version {rule.version}</span>
              </RuleText>
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
