import { Paper, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { Fragment } from 'react';
import { DEFINITION_RULE } from '../../../server/domain/tools.ts';
import { MASKED } from '../../../server/policy/evaluation/masks.ts';
import { duration } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { risk } from '../../lib/words.ts';
import { SessionLink } from '../../parts/names.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { Id } from '../../ui/copy.tsx';
import { Clamped, Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Tag } from '../../ui/status.tsx';
import type { Hold } from './view.tsx';

/** What the agent wants to do, and separately, what it says about it. */
export function TheAction({ hold }: { hold: Hold }) {
  const score = hold.risk_score === null ? undefined : risk(hold.risk_score);
  return (
    <Paper component="section" aria-labelledby="action">
      <Title order={2} id="action" mb="xs">
        The action
      </Title>
      {/* these distinguish one action of a tool from another; tool, agent and role are in the title as well */}
      {hold.erased ? (
        <Notice tone="info" title="Arguments and context were erased">
          Their retention period is over. The action hash still binds them.
        </Notice>
      ) : null}
      <Preview hold={hold} name="arguments" value={hold.arguments_preview} />
      <dl className="facts hold-names">
        {(
          [
            ['Tool', hold.tool_name],
            ['Tool server', hold.tool_server],
            ['Type', hold.action_type],
            ['Method', hold.method],
            ['Resource', hold.resource],
            ['Agent', hold.agent_id],
            ['Role', hold.agent_role],
          ] as const
        ).map(([name, value]) =>
          value === null ? null : (
            <Fragment key={name}>
              <dt>{name}</dt>
              <dd className="mono">
                <Clamped text={value} what={name.toLowerCase()} name />
              </dd>
            </Fragment>
          ),
        )}
      </dl>
      <Text size="sm" my="xs" className="no-print">
        <PageLink to="/agents/agent" search={{ id: hold.agent_id }}>
          What this agent did
        </PageLink>
        {hold.tool_name === null ? null : (
          <>
            {' · '}
            <PageLink
              to="/tools/tool"
              search={{ name: hold.tool_name, ...(hold.tool_server !== null && { server: hold.tool_server }) }}
            >
              What was done with this tool
            </PageLink>
          </>
        )}
      </Text>
      <Preview hold={hold} name="context" value={hold.context_preview} />
      <section className="hold-said" aria-labelledby="said">
        <Title order={3} id="said" size="h5">
          The agent says
        </Title>
        <blockquote>
          <Clamped text={hold.action_summary} lines={2} what="what the agent says" />
        </blockquote>
        {score && hold.risk_score !== null ? (
          <Text size="sm">
            Risk: {hold.risk_score} <Tag tone={score.tone}>{score.word}</Tag>
          </Text>
        ) : null}
        <Text size="xs" c="dimmed">
          No one has checked this. Decide by the action above.
        </Text>
      </section>
      <dl className="facts hold-binding">
        {hold.tool_pin === null ? null : <ToolDefinitionSeen hold={hold} pin={hold.tool_pin} />}
        <dt>Reported by</dt>
        <dd>
          {hold.source === 'evaluate' ? 'the control plane itself' : 'the enforcement proxy with the key '}
          {hold.source === 'evaluate' ? null : <Id value={hold.opened_by} length={30} />}
        </dd>
        {hold.rule_ids.length > 0 ? (
          <>
            <dt>Held by</dt>
            <dd>
              {hold.rule_ids.map((rule) => (
                <div key={rule}>
                  {rule === DEFINITION_RULE ? (
                    'the tool registry'
                  ) : (
                    <PageLink to="/policies/$id" params={{ id: rule.split('#')[0] ?? '' }} className="mono">
                      <Hostile text={rule} />
                    </PageLink>
                  )}
                </div>
              ))}
            </dd>
          </>
        ) : null}
        {hold.session_id ? (
          <>
            <dt>Session</dt>
            <dd>
              <div className="one-line">
                <SessionLink id={hold.session_id} agent={hold.agent_id} />
              </div>
            </dd>
          </>
        ) : null}
        <dt>Once released</dt>
        <dd>{releaseWords(hold)}, for exactly this action only</dd>
        <dt>Action hash</dt>
        <dd>
          <Id value={hold.action_hash} length={26} />
        </dd>
      </dl>
    </Paper>
  );
}

/** How long a release of this hold is valid. */
export function releaseWords({ execute_within_seconds: seconds }: Hold): string {
  return seconds === undefined ? 'until the hold expires' : `within ${duration(seconds * 1000)}`;
}

function Preview({ hold, name, value }: { hold: Hold; name: 'arguments' | 'context'; value: unknown }) {
  if (value === null || value === undefined) return null;
  const text = JSON.stringify(value, null, 2);
  return (
    <div className="hold-preview">
      <CodeBlock text={text} label={name} wrap maxHeight={360} />
      {hold.cut.includes(name) ? (
        <Text size="xs" mt={4}>
          Too long to show in full: long texts are shortened. The action hash binds the full value.
        </Text>
      ) : null}
      {text.includes(JSON.stringify(MASKED)) ? (
        <Text size="xs" c="dimmed" mt={4}>
          A policy hides here what is {MASKED}. The action hash binds the true values.
        </Text>
      ) : null}
    </div>
  );
}

/** Which definition of the tool the action is about, and whether it is the approved one. */
function ToolDefinitionSeen({ hold, pin }: { hold: Hold; pin: string }) {
  const [server, name] = [hold.tool_server ?? '', hold.tool_name ?? ''];
  const query = useQuery(trpc.tools.get.queryOptions({ server, name }, { retry: false, enabled: server !== '' }));
  const seen = query.data?.definitions.find((one) => one.pin === pin)?.standing;
  return (
    <>
      <dt>Tool definition</dt>
      <dd>
        {query.data ? (
          <>
            {seen === 'approved' || seen === 'accepted' ? (
              <Tag tone="ok">approved</Tag>
            ) : query.data.approved ? (
              <Tag tone="bad">changed since approval</Tag>
            ) : (
              <Tag tone="wait">not reviewed</Tag>
            )}{' '}
            <PageLink to="/tools/tool" search={{ server, name }}>
              Read it
            </PageLink>
          </>
        ) : null}
        <div>
          <Id value={pin} length={24} />
        </div>
      </dd>
    </>
  );
}
