import type { Decision, FilterField } from '../../server/domain/decision.ts';
import type { Last } from './moment.ts';

/** What an address says of the decisions that are shown. */
export type Filter = { decision?: Decision; since?: string; until?: string; last?: Last } & {
  [K in Exclude<FilterField, 'decision'>]?: string;
};
