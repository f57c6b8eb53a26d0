type Level = 'ok' | 'warn' | 'FAIL';

/** One line of the report. `advice` says what to do, and is present on every line that is not ok. */
export interface Finding {
  check: string;
  level: Level;
  detail: string;
  advice?: string;
}

/** Adds a finding. */
export type Report = (level: Level, check: string, detail: string, advice?: string) => void;
