import { useMutation } from '@tanstack/react-query';
import { latestReturn } from '../../server/domain/aside.ts';
import { toastDone } from './errors.tsx';
import { nextMorning } from './moment.ts';
import { queryClient } from './query.ts';
import { useMe } from './session.ts';
import { fullTime, useNow, useZone, type Zone } from './time.ts';
import { type Answers, trpc } from './trpc.ts';

type Hold = Answers['escrow']['get'];

/** How long a hold may be set aside; whatever was chosen, the server brings it back before it ends. */
export const SPANS = {
  hour: (now: number) => now + 3_600_000,
  morning: nextMorning,
  change: () => undefined,
} as const satisfies Record<string, (now: number, zone: Zone) => number | undefined>;
export type Span = keyof typeof SPANS;

/** Sets holds aside for the signed-in person, on the server: for everyone else they wait as before. */
export function useAside() {
  const me = useMe();
  const [zone] = useZone();
  const now = useNow(15_000);
  const changed = () => queryClient.invalidateQueries(trpc.escrow.pathFilter());
  const put = useMutation(trpc.escrow.setAside.mutationOptions({ onSuccess: changed }));
  const back = useMutation(trpc.escrow.putBack.mutationOptions({ onSuccess: changed }));
  const open = (hold: Hold) =>
    hold.status === 'held' && me.has('approver') && !hold.votes?.some(({ user_id }) => user_id === me.id);
  return {
    /** Whether this person's vote is wanted and they may set it aside, regardless of how much time is left. */
    open,
    /** The choices available now; none if the hold ends too soon. */
    spans: (hold: Hold): Span[] => {
      const latest = latestReturn(hold, now);
      if (!open(hold) || latest === undefined) return [];
      return (Object.keys(SPANS) as Span[]).filter(
        // the hold would end first
        (span) => span !== 'morning' || (SPANS[span](now, zone) ?? 0) <= latest,
      );
    },
    busy: put.isPending || back.isPending,
    /** Resolves once it is stored. */
    put: async (hold: Hold, span: Span) => {
      const until = SPANS[span](Date.now(), zone);
      const { aside_until } = await put.mutateAsync({
        id: hold.id,
        ...(until !== undefined && { until: new Date(until).toISOString() }),
        ...(hold.shown_hash !== undefined && { shown_hash: hold.shown_hash }),
      });
      toastDone(
        'Set aside',
        `It stays open for others. It returns ${fullTime(aside_until, zone).slice(0, 16)}, or when it changes.`,
      );
    },
    back: async (hold: Hold) => {
      await back.mutateAsync({ id: hold.id });
      toastDone('Put back');
    },
  };
}
