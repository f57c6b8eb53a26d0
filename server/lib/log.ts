import { pino } from 'pino';

export type Log = pino.Logger;

/**
 * The program's log: one JSON line per entry on standard output. Places that could hold a credential are redacted, and `err` is
 * printed with its stack here and nowhere else: responses never show one.
 */
export function createLog(level: string, stream?: pino.DestinationStream): Log {
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
    stream ?? pino.destination({ dest: 1, sync: false }),
  );
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
