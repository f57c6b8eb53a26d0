import type { Declared } from './param-headers.ts';
import type { Answer, Link, Notification, Request } from './wire.ts';

export interface On {
  /** What the server says before it answers. */
  notify: (message: Notification) => void;
  signal: AbortSignal;
  /** A policy masks the answer: nothing that might be said of this request is said of another that is open beside it. */
  masked?: boolean;
}

/** To a server's question that may tell what a mask hides. */
export const MASKED_MEANWHILE = 'nothing can be asked while a policy masks what is said';

/** The server could not be asked, or gave no answer of the protocol. */
export class Unreachable extends Error {
  override readonly name = 'Unreachable';
  /** Of the HTTP answer, where there was one. */
  readonly status: number | undefined;

  constructor(message: string, status?: number) {
    super(message);
    this.status = status;
  }
}

/** A server of the old eras has begun no session: nothing was asked of it. */
export class NoSession extends Unreachable {}

/** Where a tool server is, of whatever era. */
export interface Place {
  /** A connection of its own, for one session with `initialize`. */
  connect(): Link & { terminate?: () => Promise<void> };
  /**
   * Sends one request of the stateless revision; resolves with its answer, and with nothing when `signal` has fired.
   * Rejects with an Unreachable.
   */
  post(request: Request, on: On): Promise<Answer | undefined>;
  /** Which arguments of the tool that is called must be repeated as headers; rejects with an Unreachable. */
  declared(call: Request, signal: AbortSignal): Promise<readonly Declared[]>;
  /** How long silence lasts until it says that a server does not know a question; undefined where silence says nothing. */
  readonly silenceMs: number | undefined;
  close(): Promise<void>;
}

/** The server knows the session no more: it answers 404 over HTTP, and some answer 400. */
export function isSessionLost(error: unknown): boolean {
  const { status } = Object(error) as { status?: unknown };
  return status === 404 || status === 400;
}
