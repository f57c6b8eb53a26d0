import { Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { type Answers, type Inputs, trpc } from '../lib/trpc.ts';
import { count } from '../lib/words.ts';
import { CodeBlock } from '../ui/code.tsx';
import { Hostile } from '../ui/hostile.tsx';
import { Shown } from '../ui/states.tsx';
import { Tag } from '../ui/status.tsx';
import { RuleLink } from './names.tsx';

type Rule = Answers['rules']['list']['rules'][number];

const EFFECT = {
  permit: ['permits', 'ok'],
  forbid: ['denies', 'bad'],
  guardrail: ['guardrail', 'wait'],
} as const;
const HOLDS = ['holds', 'wait'] as const;

/** What a rule does, in a word. What a guardrail adds is in its text. */
export function EffectTag({ effect, holds }: { effect: Rule['effect']; holds: boolean }) {
  const [word, tone] = effect === 'permit' && holds ? HOLDS : EFFECT[effect];
  return <Tag tone={tone}>{word}</Tag>;
}

/** The rules of live policies whose scopes match. Anything beyond the scope depends on the request. */
export function RulesInForce({ of, nothing }: { of: Inputs['rules']['list']; nothing: string }) {
  const query = useQuery(trpc.rules.list.queryOptions(of, { staleTime: 60_000 }));
  return (
    <Shown query={query} lines={4}>
      {({ rules, more }) => {
        const named = rules.filter((rule) => rule.named);
        const any = rules.filter((rule) => !rule.named);
        return (
          <>
            {rules.length === 0 ? <Text c="dimmed">{nothing}</Text> : null}
            <RuleList rules={named} />
            {any.length > 0 ? (
              <details className="more" open={named.length === 0 && any.length < 6}>
                <summary>
                  {count(any.length, 'rule')} for any {'agent_id' in of ? 'agent' : 'tool'}
                </summary>
                <RuleList rules={any} />
              </details>
            ) : null}
            {more > 0 ? (
              <Text size="sm" c="dimmed">
                {count(more, 'more rule')}
              </Text>
            ) : null}
          </>
        );
      }}
    </Shown>
  );
}

function RuleList({ rules }: { rules: readonly Rule[] }) {
  return (
    <ul className="plain-list">
      {rules.map(({ rule_id, effect, holds, reason, cedar }) => (
        <li key={rule_id} style={{ marginBottom: 8 }}>
          <EffectTag effect={effect} holds={holds} /> <RuleLink id={rule_id} />
          {reason ? (
            <Text size="sm" c="dimmed">
              <Hostile text={reason} />
            </Text>
          ) : null}
          <details>
            <summary>Text</summary>
            <CodeBlock text={cedar} label={`text of ${rule_id}`} wrap maxHeight={260} />
          </details>
        </li>
      ))}
    </ul>
  );
}
