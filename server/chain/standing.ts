import { opendir } from 'node:fs/promises';
import type pg from 'pg';
import { chainOfFile, checkpointFile, FiledHeads } from './checkpoint-file.ts';
import type { AcknowledgedHeads, KnownHead } from './heads.ts';
import {
  type AcceptedLoss,
  acceptedLosses,
  isOriginOf,
  isSuperseded,
  type LossRow,
  lossRows,
  RECORDS,
} from './loss.ts';
import { type NoteKey, openHead } from './note.ts';
import { type ChainName, ZERO_HASH } from './record.ts';
import type { ChainPosition } from './verify.ts';

/** A known head that the chain does not have. */
export interface Contradiction {
  readonly reason: string;
  /** The highest head known to have existed. */
  readonly known: KnownHead;
  /** Up to this record the chain agrees with everything known. */
  readonly agreed: number;
}

/** How a chain compares with all that is known about it. */
export interface Standing {
  /** As the head row states it. */
  readonly head: ChainPosition;
  /** The last record present. */
  readonly last: number;
  /** How many losses were accepted, according to the number of the last one. */
  readonly generation: number;
  /** The highest generation that anything known names. */
  readonly knownGeneration: number;
  readonly losses: readonly AcceptedLoss[];
  /** seq of the newest checkpoint in the database; 0 if there is none. */
  readonly signed: number;
  /** seq of the newest checkpoint in the file that no accepted loss revoked; 0 if there is none. */
  readonly filed: number;
  readonly contradiction: Contradiction | undefined;
  /** Describes anything that claims to be a checkpoint of this chain but was not signed by any of the keys. */
  readonly unreadable: string | undefined;
}

/** All keys that ever signed a chain, including retired ones. */
export type KeysOf = (tenantId: string, chain: ChainName) => readonly NoteKey[];

/** What is known about a chain outside its database. Gathered before the chain is read. */
export interface Knowledge {
  readonly heads: readonly (KnownHead & { source: string; filed?: boolean })[];
  readonly unreadable: string | undefined;
}

/**
 * Compares chains with what is known about them: the checkpoints in the database and in a file per chain (outside the database:
 * an attacker who rewrites one has not yet rewritten the other), and the heads that were acknowledged, in this process's memory
 * and in Redis. A hash covers the entire history before it, so comparing the highest head of each source is enough to compare all
 * of them.
 */
export class Comparison {
  readonly #options: {
    acknowledged: AcknowledgedHeads;
    keys: KeysOf;
    directory: string | undefined;
  };
  readonly #filed = new FiledHeads();

  constructor(options: {
    acknowledged: AcknowledgedHeads;
    keys: KeysOf;
    /** Where the checkpoint files are. If undefined, there are none. */
    directory: string | undefined;
  }) {
    this.#options = options;
  }

  /** The chains about which something is known outside the database, in pages of about this size. */
  async *chains(many: number): AsyncGenerator<{ tenantId: string; chain: ChainName }[]> {
    const { acknowledged, directory } = this.#options;
    let page = [...acknowledged.chains()];
    const files = directory === undefined ? undefined : await opendir(directory).catch(() => undefined);
    for await (const { name } of files ?? []) {
      const chain = chainOfFile(name);
      if (chain) page.push(chain);
      if (page.length < many) continue;
      yield page;
      page = [];
    }
    if (page.length > 0) yield page;
  }

  /** What is known about a chain outside its database. INVARIANT: gather it before the chain is read. */
  async knowledge(tenantId: string, chain: ChainName): Promise<Knowledge> {
    const { acknowledged, directory, keys } = this.#options;
    const filed = async (): Promise<Knowledge> => {
      if (directory === undefined) return { heads: [], unreadable: undefined };
      const heads: Knowledge['heads'][number][] = [];
      try {
        const file = checkpointFile(directory, tenantId, chain);
        for (const { origin, seq, hash, generation = 0 } of await this.#filed.highest(file, keys(tenantId, chain))) {
          if (!isOriginOf(origin, tenantId, chain)) throw new Error('a checkpoint in it is of another chain');
          heads.push({ seq, hash, generation, source: 'signed, as the checkpoint file says', filed: true });
        }
        return { heads, unreadable: undefined };
      } catch (error) {
        return { heads, unreadable: `the checkpoint file: ${(error as Error).message}` };
      }
    };
    const [known, { heads, unreadable }] = await Promise.all([acknowledged.known(tenantId, chain), filed()]);
    return { heads: [...known.map((head) => ({ ...head, source: 'acknowledged' })), ...heads], unreadable };
  }

  /** Compares the chain with knowledge that the caller gathered beforehand. The caller may hold the head, but need not. */
  async standing(
    client: Pick<pg.ClientBase, 'query'>,
    tenantId: string,
    chain: ChainName,
    knowledge: Knowledge,
  ): Promise<Standing> {
    const keys = this.#options.keys(tenantId, chain);
    const { table } = RECORDS[chain];
    // one statement, so one moment in time and one round trip: a process that takes over waits for it
    const { rows } = await client.query<StandingRow>(
      `select h.seq, h.hash, c.seq as signed, c.note, to_jsonb(a) as alarm,
         (select max(seq) from ${table} where tenant_id = $1) as last,
         (select jsonb_agg(to_jsonb(l) order by l.seq) from (${lossRows(chain)}) l) as losses,
         (select jsonb_object_agg(r.seq, encode(r.hash, 'hex')) from ${table} r
           where r.tenant_id = $1 and r.seq = any($3::bigint[] || h.seq || c.seq)) as places
       from (select) one
       left join chain_head h on h.tenant_id = $1 and h.chain = $2
       left join lateral (select seq, note from chain_checkpoint
         where tenant_id = $1 and chain = $2 order by seq desc limit 1) c on true
       left join chain_alarm a on a.tenant_id = $1 and a.chain = $2`,
      [tenantId, chain, [...new Set(knowledge.heads.map(({ seq }) => seq))]],
    );
    const row = rows[0]!;
    const head = { seq: row.seq ?? 0, hash: row.hash?.toString('hex') ?? ZERO_HASH };
    const last = row.last ?? 0;
    const losses = acceptedLosses(row.losses ?? [], tenantId, chain, keys);
    const generation = losses.at(-1)?.generation ?? 0;
    let { unreadable } = knowledge;
    const known: Knowledge['heads'][number][] = [...knowledge.heads];
    for (const loss of losses) known.push({ ...loss.kept, generation: loss.generation, source: 'kept at a loss' });
    if (row.note !== null) {
      try {
        const signed = openHead(row.note, keys);
        if (!isOriginOf(signed.origin, tenantId, chain) || signed.seq !== row.signed) {
          throw new Error('it was put in another place');
        }
        known.push({ ...signed, generation: signed.generation ?? 0, source: 'signed' });
      } catch (error) {
        unreadable ??= `the last checkpoint does not open: ${(error as Error).message}`;
      }
    }
    if (head.seq > 0) known.push({ ...head, generation, source: 'the head' });
    const binding = known.filter((each) => !isSuperseded(losses, each));
    const hashes = new Map(Object.entries(row.places ?? {}).map(([seq, hash]) => [Number(seq), hash]));
    if (losses.length > 0) {
      const { rows: kept } = await client.query<{ seq: number; hash: Buffer }>(
        `select seq, hash from ${table} where tenant_id = $1 and seq = any($2)`,
        [tenantId, losses.map((loss) => loss.kept.seq)],
      );
      for (const { seq, hash } of kept) hashes.set(seq, hash.toString('hex'));
    }
    const missed = binding.filter(({ seq, hash }) => hashes.get(seq) !== hash).sort((a, b) => b.seq - a.seq);
    const { alarm } = row;
    let contradiction: Contradiction | undefined;
    if (missed[0]) {
      const { source, filed: _, ...highest } = missed[0];
      const lowest = missed.at(-1)!.seq;
      const words = hashes.has(highest.seq) ? 'has another hash than the one that was' : 'is not there; it was';
      contradiction = {
        reason: `record ${highest.seq} ${words} ${source}`,
        known: highest,
        agreed: Math.min(lowest - 1, last),
      };
    } else if (last > head.seq) {
      contradiction = {
        reason: `records up to ${last} stand beyond the head, which is ${head.seq}`,
        known: { ...head, generation },
        agreed: head.seq,
      };
    }
    if (alarm) {
      const { known_seq: seq, known_hash: hash, known_generation } = alarm;
      const here = contradiction;
      const higher = !here || seq > here.known.seq;
      contradiction = {
        reason: higher ? alarm.reason : here.reason,
        known: higher ? { seq, hash, generation: known_generation } : here.known,
        agreed: Math.min(alarm.agreed, here?.agreed ?? last, last),
      };
    }
    const knownGeneration = Math.max(0, ...known.map((each) => each.generation), alarm?.known_generation ?? 0);
    const signed = row.signed ?? 0;
    const filed = Math.max(
      0,
      ...knowledge.heads.flatMap((each) => (each.filed && binding.includes(each) ? each.seq : [])),
    );
    return { head, last, generation, knownGeneration, losses, signed, filed, contradiction, unreadable };
  }
}

interface StandingRow {
  seq: number | null;
  hash: Buffer | null;
  last: number | null;
  signed: number | null;
  note: string | null;
  losses: LossRow[] | null;
  /** The hashes, in hex, of records about which something is known. */
  places: Record<string, string> | null;
  alarm: {
    known_seq: number;
    known_hash: string;
    known_generation: number;
    agreed: number;
    reason: string;
  } | null;
}
