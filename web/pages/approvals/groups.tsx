import { useQuery } from '@tanstack/react-query';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Name } from '../../ui/hostile.tsx';
import { Shown } from '../../ui/states.tsx';
import type { HoldFilter } from './filter.ts';

type Found = Answers['escrow']['groups']['groups'][number];
type Choice = Pick<HoldFilter, 'agent_id' | 'rule_id' | 'tool_server' | 'tool_name'>;

/** No group selected. */
export const NO_GROUP: Choice = {
  ...{ agent_id: undefined, rule_id: undefined, tool_server: undefined, tool_name: undefined },
};

/** How many actions wait in each group; one press shows the holds of that group, another shows all. */
export function Groups({
  by,
  mine,
  chosen,
  choose,
}: {
  by: NonNullable<HoldFilter['group']>;
  mine: HoldFilter['mine'];
  chosen: Choice;
  choose: (choice: Choice) => void;
}) {
  const query = useQuery(trpc.escrow.groups.queryOptions({ by, aside: 'without', ...(mine === 'needed' && { mine }) }));
  return (
    <Shown query={query} lines={1}>
      {({ groups }) =>
        groups.length === 0 ? null : (
          <ul className="groups" aria-label={`Waiting holds by ${by}`}>
            {groups.map((group) => {
              const { names, choice } = choiceOf(group);
              const pressed = same(choice, chosen);
              return (
                <li key={JSON.stringify(names)}>
                  <button type="button" aria-pressed={pressed} onClick={() => choose(pressed ? {} : choice)}>
                    <span className="action-title">
                      {names[0] === undefined ? `no ${by}` : <Name text={names[0]} />}
                      {names[1] === undefined ? null : (
                        <>
                          {' '}
                          <span className="ours">on</span> <Name text={names[1]} />
                        </>
                      )}
                    </span>{' '}
                    <strong>{group.count.toLocaleString()}</strong>
                  </button>
                </li>
              );
            })}
          </ul>
        )
      }
    </Shown>
  );
}

/** The names in the label of a group, and its filter. */
function choiceOf({ agent_id, rule_id, tool_server, tool_name }: Found): { names: string[]; choice: Choice } {
  const choice = Object.fromEntries(
    Object.entries({ agent_id, rule_id, tool_server, tool_name }).filter(([, value]) => value !== null),
  ) as Choice;
  return { names: [agent_id, rule_id, tool_name, tool_server].filter((name): name is string => !!name), choice };
}

const same = (a: Choice, b: Choice) =>
  (['agent_id', 'rule_id', 'tool_server', 'tool_name'] as const).every((name) => a[name] === b[name]);
