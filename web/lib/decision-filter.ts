import { type Decision, FILTER_FIELDS, type FilterField, MOST_LEFT_OUT, notOf } from '../../server/domain/decision.ts';
import type { Last } from './moment.ts';

type ValueOf<K extends FilterField> = K extends 'decision' ? Decision : string;
/** What the URL says about which decisions are shown. */
export type Filter = { since?: string; until?: string; last?: Last } & {
  [K in FilterField]?: ValueOf<K>;
} & { [K in FilterField as `not_${K}`]?: ValueOf<K>[] };

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
