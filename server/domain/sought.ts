/**
 * What a filter asks for: how a value begins where it ends in `*`, and otherwise the whole value. A value that itself ends
 * in `*` has one more, or anyone who names a session `a*` would mix its decisions with those of `ab`.
 */
export function soughtBy(filter: string): { begin: string; whole?: never } | { whole: string; begin?: never } {
  if (filter.endsWith('**')) return { whole: filter.slice(0, -1) };
  return filter.length > 1 && filter.endsWith('*') ? { begin: filter.slice(0, -1) } : { whole: filter };
}

/** The filter that asks for this value and no other. */
export function exactly(value: string): string {
  return value.endsWith('*') ? `${value}*` : value;
}
