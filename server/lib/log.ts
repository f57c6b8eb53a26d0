import { pino } from 'pino';
import { Output } from './output.ts';

export { droppedLines } from './output.ts';

export type Log = pino.Logger;

/**
 * The program's log: one JSON line per entry on standard output, or wherever `to` says (a file descriptor, or a stream). Places
 * that could hold a credential are redacted, and `err` is printed with its stack here and nowhere else: responses never show one.
 * While a descriptor cannot be written to, lines are dropped, and the log says how many as soon as it can.
 */
export function createLog(level: string, to: number | pino.DestinationStream = 1): Log {
  return pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: {
        paths: [
          'req.headers.authorization',
          'req.headers.cookie',
          'res.headers["set-cookie"]',
          '*.authorization',
          '*.cookie',
          '*.secret',
          '*.client_secret',
          '*.key',
          '*.token',
          '*.password',
          'secret',
          'token',
          'password',
        ],
        censor: '[redacted]',
      },
      serializers: { err: pino.stdSerializers.err },
    },
    typeof to === 'number' ? outputTo(to) : to,
  );
}

const outputs = new Map<number, Output>();

/** One for all logs, so that their lines stay in order. */
function outputTo(fd: number): Output {
  const output = outputs.get(fd) ?? new Output(fd, missing);
  outputs.set(fd, output);
  return output;
}

/** A line in place of those that were dropped. */
function missing(lines: number): string {
  const msg = `${lines} lines were dropped: the log could not be written`;
  return `${JSON.stringify({ level: 'error', time: new Date().toISOString(), lines, msg })}\n`;
}

type Line = [what: object, text?: string];

/** The log of one request, created for its first line: most requests have none. */
export class RequestLog {
  readonly #of: Log;
  readonly #bindings: pino.Bindings;
  #made: Log | undefined;

  constructor(of: Log, bindings: pino.Bindings) {
    this.#of = of;
    this.#bindings = bindings;
  }

  get level(): string {
    return this.#of.level;
  }

  trace(...line: Line): void {
    this.#log.trace(...line);
  }

  debug(...line: Line): void {
    this.#log.debug(...line);
  }

  info(...line: Line): void {
    this.#log.info(...line);
  }

  warn(...line: Line): void {
    this.#log.warn(...line);
  }

  error(...line: Line): void {
    this.#log.error(...line);
  }

  fatal(...line: Line): void {
    this.#log.fatal(...line);
  }

  child(bindings: pino.Bindings): Log {
    return this.#log.child(bindings);
  }

  get #log(): Log {
    this.#made ??= this.#of.child(this.#bindings);
    return this.#made;
  }
}
