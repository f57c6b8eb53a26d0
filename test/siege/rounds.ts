/** `npm test` runs a few short rounds of what `npm run siege` does for long. */
export const SIEGE = process.env.SVC_SIEGE === '1';

export const ROUNDS = {
  /** How often the owner is killed. */
  kills: SIEGE ? 20 : 2,
  /** How many appends are in flight when it is killed. */
  appends: SIEGE ? 600 : 200,
  /** How many clients write while Redis fails or an owner stops. */
  writers: SIEGE ? 12 : 4,
  /** How long the owner is frozen, in milliseconds. */
  freezeMs: SIEGE ? 10_000 : 4000,
  /** How often Redis is emptied and restarted. */
  outages: SIEGE ? 10 : 1,
  /** How often the primary of the database is killed and its standby promoted. */
  failovers: SIEGE ? 20 : 1,
  /** How often a node of a cluster with Citus is killed. */
  nodes: SIEGE ? 51 : 0,
  /** Released holds, and how many requests want to consume each of them at once. */
  holds: SIEGE ? 100 : 4,
  consumes: SIEGE ? 200 : 30,
  /** How often a key is revoked and used at once elsewhere. */
  revocations: SIEGE ? 300 : 20,
  /** How long the control plane of a proxy is away, in milliseconds. */
  awayMs: SIEGE ? 60_000 : 2000,
} as const;
