/** Whether times are shown, and read, in the reader's time zone or in UTC. */
export type Zone = 'local' | 'utc';

/** A time range as the list of decisions takes it; without `until`, up to now. */
export interface Range {
  since: string;
  until?: string | undefined;
}

const DAYS = ['sunday', 'monday', 'tuesday', 'wednesday', 'thursday', 'friday', 'saturday'];
const CLOCK = String.raw`(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(am|pm)?`;
const FORM = new RegExp(
  String.raw`^(?:(last\s+)?(today|yesterday|\d{4}-\d{2}-\d{2}|[a-z]{3,9}))?(?:(?:^|\s+|t)(?:at\s+)?${CLOCK}(?:\s*(?:-|–|to)\s*${CLOCK})?)?$`,
);
const AGO = /^(?:last\s+)?(\d{1,5})\s*(m|min|minutes?|h|hours?|d|days?|w|weeks?)(?:\s+ago)?$/;
const UNIT_MS = { m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 } as const;

/**
 * The range meant by typed text such as `tue 14:00`, `last tuesday 14:00-16:30`, `yesterday`, `2026-11-17 9:15`, `14:00` or `3h`:
 * a day, an hour from the time of day, or the time up to now. Days are past days, in the reader's zone. Undefined if the text
 * names no range.
 */
export function readRange(typed: string, now: number, zone: Zone): Range | undefined {
  const text = typed.trim().toLowerCase();
  const ago = AGO.exec(text);
  if (ago) return { since: new Date(now - Number(ago[1]) * UNIT_MS[ago[2]![0] as keyof typeof UNIT_MS]).toISOString() };
  const found = text === '' ? null : FORM.exec(text);
  if (!found) return undefined;
  const [, last, word, ...clock] = found;
  const from = timeOfDay(clock.slice(0, 4));
  const to = timeOfDay(clock.slice(4));
  if (from === null || to === null) return undefined;
  const day = dayOf(word, last !== undefined, new Date(now), zone);
  if (!day) return undefined;
  const at = (days: number, seconds: number) => moment(zone, day[0], day[1], day[2] + days, seconds);
  if (from === undefined) return { since: iso(at(0, 0)), until: iso(at(1, 0)) };
  // a time of day alone means today if it has passed, otherwise yesterday
  const shift = word === undefined && at(0, from) > now ? -1 : 0;
  const end = to === undefined ? at(shift, from) + 3_600_000 : at(to > from ? shift : shift + 1, to);
  return { since: iso(at(shift, from)), until: iso(end) };
}

const iso = (time: number) => new Date(time).toISOString();

function moment(zone: Zone, year: number, month: number, day: number, seconds: number): number {
  const utc = Date.UTC(year, month, day, 0, 0, seconds);
  return zone === 'utc' ? utc : new Date(year, month, day, 0, 0, seconds).getTime();
}

/** Seconds from midnight; undefined if not given, null if there is no such time. */
function timeOfDay([hours, minutes = '0', seconds = '0', half]: (string | undefined)[]): number | undefined | null {
  if (hours === undefined) return undefined;
  let hour = Number(hours);
  if (half !== undefined) {
    if (hour < 1 || hour > 12) return null;
    hour = (hour % 12) + (half === 'pm' ? 12 : 0);
  }
  if (hour > 23 || Number(minutes) > 59 || Number(seconds) > 59) return null;
  return hour * 3600 + Number(minutes) * 60 + Number(seconds);
}

/** Year, month from 0, and day. */
function dayOf(word: string | undefined, last: boolean, now: Date, zone: Zone): [number, number, number] | undefined {
  const utc = zone === 'utc';
  const [year, month, day, weekday] = utc
    ? [now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate(), now.getUTCDay()]
    : [now.getFullYear(), now.getMonth(), now.getDate(), now.getDay()];
  if (word === undefined || word === 'today') return last ? undefined : [year, month, day];
  if (word === 'yesterday') return last ? undefined : [year, month, day - 1];
  const date = /^(\d{4})-(\d{2})-(\d{2})$/.exec(word);
  if (date) {
    const [y, m, d] = date.slice(1).map(Number) as [number, number, number];
    const exists = new Date(Date.UTC(y, m - 1, d)).toISOString().startsWith(word);
    return exists && !last ? [y, m - 1, d] : undefined;
  }
  const index = DAYS.findIndex((name) => name.startsWith(word));
  if (index < 0) return undefined;
  const back = (weekday - index + 7) % 7;
  // on a Tuesday, "tuesday" is today, and "last tuesday" is not
  return [year, month, day - (back === 0 && last ? 7 : back)];
}

/** The ranges up to now that are one click away. */
export const LAST = { '1h': 3_600_000, '24h': 86_400_000, '7d': 604_800_000, '30d': 2_592_000_000 } as const;
export type Last = keyof typeof LAST;

/** The range that an address names; `{}` for the last day, which is the default. */
export function readLast(last: unknown): { last?: Last } {
  return typeof last === 'string' && last !== '24h' && Object.hasOwn(LAST, last) ? { last: last as Last } : {};
}

/** Where such a range begins: on a full minute, so that opening the same address again soon makes the same query. */
export function sinceOf(last: Last, now: number): string {
  return new Date(Math.floor((now - LAST[last]) / 60_000) * 60_000).toISOString();
}

const MORNING = 8;
/** Someone still up before this hour calls the coming day tomorrow. */
const NIGHT_ENDS = 4;

/** The next morning in the reader's zone: tomorrow's, or in the small hours, that of the same date. */
export function nextMorning(now: number, zone: Zone): number {
  const date = new Date(now);
  const utc = zone === 'utc';
  const [year, month, day, hour] = utc
    ? [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate(), date.getUTCHours()]
    : [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours()];
  return moment(zone, year, month, hour < NIGHT_ENDS ? day : day + 1, MORNING * 3600);
}

/** A moment in full, such as `2026-11-21 16:04:09 UTC`. */
export function fullTime(at: string | Date, zone: Zone): string {
  const date = new Date(at);
  if (zone === 'utc') return `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
  const part = (n: number) => String(n).padStart(2, '0');
  const day = `${date.getFullYear()}-${part(date.getMonth() + 1)}-${part(date.getDate())}`;
  const offset = -date.getTimezoneOffset();
  const sign = offset < 0 ? '-' : '+';
  const hours = `${sign}${part(Math.floor(Math.abs(offset) / 60))}:${part(Math.abs(offset) % 60)}`;
  return `${day} ${part(date.getHours())}:${part(date.getMinutes())}:${part(date.getSeconds())} ${hours}`;
}

/** The time of day, to the minute, with its day unless that is the day of `now`: `Tue 11-17 16:04`, or `2025-11-17 16:04`. */
export function dayClockTime(at: string | Date, zone: Zone, now: number): string {
  const full = fullTime(at, zone);
  if (full.slice(0, 10) === fullTime(new Date(now), zone).slice(0, 10)) return full.slice(11, 19);
  if (full.slice(0, 4) !== fullTime(new Date(now), zone).slice(0, 4)) return full.slice(0, 16);
  return `${dayTime(at, zone).slice(0, 3)} ${full.slice(5, 16)}`;
}

const WEEKDAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];

/**
 * The day with its name, such as `Tuesday, 2026-11-17`. A list needs it for each row, and `Intl` takes milliseconds each time.
 */
export function dayTime(at: string | Date, zone: Zone): string {
  const date = new Date(at);
  const day = WEEKDAYS[zone === 'utc' ? date.getUTCDay() : date.getDay()];
  return `${day}, ${fullTime(at, zone).slice(0, 10)}`;
}

const UNITS: [unit: string, seconds: number][] = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
];

/** A duration in its largest unit and, if not zero, the next smaller one: `2 h 5 min`, `8 h`. */
export function duration(ms: number, parts = 2): string {
  let seconds = Math.max(0, Math.round(ms / 1000));
  const largest = UNITS.findIndex(([, size]) => seconds >= size);
  const words = UNITS.slice(largest, largest < 0 ? 0 : largest + parts).flatMap(([unit, size]) => {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    return count > 0 ? [`${count} ${unit}`] : [];
  });
  return words.join(' ') || '0 s';
}

/** A decision that was received this much after it was made, or before it, is marked: a proxy sends what it has within seconds. */
const LATE_MS = 60_000;

/** How a decision's receipt differs from its own time; undefined if it does not. */
export function lateness({ timestamp, created_at }: { timestamp: string; created_at: string }): string | undefined {
  const ms = Date.parse(created_at) - Date.parse(timestamp);
  if (Math.abs(ms) < LATE_MS) return undefined;
  return ms > 0 ? `${duration(ms, 1)} late` : `${duration(-ms, 1)} ahead`;
}
