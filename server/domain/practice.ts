/**
 * The agent in whose name people practice, see practiceProcedure. INVARIANT: it is no agent name (agent-names.ts), so nobody
 * else has it: no key and no token is for it, and no proxy can hold, consume or record anything in its name.
 */
export const PRACTICE_AGENT = '~practice';
