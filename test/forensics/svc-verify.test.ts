import { spawnSync } from 'node:child_process';
import { createHash, randomBytes, sign } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ChainLoss, signLoss } from '../../server/chain/note.ts';
import { chainHash, lossLine } from '../../server/chain/record.ts';
import { fileSums, type Manifest, sumLists } from '../../server/forensics/archive.ts';
import { checkBundle, checkPackage, checkPackageFiles, type Report } from '../../server/forensics/check-package.ts';
import { svcVerify } from '../../server/forensics/svc-verify.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { keyFingerprint } from '../../server/lib/crypto.ts';
import { readTar, writeTar } from '../../server/lib/tar.ts';
import { sampled } from '../siege/rounds.ts';
import { vectorKey } from '../vectors/chain/samples.ts';
import {
  bundle,
  chain,
  FINGERPRINT,
  generate,
  goldenBroken,
  goldenRange,
  goldenSession,
  makePackage,
  note,
  TENANT,
  windowOf,
} from '../vectors/package/generate.ts';

const GOLDEN = fileURLToPath(new URL('../vectors/package/', import.meta.url));
const PROGRAM = fileURLToPath(new URL('../../server/forensics/svc-verify.ts', import.meta.url));
const rows = chain(4);
const { bytes: sound } = await makePackage(rows, { checkpoints: [note(rows[3]!)] });

let root: string;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'svc-verify-'));
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** A file with this content in a directory of its own. */
function stored(content: string | Uint8Array, name = 'package.tar'): string {
  const path = join(mkdtempSync(join(root, 'd-')), name);
  writeFileSync(path, content);
  return path;
}

/** The members of a package written into a new directory. */
function unpacked(bytes: Uint8Array): string {
  const directory = mkdtempSync(join(root, 'u-'));
  for (const [name, content] of readTar(bytes)) {
    mkdirSync(dirname(join(directory, name)), { recursive: true });
    writeFileSync(join(directory, name), content);
  }
  return directory;
}

/** The names of the checks that failed. */
function failed(report: Report): string[] {
  return report.checks.filter((check) => !check.ok).map((check) => check.name);
}

/**
 * A package with other content but right sums and a right signature: what only its signer, or someone with another key,
 * could make.
 */
function forged(
  bytes: Uint8Array,
  change: {
    files?: (files: Map<string, Uint8Array>) => void;
    manifest?: (manifest: Manifest) => void;
    text?: (text: string) => string;
  },
  key = vectorKey(1),
): Buffer {
  const files = readTar(bytes);
  const manifest = JSON.parse(Buffer.from(files.get('manifest.json')!).toString()) as Manifest;
  files.delete('manifest.json');
  files.delete('manifest.json.sig');
  change.files?.(files);
  manifest.files = {};
  for (const [name, content] of files) if (!/SUMS$/.test(name)) manifest.files[name] = fileSums(content);
  for (const [name, list] of Object.entries(sumLists(manifest.files))) {
    files.set(name, Buffer.from(list));
    manifest.files[name] = fileSums(Buffer.from(list));
  }
  change.manifest?.(manifest);
  const text = canonicalJson(manifest);
  const signed = Buffer.from(change.text?.(text) ?? text);
  files.set('manifest.json', signed).set('manifest.json.sig', sign(null, signed, key.privateKey));
  return writeTar(files);
}

describe('every package ever shipped', () => {
  const expected = JSON.parse(readFileSync(join(GOLDEN, 'expected.json'), 'utf8'));
  const names = readdirSync(GOLDEN).filter((name) => name.endsWith('.tar'));

  test('is one of the expected ones', async () => {
    expect(names.length).toBeGreaterThanOrEqual(4);
    expect(Object.keys(expected).sort()).toEqual(names.sort());
  });

  test.each(names)('%s is still read the same way', (name) => {
    const { package_hash, record_count, chain_intact, first_mismatch_id } = expected[name];
    const report = checkPackage(readFileSync(join(GOLDEN, name)), { fingerprint: FINGERPRINT });
    expect(report).toMatchObject({
      kind: 'package',
      authentic: true,
      verified: chain_intact,
      package_hash,
      record_count,
    });
    expect(report.chain_intact).toBe(chain_intact);
    expect(report.first_mismatch_id).toBe(first_mismatch_id);
    expect(report.public_key_fingerprint).toBe(FINGERPRINT);
  });

  test('would still be made with the same bytes', async () => {
    for (const [name, content] of Object.entries(await generate())) {
      expect(Buffer.from(content as string).equals(readFileSync(join(GOLDEN, name))), name).toBe(true);
    }
  });
});

describe('a package of a chain with an accepted loss', () => {
  /** A chain of four records, then one that accepts that records 5 to 9 are gone, then one more. */
  function chainWithLoss(change: { reason?: string; key?: ReturnType<typeof vectorKey>; kept?: number } = {}) {
    const { reason = 'failover of 3 May', key = vectorKey(1), kept = 4 } = change;
    const all = chain(4);
    const last = all[3]!;
    const loss: ChainLoss = {
      origin: `control.example/${TENANT}/forensics`,
      kept: { seq: kept, hash: last.hash.toString('hex') },
      generation: 1,
      agreed: kept,
      lost: { seq: 9, hash: 'ab'.repeat(32) },
    };
    const at = (JSON.parse(last.line) as { received_at: string }).received_at;
    const line = lossLine(TENANT, {
      seq: 5,
      id: 'loss_forensics_1_00000001',
      at,
      note: signLoss(loss, key.privateKey, key.publicKey),
      reason,
    });
    return [...all, { ...last, seq: 5, line, hash: chainHash(last.hash, line) }];
  }
  const accepted = { kept_seq: 4, agreed_seq: 4, lost_seq: 9, generation: 1 };

  test('verifies, and the loss is listed in both outputs', async () => {
    const all = chainWithLoss();
    const file = stored((await makePackage(all, { checkpoints: [note(all[4]!, undefined, 1)] })).bytes);
    const json = svcVerify([file, '--fingerprint', FINGERPRINT, '--json']);
    expect(json.exitCode).toBe(0);
    const { received_at } = JSON.parse(all[4]!.line) as { received_at: string };
    expect(JSON.parse(json.stdout)).toMatchObject({
      verified: true,
      losses: [{ seq: 5, id: 'loss_forensics_1_00000001', received_at, reason: 'failover of 3 May', accepted }],
    });
    const text = svcVerify([file, '--fingerprint', FINGERPRINT]).stdout;
    expect(text).toContain(
      `  loss: record 5 (loss_forensics_1_00000001, ${received_at}): an operator accepted that records 5 to 9 as they ` +
        'were known are gone. Reason: failover of 3 May\n',
    );
    expect(text).toContain('VERIFIED');
  });

  test('is listed with it when it lies between the range and the checkpoint, and unpacked', async () => {
    const all = chainWithLoss();
    const { bytes } = await makePackage(all.slice(0, 4), {
      lead: all.slice(4),
      checkpoints: [note(all[4]!, undefined, 1)],
      span: { session_id: 'none' },
    });
    expect(checkPackage(bytes).losses).toMatchObject([{ seq: 5, accepted }]);
    expect(checkPackageFiles(readTar(bytes)).losses).toMatchObject([{ seq: 5, accepted }]);
  });

  test('is listed as accepting nothing if no key of the package signed its note for this position', async () => {
    for (const change of [{ key: vectorKey(3) }, { kept: 3 }]) {
      const all = chainWithLoss(change);
      const file = stored((await makePackage(all, { checkpoints: [note(all[4]!, undefined, 1)] })).bytes);
      expect(checkPackage(readFileSync(file)).losses).toMatchObject([{ seq: 5, accepted: null }]);
      expect(svcVerify([file]).stdout).toContain('it accepts nothing');
    }
  });

  test('cannot control the terminal through its text', async () => {
    const reason = 'a\u001b[31m\nVERIFIED \u009b31m\u202e\u{e0041}';
    const all = chainWithLoss({ reason });
    const file = stored((await makePackage(all, { checkpoints: [note(all[4]!, undefined, 1)] })).bytes);
    expect(svcVerify([file]).stdout).toContain('Reason: a?[31m?VERIFIED ?31m??\n');
    const json = svcVerify([file, '--json']).stdout;
    expect(json).toMatch(/^[\x20-\x7e]+\n$/);
    expect(JSON.parse(json).losses[0].reason).toBe(reason);
  });

  test('lists none if there is none', () => {
    expect(checkPackage(sound).losses).toEqual([]);
    expect(svcVerify([stored(sound)]).stdout).not.toContain('loss');
  });
});

describe('a package in which one byte was changed', () => {
  /** The bytes of the file, of those given, that can be changed so that it still verifies. */
  function unnoticed(bytes: Buffer, places: Iterable<number>): number[] {
    expect(checkPackage(bytes).verified).toBe(true);
    const found: number[] = [];
    for (const at of places) {
      const was = bytes[at]!;
      bytes[at] = was ^ (1 << (at % 8));
      const { verified, authentic } = checkPackage(bytes);
      bytes[at] = was;
      if (verified || authentic) found.push(at);
    }
    return found;
  }

  test('never verifies, whichever byte of the file it is', async () => {
    // The two texts are cut short: the sweep over them says nothing that it does not say over the other files.
    const small = forged(
      (await makePackage(rows.slice(0, 2), { bundles: async () => [], checkpoints: [note(rows[1]!)] })).bytes,
      {
        files: (files) => files.set('VERIFY.md', Buffer.from('#\n')).set('check.sh', Buffer.from('#\n')),
      },
    );
    expect(unnoticed(small, sampled([...small.keys()]))).toEqual([]);
  });

  test('never verifies, when it is a byte of a bundle or of the texts', async () => {
    const bytes = Buffer.from((await goldenRange()).bytes);
    const places: number[] = [];
    for (const [name, member] of readTar(bytes)) {
      const step = name.startsWith('bundles/') ? 5 : 41;
      const from = member.byteOffset - bytes.byteOffset;
      for (let at = from; at < from + member.length; at += step) places.push(at);
    }
    expect(unnoticed(bytes, sampled(places, String, 4))).toEqual([]);
  });

  test('never verifies when it was unpacked before, and the check names the file', async () => {
    for (const [name, content] of readTar(sound)) {
      if (content.length === 0) continue;
      const files = readTar(Buffer.from(sound));
      files.get(name)![files.get(name)!.length >> 1]! ^= 1;
      const report = checkPackageFiles(files);
      expect(report, name).toMatchObject({ verified: false, authentic: false });
      if (!name.startsWith('manifest.json')) expect(report.reason).toMatch(name);
    }
  });

  test('is reported with the record, if it is in a record', async () => {
    const files = readTar(Buffer.from(sound));
    const records = Buffer.from(files.get('records.txt')!).toString();
    files.set('records.txt', Buffer.from(records.replace('"agent_id":"agent-1"', '"agent_id":"agent-2"')));
    const report = checkPackageFiles(files);
    expect(failed(report)).toEqual(['files', 'chain', 'range', 'statement']);
    expect(report).toMatchObject({ chain_intact: false, first_mismatch_id: 'evt_000003' });
  });
});

describe('a package signed by its signer, but wrong', () => {
  const hex = 'ab'.repeat(32);
  test.each<[string, string[], (manifest: Manifest) => void]>([
    ['an unknown version', ['version'], (m) => Object.assign(m, { version: 2 })],
    ['a version that is no number', ['version'], (m) => Object.assign(m, { version: '1' })],
    ['a member too many', ['manifest'], (m) => Object.assign(m, { more: 1 })],
    ['a member too few', ['manifest'], (m) => Reflect.deleteProperty(m, 'purpose')],
    ['another hash algorithm', ['manifest'], (m) => Object.assign(m, { record_alg: 'MD5' })],
    ['another key', ['manifest key'], (m) => Object.assign(m, { public_key_fingerprint: `sha256:${hex}` })],
    [
      'a file that is not there',
      ['files', 'sums'],
      (m) => Object.assign(m.files, { [`bundles/${hex}.svcb`]: m.files['check.sh'] }),
    ],
    ['a file that no version has', ['manifest'], (m) => Object.assign(m.files, { 'run.sh': m.files['check.sh'] })],
    ['no list of files', ['manifest'], (m) => Object.assign(m, { files: {} })],
    [
      'another tenant',
      ['checkpoints', 'chain', 'range', 'statement', 'bundles'],
      (m) => Object.assign(m, { tenant_id: 'tnt_b' }),
    ],
    ['another count', ['range'], (m) => Object.assign(m, { record_count: 5 })],
    ['another first_seq', ['range'], (m) => Object.assign(m, { first_seq: 2 })],
    ['another last_seq', ['range'], (m) => Object.assign(m, { last_seq: 5 })],
    ['another head_hash', ['range'], (m) => Object.assign(m, { head_hash: hex })],
    ['another hash before', ['range'], (m) => Object.assign(m, { prev_hash_before_first: hex })],
    ['another start', ['chain', 'range', 'statement'], (m) => Object.assign(m, { start_hash: hex })],
    ['another end of the chain', ['checkpoint', 'statement'], (m) => Object.assign(m.chain_head, { hash: hex })],
    ['a longer chain', ['checkpoint', 'statement'], (m) => Object.assign(m.chain_head, { seq: 5 })],
    ['a shorter chain', ['checkpoint', 'statement'], (m) => Object.assign(m.chain_head, { seq: 3, hash: hex })],
    [
      'a fault that it does not count',
      ['checkpoint', 'statement'],
      (m) => Object.assign(m, { fault: { seq: 2, reason: 'a' } }),
    ],
    ['audit records that are not there', ['range'], (m) => Object.assign(m, { audit_record_count: 1 })],
    ['a chain that is said to be broken', ['statement'], (m) => Object.assign(m, { chain_intact: false })],
    ['a mismatch that is none', ['statement'], (m) => Object.assign(m, { first_mismatch_id: 'evt_000002' })],
    ['records but no first_seq', ['manifest'], (m) => Object.assign(m, { first_seq: null })],
  ])('that states %s does not verify', (_, checks, manifest) => {
    const report = checkPackage(forged(sound, { manifest }));
    expect(failed(report)).toEqual(checks);
    expect(report).toMatchObject({ verified: false, authentic: false });
  });

  test('with a manifest in another spelling does not verify', async () => {
    for (const text of [
      (t: string) => ` ${t}`,
      (t: string) => `${t}\n`,
      (t: string) => t.replace('{', '{"version":1,'),
    ]) {
      expect(failed(checkPackage(forged(sound, { text })))).toEqual(['manifest']);
    }
  });

  test('that denies that its chain is broken, or where, does not verify and is not authentic', async () => {
    const { bytes } = await goldenBroken();
    const deny = (m: Manifest) => {
      m.chain_intact = true;
      Reflect.deleteProperty(m, 'first_mismatch_id');
    };
    expect(checkPackage(forged(bytes, { manifest: deny }))).toMatchObject({ verified: false, authentic: false });
    const elsewhere = (m: Manifest) => Object.assign(m, { first_mismatch_id: 'evt_000005' });
    expect(failed(checkPackage(forged(bytes, { manifest: elsewhere })))).toEqual(['chain', 'statement']);
  });

  test('with a checkpoint with another hash, of another chain, or by an unknown key does not verify', async () => {
    const put = (text: string) => (files: Map<string, Uint8Array>) => files.set('checkpoints.txt', Buffer.from(text));
    const wrong = note({ ...rows[2]!, hash: Buffer.alloc(32, 1) });
    const report = checkPackage(forged(sound, { files: put(wrong) }));
    expect(failed(report)).toEqual(['chain', 'range', 'statement']);
    expect(report).toMatchObject({ first_mismatch_id: 'evt_000003', chain_intact: false });
    for (const text of [
      note(rows[3]!, vectorKey(3)),
      'svc-chain-head/v1\n',
      note(rows[3]!).replace('tnt_vectors', 'tnt_b'),
    ]) {
      expect(failed(checkPackage(forged(sound, { files: put(text) })))[0]).toBe('checkpoints');
    }
  });

  test('with a bundle under another name, of another tenant, or by an unknown key does not verify', async () => {
    const name = `bundles/${bundle.hash.slice(7)}.svcb`;
    const other = `bundles/${hex}.svcb`;
    const changes: ((files: Map<string, Uint8Array>) => void)[] = [
      (files) => files.set(other, files.get(name)!),
      (files) => files.set(name, files.get('check.sh')!),
      (files) => files.set('pubkey.pem', Buffer.from(vectorKey(1).publicKey.export({ type: 'spki', format: 'pem' }))),
    ];
    for (const files of changes) expect(failed(checkPackage(forged(sound, { files })))).toEqual(['bundles']);
  });

  test('without a bundle that records name verifies and says so', async () => {
    const parts = { bundles: async () => [], checkpoints: [note(rows[3]!)] };
    const report = checkPackage((await makePackage(rows, parts)).bytes);
    expect(report.verified).toBe(true);
    expect(report.notes.join()).toContain(bundle.hash);
    expect(checkPackage(sound).notes.join()).not.toContain(bundle.hash);
  });
});

const own = vectorKey(7);
const pem = own.publicKey.export({ type: 'spki', format: 'pem' }) as string;
/** Everything replaced and signed with a key of the forger's own: it agrees with itself. */
const counterfeit = forged(
  (await makePackage(rows, { bundles: async () => [], checkpoints: [note(rows[3]!)] })).bytes,
  {
    files: (files) => {
      files.set('pubkey.pem', Buffer.from(pem));
      files.set('checkpoints.txt', Buffer.from(note(rows[3]!, own)));
    },
    manifest: (m) => Object.assign(m, { public_key_fingerprint: keyFingerprint(own.publicKey) }),
  },
  own,
);

describe('a package that no checkpoint vouches for', () => {
  test('is authentic when its signer says so, and never verified', async () => {
    const { bytes } = await makePackage(rows);
    const report = checkPackage(bytes, { fingerprint: FINGERPRINT });
    expect(report).toMatchObject({ authentic: true, verified: false, chain_intact: false });
    expect(report.reason).toContain('no signed checkpoint at or after the last record');
    const claims = forged(bytes, {
      manifest: (m) => Object.assign(m, { chain_intact: true, checkpoint_seq: 4 }),
    });
    expect(checkPackage(claims)).toMatchObject({ authentic: false, verified: false });
    const cut = forged(sound, { files: (files) => files.set('checkpoints.txt', Buffer.alloc(0)) });
    expect(failed(checkPackage(cut))).toEqual(['checkpoint', 'range', 'statement']);
  });

  test('is not verified by claiming another session or another time', async () => {
    const changes: ((manifest: Manifest) => void)[] = [
      (m) => Object.assign(m, { session_id: 'sess_0k3' }),
      (m) => Object.assign(m, { from: '2026-01-01T23:59:59.995Z' }),
      (m) => Object.assign(m, { to: '2026-01-02T00:00:00.000Z' }),
      (m) => Object.assign(m, { from: 'whenever', to: null }),
    ];
    for (const manifest of changes) {
      const report = checkPackage(forged(sound, { manifest }));
      expect(failed(report)).toContain('statement');
    }
    const session = (await goldenSession()).bytes;
    for (const change of [{ from: '2026-01-01T00:00:00.000Z' }, { to: '2027-01-01T00:00:00.000Z' }]) {
      const report = checkPackage(forged(session, { manifest: (m) => Object.assign(m, change) }));
      expect(failed(report)).toEqual(['range']);
    }
  });
});

describe('a package of a broken chain', () => {
  const all = chain(12);
  const span = windowOf(all);
  const none = windowOf([all[5]!], all[6]!);
  const empty = { from: new Date(Date.parse(none.from) + 1).toISOString(), to: none.to };
  const altered = all.map((row) =>
    row.seq === 9 ? { ...row, line: row.line.replace('"tool_name":"', '"tool_name":"x') } : row,
  );
  const notes = [note(all[3]!), note(all[11]!)];
  const follows = (seq: number) => ({ before: all.slice(Math.max(0, seq - 3), seq - 1).reverse() });
  test.each<[string, Parameters<typeof makePackage>, string | undefined, string]>([
    [
      'without its first records, up to exactly a checkpoint',
      [all.slice(4), { span, checkpoints: notes }],
      undefined,
      'broken',
    ],
    ['without its first records', [all.slice(5), { span, checkpoints: notes }], 'evt_000006', 'broken'],
    [
      'without the first of its window',
      [all.slice(4), { span, checkpoints: notes, ...follows(3) }],
      'evt_000005',
      'broken',
    ],
    [
      'with an altered record after its empty window',
      [[], { span: empty, lead: altered.slice(6), checkpoints: notes, ...follows(7) }],
      JSON.parse(all[8]!.line).id,
      'broken',
    ],
    [
      'with nothing signed after its empty window',
      [[], { span: empty, ...follows(7) }],
      undefined,
      'not complete and tied',
    ],
    [
      'with a checkpoint that was altered',
      [all, { span, checkpoints: notes, altered_checkpoints: [8] }],
      undefined,
      'the stored checkpoint of record 8 was altered',
    ],
  ])('%s is authentic', async (_, [rows, parts], id, reason) => {
    const { bytes, manifest } = await makePackage(rows, parts);
    expect([manifest.chain_intact, manifest.first_mismatch_id]).toEqual([false, id]);
    const report = checkPackage(bytes, { fingerprint: FINGERPRINT });
    expect(report).toMatchObject({ authentic: true, verified: false });
    expect(report.reason).toContain(reason);
  });

  test('or of a whole one with an empty window, signed before it or after it, is tied to that checkpoint', async () => {
    const after = await makePackage([], { span: empty, lead: all.slice(6), checkpoints: notes, ...follows(7) });
    expect(checkPackage(after.bytes)).toMatchObject({ verified: true });
    const right = await makePackage([], { span: empty, checkpoints: [note(all[5]!)], ...follows(7) });
    expect(right.manifest).toMatchObject({ chain_intact: true, checkpoint_seq: 6 });
    expect(checkPackage(right.bytes)).toMatchObject({ verified: true });
  });
});

describe('the signer', () => {
  test('must be the one the reader expects, or the package does not verify', async () => {
    const { publicKey } = vectorKey(1);
    expect(checkPackage(counterfeit).verified).toBe(true);
    expect(checkPackage(counterfeit).notes.join()).toContain('--fingerprint');
    for (const trust of [{ fingerprint: FINGERPRINT }, { keys: [publicKey] }]) {
      expect(failed(checkPackage(counterfeit, trust))).toContain('key');
      expect(checkPackage(sound, trust)).toMatchObject({ verified: true, notes: [] });
    }
  });

  test('must have signed: a package with the right key and a forger’s signature does not verify', async () => {
    expect(failed(checkPackage(forged(sound, {}, own)))).toEqual(['signature']);
  });
});

describe('hostile input', () => {
  test('of any kind yields a readable report, never an error', async () => {
    const hostile = fc.oneof(
      fc.uint8Array({ maxLength: 3000 }),
      fc.nat(sound.length).map((length) => sound.subarray(0, length)),
      fc.tuple(fc.nat(sound.length - 1), fc.uint8Array({ minLength: 1, maxLength: 600 })).map(([at, bytes]) => {
        const damaged = Buffer.from(sound);
        damaged.set(bytes.subarray(0, damaged.length - at), at);
        return damaged;
      }),
    );
    fc.assert(
      fc.property(hostile, (bytes) => {
        fc.pre(!sound.equals(bytes));
        const report = checkPackage(bytes);
        expect(report.verified).toBe(false);
        expect(report.reason).toMatch(/\w+: \S+ ?\w*/);
        expect(checkBundle(bytes, [vectorKey(1).publicKey])).toMatchObject({ verified: false, kind: 'bundle' });
      }),
      { numRuns: 300 },
    );
  });

  test('with a valid signature yields a readable report too, whatever the files contain', async () => {
    const name = fc.constantFrom(
      'records.txt',
      'checkpoints.txt',
      'pubkey.pem',
      `bundles/${bundle.hash.slice(7)}.svcb`,
    );
    const content = fc.oneof(
      fc.uint8Array({ maxLength: 300 }),
      fc.string({ unit: 'binary' }).map((text) => Buffer.from(text)),
      fc
        .constantFrom('\n', `${'0'.repeat(64)} {}\n`, `${'0'.repeat(64)} ${'['.repeat(50_000)}\n`)
        .map((t) => Buffer.from(t)),
      fc.constant(Buffer.concat([Buffer.from('SVCB\x01\xff\xff\xff\xff', 'latin1'), Buffer.alloc(50)])),
    );
    fc.assert(
      fc.property(name, content, (name, bytes) => {
        const report = checkPackage(forged(sound, { files: (files) => files.set(name, bytes) }));
        expect(report.verified).toBe(false);
      }),
      { numRuns: 150 },
    );
  });

  test('cannot control the reader’s terminal', async () => {
    const line = rows[1]!.line.replace('evt_000002', '\\u001b[2J\\nVERIFIED\\u202e\\u0007');
    const broken = await makePackage([rows[0]!, { ...rows[1]!, line }, rows[2]!], { tenant_id: 'tnt_vectors' });
    const { stdout, exitCode } = svcVerify([stored(broken.bytes)]);
    expect(exitCode).toBe(1);
    expect(stdout).toContain('?[2J?VERIFIED??');
    expect(stdout).not.toMatch(/[^\P{Cc}\n]|\u202e|^VERIFIED/mu);
  });
});

describe('the program', () => {
  const pubkey = join(GOLDEN, 'pubkey.pem');
  const bundleKey = join(GOLDEN, 'bundle-pubkey.pem');
  const bundleFile = join(GOLDEN, 'bundle.svcb');
  const jwks = () => {
    const keys = [vectorKey(1), vectorKey(2)].map(({ publicKey }) => ({
      ...publicKey.export({ format: 'jwk' }),
      kid: 'x',
    }));
    return stored(JSON.stringify({ keys: [{ kty: 'RSA', n: 'x', e: 'AQAB' }, ...keys] }), 'jwks.json');
  };

  test('says VERIFIED and exits with 0', async () => {
    const { exitCode, stdout, stderr } = svcVerify([stored(sound), '--fingerprint', FINGERPRINT]);
    expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: '' });
    expect(stdout).toMatch(/\nVERIFIED\n$/);
    expect(stdout).not.toContain('FAILED');
    expect(stdout).toContain(`package hash: sha256:${createHash('sha256').update(sound).digest('hex')}`);
    expect(stdout).toContain(`key fingerprint: ${FINGERPRINT}`);
  });

  test('says NOT VERIFIED with the reason and exits with 1', async () => {
    const { exitCode, stdout } = svcVerify([stored(sound.subarray(0, 5000))]);
    expect(exitCode).toBe(1);
    expect(stdout).toMatch(/\n {2}FAILED {2}archive: .*\nNOT VERIFIED|\n {2}FAILED {2}archive: /);
    expect(stdout).toMatch(/\nNOT VERIFIED: archive: \S.*\n$/);
  });

  test('tells an authentic package of a broken chain from a forged one, and exits with 1 for both', async () => {
    const { exitCode, stdout } = svcVerify([stored((await goldenBroken()).bytes), '--json']);
    expect(exitCode).toBe(1);
    const report = JSON.parse(stdout);
    expect(report).toMatchObject({
      verified: false,
      authentic: true,
      chain_intact: false,
      first_mismatch_id: 'evt_000004',
    });
    expect(report.reason).toContain('already broken when the package was signed');
  });

  test('prints one JSON object when asked', async () => {
    const path = stored(sound);
    const { stdout } = svcVerify(['--json', path, '--pubkey', pubkey]);
    expect(stdout.trimEnd()).not.toContain('\n');
    expect(JSON.parse(stdout)).toMatchObject({
      verified: true,
      kind: 'package',
      path,
      record_count: 4,
      first_seq: 1,
      last_seq: 4,
      chain_intact: true,
      tenant_id: 'tnt_vectors',
      public_key_fingerprint: FINGERPRINT,
      checks: expect.arrayContaining([{ name: 'signature', ok: true }]),
    });
  });

  test('checks a bundle only with a key from elsewhere', async () => {
    expect(svcVerify([bundleFile, '--pubkey', bundleKey])).toMatchObject({ exitCode: 0 });
    const report = JSON.parse(svcVerify([bundleFile, '--jwks', jwks(), '--json']).stdout);
    expect(report).toMatchObject({
      verified: true,
      kind: 'bundle',
      bundle_hash: bundle.hash,
      tenant_id: 'tnt_vectors',
    });
    expect(svcVerify([bundleFile, '--pubkey', pubkey])).toMatchObject({ exitCode: 1 });
    expect(svcVerify([bundleFile])).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('--pubkey') });
    const damaged = readFileSync(bundleFile);
    damaged[damaged.length - 1]! ^= 1;
    expect(svcVerify([stored(damaged, 'b.svcb'), '--pubkey', bundleKey])).toMatchObject({ exitCode: 1 });
  });

  test('checks an unpacked package, and refuses one with an extra file or a link', async () => {
    const directory = unpacked(sound);
    expect(svcVerify([directory, '--pubkey', pubkey])).toMatchObject({ exitCode: 0 });
    writeFileSync(join(directory, 'more'), '');
    expect(svcVerify([directory])).toMatchObject({
      exitCode: 1,
      stdout: expect.stringContaining('more is not listed'),
    });
    rmSync(join(directory, 'more'));
    rmSync(join(directory, 'VERIFY.md'));
    symlinkSync(stored('x'), join(directory, 'VERIFY.md'));
    expect(svcVerify([directory])).toMatchObject({ exitCode: 1, stdout: expect.stringContaining('not a plain file') });
  });

  test('checks each package and bundle of a directory', async () => {
    const directory = mkdtempSync(join(root, 'm-'));
    writeFileSync(join(directory, 'a.tar'), sound);
    writeFileSync(join(directory, 'b.svcb'), bundle.bytes);
    writeFileSync(join(directory, 'readme.txt'), 'not looked at');
    const keys = jwks();
    const both = svcVerify([directory, '--jwks', keys]);
    expect(both).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/\nVERIFIED\n\nVERIFIED\n$/) });
    writeFileSync(join(directory, 'c.tar'), (await goldenBroken()).bytes);
    const { exitCode, stdout } = svcVerify([directory, '--jwks', keys, '--json']);
    const report = JSON.parse(stdout);
    expect({ exitCode, ...report }).toMatchObject({ exitCode: 1, verified: false, kind: 'directory', path: directory });
    expect(report.reports.map((one: Report) => one.verified)).toEqual([true, true, false]);
    expect(svcVerify([directory, '--jwks', keys]).stdout).toMatch(/\nNOT VERIFIED: 1 of 3\n$/);
  });

  test('passes over nothing that a directory of packages seems to hold', async () => {
    const directory = mkdtempSync(join(root, 'm-'));
    writeFileSync(join(directory, 'a.tar'), sound);
    symlinkSync(stored(sound), join(directory, 'linked.tar'));
    symlinkSync(unpacked(sound), join(directory, 'linked'));
    expect(svcVerify([directory, '--pubkey', pubkey])).toMatchObject({ exitCode: 0 });
    const changed = Buffer.from(sound);
    changed[700]! ^= 1;
    const bare = unpacked(sound);
    rmSync(join(bare, 'manifest.json'));
    for (const target of [stored(changed), bare, '/nowhere', '/dev/null']) {
      const link = join(directory, 'wrong.tar');
      symlinkSync(target, link);
      const { exitCode, stdout } = svcVerify([directory, '--pubkey', pubkey]);
      expect([exitCode, stdout.split('\n').at(-2)]).toEqual([1, 'NOT VERIFIED: 1 of 4']);
      rmSync(link);
    }
  });

  test.each([
    ['no path', []],
    ['two paths', ['a', 'b']],
    ['an unknown option', ['x', '--force']],
    ['an option without its value', ['x', '--pubkey']],
    ['a missing file', ['/nowhere/package.tar']],
    ['a missing key', [GOLDEN, '--pubkey', '/nowhere/key.pem']],
    ['a key file that holds none', [GOLDEN, '--pubkey', join(GOLDEN, 'expected.json')]],
    ['a key set that is none', [GOLDEN, '--jwks', join(GOLDEN, 'expected.json')]],
    ['a key set that is not JSON', [GOLDEN, '--jwks', join(GOLDEN, 'pubkey.pem')]],
    ['a malformed fingerprint', [GOLDEN, '--fingerprint', 'sha256:12']],
    ['a directory with nothing to verify', [dirname(PROGRAM)]],
    ['a device', ['/dev/null']],
  ])('exits with 2 and a hint for %s', (_, args) => {
    const { exitCode, stdout, stderr } = svcVerify(args);
    expect({ exitCode, stdout }).toEqual({ exitCode: 2, stdout: '' });
    expect(stderr).toMatch(/^svc-verify: /);
    expect(stderr).not.toMatch(/\n\s+at /);
  });

  test('prints its help', async () => {
    expect(svcVerify(['--help'])).toMatchObject({
      exitCode: 0,
      stdout: expect.stringContaining('Usage: svc-verify PATH'),
    });
  });

  test('runs as a standalone program', async () => {
    const run = (...args: string[]) => {
      const { status, stdout, stderr } = spawnSync(process.execPath, [PROGRAM, ...args], { encoding: 'utf8' });
      return { status, stdout, stderr };
    };
    expect(run(stored(sound), '--json')).toMatchObject({
      status: 0,
      stdout: expect.stringContaining('"verified":true'),
    });
    const link = join(mkdtempSync(join(root, 'l-')), 'svc-verify');
    symlinkSync(PROGRAM, link);
    const linked = spawnSync(process.execPath, [link, '--help'], { encoding: 'utf8' });
    expect(linked).toMatchObject({ status: 0, stdout: expect.stringContaining('Usage') });
    for (const at of [0, sound.length >> 1, sound.length - 1]) {
      const damaged = Buffer.from(sound);
      damaged[at]! ^= 1;
      expect(run(stored(damaged))).toMatchObject({
        status: 1,
        stderr: '',
        stdout: expect.stringContaining('NOT VERIFIED'),
      });
    }
    expect(run(stored(randomBytes(100_000)))).toMatchObject({ status: 1, stderr: '' });
    expect(run('--nonsense')).toMatchObject({ status: 2, stdout: '' });
  });

  test('imports only pure files: no network, no database, no clock', async () => {
    const seen = new Set<string>();
    const outside = new Set<string>();
    const visit = (path: string) => {
      if (seen.has(path)) return;
      seen.add(path);
      const source = readFileSync(path, 'utf8');
      expect(source, path).not.toMatch(/Date\.now|new Date\(\)|performance\.now|fetch\(/);
      for (const [, from] of source
        .matchAll(/^(?:import|export) .*?from '([^']+)';$|^\} from '([^']+)';$/gm)
        .map((m) => [0, m[1] ?? m[2]!] as const)) {
        if (from.startsWith('.')) visit(join(dirname(path), from));
        else outside.add(from);
      }
    };
    visit(PROGRAM);
    expect([...outside].sort()).toEqual([
      'blake3',
      // the same module, written to without a copy
      'blake3/dist/wasm/nodejs/blake3_js.js',
      // pure; comes with the reader of annotations, which knows a bundle's rules
      'fastest-levenshtein',
      'node:crypto',
      'node:fs',
      'node:module',
      'node:path',
      'node:url',
      'node:util',
      'node:zlib',
      // a type alone: a verifier compiles no pattern
      're2js',
    ]);
  });
});
