import { clockTime, dayClockTime, duration, fullTime, relativeTime, useNow, useZone } from '../lib/time.ts';

/** A relative time, or an exact one; the other one is its tooltip. On paper it is exact. */
export function When({ at, exact = false }: { at: string; exact?: boolean }) {
  const [zone] = useZone();
  const now = useNow(15_000);
  const full = fullTime(at, zone);
  return (
    <time dateTime={at} title={exact ? relativeTime(at, now) : full} data-on-paper={full}>
      <span>{exact ? full : relativeTime(at, now)}</span>
    </time>
  );
}

/** The time of day, for live lists. */
export function Clock({ at }: { at: string }) {
  const [zone] = useZone();
  return (
    <time dateTime={at} title={fullTime(at, zone)} className="mono">
      {clockTime(at, zone)}
    </time>
  );
}

/** The same for lists that are not grouped by day. */
export function DayClock({ at }: { at: string }) {
  const [zone] = useZone();
  const now = useNow(60_000);
  return (
    <time dateTime={at} title={fullTime(at, zone)} className="mono">
      {dayClockTime(at, zone, now)}
    </time>
  );
}

/** The time left, with seconds in the last hour; on paper, the time when it ends. */
export function Countdown({ until, over = 'over' }: { until: string; over?: string }) {
  const [zone] = useZone();
  const now = useNow(1_000);
  const left = new Date(until).getTime() - now;
  const urgent = left < 10 * 60_000;
  return (
    <time
      dateTime={until}
      title={fullTime(until, zone)}
      data-on-paper={`until ${fullTime(until, zone)}`}
      data-tone={urgent ? 'bad' : undefined}
      style={urgent ? { color: 'var(--tone)', fontWeight: 650 } : undefined}
    >
      <span>{left <= 0 ? over : `${duration(left)} left`}</span>
    </time>
  );
}
