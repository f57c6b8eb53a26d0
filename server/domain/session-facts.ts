/**
 * Facts of a session: what earlier answers of tools said, as policies declare it with `@fact` and read it under
 * `context.session`. Enforcement points see the answers; nothing that an agent sends becomes a fact.
 */

/** One fact that a statement declares: which answer it comes from, under which key, and what of it is kept. */
export interface FactDeclaration {
  name: string;
  /** The argument, or the place in the answer, whose value is the key; null for a fact of the whole session. */
  key: string | null;
  /** The argument, or the place in the answer, whose value is kept. */
  value: string;
  tool: string;
  /** Null: a tool of this name on any server. */
  server: string | null;
  /** How long it is known. */
  seconds: number;
  /** It may also come from what an agent itself reports of an answer. */
  reported: boolean;
}

export type FactValue = string | number | boolean | string[];

/** What a decision knows of its session: as much of it as the policies in force read. It is part of the kept input. */
export interface SessionState {
  /** The calls of the session before this one; none when absent. */
  call_count?: number | undefined;
  /** ISO 8601; now when absent. */
  started?: string | undefined;
  /** The least trust of the servers that have answered; 100 before the first answer, 0 where it is not known. */
  lowest_trust?: number | undefined;
  /** Facts by the name under which a policy reads them, such as `order_status[order_id]`. */
  facts?: Readonly<Record<string, FactValue>> | undefined;
  /** What was called before, by the name under which a policy reads it, such as `read_customer` or `pay failed`. */
  called?: readonly string[] | undefined;
}

export type CallOutcome = 'succeeded' | 'failed' | 'denied';

/** Where an entry of a session's ledger comes from, beside declarations of facts. */
export const CALL = 'call';
export const TRUST = 'trust';

/**
 * One line in the ledger of a session. A fact has its declaration as `source`, a call of a tool that policies name
 * `call:<outcome>` with the tool as name and the server as key, and the trust of a server that answered `trust`. A later
 * entry of the same source, name and key replaces it; a null value says that the fact is no longer known.
 */
export interface LedgerEntry {
  source: string;
  name: string;
  key: string;
  value: FactValue | null;
  /** ISO 8601, as seen by who observed it. */
  observed_at: string;
  expires_at: string;
}

/** An entry in the ledger, with the decision that it comes from. */
export interface LedgerRow extends LedgerEntry {
  event_id: string;
  /** The agent itself said so. */
  reported: boolean;
}

export const FACT_LIMITS = {
  /** Declarations in one annotation. */
  declarations: 20,
  /** Characters of a key, and of a text that is kept. */
  key: 200,
  text: 256,
  /** Texts of a list. */
  items: 32,
  /** Entries that one answer makes, and entries that are known of one session: the newest. */
  ofAnswer: 100,
  ofSession: 500,
  /** Seconds: the longest that an entry is known, how long a fact is without `for`, and a call. */
  most: 24 * 3600,
  standard: 3600,
  /** Bytes of an answer that is read for facts. */
  answer: 1024 * 1024,
} as const;
