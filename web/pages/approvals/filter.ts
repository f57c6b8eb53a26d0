export const HOLD_STATUSES = ['held', 'released', 'rejected', 'consumed', 'expired', 'cancelled'] as const;
export type HoldStatus = (typeof HOLD_STATUSES)[number];

export const ORDERS = ['created_at', 'value', 'risk'] as const;
export type HoldOrder = (typeof ORDERS)[number] | 'expires_at';

/** What the waiting holds can be counted by. */
export const GROUPS = ['agent', 'rule', 'tool'] as const;

export const MINE = ['needed', 'voted'] as const;

/** The search parameters of the inbox: which holds to show, by default the waiting ones, and which one is open. */
export interface HoldFilter {
  mine?: (typeof MINE)[number];
  order?: Exclude<HoldOrder, 'expires_at'>;
  hold?: string;
  status?: HoldStatus;
  /** Only the holds that the reader has set aside. */
  aside?: true;
  agent_role?: string;
  agent_id?: string;
  tool_server?: string;
  tool_name?: string;
  rule_id?: string;
  group?: (typeof GROUPS)[number];
}

const TEXTS = ['agent_role', 'agent_id', 'tool_server', 'tool_name', 'rule_id'] as const;

export function readHoldFilter(search: Record<string, unknown>): HoldFilter {
  return {
    ...(HOLD_STATUSES.includes(search.status as HoldStatus) && { status: search.status as HoldStatus }),
    ...(search.aside === true && { aside: true as const }),
    ...(MINE.includes(search.mine as never) && { mine: search.mine as (typeof MINE)[number] }),
    ...(ORDERS.includes(search.order as never) && { order: search.order as Exclude<HoldOrder, 'expires_at'> }),
    ...(typeof search.hold === 'string' && /^esc_\w{1,60}$/.test(search.hold) && { hold: search.hold }),
    ...(GROUPS.includes(search.group as never) && { group: search.group as (typeof GROUPS)[number] }),
    ...Object.fromEntries(
      // an empty value means that a hold has no such value, but a hold always has an agent and a role
      TEXTS.flatMap((name) =>
        typeof search[name] === 'string' && (search[name] !== '' || !name.startsWith('agent'))
          ? [[name, search[name]]]
          : [],
      ),
    ),
  };
}
