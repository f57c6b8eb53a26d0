import { tmpdir } from 'node:os';
import path from 'node:path';
import { defineConfig } from 'vitest/config';
import { LongestFirst, Seconds } from './helpers/seconds.ts';

// the processes of the tests, and those that they start, need not compile the same files each time
process.env.NODE_COMPILE_CACHE ??= path.join(tmpdir(), 'svc-test-compile-cache');

// *.slow.test.ts: what starts, kills or installs whole programs, long recordings, most walks in a browser, and whatever else takes
// long (test/seconds.json). They run with SVC_SLOW or SVC_SIEGE, or when named. *.long.test.ts: rounds of faults that only SVC_SIEGE runs, or their name.
const { SVC_SLOW, SVC_SIEGE, SVC_TEST_REPORT } = process.env;
const named = (kind: string) => process.argv.some((word) => word.includes(kind));
const slow = Boolean(SVC_SLOW || SVC_SIEGE) || named('.slow');
const long = Boolean(SVC_SIEGE) || named('.long');

/** Only what hangs takes so long, on however busy a machine: no limit of a test is shorter (test/suite.test.ts). */
const HANGS_MS = 300_000;

export default defineConfig({
  test: {
    root: new URL('..', import.meta.url).pathname,
    include: ['test/**/*.test.ts'],
    exclude: [...(slow ? [] : ['test/**/*.slow.test.ts']), ...(long ? [] : ['test/**/*.long.test.ts'])],
    globalSetup: ['test/helpers/global-setup.ts'],
    setupFiles: ['test/helpers/setup.ts'],
    pool: 'forks',
    // the program as Node runs it, without a transform that makes each use of an import a look-up
    experimental: { viteModuleRunner: false, nodeLoader: false },
    // a process takes one file after the other: loading the program again for each takes a seventh more time
    isolate: false,
    // more than a small machine has cores: the tests of several processes mostly wait
    maxWorkers: 3,
    sequence: { sequencer: LongestFirst },
    testTimeout: HANGS_MS,
    hookTimeout: HANGS_MS,
    expect: { poll: { timeout: 60_000 } },
    reporters: [
      'default',
      new Seconds(),
      ...(SVC_TEST_REPORT ? [['json', { outputFile: SVC_TEST_REPORT }] as ['json', object]] : []),
    ],
  },
});
