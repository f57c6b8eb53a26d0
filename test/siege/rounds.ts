import { createHash } from 'node:crypto';

/** `npm run siege` runs everything at length; all other runs take a part of what shows one promise over and over. */
export const SIEGE = process.env.SVC_SIEGE === '1';

/** How often a random test runs: `whole` times in a siege, else at most `most` times. */
export const runs = (whole: number, most = 100): number => (SIEGE ? whole : Math.min(whole, most));

/**
 * Part of a table whose rows all show the same promise: all rows in a siege, else about one in `oneIn`, and at least one. What
 * is taken follows from the rows' own names, so that it is the same in every run, wherever a row stands and whatever is added.
 */
export function sampled<T>(
  rows: readonly T[],
  nameOf: (row: T) => string = (row) => (typeof row === 'string' ? row : JSON.stringify(row)),
  oneIn = 10,
): T[] {
  if (SIEGE) return [...rows];
  const placed = rows.map((row) => ({ row, place: placeOf(nameOf(row)) }));
  const lowest = Math.min(...placed.map(({ place }) => place));
  return placed.filter(({ place }) => place < 1 / oneIn || place === lowest).map(({ row }) => row);
}

/** A number from 0 up to 1, evenly spread over names. */
const placeOf = (name: string) => createHash('sha256').update(name).digest().readUInt32BE() / 2 ** 32;

/** How often and how long faults are made. */
export const ROUNDS = {
  /** How often the owner is killed. */
  kills: SIEGE ? 20 : 1,
  /** How many appends are in flight when it is killed. */
  appends: SIEGE ? 600 : 150,
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
  holds: SIEGE ? 100 : 2,
  consumes: SIEGE ? 200 : 30,
  /** How often a key is revoked and used at once elsewhere. */
  revocations: SIEGE ? 300 : 6,
  /** How long the control plane of a proxy is away, in milliseconds. */
  awayMs: SIEGE ? 60_000 : 2000,
} as const;
