export const HOLD_STATUSES = ['held', 'released', 'rejected', 'consumed', 'expired', 'cancelled'] as const;
export type HoldStatus = (typeof HOLD_STATUSES)[number];

export const ORDERS = ['created_at', 'value', 'risk'] as const;
export type HoldOrder = (typeof ORDERS)[number] | 'expires_at';

export const MINE = ['needed', 'voted'] as const;

/** The search parameters of the inbox: which holds to show, by default the waiting ones, and which one is open. */
export interface HoldFilter {
  mine?: (typeof MINE)[number];
  order?: Exclude<HoldOrder, 'expires_at'>;
  hold?: string;
  status?: HoldStatus;
  agent_role?: string;
  agent_id?: string;
}

export function readHoldFilter(search: Record<string, unknown>): HoldFilter {
  return {
    ...(HOLD_STATUSES.includes(search.status as HoldStatus) && { status: search.status as HoldStatus }),
    ...(MINE.includes(search.mine as never) && { mine: search.mine as (typeof MINE)[number] }),
    ...(ORDERS.includes(search.order as never) && { order: search.order as Exclude<HoldOrder, 'expires_at'> }),
    ...(typeof search.hold === 'string' && /^esc_\w{1,60}$/.test(search.hold) && { hold: search.hold }),
    ...(typeof search.agent_role === 'string' && search.agent_role !== '' && { agent_role: search.agent_role }),
    ...(typeof search.agent_id === 'string' && search.agent_id !== '' && { agent_id: search.agent_id }),
  };
}
