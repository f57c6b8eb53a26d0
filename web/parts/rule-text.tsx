import { Text, VisuallyHidden } from '@mantine/core';
import type { ReactNode } from 'react';
import { visible } from '../../server/lib/visible.ts';
import type { Answers } from '../lib/trpc.ts';
import { Tag } from '../ui/status.tsx';
import './rule-text.css';

type Decided = Answers['events']['rules']['rules'][number];
type Rule = Pick<Decided, 'rule_id' | 'effect' | 'decided' | 'matched' | 'cedar' | 'conditions'>;
type Condition = NonNullable<Rule['conditions']>[number];

const EFFECT = { permit: ['permits', 'ok'], forbid: ['denies', 'bad'], guardrail: ['guardrail', 'wait'] } as const;
const OUTCOME = {
  true: ['✓', 'true', 'ok'],
  false: ['✗', 'false', 'bad'],
  failed: ['!', 'failed', 'bad'],
  not_asked: ['·', 'not asked', 'quiet'],
  masked: ['?', 'masked', 'quiet'],
} as const;

/** The text of a rule with the outcome of each of its conditions, if known; its name and place are the children. */
export function RuleText({ rule, children }: { rule: Rule; children: ReactNode }) {
  const [word, tone] = EFFECT[rule.effect];
  return (
    <div className="rule-text">
      <div className="rule-head">
        <Tag tone={tone}>{word}</Tag>
        {children}
        {rule.decided ? <Tag tone="info">decided</Tag> : rule.matched ? <Tag tone="quiet">matched too</Tag> : null}
        {rule.conditions?.some(({ outcome }) => outcome === 'failed') ? <Tag tone="bad">failed</Tag> : null}
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

/** Makes everything in the text of a policy visible. */
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
