/** A decision's request that another page hands to a policy's "Try it" form, once. It is kept only in memory. */
export type HandedRequest = Record<string, unknown>;

let waiting: { policyId: string; request: HandedRequest } | undefined;

export function handRequest(policyId: string, request: HandedRequest): void {
  waiting = { policyId, request };
}

/** It stays until `requestTaken`, since a component may be created twice before it is mounted. */
export function requestFor(policyId: string | undefined): HandedRequest | undefined {
  return policyId !== undefined && waiting?.policyId === policyId ? waiting.request : undefined;
}

export function requestTaken(): void {
  waiting = undefined;
}
