/**
 * Facts of a session: what earlier tool answers contained, as policies declare it with `@fact` and read it under
 * `context.session`. Enforcement points see the answers; nothing that an agent sends becomes a fact.
 */

/** One fact that a statement declares: which answer it comes from, under which key, and what part of it is kept. */
export interface FactDeclaration {
  name: string;
  /** The argument, or the place in the answer, whose value is the key; null for a fact of the whole session. */
  key: string | null;
  /** The argument, or the place in the answer, whose value is kept. */
  value: string;
  tool: string;
  /** Null: a tool with this name on any server. */
  server: string | null;
  /** How long it stays known. */
  seconds: number;
  /** It may also come from what an agent itself reports about an answer. */
  reported: boolean;
}

export type FactValue = string | number | boolean | string[];

/** What a decision knows about its session, to the extent that the policies in force read it. It is part of the kept input. */
export interface SessionState {
  /** The calls of the session before this one; none if absent. */
  call_count?: number | undefined;
  /** ISO 8601; now if absent. */
  started?: string | undefined;
  /** The lowest trust of the servers that have answered; 100 before the first answer, 0 if unknown. */
  lowest_trust?: number | undefined;
  /** Facts by the name under which a policy reads them, such as `order_status[order_id]`. */
  facts?: Readonly<Record<string, FactValue>> | undefined;
  /** What was called before, by the name under which a policy reads it, such as `read_customer` or `pay failed`. */
  called?: readonly string[] | undefined;
}

export type CallOutcome = 'succeeded' | 'failed' | 'denied';

/** Sources of entries in a session's ledger other than fact declarations. */
export const CALL = 'call';
export const TRUST = 'trust';

/**
 * One line in the ledger of a session. The `source` of a fact is its declaration; of a call of a tool that policies name,
 * `call:<outcome>`, with the tool as name and the server as key; and of the trust of a server that answered, `trust`. A later
 * entry with the same source, name and key replaces it; a null value means that the fact is no longer known.
 */
export interface LedgerEntry {
  source: string;
  name: string;
  key: string;
  value: FactValue | null;
  /** ISO 8601, as seen by the observer. */
  observed_at: string;
  expires_at: string;
}

/** An entry in the ledger, with the decision that it comes from. */
export interface LedgerRow extends LedgerEntry {
  event_id: string;
  /** Reported by the agent itself. */
  reported: boolean;
}

export const FACT_LIMITS = {
  /** Declarations per annotation. */
  declarations: 20,
  /** Characters per key, and per text that is kept. */
  key: 200,
  text: 256,
  /** Texts per list. */
  items: 32,
  /** Entries made from one answer, and the newest entries known for one session. */
  ofAnswer: 100,
  ofSession: 500,
  /** Seconds: the longest that an entry is known; how long a fact without `for`, or a call, is known. */
  most: 24 * 3600,
  standard: 3600,
  /** Maximum size in bytes of an answer that is read for facts. */
  answer: 1024 * 1024,
} as const;
