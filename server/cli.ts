#!/usr/bin/env node
import { readFileSync } from 'node:fs';
import { backupCommands } from './cli/backup.ts';
import { type Command, CommandError, columns, guess, helpOf, plain, readCall, UsageError } from './cli/command.ts';
import { doctorCommands } from './cli/doctor.ts';
import { keyCommands } from './cli/keys.ts';
import { maintenanceCommands } from './cli/maintenance.ts';
import { cleanups } from './cli/place.ts';
import { replayCommands } from './cli/replay.ts';
import { tenantCommands } from './cli/tenants.ts';
import { ConfigError } from './config.ts';
import { AppError } from './errors.ts';
import { SealedError } from './keys/keyring.ts';

/**
 * `svc`, the operator's command. It works on the database of the settings, beside a running server or without one.
 * Exit code: 0 done; 1 failed; 2 called wrongly. Results go to standard output, everything else to standard error.
 */
const COMMANDS: readonly Command[] = [
  ...tenantCommands,
  ...keyCommands,
  ...maintenanceCommands,
  ...doctorCommands,
  ...backupCommands,
  ...replayCommands,
];

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
// who reads the output may stop reading (svc … | head)
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(process.exitCode);
});

process.exitCode = await main(process.argv.slice(2));

async function main(words: readonly string[]): Promise<number> {
  const [first = '', second = ''] = words;
  if (first === '--version') {
    const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
    process.stdout.write(`${version}\n`);
    return 0;
  }
  if (first === 'help') return main([...words.slice(1), '--help']);
  if (first === '--help') {
    process.stdout.write(overview(COMMANDS));
    return 0;
  }
  const command =
    COMMANDS.find(({ name }) => name === `${first} ${second}`) ?? COMMANDS.find(({ name }) => name === first);
  if (!command) return noCommand(first, second);
  const rest = words.slice(command.name.split(' ').length);
  const flags = rest.includes('--') ? rest.slice(0, rest.indexOf('--')) : rest;
  if (flags.includes('--help')) {
    process.stdout.write(helpOf(command));
    return 0;
  }
  try {
    return (await command.run(readCall(command, rest))) ?? 0;
  } catch (error) {
    if (error instanceof UsageError) {
      process.stderr.write(`svc ${command.name}: ${error.message}\nTry: svc ${command.name} --help\n`);
      return 2;
    }
    process.stderr.write(`svc ${command.name}: ${messageOf(error)}\n`);
    return 1;
  }
}

/** The name is no command: shows the group that it begins, or guesses. */
function noCommand(first: string, second: string): number {
  const group = COMMANDS.filter(({ name }) => name.startsWith(`${first} `));
  if (group.length > 0 && second === '--help') {
    process.stdout.write(overview(group));
    return 0;
  }
  const given = [first, second].filter((word) => word !== '' && !word.startsWith('-')).join(' ');
  const names = COMMANDS.map(({ name }) => name);
  const hint = guess(given, names) || guess(first, names);
  const fault =
    given === '' || (given === first && group.length > 0) ? 'give a command' : `there is no command "${given}"${hint}`;
  process.stderr.write(`svc: ${plain(fault)}\n\n${overview(group.length > 0 ? group : COMMANDS)}`);
  return 2;
}

function overview(commands: readonly Command[]): string {
  return [
    'Usage: svc COMMAND [flags]',
    '',
    ...columns(commands.map(({ name, summary }) => [name, summary])).map((line) => `  ${line}`),
    '',
    'svc COMMAND --help tells more. The settings are the server\'s: environment variables, see "svc doctor".',
    '',
  ].join('\n');
}

/** What an operator needs to read. Only a fault of the program itself shows its stack. */
function messageOf(error: unknown): string {
  if (error instanceof AppError) {
    const faults = error.faults.map((fault) => `\n  ${fault.pointer}: ${fault.message}`).join('');
    return `${error.message}${faults}`;
  }
  if (error instanceof SealedError) return `${error.message}. Set the key that this database was made with.`;
  if (error instanceof CommandError || error instanceof ConfigError) return error.message;
  const { code, message, stack, errors } = error as Error & { code?: string; errors?: Error[] };
  // of the system, of the network, of PostgreSQL: they say enough
  if (code) return message || errors?.[0]?.message || code;
  return stack ?? String(error);
}
