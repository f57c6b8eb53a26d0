import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * Loading a program leaves far more garbage than it keeps, and Node keeps the room: this gives it back. It takes some tens
 * of milliseconds in which nothing else runs, so it is for the end of a start.
 */
export function collectStart(): void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as (options: object) => void;
  collect({ type: 'major', execution: 'sync', flavor: 'last-resort' });
}
