/** After so many failures in a row the fault is taken to be of all, and the rest is left for the next time. */
const MOST_IN_A_ROW = 20;

/**
 * Does `work` for each item, one after the other, until `signal` is aborted. One that fails keeps no other from its turn; what
 * failed is thrown at the end.
 */
export async function each<T>(
  items: Iterable<T>,
  signal: AbortSignal | undefined,
  work: (item: T) => Promise<unknown>,
): Promise<void> {
  const failures: unknown[] = [];
  let inARow = 0;
  for (const item of items) {
    if (signal?.aborted || inARow === MOST_IN_A_ROW) break;
    try {
      await work(item);
      inARow = 0;
    } catch (error) {
      inARow++;
      // of parts that have parts themselves
      failures.push(...(error instanceof AggregateError ? error.errors : [error]));
    }
  }
  if (failures.length > 0) throw new AggregateError(failures.slice(0, MOST_IN_A_ROW), `${failures.length} failed`);
}
