/** A signal so soon after the first one means the same. */
const SAME_MS = 1000;

/**
 * Calls `stop` at the first signal that asks the process to end, and `atOnce` at another one. npm passes on what a terminal, or a
 * service manager, has sent to the process too: that is the same wish, not a second one.
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
