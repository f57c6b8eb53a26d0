import type { HoldOrder } from './filter.ts';

interface Row {
  id: string;
  expires_at: string;
  created_at: string;
  estimated_value: number | null;
  risk_score: number | null;
}
interface Pages<H extends Row> {
  pages: { holds: H[]; total: number; next_cursor: string | null }[];
  pageParams: unknown[];
}

/**
 * Returns the pages of a list with one hold moved to where it now belongs: changed, inserted or removed. This way a change to one
 * hold among many does not refetch the list. A hold that belongs after everything loaded appears when its page is loaded.
 */
export function placed<H extends Row>(
  data: Pages<H>,
  hold: H,
  belongs: boolean,
  order: HoldOrder,
  total: number,
): Pages<H> {
  const key = (row: H): string | number =>
    ({
      expires_at: row.expires_at,
      created_at: row.created_at,
      // holds without one come last
      value: row.estimated_value ?? Number.NEGATIVE_INFINITY,
      risk: row.risk_score ?? Number.NEGATIVE_INFINITY,
    })[order];
  const before = (a: H, b: H) => {
    const [x, y] = order === 'expires_at' ? [a, b] : [b, a];
    return key(x) < key(y) || (key(x) === key(y) && x.id < y.id);
  };
  const complete = data.pages.at(-1)?.next_cursor === null;
  let waiting = belongs;
  const pages = data.pages.map((page, n) => {
    const holds = page.holds.filter(({ id }) => id !== hold.id);
    const last = complete && n === data.pages.length - 1;
    const at = holds.findIndex((other) => before(hold, other));
    if (waiting && (at >= 0 || last)) {
      holds.splice(at < 0 ? holds.length : at, 0, hold);
      waiting = false;
    }
    return { ...page, holds, total };
  });
  return { ...data, pages };
}
