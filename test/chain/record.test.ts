import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { blake3 } from '@noble/hashes/blake3.js';
import canonicalize from 'canonicalize';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { chainHash, decisionLine, genesisLine, idHash, ZERO_HASH } from '../../server/chain/record.ts';
import { FIELD_NAMES } from '../../server/domain/decision.ts';
import { anyEvent, ordinaryEvent } from '../vectors/chain/samples.ts';

const at = '2026-01-01T00:00:00.000Z';
const hasB3sum = spawnSync('b3sum', ['--version']).status === 0;
const golden = readFileSync(new URL('../vectors/chain/records.txt', import.meta.url), 'utf8')
  .trimEnd()
  .split('\n');

describe('a record line', () => {
  test('is canonical JSON on one line, for any event', () => {
    fc.assert(
      fc.property(anyEvent, fc.integer({ min: 2, max: Number.MAX_SAFE_INTEGER }), fc.string(), (event, seq, id) => {
        const line = decisionLine('tnt_a', seq, at, { ...event, event_id: id });
        expect(line).toBe(canonicalize(JSON.parse(line)));
        expect(line).not.toMatch(/[\n\r]/);
      }),
      { numRuns: 1000 },
    );
  });

  test('contains all facts of the event, and no more than its version defines', () => {
    fc.assert(
      fc.property(anyEvent, (event) => {
        const { event_id, ...said } = { ...event, event_id: 'evt_1' };
        const record = JSON.parse(decisionLine('tnt_a', 2, at, { ...said, event_id }));
        const own = { v: 1, alg: 'BLAKE3', tenant_id: 'tnt_a', seq: 2, id: event_id, received_at: at };
        expect(record).toEqual({
          ...JSON.parse(JSON.stringify(said)),
          ...own,
          event_type: `decision.${event.decision}`,
        });
      }),
    );
  });

  test('of genesis is canonical and binds tenant, chain and key', () => {
    for (const chain of ['forensics', 'audit'] as const) {
      const line = genesisLine('tnt_a', chain, at, 'sha256:00');
      expect(line).toBe(canonicalize(JSON.parse(line)));
      const record = JSON.parse(line);
      expect(record).toMatchObject({ seq: 1, tenant_id: 'tnt_a', chain, public_key_fingerprint: 'sha256:00' });
    }
  });
});

describe('the chain hash', () => {
  const anyHash = fc.uint8Array({ minLength: 32, maxLength: 32 });

  test('is BLAKE3 over the previous hash in hex, a newline and the line', () => {
    fc.assert(
      fc.property(anyHash, fc.string({ unit: 'binary' }), (previous, line) => {
        const preimage = Buffer.from(`${Buffer.from(previous).toString('hex')}\n${line}`);
        expect(chainHash(previous, line).toString('hex')).toBe(Buffer.from(blake3(preimage)).toString('hex'));
      }),
      { numRuns: 500 },
    );
  });

  test('is the same for a line as text and as bytes, of any length', () => {
    fc.assert(
      fc.property(anyHash, fc.string({ unit: 'binary' }), fc.nat(200), (previous, part, times) => {
        const line = part.repeat(times);
        expect(chainHash(previous, Buffer.from(line)).equals(chainHash(previous, line))).toBe(true);
      }),
    );
    const long = '😀'.repeat(50_000);
    const previous = Buffer.from(ZERO_HASH, 'hex');
    expect(chainHash(previous, Buffer.from(long)).equals(chainHash(previous, long))).toBe(true);
  });

  test('gives each caller its own bytes', () => {
    const first = chainHash(Buffer.alloc(32), 'a');
    const copy = Buffer.from(first);
    chainHash(first, 'b');
    expect(first.equals(copy)).toBe(true);
  });

  test.skipIf(!hasB3sum)(
    `is what printf and b3sum compute${hasB3sum ? '' : ' (SKIPPED: b3sum is not on the PATH)'}`,
    () => {
      let previous = ZERO_HASH;
      for (const row of golden) {
        const line = row.slice(65);
        const command = `printf '%s\\n%s' "$1" "$2" | b3sum --no-names`;
        const computed = execFileSync('bash', ['-c', command, 'bash', previous, line], { encoding: 'utf8' }).trim();
        expect(computed).toBe(chainHash(Buffer.from(previous, 'hex'), line).toString('hex'));
        previous = computed;
      }
      expect(previous).toBe(golden.at(-1)!.slice(0, 64));
    },
  );
});

describe('the golden chain', () => {
  test('still has the same hashes', () => {
    let previous: Uint8Array = Buffer.from(ZERO_HASH, 'hex');
    for (const row of golden) {
      previous = chainHash(previous, row.slice(65));
      expect(Buffer.from(previous).toString('hex')).toBe(row.slice(0, 64));
    }
    expect(golden.length).toBeGreaterThan(5);
  });

  test('contains every defined field in at least one record', () => {
    const members = golden.flatMap((row) => Object.keys(JSON.parse(row.slice(65))));
    expect(members).toEqual(expect.arrayContaining([...FIELD_NAMES]));
  });

  test('would still be written the same way', () => {
    const { event_id, ...rest } = { ...ordinaryEvent(0), event_id: 'evt_000002' };
    const received = JSON.parse(golden[1]!.slice(65)).received_at;
    expect(decisionLine('tnt_vectors', 2, received, { ...rest, event_id })).toBe(golden[1]!.slice(65));
  });
});

describe('the hash of an id', () => {
  test('is FNV-1a of 32 bits, signed', () => {
    // The published offset basis, and the published value for "a".
    expect(idHash('')).toBe(0x811c9dc5 | 0);
    expect(idHash('a')).toBe(0xe40c292c | 0);
  });

  test('still has its golden values', () => {
    const values = JSON.parse(readFileSync(new URL('../vectors/chain/id-hash.json', import.meta.url), 'utf8'));
    for (const [id, value] of Object.entries(values)) expect(idHash(id)).toBe(value);
  });
});
