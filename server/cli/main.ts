import { readFileSync } from 'node:fs';
import { SchemaRefused } from '../../db/applied.ts';
import { Occupied } from '../../db/claim.ts';
import { NoSession } from '../../db/session.ts';
import { AppError } from '../errors.ts';
import { SealedError } from '../keys/keyring.ts';
import { ConfigError } from '../lib/settings.ts';
import { backup } from './backup.ts';
import { chainCommands } from './chain.ts';
import { type Command, CommandError } from './command.ts';
import { demoCommands } from './demo.ts';
import { doctorCommands } from './doctor.ts';
import { keyCommands } from './keys.ts';
import { maintenanceCommands } from './maintenance.ts';
import { policyCommands } from './policies.ts';
import { replayCommands } from './replay.ts';
import { restore } from './restore.ts';
import { run } from './run.ts';
import { stopCommands } from './stops.ts';
import { tenantCommands } from './tenants.ts';
import { userCommands } from './users.ts';

export const COMMANDS: readonly Command[] = [
  ...tenantCommands,
  ...userCommands,
  ...keyCommands,
  ...stopCommands,
  ...chainCommands,
  ...demoCommands,
  ...maintenanceCommands,
  ...doctorCommands,
  backup,
  restore,
  ...replayCommands,
  ...policyCommands,
];

/** Runs a command line. Resolves with the exit code: 0 for success, 1 for a failure, 2 for incorrect usage. */
export function main(words: readonly string[]): Promise<number> {
  return run(words, {
    commands: COMMANDS,
    version: () => JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version,
    about: 'svc uses the server\'s settings (environment variables); "svc doctor" lists them.',
    messageOf,
  });
}

/** The message for the operator. Only a bug in the program shows its stack. */
export function messageOf(error: unknown): string {
  if (error instanceof AppError) {
    const faults = error.faults.map((fault) => `\n  ${fault.pointer}: ${fault.message}`).join('');
    return `${error.message}${faults}`;
  }
  if (error instanceof SealedError) return `${error.message}. Set the master key that this database was created with.`;
  const selfExplanatory = [CommandError, ConfigError, NoSession, Occupied, SchemaRefused];
  if (selfExplanatory.some((kind) => error instanceof kind)) return (error as Error).message;
  const { code, message, stack, errors } = error as Error & { code?: string; errors?: Error[] };
  // errors of the system, the network and PostgreSQL need no stack
  if (code) return message || errors?.[0]?.message || code;
  return stack ?? String(error);
}
