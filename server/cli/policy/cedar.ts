import type { FolderPolicy, FolderSettings } from './folder.ts';

/** What was written for the Cedar command line. */
export interface Exported {
  tests: number;
  omitted: { policy: string; name: string; why: string }[];
}

export function exportForCedar(_policies: readonly FolderPolicy[], _settings: FolderSettings, _out: string): Exported {
  throw new Error('not written yet');
}
