/** The most bars of a chart. */
export const MOST_BUCKETS = 120;

/** Possible lengths of a bar, in seconds: bars begin on full minutes, hours and days. */
const STEPS = [
  1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000,
  7_776_000, 31_536_000, 315_360_000,
];

/**
 * Where the steps of a range begin: at most this many, each of a length that people count in, on full hours and days of a zone
 * that is this many minutes ahead of UTC. The first may begin before the range.
 */
export function edgesOf(
  since: number,
  until: number,
  most: number,
  utcOffset: number,
): { edges: number[]; seconds: number } {
  const offset = utcOffset * 60_000;
  const from = (seconds: number) => Math.floor((since + offset) / (seconds * 1000)) * seconds * 1000 - offset;
  const number = (seconds: number) => Math.ceil((until - from(seconds)) / (seconds * 1000));
  const seconds = STEPS.find((step) => number(step) <= most) ?? Math.ceil((until - since) / most / 1000);
  const start = from(seconds);
  return {
    edges: Array.from({ length: Math.min(most, number(seconds)) }, (_, n) => start + n * seconds * 1000),
    seconds,
  };
}
