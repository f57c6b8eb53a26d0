import type { Declared } from './param-headers.ts';
import type { Answer, Link, Notification, Request } from './wire.ts';

export interface On {
  /** Gets what the server says before it answers. */
  notify: (message: Notification) => void;
  signal: AbortSignal;
  /** A policy masks the answer: nothing that may be about this request is passed on to another open one. */
  masked?: boolean;
}

/** The answer to a server's question that might reveal what a mask hides. */
export const MASKED_MEANWHILE = 'nothing can be asked while a policy masks what is said';

/** The server could not be reached, or its answer does not follow the protocol. */
export class Unreachable extends Error {
  override readonly name = 'Unreachable';
  /** The status of the HTTP response, if there was one. */
  readonly status: number | undefined;

  constructor(message: string, status?: number) {
    super(message);
    this.status = status;
  }
}

/** A server of the old eras has begun no session: it was not asked anything. */
export class NoSession extends Unreachable {}

/** Where a tool server is, whatever its era. */
export interface Place {
  /** A separate connection, for one session with `initialize`. */
  connect(): Link & { terminate?: () => Promise<void> };
  /**
   * Sends one request of the stateless revision; resolves to its answer, or to undefined when `signal` has fired. Rejects with an
   * Unreachable.
   */
  post(request: Request, on: On): Promise<Answer | undefined>;
  /** The arguments of the called tool that must be repeated as headers; rejects with an Unreachable. */
  declared(call: Request, signal: AbortSignal): Promise<readonly Declared[]>;
  /** How long silence must last to show that a server does not know a request; undefined where silence means nothing. */
  readonly silenceMs: number | undefined;
  close(): Promise<void>;
}

/** Whether the server no longer knows the session: it answers 404 over HTTP, and some answer 400. */
export function isSessionLost(error: unknown): boolean {
  const { status } = Object(error) as { status?: unknown };
  return status === 404 || status === 400;
}
