import { readFileSync } from 'node:fs';
import { SchemaRefused } from '../../db/applied.ts';
import { Occupied } from '../../db/claim.ts';
import { AppError } from '../errors.ts';
import { SealedError } from '../keys/keyring.ts';
import { ConfigError } from '../lib/settings.ts';
import { backup } from './backup.ts';
import { chainCommands } from './chain.ts';
import { type Command, CommandError, columns, helpOf, plain, readCall, suggestion, UsageError } from './command.ts';
import { doctorCommands } from './doctor.ts';
import { keyCommands } from './keys.ts';
import { maintenanceCommands } from './maintenance.ts';
import { policyCommands } from './policies.ts';
import { replayCommands } from './replay.ts';
import { restore } from './restore.ts';
import { stopCommands } from './stops.ts';
import { tenantCommands } from './tenants.ts';
import { userCommands } from './users.ts';

export const COMMANDS: readonly Command[] = [
  ...tenantCommands,
  ...userCommands,
  ...keyCommands,
  ...stopCommands,
  ...chainCommands,
  ...maintenanceCommands,
  ...doctorCommands,
  backup,
  restore,
  ...replayCommands,
  ...policyCommands,
];

/** Runs a command line. Resolves with the exit code: 0 for success, 1 for a failure, 2 for incorrect usage. */
export async function main(words: readonly string[]): Promise<number> {
  const [first = '', second = ''] = words;
  if (first === '--version') {
    const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
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
      return command.usageCode ?? 2;
    }
    process.stderr.write(`svc ${command.name}: ${messageOf(error)}\n`);
    return 1;
  }
}

/** Reports an unknown command, and lists the commands of its group or suggests a similar name. */
function noCommand(first: string, second: string): number {
  const group = COMMANDS.filter(({ name }) => name.startsWith(`${first} `));
  if (group.length > 0 && second === '--help') {
    process.stdout.write(overview(group));
    return 0;
  }
  const given = [first, second].filter((word) => word !== '' && !word.startsWith('-')).join(' ');
  const names = COMMANDS.map(({ name }) => name);
  const hint = suggestion(given, names) || suggestion(first, names);
  const fault =
    given === '' || (given === first && group.length > 0)
      ? 'a command is required'
      : `unknown command "${given}"${hint}`;
  process.stderr.write(`svc: ${plain(fault)}\n\n${overview(group.length > 0 ? group : COMMANDS)}`);
  return 2;
}

function overview(commands: readonly Command[]): string {
  return [
    'Usage: svc COMMAND [flags]',
    '',
    ...columns(commands.map(({ name, summary }) => [name, summary])).map((line) => `  ${line}`),
    '',
    'Run "svc COMMAND --help" for details. svc uses the server\'s settings (environment variables); "svc doctor" lists them.',
    '',
  ].join('\n');
}

/** The message for the operator. Only a bug in the program shows its stack. */
export function messageOf(error: unknown): string {
  if (error instanceof AppError) {
    const faults = error.faults.map((fault) => `\n  ${fault.pointer}: ${fault.message}`).join('');
    return `${error.message}${faults}`;
  }
  if (error instanceof SealedError) return `${error.message}. Set the master key that this database was created with.`;
  const selfExplanatory = [CommandError, ConfigError, Occupied, SchemaRefused];
  if (selfExplanatory.some((kind) => error instanceof kind)) return (error as Error).message;
  const { code, message, stack, errors } = error as Error & { code?: string; errors?: Error[] };
  // errors of the system, the network and PostgreSQL need no stack
  if (code) return message || errors?.[0]?.message || code;
  return stack ?? String(error);
}
