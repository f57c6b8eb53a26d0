import { Button, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { useNear } from '../lib/near.ts';
import { trpc } from '../lib/trpc.ts';
import { count, unmetTitle } from '../lib/words.ts';
import { Line } from '../ui/hostile.tsx';
import { Panel } from '../ui/panel.tsx';
import { Shown } from '../ui/states.tsx';
import { When } from '../ui/time.tsx';
import { RuleLink } from './names.tsx';
import { EffectTag } from './rules-in-force.tsx';

const DAYS = 30;
const FEW = 5;

/** Rules that nothing has matched: no longer needed, or not saying what their author meant. */
export function UnusedRules() {
  const { ref, near } = useNear();
  const query = useQuery(trpc.rules.unused.queryOptions({ days: DAYS }, { staleTime: 600_000, enabled: near }));
  const [all, setAll] = useState(false);
  return (
    <Panel id="unused-title" title={unmetTitle(DAYS, query.data)}>
      <div ref={ref} style={{ minHeight: 130 }}>
        {near ? (
          <Shown query={query} lines={4}>
            {({ rules, more, of, looked_at, complete }) => (
              <>
                <Text c="dimmed" size="sm" px="md" pb="xs">
                  {rules.length === 0
                    ? of === 0
                      ? 'No policy is live.'
                      : `Each of the ${count(of, 'rule')} matched a decision.`
                    : `${(rules.length + more).toLocaleString()} of ${count(of, 'rule')}.`}
                  {complete || rules.length === 0
                    ? null
                    : ` The last ${DAYS} days have more than these ${looked_at.toLocaleString()}: a rule may have decided in one of the others. Search its decisions before you change it.`}
                </Text>
                <ul className="lines">
                  {rules.slice(0, all ? rules.length : FEW).map(({ rule_id, effect, holds, written_at }) => (
                    <li key={rule_id}>
                      <Line className="lines-main">
                        <RuleLink id={rule_id} />
                      </Line>
                      <div className="lines-side">
                        <EffectTag effect={effect} holds={holds} />
                        <span className="dim">
                          written <When at={written_at} />
                        </span>
                      </div>
                    </li>
                  ))}
                </ul>
                {rules.length > FEW && !all ? (
                  <Button variant="subtle" size="compact-sm" m="xs" onClick={() => setAll(true)}>
                    Show all {rules.length.toLocaleString()}
                  </Button>
                ) : null}
              </>
            )}
          </Shown>
        ) : null}
      </div>
    </Panel>
  );
}
