import { Group, Paper, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';

/** The newest version rule by rule, as the server read it. */
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
                  line {rule.line} · {rule.any_role ? 'every role' : rule.roles.join(', ')}
                </Text>
              </Group>
              <Summary summary={rule.summary} />
            </div>
          ))}
        </Paper>
      )}
    </Shown>
  );
}

function Summary({ summary }: { summary: Record<string, unknown> }) {
  return (
    <dl className="facts" style={{ marginTop: 8 }}>
      {Object.entries(summary).map(([key, value]) => {
        const text = typeof value === 'string' ? value : JSON.stringify(value, null, 1);
        if (value === undefined || value === null || text === '[]' || text === '{}' || text === '') return null;
        return (
          <div key={key} style={{ display: 'contents' }}>
            <dt>{key.replaceAll('_', ' ')}</dt>
            <dd>
              {text.includes('\n') && text.length > 100 ? <CodeBlock text={text} label={key} /> : <span>{text}</span>}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}
