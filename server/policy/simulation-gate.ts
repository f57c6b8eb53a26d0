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

/** What the lifecycle of policies asks of simulations, which stand on a higher step. Both run within its transaction. */
export interface SimulationGate {
  /**
   * What a simulation found of the version, for the audit record, and why the version must not pass, if the tenant
   * requires one. `simulationId` is the one that the approver read; without it the newest that fits counts. NOT_FOUND
   * where it is not of this text.
   */
  find(em: EntityManager, version: Simulated, rules: Rules, simulationId?: string): Promise<Finding>;
  /** Has the version simulated in the background after the commit, unless a present simulation exists. */
  queue(em: EntityManager, version: Simulated & { version: number }, rules: Rules, by: Doer): Promise<void>;
}
