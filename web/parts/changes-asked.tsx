import { usePeople } from '../lib/people.ts';
import { useMe } from '../lib/session.ts';
import type { Answers } from '../lib/trpc.ts';
import { Said } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { Notice } from '../ui/notice.tsx';
import { When } from '../ui/time.tsx';

/** The changes that a reviewer requested, until a newer version answers them. */
export function ChangesAsked({ policy, link = false }: { policy: Answers['policies']['get']; link?: boolean }) {
  const name = usePeople();
  const me = useMe();
  const newest = policy.versions.find(({ version }) => version === policy.version);
  const review = newest?.review;
  if (policy.status !== 'draft' || (review?.status !== 'changes_requested' && review?.status !== 'rejected'))
    return null;
  const yours = newest?.author_id === me.id;
  return (
    <Notice
      tone="wait"
      title={
        review.status === 'rejected'
          ? `${yours ? 'Your version' : `Version ${policy.version}`} was rejected`
          : yours
            ? 'You were asked for changes'
            : `Changes were asked for in version ${policy.version}`
      }
    >
      {name(review.decided_by)}, <When at={review.decided_at} />
      {review.comment ? (
        <div className="remark">
          <Said text={review.comment} />
        </div>
      ) : null}
      {link ? (
        <PageLink to="/review/$id" params={{ id: policy.id }}>
          Read the review
        </PageLink>
      ) : null}
    </Notice>
  );
}
