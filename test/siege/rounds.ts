/** `npm test` runs a few short rounds of what `npm run siege` does for long. */
export const SIEGE = process.env.SVC_SIEGE === '1';

export const ROUNDS = {
  /** How often the owner is killed. */
  kills: SIEGE ? 20 : 2,
  /** How long the owner is frozen, in milliseconds. */
  freezeMs: SIEGE ? 10_000 : 4000,
  /** How often Redis is emptied and restarted. */
  outages: SIEGE ? 10 : 1,
  /** Released holds, and how many requests want to consume each of them at once. */
  holds: SIEGE ? 100 : 10,
  consumes: SIEGE ? 200 : 60,
  /** How often a key is revoked and used at once elsewhere. */
  revocations: SIEGE ? 300 : 20,
  /** How long the control plane of a proxy is away, in milliseconds. */
  awayMs: SIEGE ? 60_000 : 2000,
} as const;
