/** After so many failures in a row the fault is taken to be of all, and the rest is left for the next time. */
const MOST_IN_A_ROW = 20;

/**
 * Does `work` for each item, one after the other, until `signal` is aborted. It begins at any of them, another one each time: so
 * those that always fail keep no other from its turn, however many they are. What failed is thrown at the end.
 */
export async function each<T>(
  items: readonly T[],
  signal: AbortSignal | undefined,
  work: (item: T) => Promise<unknown>,
): Promise<void> {
  const failures: unknown[] = [];
  const first = Math.floor(Math.random() * items.length);
  let inARow = 0;
  for (const item of [...items.slice(first), ...items.slice(0, first)]) {
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
