import { createHash } from 'node:crypto';
import type { Migration } from '@mikro-orm/migrations';
import { Spine } from './0001-spine.ts';
import { People } from './0002-people.ts';
import { SingleSignOn } from './0003-sso.ts';
import { Subscriptions } from './0004-subscriptions.ts';
import { HoldsByExpiry } from './0005-holds-by-expiry.ts';
import { OpenReviews } from './0006-open-reviews.ts';
import { Tools } from './0008-tools.ts';
import { Lists } from './0009-lists.ts';
import { Simulations } from './0011-simulations.ts';
import { SessionFacts } from './0012-session-facts.ts';
import { Workloads } from './0013-workloads.ts';
import { ReturnedTools } from './0014-returned-tools.ts';
import { Limits } from './0015-limits.ts';
import { Stops } from './0017-stops.ts';
import { Calls } from './0019-calls.ts';
import { WatchedTests } from './0022-watched-tests.ts';
import { TenantMoves } from './0023-tenant-moves.ts';

/** Every migration in order. A name never changes once released. */
export const migrations = [
  { name: '0001-spine', class: Spine },
  { name: '0002-people', class: People },
  { name: '0003-sso', class: SingleSignOn },
  { name: '0004-subscriptions', class: Subscriptions },
  { name: '0005-holds-by-expiry', class: HoldsByExpiry },
  { name: '0006-open-reviews', class: OpenReviews },
  { name: '0008-tools', class: Tools },
  { name: '0009-lists', class: Lists },
  { name: '0011-simulations', class: Simulations },
  { name: '0012-session-facts', class: SessionFacts },
  { name: '0013-workloads', class: Workloads },
  { name: '0014-returned-tools', class: ReturnedTools },
  { name: '0015-limits', class: Limits },
  { name: '0017-stops', class: Stops },
  { name: '0019-calls', class: Calls },
  { name: '0022-watched-tests', class: WatchedTests },
  { name: '0023-tenant-moves', class: TenantMoves },
];

/**
 * Maps each migration's name to the sha256, in hex, of the statements it runs. It is stored with the migration when that runs, so
 * that a text changed afterwards is noticed: the database then does not match the text.
 */
export function migrationChecksums(): Map<string, string> {
  return new Map(
    migrations.map(({ name, class: Class }) => {
      // a migration's statements depend only on its text and the lists from the domain that it names
      const migration: Migration = new Class(undefined as never, undefined as never);
      void migration.up();
      return [name, createHash('sha256').update(migration.getQueries().join(';\n')).digest('hex')];
    }),
  );
}
