import { FACT_LIMITS, type LedgerEntry, type LedgerRow, TRUST } from '../domain/session-facts.ts';
import type { Log } from '../lib/log.ts';
import type { KnownSession } from '../policy/evaluation/session.ts';
import { type ControlPlane, ControlPlaneError } from './control-plane.ts';
import { readJson } from './requests.ts';

/** Sessions kept; the least recently used go first, and are fetched again when needed. */
const MOST = 10_000;
/** After a failure, the control plane is not asked again for this long. */
const PAUSE_MS = 5_000;

interface Session {
  rows: Map<string, LedgerRow>;
  /** Settles when the control plane has returned what it knows; false if it did not. */
  asked: Promise<boolean>;
}

/**
 * What this proxy knows about agents' sessions: what it saw itself, at once, and what the control plane has from before or from
 * other proxies, fetched once when a session is first seen. If that fails, or happens too early, the earlier facts are unknown:
 * policies get to know that, and the facts are fetched again.
 */
export class Sessions {
  readonly #control: Pick<ControlPlane, 'sessionFacts'>;
  readonly #behind: () => boolean;
  readonly #log: Log;
  readonly #sessions = new Map<string, Session>();
  #failedAt = Number.NEGATIVE_INFINITY;

  /** `behind`: the control plane does not have everything yet that earlier processes saw. */
  constructor(parts: { control: Pick<ControlPlane, 'sessionFacts'>; behind: () => boolean; log: Log }) {
    this.#control = parts.control;
    this.#behind = parts.behind;
    this.#log = parts.log;
  }

  async known(agentId: string, sessionId: string): Promise<KnownSession> {
    const session = this.#session(agentId, sessionId);
    const complete = await session.asked;
    if (!complete && performance.now() - this.#failedAt > PAUSE_MS)
      session.asked = this.#ask(agentId, sessionId, session);
    return { rows: [...session.rows.values()], complete };
  }

  /** Records what a call revealed, so that the session's next call knows it at once. */
  note(agentId: string, sessionId: string, eventId: string, entries: readonly LedgerEntry[]): void {
    if (entries.length === 0) return;
    const { rows } = this.#session(agentId, sessionId);
    for (const entry of entries) put(rows, { ...entry, event_id: eventId, reported: false });
  }

  #session(agentId: string, sessionId: string): Session {
    const key = JSON.stringify([agentId, sessionId]);
    let session = this.#sessions.get(key);
    if (!session) {
      session = { rows: new Map(), asked: Promise.resolve(false) };
      session.asked = this.#ask(agentId, sessionId, session);
    }
    this.#sessions.delete(key);
    this.#sessions.set(key, session);
    if (this.#sessions.size > MOST) this.#sessions.delete(this.#sessions.keys().next().value as string);
    return session;
  }

  async #ask(agentId: string, sessionId: string, { rows }: Session): Promise<boolean> {
    if (performance.now() - this.#failedAt < PAUSE_MS) return false;
    const behind = this.#behind();
    try {
      const said = await this.#control.sessionFacts(agentId, sessionId);
      // oldest first
      for (const row of said.reverse()) put(rows, row);
      return !behind;
    } catch (error) {
      if (!(error instanceof ControlPlaneError)) throw error;
      this.#failedAt = performance.now();
      this.#log.warn({ detail: error.message }, 'what is known of a session cannot be asked for');
      return false;
    }
  }
}

function put(rows: Map<string, LedgerRow>, row: LedgerRow): void {
  const id = JSON.stringify([row.source, row.name, row.key, row.reported]);
  const before = rows.get(id);
  if (before && before.observed_at > row.observed_at) return;
  // in the order in which they were learned, so that the oldest go first
  rows.delete(id);
  rows.set(id, row);
  if (rows.size > FACT_LIMITS.ofSession) rows.delete(leastOf(rows));
}

/** The oldest; but however many answers follow, an untrusted server is not forgotten. */
function leastOf(rows: ReadonlyMap<string, LedgerRow>): string {
  let least: [string, LedgerRow] | undefined;
  for (const [id, row] of rows) {
    if (row.source !== TRUST) return id;
    if (!least || Number(row.value) > Number(least[1].value)) least = [id, row];
  }
  return least![0];
}

/** The outcome of a call: whether it succeeded, and what the tool returned. */
export interface Ended {
  succeeded: boolean;
  /** Undefined if what the tool returned cannot be read reliably. */
  value?: unknown;
}

/** An MCP server's result of a call, as the client gets it. */
export function mcpEnded(result: Record<string, unknown>): Ended | 'pending' {
  if (result.resultType !== undefined && result.resultType !== 'complete') return 'pending';
  if (result.isError) return { succeeded: false };
  if (!Array.isArray(result.content) && result.structuredContent === undefined) {
    // a task, which has only started
    return typeof result.task === 'object' ? 'pending' : { succeeded: true };
  }
  const { structuredContent, content } = result;
  if (structuredContent !== undefined) return { succeeded: true, value: structuredContent };
  const [item, ...more] = content as unknown[];
  const text =
    more.length === 0 && typeof item === 'object' && item !== null ? (item as { text?: unknown }).text : undefined;
  return { succeeded: true, value: typeof text === 'string' ? textValue(text) : undefined };
}

/** A tool's text answer as JSON, or else as text. Undefined if it is not reliably either. */
export function textValue(text: string): unknown {
  if (text.length > FACT_LIMITS.answer) return undefined;
  if (!/^\s*[[{]/.test(text)) return text;
  return jsonValue(Buffer.from(text));
}

/** The value of a JSON text in which no object has two members of the same name; undefined for anything else. */
export function jsonValue(bytes: Buffer): unknown {
  if (bytes.length > FACT_LIMITS.answer) return undefined;
  try {
    // what a server answers, and within that limit
    return readJson(bytes, Number.POSITIVE_INFINITY);
  } catch {
    return undefined;
  }
}
