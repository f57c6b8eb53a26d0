import type pg from 'pg';
import { blockOf, firstIn, lastIn, matching, maySee, type SoughtValue, type Summary } from '../chain/blocks.ts';

/** Searching a chain by its block summaries, in bounded work. */

export interface FoundRecord {
  seq: number;
  line: string;
  /** As stored, in hex. */
  hash: string;
}

/** The matches, in order, and the last seq examined if the work ended before the range did. */
export interface FoundPart {
  found: FoundRecord[];
  stopped: number | undefined;
}

/** Limits of one search: summaries passed over, summaries read, and records. */
const MOST_PASSED = 50_000;
const MOST_READ = 128;
const MOST_RECORDS = 1100;
/** Summaries read at once: few at first, since a page of frequent values needs no more. */
const FIRST_READ = 2;
const LARGEST_READ = 64;
/** Records read at once if most of the previous ones did not match; four times as many each time. */
const FIRST_RECORDS = 100;

/** The last seq in a block with a summary; 0 if there is none. */
export async function summarizedTo(client: pg.PoolClient, tenantId: string): Promise<number> {
  const { rows } = await client.query<{ block: number }>(
    'select block from forensic_block where tenant_id = $1 order by block desc limit 1',
    [tenantId],
  );
  return rows[0] ? lastIn(rows[0].block) : 0;
}

/**
 * The records of a range with summaries that have all of the values sought, up to `most` or a few more. `read` resolves
 * with the records that really match: hashes may collide, and summaries may not cover all conditions.
 */
export async function findInBlocks(
  client: pg.PoolClient,
  range: { tenantId: string; first: number; last: number; ascending: boolean },
  sought: readonly SoughtValue[],
  most: number,
  read: (seqs: readonly number[]) => Promise<FoundRecord[]>,
): Promise<FoundPart> {
  const { tenantId, first, last, ascending } = range;
  const columns = [...new Set(sought.map(({ field }) => field))].join(', ');
  const passable = sought.map((one) => `(${maySee(one)})`).join(' and ');
  const found: FoundRecord[] = [];
  let [low, high] = [blockOf(first), blockOf(last)];
  const isBounded = high - low >= MOST_PASSED;
  if (isBounded && ascending) high = low + MOST_PASSED - 1;
  else if (isBounded) low = high - MOST_PASSED + 1;
  const stoppedAt = (block: number) => (ascending ? lastIn(block) : firstIn(block));
  const readSummaries = (size: number) =>
    client.query<Summary & { block: number }>(
      `select block, ${columns} from forensic_block
       where tenant_id = $1 and block between $2 and $3 and ${passable}
       order by block ${ascending ? 'asc' : 'desc'} limit ${size}`,
      [tenantId, low, high],
    );
  let summaries = 0;
  let records = 0;
  let piece = 0;
  let size = FIRST_READ;
  let { rows } = await readSummaries(size);
  for (;;) {
    summaries += rows.length;
    const end = rows.length < size ? undefined : rows.at(-1)!.block;
    if (end !== undefined && ascending) low = end + 1;
    else if (end !== undefined) high = end - 1;
    const isWhole = end === undefined || low > high;
    const goesOn = !isWhole && summaries < MOST_READ;
    size = Math.min(4 * size, LARGEST_READ);
    // if the first ones were not enough, the database reads the next ones while these are examined
    const ahead = goesOn && summaries > FIRST_READ ? readSummaries(size) : undefined;
    const candidates = rows.flatMap((row) => {
      const seqs = matching(row.block, row, sought).filter((seq) => seq >= first && seq <= last);
      return ascending ? seqs : seqs.reverse();
    });
    const next = await ahead;
    for (let at = 0; at < candidates.length; ) {
      const count = Math.min(Math.max(piece, most - found.length), MOST_RECORDS - records);
      const some = candidates.slice(at, at + count);
      const got = await read(some);
      if (2 * got.length < some.length) piece = Math.max(FIRST_RECORDS, 4 * piece);
      found.push(...got);
      at += some.length;
      records += some.length;
      if (found.length >= most) return { found, stopped: undefined };
      if (records >= MOST_RECORDS) return { found, stopped: some.at(-1) };
    }
    if (isWhole) break;
    if (!goesOn) return { found, stopped: stoppedAt(end) };
    ({ rows } = next ?? (await readSummaries(size)));
  }
  return { found, stopped: isBounded ? stoppedAt(ascending ? high : low) : undefined };
}
