import type { Answers } from '../../lib/trpc.ts';
import { PageLink } from '../../ui/link.tsx';
import { Tag } from '../../ui/status.tsx';

type List = Pick<Answers['lists']['list']['lists'][number], 'live_version'>;
type Version = Answers['lists']['get']['versions'][number];

/** The state of a version: in use, waiting, or neither. */
export function VersionTag({ list, version }: { list: List; version: Version }) {
  const live = list.live_version === version.version;
  const [word, tone] = live
    ? (['in use', 'ok'] as const)
    : version.status === 'pending'
      ? (['waits for approval', 'wait'] as const)
      : version.status === 'rejected'
        ? (['rejected', 'bad'] as const)
        : (['replaced', 'quiet'] as const);
  return (
    <Tag tone={tone}>
      {version.version}: {word}
    </Tag>
  );
}

/** The live policies that name a list. */
export function Users({ ids }: { ids: readonly string[] }) {
  if (ids.length === 0) return <span className="dim">no live policy</span>;
  return ids.map((id, n) => (
    <span key={id}>
      {n > 0 ? ', ' : ''}
      <PageLink to="/policies/$id" params={{ id }}>
        {id}
      </PageLink>
    </span>
  ));
}
