import { pino } from 'pino';

export type Log = pino.Logger;

/**
 * The program's log: one JSON line an entry on standard output. What could hold a credential is redacted by place, and
 * `err` is printed with its stack here and only here: answers never show one.
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
