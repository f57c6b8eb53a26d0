import type { EntityManager } from '@mikro-orm/postgresql';
import type { Doer } from '../domain/audit.ts';
import type { Finding } from './gate.ts';
import type { Rules } from './queries.ts';

/** A version that is to be submitted or enforced. */
export interface Simulated {
  tenantId: string;
  policyId: string;
  text: string;
}

/** What the policy lifecycle needs from simulations, which belong to a higher layer. Both methods run within its transaction. */
export interface SimulationGate {
  /**
   * What a simulation found about the version, for the audit record, and why the version must not pass, if the tenant
   * requires one. `simulationId` is the one that the approver read; without it, the newest that qualifies counts. NOT_FOUND
   * if it is not of this text.
   */
  find(em: EntityManager, version: Simulated, rules: Rules, simulationId?: string): Promise<Finding>;
  /** Requests a simulation of the version in the background after the commit, unless a current one exists. */
  queue(em: EntityManager, version: Simulated & { version: number }, rules: Rules, by: Doer): Promise<void>;
}
