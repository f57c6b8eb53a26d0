import { expect, test } from 'vitest';
import { pause, Wake } from '../../server/lib/pause.ts';

/** A pause that only its reason to end can end within the test's time. */
const LONG_MS = 3_600_000;
const never = new AbortController().signal;

test('a pause ends with its signal', async () => {
  const stop = new AbortController();
  const paused = pause(LONG_MS, stop.signal);
  stop.abort();
  await paused;
  await pause(LONG_MS, stop.signal);
});

test('a call ends the current pause', async () => {
  const wake = new Wake();
  const paused = wake.pause(LONG_MS, never);
  wake.call();
  await paused;
});

test('a call between the check and the pause is not lost', async () => {
  const wake = new Wake();
  wake.clear();
  wake.call();
  await wake.pause(LONG_MS, never);
  await wake.pause(LONG_MS, never);
});

test('a call before the check does not end the pause after it', async () => {
  const wake = new Wake();
  wake.call();
  wake.clear();
  const stop = new AbortController();
  let ended = false;
  const paused = wake.pause(LONG_MS, stop.signal).then(() => {
    ended = true;
  });
  await new Promise((resolve) => setImmediate(resolve));
  expect(ended).toBe(false);
  stop.abort();
  await paused;
});
