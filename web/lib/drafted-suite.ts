import type { Answers } from './trpc.ts';

/** A suite that another page drafted: the editor of the policy's tests opens with it, once. */
export type DraftedSuite = Answers['decisionTests']['make'] & { event_id: string };

let waiting: { policyId: string; drafted: DraftedSuite } | undefined;

export function handSuite(policyId: string, drafted: DraftedSuite): void {
  waiting = { policyId, drafted };
}

/** It stays until `suiteTaken`, since a component may be created twice before it is mounted. */
export function suiteFor(policyId: string): DraftedSuite | undefined {
  return waiting?.policyId === policyId ? waiting.drafted : undefined;
}

export function suiteTaken(): void {
  waiting = undefined;
}
