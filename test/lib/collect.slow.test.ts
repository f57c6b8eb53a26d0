import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';

const collect = new URL('../../server/lib/collect.ts', import.meta.url).href;

/** Megabytes that a process holds: at first, after work that fills the room for young objects, and once it gave that back. */
function heldBy(times: number): { first: number; worked: number; quiet: number }[] {
  const script = `
    import { setTimeout as delay } from 'node:timers/promises';
    import { collectStart, collectWhenQuiet } from ${JSON.stringify(collect)};
    const held = () => process.memoryUsage.rss() / 1024 ** 2;
    collectStart();
    // not more often: on a busy machine the other threads give back what they hold late, and it tries three times
    collectWhenQuiet(1000);
    const found = [];
    for (let time = 0; time < ${times}; time++) {
      const first = held();
      const ring = new Array(60_000);
      let n = 0;
      while (held() < first + 60) {
        for (let i = 0; i < 10_000; i++) ring[n++ % ring.length] = { n, list: [n, n, n, n] };
        await delay(1);
      }
      const worked = held();
      for (let wait = 0; wait < 500 && held() > first + 30; wait++) await delay(200);
      found.push({ first, worked, quiet: held() });
    }
    console.log(JSON.stringify(found));
  `;
  // with the time that V8 itself takes made longer than the test
  const flags = ['--max-semi-space-size=64', '--gc-memory-reducer-start-delay-ms=600000'];
  const args = [...flags, '--input-type=module', '-e', script];
  return JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', env: {} }));
}

test('a process that was busy gives back what that took once it is quiet, each time', () => {
  for (const { first, worked, quiet } of heldBy(2)) {
    expect(worked - first).toBeGreaterThan(55);
    expect(quiet - first).toBeLessThan(30);
  }
});
