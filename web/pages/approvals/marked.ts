/** The most holds that can be voted on, or set aside, together: the server describes at most this many at once. */
export const MOST_TOGETHER = 50;

/** Which of the rows are selected, and the one where a range begins. */
export interface Marked {
  ids: ReadonlySet<string>;
  anchor: string | undefined;
}
export const NONE: Marked = { ids: new Set(), anchor: undefined };

/** Selects or deselects a row. With `range`, every row from the last one to this one gets the last one's state. */
export function toggled(marked: Marked, rows: readonly string[], id: string, range: boolean): Marked {
  const ids = new Set(marked.ids);
  const from = range && marked.anchor !== undefined ? rows.indexOf(marked.anchor) : -1;
  const to = rows.indexOf(id);
  if (from < 0) {
    if (ids.has(id)) ids.delete(id);
    else ids.add(id);
  } else {
    const selects = ids.has(marked.anchor!);
    for (const one of rows.slice(Math.min(from, to), Math.max(from, to) + 1)) {
      if (selects) ids.add(one);
      else ids.delete(one);
    }
  }
  return { ids: new Set([...ids].slice(0, MOST_TOGETHER)), anchor: id };
}
