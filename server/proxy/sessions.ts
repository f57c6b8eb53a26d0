import { FACT_LIMITS, type LedgerEntry, type LedgerRow, TRUST } from '../domain/session-facts.ts';
import type { Log } from '../lib/log.ts';
import type { KnownSession } from '../policy/evaluation/session.ts';
import { type ControlPlane, ControlPlaneError } from './control-plane.ts';
import { readJson } from './requests.ts';

/** Sessions that are kept; the least recently used go first, and are asked for again. */
const MOST = 10_000;
/** After a failure the control plane is not asked again for so long. */
const PAUSE_MS = 5_000;

interface Session {
  rows: Map<string, LedgerRow>;
  /** Settles when the control plane has said what it knows; false where it did not. */
  asked: Promise<boolean>;
}

/**
 * What this proxy knows of agents' sessions: what it saw itself, at once, and what the control plane has of them from
 * before or from other proxies, asked for once when a session is first seen. Where that fails, or comes too early, what was said
 * before is unknown: policies are told so, and it is asked for again.
 */
export class Sessions {
  readonly #control: Pick<ControlPlane, 'sessionFacts'>;
  readonly #behind: () => boolean;
  readonly #log: Log;
  readonly #sessions = new Map<string, Session>();
  #failedAt = Number.NEGATIVE_INFINITY;

  /** `behind`: the control plane does not have yet what earlier processes saw. */
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

  /** What a call said: known to the next call of the session at once. */
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
      // from the oldest to the newest
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
  // in the order in which they were said, so that the oldest go first
  rows.delete(id);
  rows.set(id, row);
  if (rows.size > FACT_LIMITS.ofSession) rows.delete(leastOf(rows));
}

/** The oldest; but no number of later answers makes a server forgotten that is not trusted. */
function leastOf(rows: ReadonlyMap<string, LedgerRow>): string {
  let least: [string, LedgerRow] | undefined;
  for (const [id, row] of rows) {
    if (row.source !== TRUST) return id;
    if (!least || Number(row.value) > Number(least[1].value)) least = [id, row];
  }
  return least![0];
}

/** What became of a call: whether it succeeded, and what the tool said. */
export interface Ended {
  succeeded: boolean;
  /** Undefined where what the tool said cannot be read for sure. */
  value?: unknown;
}

/** What an MCP server answered to a call, as the client gets it. */
export function mcpEnded(result: Record<string, unknown>): Ended | 'pending' {
  if (result.resultType !== undefined && result.resultType !== 'complete') return 'pending';
  if (result.isError) return { succeeded: false };
  if (!Array.isArray(result.content) && result.structuredContent === undefined) {
    // a task, which has only begun
    return typeof result.task === 'object' ? 'pending' : { succeeded: true };
  }
  const { structuredContent, content } = result;
  if (structuredContent !== undefined) return { succeeded: true, value: structuredContent };
  const [item, ...more] = content as unknown[];
  const text =
    more.length === 0 && typeof item === 'object' && item !== null ? (item as { text?: unknown }).text : undefined;
  return { succeeded: true, value: typeof text === 'string' ? textValue(text) : undefined };
}

/** A text that a tool answers is its JSON, or else itself. What is neither for sure is undefined. */
export function textValue(text: string): unknown {
  if (text.length > FACT_LIMITS.answer) return undefined;
  if (!/^\s*[[{]/.test(text)) return text;
  return jsonValue(Buffer.from(text));
}

/** The value of a JSON text in which no object has two members of one name; undefined for anything else. */
export function jsonValue(bytes: Buffer): unknown {
  if (bytes.length > FACT_LIMITS.answer) return undefined;
  try {
    return readJson(bytes);
  } catch {
    return undefined;
  }
}
