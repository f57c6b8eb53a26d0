/** The request of a decision that another page gives to the form "Try it" of a policy, once. It is kept in memory alone. */
export type HandedRequest = Record<string, unknown>;

let waiting: { policyId: string; request: HandedRequest } | undefined;

export function handRequest(policyId: string, request: HandedRequest): void {
  waiting = { policyId, request };
}

/** It stays until `requestTaken`, since a component may be made twice before it is there. */
export function requestFor(policyId: string | undefined): HandedRequest | undefined {
  return policyId !== undefined && waiting?.policyId === policyId ? waiting.request : undefined;
}

export function requestTaken(): void {
  waiting = undefined;
}
