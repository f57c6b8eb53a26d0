import { Group, Paper, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { StatementSummary } from '../../../server/policy/language/summary.ts';
import { trpc } from '../../lib/trpc.ts';
import { EffectTag } from '../../parts/rules-in-force.tsx';
import { Sentence } from '../../ui/hostile.tsx';
import { Shown } from '../../ui/states.tsx';

/** The newest version rule by rule, as summarized by the server. */
export function Rules({ id }: { id: string }) {
  const query = useQuery(trpc.policies.summary.queryOptions({ id }));
  return (
    <Shown query={query}>
      {({ rules }) => (
        <Paper p={0}>
          {rules.map((rule) => (
            <div className="rule" key={rule.rule_id}>
              <Group gap="xs">
                <EffectTag effect={rule.guardrail ? 'guardrail' : rule.effect} holds={rule.holds} />
                <Text fw={600} className="mono">
                  {rule.rule_id}
                </Text>
                <Text size="sm" c="dimmed">
                  line {rule.line}
                </Text>
              </Group>
              <Summary {...(rule.summary as unknown as StatementSummary)} />
            </div>
          ))}
        </Paper>
      )}
    </Shown>
  );
}

function Summary({ who, actions, tools, conditions, said, obligations }: StatementSummary) {
  return (
    <dl className="facts" style={{ marginTop: 8 }}>
      <dt>Who</dt>
      <dd>{who}</dd>
      <dt>What</dt>
      <dd>
        {actions} with {tools}
      </dd>
      {conditions.length > 0 ? (
        <>
          <dt>Only</dt>
          <dd>
            {conditions.map((clause, n) => (
              <div key={clause}>
                {said[n] === undefined || said[n] === clause ? null : <Sentence text={said[n]} />}
                <div className={said[n] === clause ? 'mono' : 'mono dim'}>{clause}</div>
              </div>
            ))}
          </dd>
        </>
      ) : null}
      {obligations.length > 0 ? (
        <>
          <dt>Then</dt>
          <dd>
            {obligations.map((obligation) => (
              <div key={obligation}>
                <Sentence text={obligation} />
              </div>
            ))}
          </dd>
        </>
      ) : null}
    </dl>
  );
}
