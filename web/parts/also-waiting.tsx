import { Paper, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { trpc } from '../lib/trpc.ts';
import { count } from '../lib/words.ts';
import { Said } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { When } from '../ui/time.tsx';

const MOST_TOOLS = 50;

/** What is waiting for a decision in addition to policies: settings, versions of lists, and tools. Undefined while unknown. */
function useAlsoWaiting() {
  const lists = useQuery(trpc.lists.list.queryOptions({}));
  const tools = useQuery(trpc.tools.list.queryOptions({ review: true, limit: MOST_TOOLS }));
  const settings = useQuery(trpc.settings.changes.queryOptions({ status: 'pending' }));
  if (!lists.data || !tools.data || !settings.data) return undefined;
  const { tools: found, next } = tools.data;
  return {
    settings: settings.data.changes,
    lists: lists.data.lists.filter(({ newest }) => newest.status === 'pending'),
    tools: found.length,
    toolsSaid: `${next === null ? '' : 'more than '}${count(found.length, 'tool')}`,
  };
}

/** How many policies, lists and settings changes wait for a second person. */
export function useReviewsWaiting(): number {
  const policies = useQuery(trpc.policies.list.queryOptions({ review: 'open', limit: 1 })).data?.total ?? 0;
  const also = useAlsoWaiting();
  return policies + (also ? also.lists.length + also.settings.length : 0);
}

/** The same in a few words; nothing if nothing is waiting. */
export function AlsoWaitingLine() {
  const waiting = useAlsoWaiting();
  if (!waiting) return null;
  const { settings, lists, tools, toolsSaid } = waiting;
  const said = [
    ...(settings.length > 0 ? [count(settings.length, 'settings change')] : []),
    ...(lists.length > 0 ? [count(lists.length, 'list')] : []),
    ...(tools > 0 ? [toolsSaid] : []),
  ];
  return said.length > 0 ? <div>also to decide: {said.join(', ')}</div> : null;
}

export function AlsoWaiting() {
  const waiting = useAlsoWaiting();
  if (!waiting || (waiting.settings.length === 0 && waiting.lists.length === 0 && waiting.tools === 0)) return null;
  return (
    <Paper component="section" mt="lg" aria-labelledby="also-title">
      <Title order={2} id="also-title" mb="xs">
        Also to decide
      </Title>
      <ul className="lines">
        {waiting.settings.map(({ id, changes, created_at, reason }) => (
          <li key={id}>
            <div className="lines-main">
              <PageLink to="/settings" fw={600}>
                A change of {count(changes.length, 'setting')}
              </PageLink>{' '}
              that removes a safeguard: <Said text={reason} />
            </div>
            <div className="dim">
              <When at={created_at} />
            </div>
          </li>
        ))}
        {waiting.lists.map(({ name, newest }) => (
          <li key={name}>
            <div className="lines-main">
              <PageLink to="/lists/$name" params={{ name }} fw={600}>
                {name}
              </PageLink>
              , version {newest.version} of a list: {newest.added.toLocaleString()} added,{' '}
              {newest.removed.toLocaleString()} removed
            </div>
            <div className="dim">
              <When at={newest.created_at} />
            </div>
          </li>
        ))}
        {waiting.tools > 0 ? (
          <li>
            <div className="lines-main">
              <PageLink to="/tools" search={{ review: true }} fw={600}>
                {waiting.toolsSaid}
              </PageLink>{' '}
              that nobody has decided on
            </div>
          </li>
        ) : null}
      </ul>
    </Paper>
  );
}
