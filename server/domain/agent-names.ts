import { z } from 'zod';
import { PRACTICE_AGENT } from './practice.ts';

const FORM = /^[A-Za-z0-9][A-Za-z0-9._:@/+=|~-]{0,199}$/;
const PATTERN = /^(?=.{1,200}$)[A-Za-z0-9._:@/+=|~-]*\*?[A-Za-z0-9._:@/+=|~-]*$/;

/**
 * The id of an agent and the name of its role, as this server issues them: in keys, and in what it accepts of token issuers.
 * INVARIANT: nothing else can authenticate: 1 to 200 ASCII letters, digits and `. _ : @ / + = | ~ -`, starting with a letter or
 * digit. So no two ids look alike to a person, and none can be read as something else in a policy, a log, a card or a table cell.
 * Names of workload identities (SPIFFE ids, service accounts, addresses, UUIDs) fit.
 */
export function isAgentName(value: unknown): value is string {
  return typeof value === 'string' && FORM.test(value);
}

export const AGENT_NAME_RULE =
  'must be 1 to 200 letters, digits and . _ : @ / + = | ~ - in ASCII, and begin with a letter or digit';
export const AgentName = z.string().regex(FORM, AGENT_NAME_RULE);

/**
 * An agent or role as a proxy reports it, and as people ask about it: proxies of others name agents as they like, and none of
 * their decisions may be lost for it. Wherever such a name is shown, what could be mistaken in it is marked (lib/visible.ts).
 */
export const ReportedName = z
  .string()
  .min(1)
  .max(200)
  .refine((name) => name.isWellFormed() && !name.includes('\0'), 'must be well-formed text without NUL')
  .refine((name) => name !== PRACTICE_AGENT, `must not be ${PRACTICE_AGENT}, in whose name people practice`);

/** A name, or a pattern for many names, in which one `*` matches any text. */
export const AgentNamePattern = z
  .string()
  .regex(PATTERN, 'must be a name of letters, digits and . _ : @ / + = | ~ - in which one * may stand for any text');

/** Whether one of the patterns matches the name. Linear in their length, whatever their form. */
export function isNamedBy(patterns: readonly string[], name: string): boolean {
  return patterns.some((pattern) => {
    const star = pattern.indexOf('*');
    if (star === -1) return pattern === name;
    const [head, tail] = [pattern.slice(0, star), pattern.slice(star + 1)];
    return name.length >= head.length + tail.length && name.startsWith(head) && name.endsWith(tail);
  });
}
