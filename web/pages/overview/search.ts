import { type Last, readLast } from '../../lib/moment.ts';

/** The time that the page is of. */
export const readOverviewSearch = ({ last }: Record<string, unknown>): { last?: Last } => readLast(last);
