#!/usr/bin/env node
import { cleanups } from './cli/installation.ts';
import { main, messageOf } from './cli/main.ts';

/**
 * `svc`, the operator's command-line tool. It works on the configured database, whether or not a server is running.
 * Results go to standard output, everything else to standard error.
 */
for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const) {
  process.once(signal, async () => {
    try {
      for (const cleanup of [...cleanups].reverse()) await cleanup();
    } catch (error) {
      process.stderr.write(`svc: ${messageOf(error)}\n`);
    }
    process.exit(code);
  });
}
// the reader of the output may stop reading (svc … | head)
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(process.exitCode);
});

process.exitCode = await main(process.argv.slice(2));
