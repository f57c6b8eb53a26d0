import { type Decision, FILTER_FIELDS, type FilterField, MOST_LEFT_OUT, notOf } from '../../server/domain/decision.ts';
import type { Last } from './moment.ts';

type ValueOf<K extends FilterField> = K extends 'decision' ? Decision : string;
/** Which time a range is about: when the decision was made, or when this server received it. */
export const CLOCKS = ['decided', 'received'] as const;
export type ClockName = (typeof CLOCKS)[number];

/** What the URL says about which decisions are shown. */
export type Filter = { since?: string; until?: string; last?: Last; clock?: ClockName } & {
  [K in FilterField]?: ValueOf<K>;
} & { [K in FilterField as `not_${K}`]?: ValueOf<K>[] };

/** What the API is asked for. */
export type Asked = Omit<Filter, 'last' | 'clock'> & { decided_since?: string; decided_until?: string };

/**
 * The time that is meant, unless one was chosen: between fixed ends a person looks for what was done then, however late it was
 * reported; up to now, they watch what comes in.
 */
export const clockOf = ({ clock, since, until }: Filter): ClockName =>
  clock ?? (since || until ? 'decided' : 'received');

/** The filters for the API. `since`: where the range begins, also if it is counted back from now. */
export function askedBy(filter: Filter, since: string | undefined): Asked {
  const { last: _last, clock: _clock, since: _since, until, ...fields } = filter;
  if (clockOf(filter) === 'received') return { ...fields, ...(since && { since }), ...(until && { until }) };
  return { ...fields, ...(since && { decided_since: since }), ...(until && { decided_until: until }) };
}

/** The change of filters that shows only the decisions with a value; undefined: with any value. */
export function only(filter: Filter, field: FilterField, value: string | undefined): Partial<Filter> {
  return { ...shownAgain(filter, field, value), [field]: value };
}

/** The change of filters that also leaves out the decisions with a value. */
export function not(filter: Filter, field: FilterField, value: string): Partial<Filter> {
  const values = [...new Set<string>([...(filter[notOf(field)] ?? []), value])].sort();
  return { [field]: filter[field] === value ? undefined : filter[field], [notOf(field)]: values };
}

/** No more values of the field can be left out. */
export function isFull(filter: Filter, field: FilterField): boolean {
  const count = (name: FilterField) => filter[notOf(name)]?.length ?? 0;
  const all = FILTER_FIELDS.reduce((sum, name) => sum + count(name), 0);
  return count(field) >= MOST_LEFT_OUT.field || all >= MOST_LEFT_OUT.all;
}

/** The change of filters that no longer leaves out a value. */
export function shownAgain(filter: Filter, field: FilterField, value: string | undefined): Partial<Filter> {
  const left = filter[notOf(field)]?.filter((one) => one !== value);
  return { [notOf(field)]: left?.length ? left : undefined };
}
