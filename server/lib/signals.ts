/** A second signal this soon after the first counts as the same one. */
const SAME_MS = 1000;

/**
 * Calls `stop` at the first signal that asks the process to end, and `atOnce` at another one. npm forwards signals that a
 * terminal or a service manager has also sent to the process: that is the same request, not a second one.
 */
export function onStopSignals(stop: (signal: NodeJS.Signals) => void, atOnce: (signal: NodeJS.Signals) => void): void {
  let first: number | undefined;
  const told = (signal: NodeJS.Signals) => {
    if (first === undefined) {
      first = performance.now();
      stop(signal);
    } else if (performance.now() - first >= SAME_MS) atOnce(signal);
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, told);
}
