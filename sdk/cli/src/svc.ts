#!/usr/bin/env node
import '../../proxy/src/node20.ts';
import { readFileSync } from 'node:fs';
import { CommandError } from '../../../server/cli/command.ts';
import { overHttp } from '../../../server/cli/over-http.ts';
import { AppError } from '../../../server/errors.ts';

/** A stack trace is shown only for a bug in the program. */
function messageOf(error: unknown): string {
  if (error instanceof CommandError || error instanceof AppError) return error.message;
  const { code, message, stack } = error as Error & { code?: string };
  return code ? message || code : (stack ?? String(error));
}

// the reader of the output may stop reading (svc … | head)
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(process.exitCode);
});

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
process.exitCode = await overHttp(process.argv.slice(2), version, messageOf);
