import { parseArgs } from 'node:util';
import { nearest } from '../lib/nearest.ts';
import { reason } from '../rpc/fields.ts';

/** A flag of a command. `value` is the placeholder for its value; a flag without one is a switch. */
export interface Flag {
  readonly help: string;
  readonly value?: string;
  readonly required?: true;
}
type Flags = Readonly<Record<string, Flag>>;

/** A positional argument. Only the last one may be `many`. */
export interface Argument {
  readonly name: string;
  readonly help: string;
  readonly many?: true;
}

type FlagValue<F extends Flag> = F extends { value: string }
  ? F extends { required: true }
    ? string
    : string | undefined
  : boolean;

/** A parsed command line. */
export interface Call<F extends Flags = Flags> {
  readonly flags: { readonly [K in keyof F]: FlagValue<F[K]> };
  readonly args: readonly string[];
  /** Prints the result: as JSON with --json, otherwise the lines. */
  print(result: object, lines: readonly string[]): void;
}

export interface Command {
  /** One or two words: `migrate`, `tenant create`. */
  readonly name: string;
  readonly summary: string;
  /** Additional help text, such as an example or a warning. */
  readonly more?: string;
  readonly args?: readonly Argument[];
  readonly flags: Flags;
  /** The exit code of incorrect usage, for commands where 2 means something else. */
  readonly usageCode?: number;
  /** Resolves with the exit code; undefined means 0. */
  run(call: Call): Promise<number | undefined>;
}

/** Defines a command whose `run` gets typed flags. */
export function command<const F extends Flags>(
  definition: Omit<Command, 'flags' | 'run'> & { flags: F; run(call: Call<F>): Promise<number | undefined> },
): Command {
  return definition as unknown as Command;
}

/** Incorrect usage: exit code 2. */
export class UsageError extends Error {}

/** The command failed for a reason that the operator can fix: exit code 1, no stack. */
export class CommandError extends Error {}

/** For commands that take away a right or a safeguard. */
export const REASON_FLAG = { reason: { value: 'TEXT', help: 'why; the audit log keeps it' } } as const;

/** The given reason, or else that an operator did it here. `kind`: if it must be shorter than usual. */
export function reasonOf({ reason: given }: { reason: string | undefined }, kind = reason): string {
  const read = kind.safeParse(given ?? 'by the operator, with the command svc');
  if (read.success) return read.data;
  throw new UsageError(`--reason ${read.error.issues[0]!.message}`);
}

export const JSON_FLAG = { json: { help: 'print one JSON object' } } as const;
export const TENANT_FLAG = { tenant: { value: 'ID', required: true, help: 'id of the tenant' } } as const;

/** Parses the words after the command's name. Throws a UsageError, with a suggestion where possible. */
export function readCall(cmd: Command, words: readonly string[]): Call {
  const options: Record<string, { type: 'string' | 'boolean' }> = { help: { type: 'boolean' } };
  for (const [name, flag] of Object.entries(cmd.flags)) options[name] = { type: flag.value ? 'string' : 'boolean' };
  const { tokens } = parseArgs({ args: [...words], options, strict: false, tokens: true, allowPositionals: true });
  const seen = new Set<string>();
  for (const token of tokens) {
    if (token.kind !== 'option') continue;
    if (!Object.hasOwn(options, token.name)) {
      throw new UsageError(
        `${token.rawName} is not a flag of this command${suggestion(token.name, Object.keys(options), '--')}`,
      );
    }
    if (seen.has(token.name)) throw new UsageError(`${token.rawName} was given twice`);
    seen.add(token.name);
  }
  let parsed: { values: Record<string, string | boolean | undefined>; positionals: string[] };
  try {
    parsed = parseArgs({ args: [...words], options, allowPositionals: true });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  const missing = Object.entries(cmd.flags).filter(([name, flag]) => flag.required && !parsed.values[name]);
  if (missing.length > 0) {
    throw new UsageError(`missing: ${missing.map(([name, flag]) => `--${name} ${flag.value}`).join(', ')}`);
  }
  const wanted = cmd.args ?? [];
  if (parsed.positionals.length < wanted.length)
    throw new UsageError(`missing: ${wanted.at(parsed.positionals.length)!.name}`);
  if (parsed.positionals.length > wanted.length && !wanted.at(-1)?.many) {
    throw new UsageError(`${JSON.stringify(parsed.positionals[wanted.length])} is an unexpected argument`);
  }
  const flags: Record<string, string | boolean | undefined> = {};
  for (const [name, flag] of Object.entries(cmd.flags)) {
    flags[name] = flag.value ? parsed.values[name] : parsed.values[name] === true;
  }
  return {
    flags: flags as Call['flags'],
    args: parsed.positionals,
    print(result, lines) {
      const text = flags.json ? JSON.stringify(result) : lines.map(plain).join('\n');
      if (text !== '') process.stdout.write(`${text}\n`);
    },
  };
}

/** `; did you mean …?` if one of the candidates is similar. */
export function suggestion(word: string, candidates: readonly string[], prefix = ''): string {
  const near = nearest(word, candidates);
  return near === undefined ? '' : `; did you mean ${prefix}${near}?`;
}

export function helpOf(cmd: Command): string {
  const words = (cmd.args ?? []).map((arg) => (arg.many ? `${arg.name}...` : arg.name));
  const flags = Object.entries({ ...cmd.flags, help: { help: 'show this help' } as Flag });
  const required = flags.filter(([, flag]) => flag.required).map(([name, flag]) => `--${name} ${flag.value}`);
  const rows = [
    ...(cmd.args ?? []).map((arg) => [arg.name, arg.help]),
    ...flags.map(([name, flag]) => [
      `--${name}${flag.value ? ` ${flag.value}` : ''}`,
      `${flag.help}${flag.required ? ' (required)' : ''}`,
    ]),
  ];
  return [
    `Usage: svc ${[cmd.name, ...words, ...required, '[flags]'].join(' ')}`,
    '',
    cmd.summary,
    ...(cmd.more ? ['', cmd.more] : []),
    '',
    ...columns(rows).map((line) => `  ${line}`),
    '',
  ].join('\n');
}

/** Rows as lines, each column as wide as its longest cell. */
export function columns(rows: readonly (readonly (string | number | undefined)[])[]): string[] {
  const cells = rows.map((row) => row.map((cell) => String(cell ?? '')));
  const widths: number[] = [];
  for (const row of cells) for (const [i, cell] of row.entries()) widths[i] = Math.max(widths[i] ?? 0, cell.length);
  return cells.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join('  ')
      .trimEnd(),
  );
}

/** One line without control and format characters: stored text must not control the reader's terminal. */
export function plain(line: string): string {
  return line.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '?');
}

/** Parses `90d`, `12h`, `30m` or `45s` to milliseconds. */
export function duration(text: string, flag: string): number {
  const [, count, unit] = /^(\d{1,6})([smhd])$/.exec(text) ?? [];
  if (!count || Number(count) === 0) throw new UsageError(`${flag} must be a duration such as 90d, 12h, 30m or 45s`);
  return Number(count) * { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[unit as 's' | 'm' | 'h' | 'd'];
}

/** Parses an integer within bounds. */
export function whole(text: string, flag: string, min: number, max: number): number {
  const value = /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
  if (!(value >= min && value <= max)) throw new UsageError(`${flag} must be an integer from ${min} to ${max}`);
  return value;
}

/** Parses a list `a,b` of allowed items. */
export function listOf<T extends string>(text: string, flag: string, allowed: readonly T[]): T[] {
  const items = text.split(',').map((item) => item.trim());
  for (const item of items) {
    if (!allowed.includes(item as T)) {
      throw new UsageError(
        `${flag}: ${JSON.stringify(item)} is not one of ${allowed.join(', ')}${suggestion(item, allowed)}`,
      );
    }
  }
  return [...new Set(items as T[])];
}
