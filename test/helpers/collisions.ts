import { idHash } from '../../server/chain/record.ts';

/**
 * Two ids with the same 32-bit hash, found by trying: lookups by the hash of an id must tell them apart. Anyone who chooses ids
 * (an agent does) can find such pairs within a second.
 */
export const COLLIDING = ['case-46vu', 'case-fyea'] as const;

if (idHash(COLLIDING[0]) !== idHash(COLLIDING[1])) throw new Error('the ids do not collide any more: find others');
