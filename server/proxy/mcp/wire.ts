/**
 * MCP messages as the proxy reads them: JSON-RPC 2.0. What of a client's messages goes on is in `members.ts`. The eras: up to
 * 2025-11-25 a session begins with `initialize`; from 2026-07-28 each request stands alone and states in its `_meta` who makes it
 * and what the client can do.
 */

export type Id = string | number;
export type Meta = Record<string, unknown> & { progressToken?: Id };
export type Params = Record<string, unknown> & { _meta?: Meta };
export interface Request {
  jsonrpc: '2.0';
  id: Id;
  method: string;
  params?: Params;
}
export interface Notification {
  jsonrpc: '2.0';
  method: string;
  params?: Params;
}
export type Result = Record<string, unknown> & { _meta?: Meta };
export interface Success {
  jsonrpc: '2.0';
  id: Id;
  result: Result;
}
export interface Failure {
  jsonrpc: '2.0';
  id: Id;
  error: { code: number; message: string; data?: unknown };
}
export type Answer = Success | Failure;
export type Message = Request | Notification | Answer;

/** One side of a session, such as the SDK's transports and the proxy's own. */
export interface Link {
  start(): Promise<void>;
  send(message: Message, options?: { relatedRequestId?: Id }): Promise<void>;
  close(): Promise<void>;
  /** Passes on to the transport what `initialize` has settled. */
  setProtocolVersion?: (version: string) => void;
  /** `of`: the request that the message belongs to, if known. */
  onmessage?: (message: Message, of?: Id) => void;
  onerror?: (error: Error) => void;
  onclose?: () => void;
}

export const MODERN = '2026-07-28';
/** Newest first. */
export const LEGACY = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05', '2024-10-07'];

const PREFIX = 'io.modelcontextprotocol/';
export const VERSION_KEY = `${PREFIX}protocolVersion`;
export const CAPABILITIES_KEY = `${PREFIX}clientCapabilities`;
export const CLIENT_KEY = `${PREFIX}clientInfo`;
export const SERVER_KEY = `${PREFIX}serverInfo`;
export const LOG_LEVEL_KEY = `${PREFIX}logLevel`;
export const SUBSCRIPTION_KEY = `${PREFIX}subscriptionId`;

/** JSON-RPC 2.0 §5.1, and the codes of MCP (2026-07-28, "Error Codes"). */
export const INVALID_REQUEST = -32600;
export const METHOD_NOT_FOUND = -32601;
export const INVALID_PARAMS = -32602;
export const INTERNAL_ERROR = -32603;
export const HEADER_MISMATCH = -32020;
export const MISSING_CAPABILITY = -32021;
export const UNSUPPORTED_VERSION = -32022;

export function failure(id: Id, code: number, message: string, data?: unknown): Failure {
  return { jsonrpc: '2.0', id, error: { code, message, ...(data !== undefined && { data }) } };
}

export function success(id: Id, result: Result): Success {
  return { jsonrpc: '2.0', id, result };
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * A parsed JSON value as a message, with only the members of JSON-RPC; undefined if it is not a message. A server that ignores
 * case would mistake `Method` or `Params` for the member that was decided on.
 */
export function asMessage(value: unknown): Message | undefined {
  if (!isObject(value) || value.jsonrpc !== '2.0') return undefined;
  const { jsonrpc, id, method, params, result, error } = value;
  if (id !== undefined && typeof id !== 'string' && !Number.isSafeInteger(id)) return undefined;
  if (method === undefined) {
    if (id === undefined) return undefined;
    if (isObject(result)) return { jsonrpc, id, result } as Answer;
    return isObject(error) && Number.isSafeInteger(error.code)
      ? ({ jsonrpc, id, error } as unknown as Answer)
      : undefined;
  }
  if (typeof method !== 'string' || (params !== undefined && !isObject(params))) return undefined;
  if (isObject(params) && params._meta !== undefined && !isObject(params._meta)) return undefined;
  return { jsonrpc, ...(id !== undefined && { id }), method, ...(params !== undefined && { params }) } as Message;
}

/** The revision that a message itself claims to follow; undefined if it belongs to a session. */
export function claimedVersion(message: unknown): unknown {
  const meta = isObject(message) && isObject(message.params) ? message.params._meta : undefined;
  return isObject(meta) ? meta[VERSION_KEY] : undefined;
}

/** The result without the parts that only clients of the stateless revision know. */
export function legacyResult({ resultType: _type, ttlMs: _ttl, cacheScope: _scope, ...result }: Result): Result {
  return result;
}
