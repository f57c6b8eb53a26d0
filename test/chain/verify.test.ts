import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { chainHash, genesisLine, ZERO_HASH } from '../../server/chain/record.ts';
import {
  type ChainPosition,
  type ChainRow,
  type ChainVerdict,
  ChainVerifier,
  type ChainVerifierOptions,
  type DecisionColumns,
} from '../../server/chain/verify.ts';
import { DERIVED_COLUMNS } from '../../server/domain/decision.ts';
import { anyEvent, ordinaryEvent, type StoredRecord, storedChain } from '../vectors/chain/samples.ts';

const DERIVED = DERIVED_COLUMNS.map(({ column }) => column);

const TENANT = 'tnt_a';
const chainOf = (n: number) =>
  storedChain(
    TENANT,
    'sha256:00',
    Array.from({ length: n - 1 }, (_, i) => ordinaryEvent(i)),
  );
const anyChain = (most: number) =>
  fc.array(anyEvent, { maxLength: most }).map((events) => storedChain(TENANT, 'sha256:00', events));
const place = (row: StoredRecord): ChainPosition => ({ seq: row.seq, hash: row.hash.toString('hex') });

function verify(
  rows: Iterable<ChainRow>,
  { head, ...options }: Partial<ChainVerifierOptions> & { head?: ChainPosition } = {},
): ChainVerdict {
  const verifier = new ChainVerifier({ tenantId: TENANT, chain: 'forensics', ...options });
  for (const row of rows) verifier.add(row);
  return verifier.finish({ head });
}

/** The rows with one of them changed. */
function changed(rows: readonly StoredRecord[], at: number, change: Partial<ChainRow>): ChainRow[] {
  return rows.map((row, i) => (i === at ? { ...row, ...change } : row));
}

function flip(bytes: Uint8Array, bit: number): Buffer {
  const flipped = Buffer.from(bytes);
  const at = bit % (flipped.length * 8);
  flipped[at >> 3]! ^= 1 << (at & 7);
  return flipped;
}

/** Record `at` with another text, and it and all after it with new hashes, as one with write access could do. */
function rewritten(
  rows: readonly StoredRecord[],
  at: number,
  line: string,
  columns = rows[at]!.columns,
): StoredRecord[] {
  let previous: Buffer = at === 0 ? Buffer.from(ZERO_HASH, 'hex') : rows[at - 1]!.hash;
  return rows.map((row, i) => {
    if (i < at) return row;
    const text = i === at ? line : row.line;
    previous = chainHash(previous, text);
    return { ...row, line: text, hash: previous, ...(i === at ? { columns } : {}) };
  });
}

describe('a chain as it was written', () => {
  test('verifies for any events, with and without columns, as text and as bytes', () => {
    fc.assert(
      fc.property(anyChain(12), (rows) => {
        const expected = { verified: true, linear: true, records_checked: rows.length, head: place(rows.at(-1)!) };
        const bytes = rows.map((row) => ({ ...row, line: Buffer.from(row.line) }));
        const bare = rows.map(({ columns: _, ...row }) => row);
        const options = { head: place(rows.at(-1)!), checkpoints: rows.map(place) };
        for (const form of [rows, bytes, bare]) expect(verify(form, options)).toEqual(expected);
        expect(verify(rows, { ...options, strict: true })).toEqual(expected);
      }),
      { numRuns: 150 },
    );
  });

  test('verifies in segments, each starting where the one before ended', () => {
    fc.assert(
      fc.property(anyChain(12), fc.nat(), (rows, cut) => {
        const at = cut % (rows.length + 1);
        const first = verify(rows.slice(0, at));
        const second = verify(rows.slice(at), { start: first.head });
        expect(first.verified && second.verified).toBe(true);
        expect(first.records_checked + second.records_checked).toBe(rows.length);
        expect(second.head).toEqual(place(rows.at(-1)!));
      }),
      { numRuns: 100 },
    );
  });

  test('does not read a row again after it was fed', () => {
    const rows = chainOf(20);
    const verifier = new ChainVerifier({ tenantId: TENANT, chain: 'forensics' });
    const reused = { seq: 0, hash: Buffer.alloc(32), line: Buffer.alloc(0), columns: rows[0]!.columns };
    for (const row of rows) {
      row.hash.copy(reused.hash);
      reused.line = Buffer.from(row.line);
      Object.assign(reused, { seq: row.seq, columns: { ...row.columns } });
      verifier.add(reused);
      reused.hash.fill(0);
      reused.line.fill(0);
    }
    expect(verifier.finish({ head: place(rows.at(-1)!) }).verified).toBe(true);
  });

  test('verifies as the golden chain that was shipped', () => {
    const lines = readFileSync(new URL('../vectors/chain/records.txt', import.meta.url), 'utf8')
      .trimEnd()
      .split('\n');
    const rows = lines.map((line, i) => ({
      seq: i + 1,
      hash: Buffer.from(line.slice(0, 64), 'hex'),
      line: line.slice(65),
    }));
    for (const strict of [false, true]) expect(verify(rows, { tenantId: 'tnt_vectors', strict }).verified).toBe(true);
  });

  test('is empty and verifies if nothing was written', () => {
    expect(verify([], { head: { seq: 0, hash: ZERO_HASH } })).toEqual({
      verified: true,
      linear: true,
      records_checked: 0,
      head: { seq: 0, hash: ZERO_HASH },
    });
  });
});

describe('one flipped bit', () => {
  test('in any text or hash is found at its record', () => {
    fc.assert(
      fc.property(anyChain(8), fc.nat(), fc.nat(), fc.boolean(), (rows, record, bit, inLine) => {
        const at = record % rows.length;
        const row = rows[at]!;
        const change = inLine ? { line: flip(Buffer.from(row.line), bit) } : { hash: flip(row.hash, bit) };
        const verdict = verify(changed(rows, at, change));
        expect(verdict).toMatchObject({
          verified: false,
          linear: true,
          records_checked: rows.length,
          first_mismatch_id: row.columns.event_id,
          first_mismatch_seq: row.seq,
          code: 'hash_mismatch',
        });
      }),
      { numRuns: 400 },
    );
  });

  test('is found for every bit of a short chain', () => {
    const rows = chainOf(3);
    const { line, hash, columns } = rows[1]!;
    const bytes = Buffer.from(line);
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      expect(verify(changed(rows, 1, { line: flip(bytes, bit) })).first_mismatch_id).toBe(columns.event_id);
    }
    for (let bit = 0; bit < 256; bit++) {
      expect(verify(changed(rows, 1, { hash: flip(hash, bit) })).first_mismatch_id).toBe(columns.event_id);
    }
  });

  test('in any column is found at its record, whose id is read from the text', () => {
    const numbers = ['received_at_ms', ...DERIVED] as const;
    const change = fc.oneof(
      fc.record({ column: fc.constantFrom(...numbers), by: fc.constantFrom(1, 2, 1000, 86_400_000, -1) }),
      fc.record({ column: fc.constant('event_id' as const), by: fc.constant(0) }),
    );
    fc.assert(
      fc.property(
        fc.array(anyEvent, { minLength: 1, maxLength: 8 }),
        fc.nat(),
        change,
        (events, record, { column, by }) => {
          const rows = storedChain(TENANT, 'sha256:00', events);
          const at = 1 + (record % events.length);
          const { columns } = rows[at]!;
          const value = by === 0 ? `${columns[column]}x` : (columns[column] as number) + by;
          const verdict = verify(changed(rows, at, { columns: { ...columns, [column]: value } }));
          expect(verdict).toMatchObject({
            verified: false,
            linear: true,
            records_checked: rows.length,
            first_mismatch_id: columns.event_id,
            code: 'column_mismatch',
          });
          expect(verdict.reason).toContain(column.replace('_ms', ''));
        },
      ),
      { numRuns: 400 },
    );
  });

  test('is also found in a column that is null, not a number, or out of range', () => {
    const rows = chainOf(3);
    for (const odd of [null, Number.NaN, Number.POSITIVE_INFINITY, 1e20, -0.5, undefined]) {
      for (const column of ['received_at_ms', 'event_id', ...DERIVED]) {
        const columns = { ...rows[2]!.columns, [column]: odd } as DecisionColumns;
        expect(verify(changed(rows, 2, { columns })).code, `${column} ${odd}`).toBe('column_mismatch');
      }
    }
  });
});

describe('the fast path', () => {
  // A member that an attacker would like the search to find: where its name stands in a value, it must not count.
  const bait = fc.constantFrom(
    '"agent_id":"x"',
    ',"seq":2,',
    '"tenant_id":"tnt_a"',
    '\\"id\\":"evt"',
    '"decision":"deny',
  );

  test('never differs from reading the whole text', () => {
    const event = fc.tuple(anyEvent, bait, bait).map(([event, a, b]) => ({ ...event, agent_role: a, deny_reason: b }));
    const tamper = fc.record({
      at: fc.nat(),
      column: fc.constantFrom('event_id', 'received_at_ms', ...DERIVED),
      from: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(event, { minLength: 1, maxLength: 8 }), tamper, (events, { at, column, from }) => {
        const rows = storedChain(TENANT, 'sha256:00', events);
        const key = column as keyof DecisionColumns;
        // The column takes the value that another record has in it: often the same, which is no mismatch.
        const taken = { ...rows[at % rows.length]!.columns, [key]: rows[from % rows.length]!.columns[key] };
        const mixed = changed(rows, at % rows.length, { columns: taken });
        expect(verify(mixed)).toEqual(verify(mixed, { strict: true }));
      }),
      { numRuns: 400 },
    );
  });

  test('is the path of ordinary records: none but the first is parsed, with or without an optional member', () => {
    for (const extra of [{}, { trace_id: 'ab'.repeat(16) }]) {
      const events = Array.from({ length: 50 }, (_, i) => ({ ...ordinaryEvent(i), ...extra }));
      const rows = storedChain(TENANT, 'sha256:00', events);
      const asBytes = rows.map((row) => {
        const event_id = Buffer.from(row.columns.event_id as string);
        return { ...row, line: Buffer.from(row.line), columns: { ...row.columns, event_id } };
      });
      for (const given of [rows, asBytes]) {
        const parse = vi.spyOn(JSON, 'parse');
        expect(verify(given)).toMatchObject({ verified: true, records_checked: 51 });
        expect(parse).toHaveBeenCalledTimes(1);
        parse.mockRestore();
      }
      const other = { ...asBytes[7]!.columns, event_id: Buffer.from('evt_other') };
      expect(verify(asBytes.with(7, { ...asBytes[7]!, columns: other }))).toMatchObject({
        code: 'column_mismatch',
        first_mismatch_id: JSON.parse(rows[7]!.line).id,
      });
    }
  });

  test('reads the time of a record to the millisecond, at every border of a day', () => {
    const columns = chainOf(2)[1]!.columns;
    for (const ms of [0, -1, 86_399_999, 86_400_000, 951_782_400_000, 4_102_444_800_000, 253_402_300_799_999]) {
      const line = chainOf(2)[1]!.line.replace(
        /"received_at":"[^"]*"/,
        `"received_at":"${new Date(ms).toISOString()}"`,
      );
      const rows = rewritten(chainOf(2), 1, line, { ...columns, received_at_ms: ms });
      expect(verify(rows).verified, String(ms)).toBe(true);
      expect(verify(changed(rows, 1, { columns: { ...columns, received_at_ms: ms + 1 } })).verified).toBe(false);
    }
  });
});

describe('a record', () => {
  test('that was removed leaves a gap, reported at the record now in its position', () => {
    fc.assert(
      fc.property(anyChain(10), fc.nat(), (rows, which) => {
        fc.pre(rows.length > 2);
        const at = 1 + (which % (rows.length - 2));
        const verdict = verify(rows.toSpliced(at, 1));
        expect(verdict).toMatchObject({
          verified: false,
          linear: false,
          code: 'gap',
          records_checked: rows.length - 1,
        });
        expect(verdict.first_mismatch_id).toBe(rows[at + 1]!.columns.event_id);
        expect(verdict.reason).toContain(`record ${at + 1} is missing`);
      }),
      { numRuns: 100 },
    );
  });

  test('that was removed is found even if the rest was renumbered', () => {
    const rows = chainOf(6).toSpliced(2, 1);
    const renumbered = rows.map((row, i) => ({ ...row, seq: i + 1 }));
    expect(verify(renumbered)).toMatchObject({ verified: false, code: 'hash_mismatch', first_mismatch_seq: 3 });
  });

  test('that was inserted is at a position already taken', () => {
    const rows = chainOf(6);
    const forged = { ...rows[3]!, columns: { ...rows[3]!.columns, event_id: 'evt_forged' } };
    expect(verify(rows.toSpliced(4, 0, forged))).toMatchObject({ verified: false, linear: false, code: 'repeat' });
    const shifted = rows.toSpliced(4, 0, forged).map((row, i) => ({ ...row, seq: i + 1 }));
    expect(verify(shifted)).toMatchObject({ verified: false, code: 'hash_mismatch', first_mismatch_seq: 5 });
  });

  test('that was swapped with another is found at the first of the two', () => {
    const rows = chainOf(6);
    const swapped = [rows[0]!, rows[1]!, rows[4]!, rows[3]!, rows[2]!, rows[5]!];
    expect(verify(swapped)).toMatchObject({
      verified: false,
      linear: false,
      first_mismatch_id: rows[4]!.columns.event_id,
    });
    const places = swapped.map((row, i) => ({ ...row, seq: i + 1 }));
    expect(verify(places)).toMatchObject({ verified: false, code: 'hash_mismatch', first_mismatch_seq: 3 });
    expect(verify([rows[0]!, rows[1]!, rows[0]!])).toMatchObject({ code: 'order', linear: false });
  });

  test.each([
    ['tenant_mismatch', (line: string) => line.replace('"tnt_a"', '"tnt_b"')],
    ['tenant_mismatch', (line: string) => line.replace('"tnt_a"', '"tnt_aa"')],
    ['tenant_mismatch', (line: string) => line.replace(',"tenant_id":"tnt_a"', '')],
    ['seq_mismatch', (line: string) => line.replace('"seq":3', '"seq":30')],
    ['seq_mismatch', (line: string) => line.replace('"seq":3', '"seq":"3"')],
    ['malformed_record', (line: string) => line.replace('"id":"evt_000003"', '"id":3')],
    ['malformed_record', (line: string) => line.replace('"v":1', '"v":2')],
    ['malformed_record', (line: string) => line.replace('BLAKE3', 'MD5')],
    ['malformed_record', (line: string) => line.slice(0, -1)],
    ['malformed_record', () => '[]'],
    ['malformed_record', () => 'null'],
    ['malformed_record', () => ''],
    [
      'genesis',
      (line: string) => line.replace(/"decision\.[a-z_]+"/, '"chain.genesis"').replace(/"agent_id":"[^"]*",/, ''),
    ],
  ])('with right hashes but a wrong text is refused: %s', (code, change) => {
    const rows = chainOf(5);
    const line = change(rows[2]!.line);
    expect(line).not.toBe(rows[2]!.line);
    const bare = rewritten(rows, 2, line).map(({ columns: _, ...row }) => row);
    const strict = verify(bare, { strict: true });
    expect(strict).toMatchObject({ verified: false, linear: true, code, first_mismatch_seq: 3, records_checked: 5 });
    if (!line.includes('MD5')) expect(verify(bare)).toEqual(strict);
  });

  test('in a non-canonical spelling is refused if canonical form is required', () => {
    const rows = chainOf(3);
    const spellings = [
      rows[1]!.line.replace('"alg"', ' "alg"'),
      rows[1]!.line.replace('"tnt_a"', '"tnt_\\u0061"'),
      rows[1]!.line.replace('"method":"POST"', '"method":"GET","method":"POST"'),
      rows[1]!.line.replace('"confidence":0.97', '"confidence":0.970'),
      rows[1]!.line.replace('"POST"', '"\\ud800"'),
    ];
    for (const line of spellings) {
      const verdict = verify(rewritten(rows, 1, line), { strict: true });
      expect(verdict, line).toMatchObject({ verified: false, code: 'malformed_record', first_mismatch_seq: 2 });
    }
  });
});

describe('the start and the end of a chain', () => {
  test('without its genesis record does not verify', () => {
    const rows = chainOf(4);
    const verdict = verify(rows.slice(1));
    expect(verdict).toMatchObject({ verified: false, linear: false, code: 'genesis', first_mismatch_id: 'evt_000002' });
  });

  test('is bound to the tenant and the chain by the genesis record', () => {
    const rows = chainOf(2);
    expect(verify(rows, { tenantId: 'tnt_b' })).toMatchObject({ code: 'tenant_mismatch', first_mismatch_seq: 1 });
    expect(verify(rows, { chain: 'audit' })).toMatchObject({ code: 'chain_mismatch', first_mismatch_seq: 1 });
    const decision = rows[1]!.line.replace('"seq":2', '"seq":1');
    const first = { seq: 1, hash: chainHash(Buffer.alloc(32), decision), line: decision };
    expect(verify([first])).toMatchObject({ code: 'genesis', first_mismatch_seq: 1 });
    expect(verify([], { start: { seq: 0, hash: 'ab'.repeat(32) } })).toMatchObject({ code: 'genesis' });
  });

  test('with its tail cut is found by the head, or by any checkpoint beyond the cut', () => {
    fc.assert(
      fc.property(anyChain(10), fc.nat(), (rows, cut) => {
        fc.pre(rows.length > 1);
        const left = rows.slice(0, 1 + (cut % (rows.length - 1)));
        const expected = { verified: false, linear: false, code: 'tail_cut', first_mismatch_seq: left.length + 1 };
        expect(verify(left, { head: place(rows.at(-1)!) })).toMatchObject(expected);
        expect(verify(left, { checkpoints: [place(rows.at(-1)!)] })).toMatchObject(expected);
        expect(verify(left, { checkpoints: rows.map(place) })).toMatchObject(expected);
        // Nothing in what is left tells of the cut: this is why there are checkpoints.
        expect(verify(left)).toMatchObject({ verified: true });
      }),
      { numRuns: 100 },
    );
  });

  test('rewritten with new hashes is found by the first checkpoint after the change', () => {
    fc.assert(
      fc.property(anyChain(10), fc.nat(), fc.nat(), (rows, which, later) => {
        fc.pre(rows.length > 1);
        const at = 1 + (which % (rows.length - 1));
        const line = rows[at]!.line.replace('"evaluation_us":', '"evaluation_us":1');
        const forged = rewritten(rows, at, line);
        expect(verify(forged).verified).toBe(true);
        const checkpoint = at + (later % (rows.length - at));
        const checkpoints = [rows[0]!, rows[checkpoint]!].map(place);
        expect(verify(forged, { checkpoints })).toMatchObject({
          verified: false,
          linear: false,
          code: 'checkpoint_mismatch',
          first_mismatch_id: rows[checkpoint]!.columns.event_id,
        });
        expect(verify(forged, { head: place(rows.at(-1)!) })).toMatchObject({ verified: false, code: 'head_mismatch' });
      }),
      { numRuns: 100 },
    );
  });

  test('with records beyond its head does not verify', () => {
    const rows = chainOf(5);
    expect(verify(rows, { head: place(rows[2]!) })).toMatchObject({ code: 'head_mismatch', first_mismatch_seq: 4 });
  });
});

describe('checkpoints', () => {
  const rows = chainOf(2500);

  test('may arrive in any order, and late, as long as their record has not been passed', () => {
    const verifier = new ChainVerifier({
      tenantId: TENANT,
      chain: 'forensics',
      checkpoints: [rows[9]!, rows[4]!].map(place),
    });
    for (const row of rows) {
      verifier.expect(place(row));
      verifier.add(row);
      verifier.expect(place(row));
    }
    expect(verifier.finish().verified).toBe(true);
    expect(() => verifier.expect(place(rows[3]!))).toThrow(RangeError);
  });

  test('are each compared', () => {
    for (const wrong of [0, 1, 1200, 2499]) {
      const checkpoints = rows.map(place);
      checkpoints[wrong] = { seq: wrong + 1, hash: 'cd'.repeat(32) };
      const verdict = verify(rows, { checkpoints });
      expect(verdict).toMatchObject({
        code: 'checkpoint_mismatch',
        first_mismatch_seq: wrong + 1,
        records_checked: 2500,
      });
    }
  });

  test('of the start of a segment are compared too', () => {
    const segment = rows.slice(10, 20);
    const options = { start: place(rows[9]!) };
    expect(verify(segment, { ...options, checkpoints: [place(rows[9]!)] }).verified).toBe(true);
    const wrong = { seq: 10, hash: 'cd'.repeat(32) };
    expect(verify(segment, { ...options, checkpoints: [wrong] }).code).toBe('checkpoint_mismatch');
    expect(() => verify(segment, { ...options, checkpoints: [place(rows[8]!)] })).toThrow(RangeError);
    expect(() => verify([], { checkpoints: [{ seq: 5, hash: 'AB'.repeat(32) }] })).toThrow(RangeError);
  });
});

describe('many checkpoints', () => {
  const rows = chainOf(2600);
  const places = rows.map(place);
  const wrong = (at: number): ChainPosition => ({ seq: at, hash: 'ab'.repeat(32) });

  test('more than a thousand added during a run are each compared, and forgotten afterwards', () => {
    for (const at of [undefined, 1001, 1002, 1003, 2003, 2600]) {
      const verifier = new ChainVerifier({ tenantId: TENANT, chain: 'forensics' });
      // always 50 ahead, as a long chain's are
      for (const [i, row] of rows.entries()) {
        const ahead = i === 0 ? places.slice(0, 51) : places.slice(i + 50, i + 51);
        for (const each of ahead) verifier.expect(each.seq === at ? wrong(at) : each);
        verifier.add(row);
      }
      const verdict = verifier.finish();
      expect(verdict.verified).toBe(at === undefined);
      expect(verdict.first_mismatch_seq).toBe(at);
    }
  });

  test('two of one record: both count, in either order', () => {
    for (const at of [1, 700, 2600]) {
      for (const two of [
        [places[at - 1]!, wrong(at)],
        [wrong(at), places[at - 1]!],
      ]) {
        expect(verify(rows, { checkpoints: two })).toMatchObject({
          verified: false,
          code: 'checkpoint_mismatch',
          first_mismatch_seq: at,
        });
      }
      expect(verify(rows, { checkpoints: [places[at - 1]!, places[at - 1]!] }).verified).toBe(true);
    }
  });
});

describe('the audit chain', () => {
  interface AuditColumns {
    action: string;
  }
  /** Lines with members of any depth, some of which have the names of the record's own. */
  function auditChain(): ChainRow<AuditColumns>[] {
    const lines = [genesisLine(TENANT, 'audit', '2026-01-01T00:00:00.000Z', 'sha256:00')];
    for (let seq = 2; seq < 6; seq++) {
      const actor = { id: 'usr_1', seq: 99, tenant_id: 'tnt_b' };
      lines.push(
        JSON.stringify({ action: 'key.create', actor, alg: 'BLAKE3', id: `aud_${seq}`, seq, tenant_id: TENANT, v: 1 }),
      );
    }
    let previous: Buffer = Buffer.alloc(32);
    return lines.map((line, i) => {
      previous = chainHash(previous, line);
      return { seq: i + 1, hash: previous, line, ...(i > 0 ? { columns: { action: 'key.create' } } : {}) };
    });
  }
  const options = {
    tenantId: TENANT,
    chain: 'audit' as const,
    compare: (record: Readonly<Record<string, unknown>>, columns: AuditColumns) =>
      record.action === columns.action ? undefined : 'action',
  };

  test('verifies with the same class and a different comparison', () => {
    const verifier = new ChainVerifier<AuditColumns>(options);
    for (const row of auditChain()) verifier.add(row);
    expect(verifier.finish()).toMatchObject({ verified: true, records_checked: 5 });
  });

  test('does not verify with a changed column', () => {
    const verifier = new ChainVerifier<AuditColumns>(options);
    for (const row of auditChain()) verifier.add(row.seq === 3 ? { ...row, columns: { action: 'key.revoke' } } : row);
    expect(verifier.finish()).toMatchObject({ code: 'column_mismatch', first_mismatch_id: 'aud_3' });
  });
});

test('the first mismatch is kept, and all rows are counted', () => {
  const rows: ChainRow[] = changed(chainOf(9), 2, { line: '{}' });
  rows.splice(5, 2);
  expect(verify(rows)).toMatchObject({
    verified: false,
    linear: false,
    records_checked: 7,
    code: 'hash_mismatch',
    first_mismatch_id: 'evt_000003',
    first_mismatch_seq: 3,
  });
});
