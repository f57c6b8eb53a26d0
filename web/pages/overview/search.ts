import { type Last, readLast } from '../../lib/moment.ts';

/** The time range of the page. */
export const readOverviewSearch = ({ last }: Record<string, unknown>): { last?: Last } => readLast(last);
