export const HOLD_STATUSES = ['held', 'released', 'rejected', 'consumed', 'expired', 'cancelled'] as const;
export type HoldStatus = (typeof HOLD_STATUSES)[number];

/** The search parameters of the inbox: which holds to show, by default the waiting ones. */
export interface HoldFilter {
  status?: HoldStatus;
  agent_role?: string;
  agent_id?: string;
}

export function readHoldFilter(search: Record<string, unknown>): HoldFilter {
  return {
    ...(HOLD_STATUSES.includes(search.status as HoldStatus) && { status: search.status as HoldStatus }),
    ...(typeof search.agent_role === 'string' && search.agent_role !== '' && { agent_role: search.agent_role }),
    ...(typeof search.agent_id === 'string' && search.agent_id !== '' && { agent_id: search.agent_id }),
  };
}
