import { folded } from '../../lib/folded.ts';

/** What each MCP method is to the policies. */

/** Carries the protocol itself, and does nothing that a policy could be about. */
const PLUMBING: ReadonlySet<string> = new Set([
  'initialize',
  'server/discover',
  'ping',
  'logging/setLevel',
  'tools/list',
  'prompts/list',
  'resources/list',
  'resources/templates/list',
  // each resource in it is requested as with `resources/subscribe`
  'subscriptions/listen',
  'resources/unsubscribe',
]);

const TYPES: Readonly<Record<string, string>> = {
  'tools/call': 'tool_call',
  'resources/read': 'resource_read',
  'resources/subscribe': 'resource_read',
  'prompts/get': 'prompt_get',
  'completion/complete': 'completion',
  'tasks/get': 'task_read',
  'tasks/result': 'task_read',
  'tasks/list': 'task_read',
  'tasks/update': 'task_update',
  'tasks/cancel': 'task_update',
  'sampling/createMessage': 'sampling',
  'elicitation/create': 'elicitation',
  'roots/list': 'roots_list',
};

/** The action type of a request; undefined for the plumbing. */
export function actionType(method: string): string | undefined {
  return PLUMBING.has(method) ? undefined : Object.hasOwn(TYPES, method) ? TYPES[method] : 'mcp_request';
}

/** Whether the request is part of the protocol itself, rather than an action. */
export function isPlumbing(method: string): boolean {
  return PLUMBING.has(method);
}

/** A list of what can be requested: the member that holds it, and the method that requests one of its items. */
export const LISTS: Readonly<Record<string, { member: string; method: string }>> = {
  'tools/list': { member: 'tools', method: 'tools/call' },
  'prompts/list': { member: 'prompts', method: 'prompts/get' },
  'resources/list': { member: 'resources', method: 'resources/read' },
  'resources/templates/list': { member: 'resourceTemplates', method: 'resources/read' },
};

/** In a call: the hold that it waited for. */
export const META_ESCROW_ID = 'svc/escrow-id';
/** In a call: the session that it belongs to, if there is no protocol session to say so. */
export const META_SESSION = 'svc/session';

const DEFINING = ['name', 'title', 'description', 'inputSchema', 'outputSchema', 'annotations'];
const FOLDED_DEFINING = new Map(DEFINING.map((name) => [folded(name), name]));

/** A tool without members that only clients that ignore case would take for part of its definition: no pin covers them. */
export function withoutRespelled(tool: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(tool).filter(([key]) => (FOLDED_DEFINING.get(folded(key)) ?? key) === key));
}
