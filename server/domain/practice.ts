/**
 * The agent in whose name people practice, see practiceProcedure. INVARIANT: no one else has it: it cannot be issued, and is
 * not accepted as reported (agent-names.ts). So no key or token is for it, and no proxy can hold, consume or record anything in its
 * name.
 */
export const PRACTICE_AGENT = '~practice';
