/* Defines its own types: a test reads this file without the program whose responses it handles. */

interface DecisionLike {
  id: string;
  created_at: string;
  escrow_id?: string | undefined;
}
interface HoldLike {
  id: string;
  estimated_value: number | null;
  value_currency: string | null;
  votes?: readonly { user_id: string; at: string }[] | undefined;
  conditions: readonly { condition_id: string; reported_at?: string | undefined }[];
  released_at?: string | undefined;
  rejected_at?: string | undefined;
  expired_at?: string | undefined;
  cancelled_at?: string | undefined;
  consumed_at?: string | undefined;
}
interface StopLike {
  id: string;
  created_at: string;
  ended_at: string | null;
}
interface Page<D, H, S> {
  entries: readonly D[];
  holds: readonly H[];
  stops: readonly S[];
  has_more: boolean;
}

/** One thing that happened in a session, and how long nothing had happened before it. */
export type Item<D, H extends HoldLike, S> = { at: string; key: string; gapMs: number } & (
  | { kind: 'decision'; decision: D; hold: H | undefined }
  | { kind: 'vote'; hold: H; vote: NonNullable<H['votes']>[number] }
  | { kind: 'report'; hold: H; condition: H['conditions'][number] }
  | { kind: 'end'; hold: H; end: HoldEnd; sum: number | undefined }
  | { kind: 'stop'; stop: S; ended: boolean }
);

const ENDS = ['released', 'rejected', 'expired', 'cancelled', 'consumed'] as const;
type HoldEnd = (typeof ENDS)[number];

/** A pause of an agent that is long enough to be worth a line. */
export const GAP_MS = 60_000;

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

/**
 * What happened, in order: decisions, what became of their holds and through whom, and stops. While later decisions are still to
 * be loaded, anything after the last loaded one is left out: it would appear in the wrong place. `sum` is what the session has
 * used by then, in the currency of the hold, by the stated values.
 */
export function storyOf<D extends DecisionLike, H extends HoldLike, S extends StopLike>(
  pages: readonly Page<D, H, S>[],
): Item<D, H, S>[] {
  type New = DistributiveOmit<Item<D, H, S>, 'gapMs'>;
  const decisions = pages.flatMap(({ entries }) => entries);
  const holds = new Map(pages.flatMap((page) => page.holds.map((hold) => [hold.id, hold] as const)));
  const stops = new Map(pages.flatMap((page) => page.stops.map((stop) => [stop.id, stop] as const)));
  const items: (New & { order: number })[] = decisions.map((decision, n) => ({
    ...{ kind: 'decision', at: decision.created_at, key: decision.id, order: n, decision },
    hold: decision.escrow_id ? holds.get(decision.escrow_id) : undefined,
  }));
  const add = (item: New) => items.push({ ...item, order: decisions.length });
  for (const hold of holds.values()) {
    for (const vote of hold.votes ?? []) {
      add({ kind: 'vote', at: vote.at, key: `${hold.id} ${vote.user_id}`, hold, vote });
    }
    for (const condition of hold.conditions) {
      if (!condition.reported_at) continue;
      add({ kind: 'report', at: condition.reported_at, key: `${hold.id} ${condition.condition_id}`, hold, condition });
    }
    for (const end of ENDS) {
      const at = hold[`${end}_at`];
      if (at) add({ kind: 'end', at, key: `${hold.id} ${end}`, hold, end, sum: undefined });
    }
  }
  for (const stop of stops.values()) {
    add({ kind: 'stop', at: stop.created_at, key: stop.id, stop, ended: false });
    if (stop.ended_at) add({ kind: 'stop', at: stop.ended_at, key: `${stop.id} end`, stop, ended: true });
  }
  const last = pages.at(-1)?.has_more ? decisions.at(-1)?.created_at : undefined;
  const sums = new Map<string, number>();
  let before: string | undefined;
  return items
    .filter(({ at }) => last === undefined || at <= last)
    .sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : a.order - b.order))
    .map(({ order: _, ...item }) => {
      const gapMs = before === undefined ? 0 : Date.parse(item.at) - Date.parse(before);
      before = item.at;
      if (item.kind !== 'end' || item.end !== 'consumed' || item.hold.estimated_value === null)
        return { ...item, gapMs };
      const currency = item.hold.value_currency ?? '';
      const sum = (sums.get(currency) ?? 0) + item.hold.estimated_value;
      sums.set(currency, sum);
      return { ...item, gapMs, sum };
    });
}
