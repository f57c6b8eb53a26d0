import type { Credential, TestServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

/** A simulation as the API shows it. */
export interface Simulation {
  id: string;
  status: string;
  current: boolean;
  automatic: boolean;
  version: number | null;
  failure: string | null;
  result_hash: string | null;
  progress: { checked: number; total: number | null };
  window: { from: string; to: string };
  changed?: number;
  decisions?: number;
  pruned?: number;
  unknown?: number;
  unknown_by_reason?: Record<string, number>;
  matrix?: Record<string, Record<string, number>>;
  groups?: { direction: string; count: number; examples: string[]; money: Record<string, string> }[];
  drift?: { total: number; unexplained: number };
  nothing_newly_allowed?: boolean;
}

type Caller = Pick<TestServer, 'call'>;

export const start = async (server: Caller, who: Credential, id: string, body: object = {}) =>
  (await server.call<Simulation>(202, `POST /v1/policies/${id}/simulate`, who, body)).body;

export const read = async (server: Caller, who: Credential, id: string, query = '') =>
  (await server.call<Simulation>(200, `GET /v1/policies/${id}/simulation${query}`, who)).body;

/** Waits for the end of a simulation. */
export async function ended(server: Caller, who: Credential, policy: string, id: string): Promise<Simulation> {
  const ask = async () => {
    const found = await read(server, who, policy, `?simulation_id=${id}`);
    return found.status === 'queued' || found.status === 'running' ? undefined : found;
  };
  return until(ask, `the end of ${id}`, { everyMs: 50 });
}

export const simulated = async (server: Caller, who: Credential, policy: string, body: object = {}) =>
  ended(server, who, policy, (await start(server, who, policy, body)).id);
