/** The request cannot be carried out, and the message says why and what to do: it is shown without a stack. Exit code 1. */
export class Failure extends Error {
  override readonly name = 'Failure';
}

/** The command line is wrong; the message says how. Exit code 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}
