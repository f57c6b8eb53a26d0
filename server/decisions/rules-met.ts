import type pg from 'pg';
import type { Reads } from '../../db/index.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import { DECISIONS } from '../domain/decision.ts';
import { ReadRefused } from '../lib/database-fault.ts';

/** How many of the newest decisions are searched for rules, and then of each kind but `allow`. */
export const MOST_LOOKED_AT = 40_000;
export const MOST_OF_A_KIND = 10_000;
/** How many are searched at once: rules that match often are found in the first step. */
const STEP = 5_000;

/** What was found in the records up to `last`. */
interface Found {
  /** For each rule that was met, its newest record. */
  readonly newest: ReadonlyMap<string, number>;
  readonly last: number;
  readonly looked_at: number;
  readonly complete: boolean;
}

interface Range {
  readonly tenantId: string;
  readonly first: number;
  readonly last: number;
}

interface Met {
  /** Of the given rules, those that were met. */
  readonly ids: ReadonlySet<string>;
  readonly looked_at: number;
  readonly complete: boolean;
}

/**
 * Which rules were met lately. Searching this many records takes a second, so the result is kept as long as the list of
 * rules is, and later calls read only newer records.
 */
export class RulesMet {
  /** Keyed by the list of rules and the number of days. */
  readonly #known = new WeakMap<readonly object[], Map<number, { found?: Found; asked?: Promise<Met> | undefined }>>();

  /** The ids of the given rules that decisions since then met, as far as those were searched. */
  async since(
    db: Reads,
    tenantId: string,
    rules: readonly { readonly rule_id: string }[],
    { days, since }: { days: number; since: string },
  ): Promise<Met> {
    const ofRules = this.#known.get(rules) ?? new Map<number, { found?: Found; asked?: Promise<Met> | undefined }>();
    this.#known.set(rules, ofRules);
    const known = ofRules.get(days) ?? {};
    ofRules.set(days, known);
    // Concurrent callers share one answer. If the caller that reads gets none, because it left or had too many reads of its
    // own, that does not affect the others: one of them asks again for all who still wait.
    while (known.asked) {
      const same = await known.asked.catch((error) => {
        if (!(error instanceof ReadRefused) || error.why === 'took_long') throw error;
      });
      if (same) return same;
    }
    const asked = db.readOnly(tenantId, async (client) => {
      await client.query(PLAN);
      const last = await lastSeq(client, tenantId, 'forensics');
      const first = Math.max(2, await firstSince(client, tenantId, 'forensics', last, since));
      const wanted = new Set(rules.map(({ rule_id }) => rule_id));
      const { found } = known;
      const goesOn = found && found.last <= last && last - found.last <= MOST_LOOKED_AT;
      known.found = goesOn
        ? await more(client, found, { tenantId, ids: wanted, last })
        : await all(client, wanted, { tenantId, first, last });
      const { newest, looked_at, complete } = known.found;
      const ids = [...newest].filter(([, seq]) => seq >= first).map(([id]) => id);
      return { ids: new Set(ids), looked_at, complete };
    });
    known.asked = asked;
    try {
      return await asked;
    } finally {
      if (known.asked === asked) known.asked = undefined;
    }
  }
}

/**
 * Everything from the newest record backward, until all rules were met.
 *
 * INVARIANT: each statement reads at most `STEP` records, found by an index, and the number of statements is bounded.
 */
async function all(client: pg.PoolClient, ids: Set<string>, { tenantId, first, last }: Range): Promise<Found> {
  const newest = new Map<string, number>();
  const latest = await look(client, newest, { tenantId, ids, first, last, most: MOST_LOOKED_AT });
  let looked_at = latest.looked;
  for (const kind of DECISIONS.keys()) {
    // there is no index for `allow`
    if (latest.next < first || ids.size === 0 || kind === 0) continue;
    const own = await look(client, newest, { tenantId, ids, first, last: latest.next, most: MOST_OF_A_KIND, kind });
    looked_at += own.looked;
  }
  return { newest, last, looked_at, complete: ids.size === 0 || latest.next < first };
}

/** The records since then. All rules are searched for: a rule's newest record determines when it counts as unused again. */
async function more(
  client: pg.PoolClient,
  known: Found,
  { tenantId, ids, last }: { tenantId: string; ids: Set<string>; last: number },
): Promise<Found> {
  const newest = new Map<string, number>();
  // the first record is not a decision
  const first = Math.max(2, known.last + 1);
  const { looked } = await look(client, newest, { tenantId, ids, first, last, most: MOST_LOOKED_AT });
  return {
    newest: new Map([...known.newest, ...newest]),
    last,
    looked_at: known.looked_at + looked,
    complete: known.complete,
  };
}

/** From the newest backward. Moves rules that were met from `ids` to `newest`. `next`: where to continue. */
async function look(
  client: pg.PoolClient,
  newest: Map<string, number>,
  { tenantId, ids, first, last, most, kind }: Range & { ids: Set<string>; most: number; kind?: number },
): Promise<{ looked: number; next: number }> {
  let next = last;
  let looked = 0;
  while (looked < most && next >= first && ids.size > 0) {
    // a literal, so that the planner can match the partial index over decision > 0
    const { rows } = await client.query<{ looked: number; least: number | null; met: Record<string, number> | null }>(
      `with picked as materialized (
         select seq, line from forensic_record
         where tenant_id = $1 and seq between $2 and $3 ${kind === undefined ? '' : `and decision = ${kind}`}
         order by seq desc limit ${STEP}),
       met as (
         select rule, max(seq) as seq from picked p,
           lateral jsonb_to_record(p.line::jsonb) as d(hits jsonb, rule_id text),
           lateral (select jsonb_array_elements_text(coalesce(d.hits, '[]')) as rule union all select d.rule_id) r
         where rule = any($4) group by rule)
       select count(*)::int as looked, min(seq) as least, (select jsonb_object_agg(rule, seq) from met) as met from picked`,
      [tenantId, first, next, [...ids]],
    );
    const { looked: read, least, met } = rows[0]!;
    for (const [id, seq] of Object.entries(met ?? {})) {
      ids.delete(id);
      newest.set(id, seq);
    }
    looked += read;
    if (read < STEP || least === null) return { looked, next: first - 1 };
    next = least - 1;
  }
  return { looked, next };
}
