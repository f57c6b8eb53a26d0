import type { ClockName } from '../lib/decision-filter.ts';
import { fullTime, lateness, useZone } from '../lib/time.ts';
import { Clock, DayClock } from '../ui/time.tsx';

/** When a decision was received, or made; where the two differ, both. `days`: in a list that is not grouped by day. */
export function DecisionTime({
  event,
  by = 'received',
  days = false,
}: {
  event: { timestamp: string; created_at: string };
  by?: ClockName;
  days?: boolean;
}) {
  const [zone] = useZone();
  const at = by === 'decided' ? event.timestamp : event.created_at;
  const late = lateness(event);
  return (
    <>
      {days ? <DayClock at={at} /> : <Clock at={at} />}
      {late ? (
        <div
          className="dim"
          title={`Decided ${fullTime(event.timestamp, zone)}, received ${fullTime(event.created_at, zone)}`}
        >
          {late}
        </div>
      ) : null}
    </>
  );
}
