import { afterAll, beforeAll } from 'vitest';
import { setPatience } from '../../server/lib/patience.ts';

/**
 * How patient the programs are that tests run (SVC_PATIENCE): beside other work, a machine takes many times as long for a commit
 * as one that has nothing else to do, and no test fails for that.
 */
export const PATIENCE = 8;

/** For a file about what happens when a database, Redis or another process does not answer: its limits are the usual ones. */
export function useUsualLimits(): void {
  beforeAll(() => setPatience(1));
  afterAll(() => setPatience(PATIENCE));
}
