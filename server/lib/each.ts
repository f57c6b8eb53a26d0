/** After this many failures in a row the problem is assumed to affect all items, and the rest are left for the next time. */
const MOST_IN_A_ROW = 20;

/**
 * Runs `work` for each item in turn, until `signal` is aborted. It starts at a random item: so items that always fail, however
 * many, do not keep the others from their turn. Failures are thrown together at the end.
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
      // failures of nested calls are flattened
      failures.push(...(error instanceof AggregateError ? error.errors : [error]));
    }
  }
  if (failures.length > 0) throw new AggregateError(failures.slice(0, MOST_IN_A_ROW), `${failures.length} failed`);
}
