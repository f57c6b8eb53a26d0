import { type Command, columns, helpOf, plain, readCall, suggestion, UsageError } from './command.ts';

/** A program of commands: all of the operator's, or only those that talk to a server. */
export interface Program {
  readonly commands: readonly Command[];
  version(): string;
  /** The closing text of the overview. */
  readonly about: string;
  /** The text that people see for an error. */
  messageOf(error: unknown): string;
}

/** Runs a command line. Resolves with the exit code: 0 for success, 1 for a failure, 2 for incorrect usage. */
export async function run(words: readonly string[], program: Program): Promise<number> {
  const { commands } = program;
  const [first = '', second = ''] = words;
  if (first === '--version') {
    process.stdout.write(`${program.version()}\n`);
    return 0;
  }
  if (first === 'help') return run([...words.slice(1), '--help'], program);
  if (first === '--help') {
    process.stdout.write(overview(program));
    return 0;
  }
  const command =
    commands.find(({ name }) => name === `${first} ${second}`) ?? commands.find(({ name }) => name === first);
  if (!command) return noCommand(program, first, second);
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
    process.stderr.write(`svc ${command.name}: ${program.messageOf(error)}\n`);
    return 1;
  }
}

/** Reports an unknown command, and lists the commands of its group or suggests a similar name. */
function noCommand(program: Program, first: string, second: string): number {
  const { commands } = program;
  const group = commands.filter(({ name }) => name.startsWith(`${first} `));
  if (group.length > 0 && second === '--help') {
    process.stdout.write(overview({ ...program, commands: group }));
    return 0;
  }
  const given = [first, second].filter((word) => word !== '' && !word.startsWith('-')).join(' ');
  const names = commands.map(({ name }) => name);
  const hint = suggestion(given, names) || suggestion(first, names);
  const fault =
    given === '' || (given === first && group.length > 0)
      ? 'a command is required'
      : `unknown command "${given}"${hint}`;
  process.stderr.write(
    `svc: ${plain(fault)}\n\n${overview({ ...program, commands: group.length > 0 ? group : commands })}`,
  );
  return 2;
}

function overview({ commands, about }: Program): string {
  return [
    'Usage: svc COMMAND [flags]',
    '',
    ...columns(commands.map(({ name, summary }) => [name, summary])).map((line) => `  ${line}`),
    '',
    `Run "svc COMMAND --help" for details. ${about}`,
    '',
  ].join('\n');
}
