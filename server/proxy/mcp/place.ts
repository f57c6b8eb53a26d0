import { nestsDeeper } from '../../lib/json-depth.ts';
import type { Declared } from './param-headers.ts';
import {
  type Answer,
  type Failure,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  isObject,
  type Link,
  type Notification,
  type Request,
} from './wire.ts';

export interface On {
  /** Gets what the server says before it answers. */
  notify: (message: Notification) => void;
  signal: AbortSignal;
  /** A policy masks the answer: nothing that may be about this request is passed on to another open one. */
  masked?: boolean;
}

/** The answer to a server's question that might reveal what a mask hides. */
export const MASKED_MEANWHILE = 'nothing can be asked while a policy masks what is said';

/** There is no answer: the request could not be sent, or what came back does not follow the protocol. */
export class Unreachable extends Error {
  override readonly name = 'Unreachable';
  /** Whether the request may have left the proxy. In doubt, it has. */
  readonly sent: boolean;
  /** The status of the HTTP response, if there was one. */
  readonly status: number | undefined;

  constructor(message: string, { sent = true, status }: { sent?: boolean; status?: number } = {}) {
    super(message);
    this.sent = sent;
    this.status = status;
  }
}

/** A server of the old eras has begun no session: it was not asked anything. */
export class NoSession extends Unreachable {
  constructor(message: string) {
    super(message, { sent: false });
  }
}

/** What fails before a byte of a request is sent. */
const BEFORE_SENDING: ReadonlySet<unknown> = new Set([
  ...['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT'],
  ...['CERT_HAS_EXPIRED', 'DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN', 'ERR_TLS_CERT_ALTNAME_INVALID'],
  ...['UNABLE_TO_VERIFY_LEAF_SIGNATURE', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY', 'ERR_SSL_WRONG_VERSION_NUMBER'],
]);

interface Cause {
  code?: string;
  message?: string;
}

/** The failure of a request over HTTP as an Unreachable. */
export function unreachable(error: unknown): Unreachable {
  if (error instanceof Unreachable) return error;
  const { cause, message } = error as { cause?: Cause & { errors?: Cause[] }; message?: string };
  // of a name with several addresses, each was tried
  const causes = cause?.errors ?? [cause];
  const before = (one: Cause | undefined) => BEFORE_SENDING.has(one?.code) || one?.message === 'bad port';
  const sent = !(causes.length > 0 && causes.every(before));
  return new Unreachable(cause?.code ?? String(message), { sent });
}

/** The outcome of a call that may have been made, in its record. */
export const UNKNOWN = 'no answer: whether it was done is not known';
const NOT_SENT = 'tool server unreachable';

/** What the record and the client get when there is no answer: whether the request was sent, and never more than is known. */
export function withoutAnswer(id: Id, error: unknown): { outcome: string; answer: Failure } {
  const sent = !(error instanceof Unreachable) || error.sent;
  const text = sent
    ? 'the tool server has the request, but gave no answer that can be read: whether it did what was asked is not known'
    : 'the tool server cannot be reached: the request was not sent';
  const outcome = sent ? UNKNOWN : NOT_SENT;
  const answer = failure(id, INTERNAL_ERROR, text, { unreachable: true, sent });
  OUTCOMES.set(answer.error, outcome);
  return { outcome, answer };
}

/** Of what the proxy itself gives for an answer: a server could write the same. */
const OUTCOMES = new WeakMap<Failure['error'], string>();

const UNREAD = 'svc/unread';
/** Values of a server's message may be nested in this many others. */
const MOST_DEPTH = 1000;

/** What stands for an answer that came, and is not read. */
export function unread(id: Id, why: string): Failure {
  return failure(id, INVALID_REQUEST, `${why}: whether what was asked was done is not known`, { [UNREAD]: true });
}

/** The outcome of a call whose answer is none; undefined for a server's own answer. */
export function outcomeWithout({ error }: Failure): string | undefined {
  // a server that writes this for an answer has not said what became of the call
  return OUTCOMES.get(error) ?? (isObject(error.data) && error.data[UNREAD] === true ? UNKNOWN : undefined);
}

/** Whether a server's message is nested so deep that nothing is done with it. */
export function isTooDeep(message: Buffer): boolean {
  return nestsDeeper(message, MOST_DEPTH);
}

export const TOO_DEEP = `the message nests deeper than ${MOST_DEPTH}`;

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
