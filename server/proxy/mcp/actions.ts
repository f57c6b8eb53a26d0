import { folded } from '../../lib/folded.ts';
import type { Notification, Request } from './wire.ts';

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

/** A list of what can be requested: the member that holds it, and the method that requests one of its items. */
export const LISTS: Readonly<Record<string, { member: string; method: string }>> = {
  'tools/list': { member: 'tools', method: 'tools/call' },
  'prompts/list': { member: 'prompts', method: 'prompts/get' },
  'resources/list': { member: 'resources', method: 'resources/read' },
  'resources/templates/list': { member: 'resourceTemplates', method: 'resources/read' },
};

/** Notifications of a client that belong to the protocol. */
const NOTIFICATIONS =
  /^notifications\/(?:initialized|cancelled|progress|message|roots\/list_changed|tasks\/status|elicitation\/complete)$/;

export function isKnownNotification({ method }: Notification): boolean {
  return NOTIFICATIONS.test(method);
}

/** Members of requests. Servers that ignore case would mistake others for these, and do something that was not decided on. */
const MEMBERS = [
  ...['_meta', 'name', 'arguments', 'uri', 'ref', 'argument', 'context', 'task', 'taskId'],
  ...['inputResponses', 'requestState'],
];
const FOLDED = new Map(MEMBERS.map((name) => [folded(name), name]));

/** Throws a RangeError for a member that is spelled differently than in the protocol. */
export function assertSpelling({ params = {} }: Request): void {
  for (const key of Object.keys(params)) {
    const meant = FOLDED.get(folded(key));
    if (meant === undefined || meant === key) continue;
    throw new RangeError(`${JSON.stringify(key)} is not how ${meant} is written`);
  }
}

const DEFINING = ['name', 'title', 'description', 'inputSchema', 'outputSchema', 'annotations'];
const FOLDED_DEFINING = new Map(DEFINING.map((name) => [folded(name), name]));

/** A tool without members that only clients that ignore case would take for part of its definition: no pin covers them. */
export function withoutRespelled(tool: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(tool).filter(([key]) => (FOLDED_DEFINING.get(folded(key)) ?? key) === key));
}
