import { doubtfulNames } from '../../domain/doubtful-names.ts';
import { definitionOf } from '../../domain/events.ts';
import { knownHoldKind } from '../../domain/hold-kinds.ts';
import { pageAddress } from '../../domain/page-address.ts';
import { nameRead, oneLine } from '../../lib/visible.ts';
import type { Message } from './destination.ts';

/** An event as a chat message, independent of the chat product. All values are plain text. */
export interface Card {
  title: string;
  facts: [label: string, value: string][];
  /** The agent's own statements about a held action, kept apart from the facts. */
  claims?: [label: string, value: string][];
  buttons: { label: string; url: string; style?: 'primary' | 'danger' }[];
}

/** The address of a page of the event's tenant. */
type Page = (path: `/${string}`, query?: Record<string, string>) => string;

/** The card of an event. Values written by agents and people are put on one line and truncated. */
export function cardOf(message: Message): Card {
  const card = cardOfEvent(message);
  if (message.payload.test !== true) return card;
  // nothing happened, so there is nothing to open, and nothing to approve
  return {
    ...card,
    title: `Example, nothing has happened: ${card.title}`,
    facts: [['Test', 'An admin had this example sent to this destination alone'], ...card.facts],
    buttons: [],
  };
}

function cardOfEvent({ eventType, payload, appUrl }: Message): Card {
  const { title = eventType, votable = false } = definitionOf(eventType) ?? {};
  const facts: Card['facts'] = [];
  const fact = (label: string, value: unknown, max = 120) => {
    if (value !== undefined && value !== null && value !== '') facts.push([label, oneLine(String(value), max)]);
  };
  const named = (label: string, name: unknown, max?: number) =>
    fact(label, typeof name === 'string' ? nameRead(name) : name, max);
  const page: Page = (path, query) => pageAddress(appUrl, String(payload.tenant_id), path, query);
  if (typeof payload.escrow_id === 'string') {
    const hold = `/approvals/${inPath(payload.escrow_id)}` as const;
    named('Tool', payload.tool_name);
    named('Tool server', payload.tool_server);
    named('Action type', payload.action_type);
    named('Method', payload.method);
    named('Resource', payload.resource, 300);
    for (const [label, words] of doubtfulNames(payload)) fact(label, words);
    fact('Arguments', payload.arguments, 300);
    fact('Context', payload.context, 300);
    if (typeof payload.estimated_value === 'number') {
      fact('Value', `${payload.estimated_value} ${payload.value_currency ?? ''}`.trim());
    }
    fact('Reason', payload.reason, 300);
    named('Agent', payload.agent_id);
    named('Agent role', payload.agent_role);
    fact('Hold type', knownHoldKind(payload.hold_type)?.label ?? payload.hold_type);
    fact('Approvals required', payload.required_approvals);
    fact('Expires', time(payload.expires_at));
    const claims: Card['facts'] = [['The agent says', oneLine(String(payload.action_summary ?? ''), 380)]];
    if (typeof payload.risk_score === 'number') claims.push(['Risk stated by the agent', String(payload.risk_score)]);
    const buttons: Card['buttons'] = votable
      ? [
          { label: 'Approve', url: page(hold, { vote: 'approve' }), style: 'primary' },
          { label: 'Deny', url: page(hold, { vote: 'deny' }), style: 'danger' },
          { label: 'Open', url: page(hold) },
          ...stopLink(page, payload.agent_id),
        ]
      : [{ label: 'Open', url: page(hold) }];
    return { title, facts, claims, buttons };
  }
  named('Tool server', payload.tool_server);
  named('Tool', payload.tool_name);
  if (Array.isArray(payload.tools)) fact('Tools', toolsIn(payload.tools, payload.count), 300);
  fact('Policy', payload.policy_id);
  fact('List', payload.list);
  fact('Version', payload.version);
  if (Array.isArray(payload.settings)) fact('Settings', payload.settings.join(', '), 300);
  if (payload.event === 'policy.tests_broken') fact('Failing tests', String(payload.failed));
  fact('Status', payload.status);
  fact('Key', payload.key_id);
  fact('Label', payload.label);
  fact('Package', payload.package_id);
  fact('Proxy', payload.proxy_id);
  fact('Last seen', time(payload.last_seen_at));
  fact('Subscription', payload.subscription_id);
  fact('Chain', payload.chain);
  fact('Record', payload.seq);
  fact('By', payload.actor_id);
  fact('Reason', payload.reason, 300);
  fact('Time', time(payload.created_at));
  const path: `/${string}` | undefined =
    typeof payload.policy_id === 'string'
      ? `/policies/${inPath(payload.policy_id)}`
      : typeof payload.subscription_id === 'string'
        ? '/subscriptions'
        : typeof payload.tool_server === 'string'
          ? '/tools'
          : typeof payload.list === 'string'
            ? `/lists/${inPath(payload.list)}`
            : typeof payload.change_id === 'string'
              ? '/settings'
              : undefined;
  return { title, facts, buttons: path ? [{ label: 'Open', url: page(path) }] : [] };
}

/** Links to the dashboard's form with the agent filled in: stopping takes a signed-in person. */
function stopLink(page: Page, agentId: unknown): Card['buttons'] {
  // an id that cannot be shown verbatim might be mistaken for another agent's
  if (typeof agentId !== 'string' || agentId === '' || oneLine(agentId, 200) !== agentId) return [];
  return [{ label: 'Stop the agent…', url: page('/stops', { stop: 'agent', id: asText(agentId) }) }];
}

/** Matches how the dashboard reads addresses: JSON is read as its value, `1e3` as the number 1000. */
function asText(value: string): string {
  try {
    JSON.parse(value);
    return JSON.stringify(value);
  } catch {
    return value;
  }
}

/** The names of tools, each shortened and quoted: a name may look like the next one, or like a sentence. */
function toolsIn(tools: readonly unknown[], count: unknown): string {
  const names = tools.slice(0, 5).map((one) => {
    const { name, change } = (one ?? {}) as Record<string, unknown>;
    const quoted = oneLine(nameRead(String(name)), 40);
    return `“${quoted}”${change === 'introduced' ? ' (new behavior)' : ''}`;
  });
  const more = Number(count) - names.length;
  return `${names.join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
}

const inPath = (id: string) => encodeURIComponent(oneLine(id, 100));

function time(value: unknown): string | undefined {
  return typeof value === 'string' ? value.replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*Z$/, '$1 $2 UTC') : undefined;
}
