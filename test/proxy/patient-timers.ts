/** To be imported into a program that is not ours: whatever it waits for longer than a moment, it waits for ten times as long. */
const PATIENCE = 10;
const patient = (ms = 0) => (ms < 250 ? ms : ms * PATIENCE);

const { setTimeout: waits } = globalThis;
globalThis.setTimeout = Object.assign(
  (run: (...args: unknown[]) => void, ms?: number, ...args: unknown[]) => waits(run, patient(ms), ...args),
  waits,
) as typeof setTimeout;

const { timeout } = AbortSignal;
AbortSignal.timeout = (ms) => timeout.call(AbortSignal, patient(ms));
