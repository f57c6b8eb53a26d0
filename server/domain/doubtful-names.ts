import { lookalikes } from '../lib/visible.ts';

const NAMES = [
  ['tool_server', 'the tool server'],
  ['tool_name', 'the tool'],
  ['action_type', 'the action type'],
  ['method', 'the method'],
  ['resource', 'the resource'],
  ['agent_id', 'the agent'],
  ['agent_role', 'the role'],
] as const;

/** The names in an action, chosen by agents and tools, by which people recognize what it is. */
export type ActionNames = { readonly [K in (typeof NAMES)[number][0]]?: unknown };

/**
 * Which names in an action have letters that can be mistaken for others, and in which words. One line for each name, the server's
 * first, so that no name can push another's words out of sight.
 */
export function doubtfulNames(action: ActionNames): [label: string, words: string][] {
  return NAMES.flatMap(([field, of]) => {
    const name = action[field];
    const words = typeof name === 'string' ? lookalikes(name) : [];
    return words.length > 0 ? [[`Letters in ${of} that can be taken for others`, words.join(', ')]] : [];
  });
}
