import { Group, Paper, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { StatementSummary } from '../../../server/policy/language/summary.ts';
import { trpc } from '../../lib/trpc.ts';
import { Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';

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
                <Tag tone={rule.effect === 'permit' ? 'ok' : rule.guardrail ? 'wait' : 'bad'}>
                  {rule.guardrail ? 'guardrail' : rule.effect === 'permit' ? 'permits' : 'denies'}
                </Tag>
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
                {said[n] === clause ? null : said[n]}
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
              <div key={obligation}>{obligation}</div>
            ))}
          </dd>
        </>
      ) : null}
    </dl>
  );
}
