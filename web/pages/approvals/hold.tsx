import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { fullTime } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { ActionTarget, ActionTitle, actionText } from '../../parts/action.tsx';
import { AsCurl } from '../../parts/curl.tsx';
import { EvidenceButton, PrintButton, PrintSheet } from '../../parts/print.tsx';
import { Broken } from '../../ui/broken.tsx';
import { CopyLink } from '../../ui/copy.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { CancelHold, HoldView } from './view.tsx';

const route = getRouteApi('/app/approvals/$id');

/**
 * One held action on its own page. A `?vote=` from a message's button preselects the vote; the person still casts it
 * here.
 */
export function HoldPage() {
  const { id } = route.useParams();
  const { vote } = route.useSearch();
  const query = useQuery(trpc.escrow.get.queryOptions({ id }, { refetchInterval: 30_000 }));
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  const hold = query.data;
  if (!hold) {
    return (
      <Page title="Held action">
        <Loading lines={10} />
      </Page>
    );
  }
  return (
    <Page
      title={<ActionTitle action={hold} />}
      tab={`Hold: ${actionText(hold)}`}
      lead={
        <>
          <ActionTarget action={hold} />
          Asked <When at={hold.created_at} />
        </>
      }
      actions={
        <>
          <CopyLink />
          <EvidenceButton
            of={{
              purpose: `Hold ${id}`,
              ...(hold.session_id === undefined ? spanOf(hold) : { session: hold.session_id }),
            }}
          />
          <PrintButton />
          <CancelHold hold={hold} />
        </>
      }
    >
      <HoldView key={id} hold={hold} prepared={vote} />
      <details className="hold-curl no-print">
        <summary>As curl</summary>
        <AsCurl path={['escrow', id]} />
      </details>
      <PrintSheet
        values={{
          Hold: hold.id,
          Held: fullTime(hold.created_at, 'utc'),
          ...Object.fromEntries(hold.rules.map((rule) => [`Rule ${rule.id}`, rule.hash])),
          ...Object.fromEntries(
            (hold.votes ?? []).flatMap(({ decision, at, shown_hash }, n) => [
              [`Vote ${n + 1}`, `${decision}, ${fullTime(at, 'utc')}`],
              [`Vote ${n + 1} saw`, shown_hash],
            ]),
          ),
        }}
        fingerprint={{ name: 'Action hash', value: hold.action_hash }}
      />
    </Page>
  );
}

/** From the hold's opening until a little after its use: the records that name it are written after these moments. */
function spanOf({ created_at, consumed_at }: { created_at: string; consumed_at?: string | undefined }) {
  const used = consumed_at === undefined ? Date.now() : Date.parse(consumed_at) + 60_000;
  return { from: created_at, to: new Date(used).toISOString() };
}
