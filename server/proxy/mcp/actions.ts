import { folded } from '../../lib/folded.ts';
import type { Notification, Request } from './wire.ts';

/** What each method of MCP is to the policies. */

/** Carries the protocol itself, and does nothing that a policy could speak of. */
const PLUMBING: ReadonlySet<string> = new Set([
  'initialize',
  'server/discover',
  'ping',
  'logging/setLevel',
  'tools/list',
  'prompts/list',
  'resources/list',
  'resources/templates/list',
  // each resource in it is asked for as by `resources/subscribe`
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

/** The type of action that a request is; undefined for the plumbing. */
export function actionType(method: string): string | undefined {
  return PLUMBING.has(method) ? undefined : Object.hasOwn(TYPES, method) ? TYPES[method] : 'mcp_request';
}

/** A list that says what can be asked for: the member that holds it, and the method by which one of it is asked for. */
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

/** Members of requests. Servers that ignore case would take others for these, and do something else than is decided on. */
const MEMBERS = [
  ...['_meta', 'name', 'arguments', 'uri', 'ref', 'argument', 'context', 'task', 'taskId'],
  ...['inputResponses', 'requestState'],
];
const FOLDED = new Map(MEMBERS.map((name) => [folded(name), name]));

/** Throws a RangeError for a member that is written in another way than the protocol does. */
export function assertSpelling({ params = {} }: Request): void {
  for (const key of Object.keys(params)) {
    const meant = FOLDED.get(folded(key));
    if (meant === undefined || meant === key) continue;
    throw new RangeError(`${JSON.stringify(key)} is not how ${meant} is written`);
  }
}

const DEFINING = ['name', 'title', 'description', 'inputSchema', 'outputSchema', 'annotations'];
const FOLDED_DEFINING = new Map(DEFINING.map((name) => [folded(name), name]));

/** A tool without what only clients that ignore case would take for a part of its definition: no pin covers it. */
export function withoutRespelled(tool: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(tool).filter(([key]) => (FOLDED_DEFINING.get(folded(key)) ?? key) === key));
}
