export interface Waiting {
  id: string;
  expires_at: string;
  current_approvals: number;
  votes?: readonly unknown[] | undefined;
  conditions: readonly { satisfied: boolean }[];
}
/** Until when, and how the hold stood then. */
export type Aside = readonly [until: number, stood: string];

/** For how long somebody may set a hold aside. */
export const SPANS = { '15 min': 900_000, '1 h': 3_600_000, '4 h': 14_400_000 } as const;
export type Span = keyof typeof SPANS;

/** The last part of its time, in which a hold is never aside: a tenth of what is left, but no less than this. */
const LAST_MS = 10 * 60_000;

/** What a person waits for when they set a hold aside: another vote, or a report. */
export const standing = ({ current_approvals, votes, conditions }: Waiting) =>
  `${current_approvals} ${votes?.length ?? 0} ${conditions.filter(({ satisfied }) => satisfied).length}`;

/** Until when a hold is aside that is set aside now; undefined where it ends too soon for that. */
export function asideUntil(hold: Pick<Waiting, 'expires_at'>, span: Span, now: number): number | undefined {
  const left = Date.parse(hold.expires_at) - now;
  const most = left - Math.max(LAST_MS, left / 10);
  return most < SPANS['15 min'] ? undefined : now + Math.min(SPANS[span], most);
}

/** Whether a hold is aside: not after its time, not when it stands otherwise by now, and not at its end. */
export function isAside(kept: Aside | undefined, hold: Waiting, now: number): boolean {
  if (!kept) return false;
  const [until, stood] = kept;
  return now < until && stood === standing(hold) && now < Date.parse(hold.expires_at) - LAST_MS;
}
