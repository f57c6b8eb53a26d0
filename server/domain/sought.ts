/**
 * What a filter matches: the beginning of a value if it ends in `*`, otherwise the whole value. A value that itself ends in `*`
 * takes one more, or anyone who names a session `a*` could mix its decisions with those of `ab`.
 */
export function soughtBy(filter: string): { begin: string; whole?: never } | { whole: string; begin?: never } {
  if (filter.endsWith('**')) return { whole: filter.slice(0, -1) };
  return filter.length > 1 && filter.endsWith('*') ? { begin: filter.slice(0, -1) } : { whole: filter };
}

/** The filter that matches this value and no other. */
export function exactly(value: string): string {
  return value.endsWith('*') ? `${value}*` : value;
}
