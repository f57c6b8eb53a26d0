/**
 * The agent in whose name people practice, see practiceProcedure. INVARIANT: it is not a valid agent name (agent-names.ts), so no
 * one else has it: no key or token is for it, and no proxy can hold, consume or record anything in its name.
 */
export const PRACTICE_AGENT = '~practice';
