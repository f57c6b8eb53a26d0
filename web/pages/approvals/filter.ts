export const HOLD_STATUSES = ['held', 'released', 'rejected', 'consumed', 'expired', 'cancelled'] as const;
export type HoldStatus = (typeof HOLD_STATUSES)[number];

/** What the address of the inbox says: which holds, by default those that wait. */
export interface HoldFilter {
  status?: HoldStatus;
  agent_role?: string;
}

export function readHoldFilter(search: Record<string, unknown>): HoldFilter {
  return {
    ...(HOLD_STATUSES.includes(search.status as HoldStatus) && { status: search.status as HoldStatus }),
    ...(typeof search.agent_role === 'string' && search.agent_role !== '' && { agent_role: search.agent_role }),
  };
}
