import { execFileSync, spawnSync } from 'node:child_process';
import { sign } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { signHead } from '../../server/chain/note.ts';
import { chainHash, genesisLine, ZERO_HASH } from '../../server/chain/record.ts';
import { fileSums, type Manifest, splitNotes, sumLists } from '../../server/forensics/archive.ts';
import { checkPackage } from '../../server/forensics/check-package.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { keyFingerprint, sha256Tag } from '../../server/lib/crypto.ts';
import { ArchiveError, readTar, writeTar } from '../../server/lib/tar.ts';
import { ordinaryEvent, storedChain, vectorKey } from '../vectors/chain/samples.ts';
import {
  bundle,
  chain,
  FINGERPRINT,
  goldenBroken,
  goldenEmpty,
  goldenRange,
  goldenRewritten,
  goldenSession,
  makePackage,
  note,
  TENANT,
  windowOf,
} from '../vectors/package/generate.ts';

const tools = ['openssl', 'sha256sum', 'b3sum', 'bash', 'tar'];
const lacking = tools.filter((tool) => spawnSync(tool, ['--version']).error !== undefined);
const skipped = lacking.length === 0 ? '' : ` (SKIPPED: ${lacking.join(', ')} not on the PATH)`;

let root: string;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'svc-package-'));
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** The package unpacked with the system's tar into a new directory. */
function unpack(bytes: Uint8Array): string {
  const directory = mkdtempSync(join(root, 'p-'));
  execFileSync('tar', ['-xf', '-', '-C', directory], { input: bytes });
  return directory;
}

/** A shell command in a directory: its exit code and what it printed. */
function bash(directory: string, ...args: string[]): { status: number | null; output: string } {
  const { status, stdout, stderr } = spawnSync('bash', args, { cwd: directory, encoding: 'utf8' });
  return { status, output: stdout + stderr };
}

describe('a package', () => {
  test('of a tenant that moved takes checkpoints of its former keys up to where the manifest says', async () => {
    const rows = chain(8);
    const retired = vectorKey(2);
    const fingerprint = keyFingerprint(retired.publicKey);
    const parts = (seq: number, generation = 0) => ({
      checkpoints: [note(rows[3]!, retired), note(rows[7]!)],
      former: { [fingerprint]: { seq, generation, bundles: 1, audit: { seq: 0, generation: 0 } } },
    });
    const made = await makePackage(rows, parts(4));
    expect(made.manifest.former_keys).toEqual(parts(4).former);
    expect(checkPackage(made.bytes)).toMatchObject({ verified: true });
    expect(bash(unpack(made.bytes), 'check.sh')).toMatchObject({ status: 0 });
    // none is made with a checkpoint that such a key may not state
    await expect(makePackage(rows, parts(3))).rejects.toThrow('counts up to record 3');
    // and who made one nevertheless is found out by anyone
    const members = readTar(made.bytes);
    const manifest = JSON.parse(Buffer.from(members.get('manifest.json')!).toString()) as Manifest;
    const stating = (former: object) => {
      const signed = Buffer.from(canonicalJson({ ...manifest, former_keys: former }));
      members.set('manifest.json', signed);
      members.set('manifest.json.sig', sign(null, signed, vectorKey(1).privateKey));
      return writeTar(members);
    };
    const forged = stating(parts(3).former!);
    expect(bash(unpack(forged), 'check.sh')).toEqual({
      status: 1,
      output: 'MISMATCH checkpoints.txt: the key of the checkpoint of record 4 does not count for it\n',
    });
    const report = checkPackage(forged);
    expect(report.verified).toBe(false);
    expect(report.checks.filter(({ ok }) => !ok).map(({ name }) => name)).toContain('checkpoints');
    const strange = stating({ [fingerprint]: { seq: 4 } });
    expect(checkPackage(strange).reason).toContain('former_keys');
    expect(bash(unpack(strange), 'check.sh').output).toBe('MISMATCH manifest.json: former_keys\n');
    // and for no more losses than had been accepted by then
    const lossy = (generation: number) =>
      makePackage(rows, { ...parts(4, generation), checkpoints: [note(rows[3]!, retired, 2), note(rows[7]!)] });
    const two = (await lossy(2)).bytes;
    expect(bash(unpack(two), 'check.sh')).toMatchObject({ status: 0 });
    await expect(lossy(1)).rejects.toThrow('counts up to loss 1');
    for (const [name, bytes] of readTar(two)) members.set(name, bytes);
    Object.assign(manifest, JSON.parse(Buffer.from(members.get('manifest.json')!).toString()));
    expect(bash(unpack(stating(parts(4, 1).former!)), 'check.sh').output).toContain('does not count for it');
  });

  test('has the same bytes whenever it is made from equal parts', async () => {
    const rows = chain(6);
    const parts = { checkpoints: [note(rows[5]!)] };
    const one = await makePackage(rows, parts);
    const other = await makePackage(
      rows.map((row) => ({ ...row, line: Buffer.from(row.line) as unknown as string })),
      parts,
    );
    expect(one.bytes.equals(other.bytes)).toBe(true);
    expect(one.package_hash).toBe(sha256Tag(one.bytes));
  });

  test('states its contents in its manifest', async () => {
    const rows = chain(8);
    const { manifest } = await goldenRange();
    expect(manifest).toMatchObject({
      first_seq: 3,
      last_seq: 6,
      record_count: 4,
      prev_hash_before_first: rows[1]!.hash.toString('hex'),
      head_hash: rows[5]!.hash.toString('hex'),
      checkpoint_seq: 8,
      session_id: null,
      chain_intact: true,
      public_key_fingerprint: FINGERPRINT,
    });
    expect(manifest).not.toHaveProperty('first_mismatch_id');
  });

  test('contains exactly the files of its format; the manifest lists all but itself and its signature', async () => {
    const { bytes, manifest } = await goldenRange();
    const names = [...readTar(bytes).keys()];
    expect(names).toEqual([
      'B3SUMS',
      'SHA256SUMS',
      'VERIFY.md',
      'audit-checkpoints.txt',
      'audit.txt',
      'before.txt',
      `bundles/${bundle.hash.slice(7)}.svcb`,
      'check.sh',
      'checkpoints.txt',
      'lead.txt',
      'manifest.json',
      'manifest.json.sig',
      'pubkey.pem',
      'records.txt',
    ]);
    expect(Object.keys(manifest.files).sort()).toEqual(names.filter((name) => !name.startsWith('manifest.json')));
  });

  test('of a broken chain is made like any other and names the record where the break starts', async () => {
    const { manifest } = await goldenBroken();
    expect(manifest).toMatchObject({ chain_intact: false, first_mismatch_id: 'evt_000004', record_count: 6 });
    const rows = chain(6).toSpliced(3, 1);
    expect((await makePackage(rows)).manifest).toMatchObject({ chain_intact: false, first_mismatch_id: 'evt_000005' });
    const forged = { ...chain(6)[2]!, hash: Buffer.alloc(32) };
    expect((await makePackage(chain(6), { checkpoints: [note(forged)] })).manifest).toMatchObject({
      chain_intact: false,
      first_mismatch_id: 'evt_000003',
    });
  });

  test('of a record with a newline forged into it is made too', async () => {
    const rows = chain(4);
    rows[1] = { ...rows[1]!, line: rows[1]!.line.replace(',', '\n,') };
    expect((await makePackage(rows)).manifest).toMatchObject({ chain_intact: false, last_seq: 4, record_count: 5 });
  });

  test('is intact only with a checkpoint at or after its last record, and the records up to it', async () => {
    const rows = chain(8);
    const span = windowOf(rows.slice(0, 4));
    const intact = async (lead: typeof rows, ...notes: string[]) => {
      const { manifest } = await makePackage(rows.slice(0, 4), { lead, checkpoints: notes, span });
      return [manifest.chain_intact, manifest.checkpoint_seq];
    };
    expect(await intact([], note(rows[3]!))).toEqual([true, 4]);
    expect(await intact(rows.slice(4, 6), note(rows[1]!), note(rows[5]!))).toEqual([true, 6]);
    // none; one before the last record; one that is not led to; a lead beyond it; a gap on the way
    expect(await intact([])).toEqual([false, null]);
    expect(await intact([], note(rows[2]!))).toEqual([false, null]);
    expect(await intact(rows.slice(4, 6), note(rows[2]!))).toEqual([false, null]);
    expect(await intact(rows.slice(4, 5), note(rows[5]!))).toEqual([false, null]);
    expect(await intact(rows.slice(4, 7), note(rows[5]!))).toEqual([false, null]);
    expect(await intact(rows.slice(5, 6), note(rows[5]!))).toEqual([false, null]);
  });

  test('of records that were rewritten together with their hashes is not intact', async () => {
    const { manifest } = await goldenRewritten();
    // they follow from each other; what was signed later does not follow from them
    expect(manifest).toMatchObject({ chain_intact: false, first_mismatch_id: 'evt_000007', checkpoint_seq: null });
    const rows = chain(4).map((row) => ({ ...row, line: row.line.replaceAll('stripe', 'paypal') }));
    let previous: Buffer = Buffer.alloc(32);
    const whole = rows.map((row, n) => {
      previous = chainHash(n === 0 ? Buffer.from(ZERO_HASH, 'hex') : previous, row.line);
      return { ...row, hash: previous };
    });
    expect((await makePackage(whole)).manifest).toMatchObject({ chain_intact: false });
    const signed = await makePackage(whole, { checkpoints: [note(chain(4)[3]!)] });
    expect(signed.manifest).toMatchObject({ chain_intact: false, first_mismatch_id: 'evt_000004' });
  });

  test('of a session states the session, and the time from its first record to its last', async () => {
    const { manifest } = await goldenSession();
    const rows = chain(10);
    const { from, to } = windowOf(rows.slice(1, 9));
    expect(manifest).toMatchObject({ session_id: 'sess_0k3', first_seq: 2, last_seq: 9, from, to, chain_intact: true });
    // a range that begins or ends with another session is not the session's
    const cut = await makePackage(rows.slice(1, 8), {
      before: [rows[0]!],
      lead: rows.slice(8),
      checkpoints: [note(rows[9]!)],
      span: { session_id: 'sess_0k3' },
    });
    expect(cut.manifest.chain_intact).toBe(false);
  });

  test('of a window contains exactly what was received in it', async () => {
    const rows = chain(8);
    const of = async (span: { from: string; to: string }) =>
      (
        await makePackage(rows.slice(2, 6), {
          before: [rows[1]!, rows[0]!],
          lead: rows.slice(6),
          checkpoints: [note(rows[7]!)],
          span,
        })
      ).manifest.chain_intact;
    const { from, to } = windowOf(rows.slice(2, 6), rows[6]!);
    const later = (time: string, ms: number) => new Date(Date.parse(time) + ms).toISOString();
    expect(await of({ from, to })).toBe(true);
    expect(await of({ from: later(from, 1), to })).toBe(false);
    expect(await of({ from, to: later(to, -7) })).toBe(false);
    expect(await of({ from, to: later(to, 1) })).toBe(false);
  });

  test('can be empty, and is then tied to what came after the window', async () => {
    const { manifest } = await goldenEmpty();
    expect(manifest).toMatchObject({
      first_seq: null,
      last_seq: null,
      record_count: 0,
      chain_intact: true,
      checkpoint_seq: 4,
    });
    expect(manifest.head_hash).toBe(manifest.prev_hash_before_first);
    const unsigned = { chain_head: { seq: 3, hash: 'ab'.repeat(32), at: '2026-02-01T08:00:00.000Z' } };
    expect((await makePackage([], unsigned)).manifest).toMatchObject({ record_count: 0, chain_intact: false });
    // of a tenant without records there is nothing to sign
    const none = await makePackage([]);
    expect(none.manifest).toMatchObject({ record_count: 0, chain_intact: true, checkpoint_seq: null });
    expect(checkPackage(none.bytes)).toMatchObject({ verified: true });
    expect(bash(unpack(none.bytes), 'check.sh')).toMatchObject({ status: 0 });
  });

  test('is not made from records that change between its two reads', async () => {
    const rows = chain(4);
    let readings = 0;
    const records = () => {
      const line = readings++ === 0 ? rows[1]!.line : rows[1]!.line.replace('stripe', 'paypal');
      return rows.map((row, n) => ({ seq: row.seq, hash: row.hash.toString('hex'), line: n === 1 ? line : row.line }));
    };
    await expect(makePackage(rows, { records })).rejects.toThrow('records.txt changed while it was packed');
  });

  test('is refused for more than 10,000 records, for a foreign checkpoint, and for a malformed signature', async () => {
    const many = Array.from({ length: 10_001 }, (_, i) => ({ seq: i + 1, hash: '0'.repeat(64), line: '{}' }));
    await expect(makePackage([], { records: () => many })).rejects.toThrow(RangeError);
    await expect(makePackage(chain(2), { sign: () => new Uint8Array(63) })).rejects.toThrow(RangeError);
    await expect(makePackage(chain(2), { checkpoints: [note(chain(2)[1]!, vectorKey(9))] })).rejects.toThrow(
      'known key',
    );
    await expect(makePackage(chain(2), { tenant_id: 'tnt_b', checkpoints: [note(chain(2)[1]!)] })).rejects.toThrow(
      ArchiveError,
    );
    await expect(
      makePackage(chain(2), { bundles: async () => [{ hash: '../x', read: () => bundle.bytes }] }),
    ).rejects.toThrow(RangeError);
  });
});

describe('the notes of a package', () => {
  test('are split the way they were joined', async () => {
    const notes = chain(4).map((row) => note(row));
    expect(splitNotes(notes.join('\n'))).toEqual(notes);
    expect(splitNotes('')).toEqual([]);
    for (const malformed of ['x', `${notes[0]}\n`, notes[0]!.trimEnd(), `${notes[0]}\n${notes[1]!.split('\n\n')[0]}`]) {
      expect(() => splitNotes(malformed)).toThrow(ArchiveError);
    }
  });
});

describe('the archive', () => {
  const name = fc
    .array(fc.stringMatching(/^[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}$/), { minLength: 1, maxLength: 3 })
    .map((parts) => parts.join('/'));
  const files = fc
    .array(fc.tuple(name, fc.uint8Array({ maxLength: 1500 })), { maxLength: 6 })
    .map((members) => new Map(members));

  test('returns its members, sorted, and has only one form', async () => {
    fc.assert(
      fc.property(files, (members) => {
        const bytes = writeTar(members);
        const read = readTar(bytes);
        expect([...read.keys()]).toEqual([...members.keys()].sort());
        for (const [name, content] of members) expect(Buffer.compare(read.get(name)!, content)).toBe(0);
        expect(writeTar(read).equals(bytes)).toBe(true);
      }),
      { numRuns: 200 },
    );
  });

  test.skipIf(skipped !== '')(`is byte for byte what GNU tar writes with fixed metadata${skipped}`, async () => {
    const { bytes } = await goldenRange();
    const directory = unpack(bytes);
    const how = ['-b1', '--format=ustar', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--mode=0644'];
    const again = execFileSync('tar', [...how, '-cf', '-', ...readTar(bytes).keys()], { cwd: directory });
    expect(again.equals(bytes)).toBe(true);
  });

  /** One member with its header changed and the checksum put right, unless the change is to the checksum. */
  function crafted(change: (header: Buffer) => void): Buffer {
    const bytes = writeTar(new Map([['a.txt', Buffer.from('content')]]));
    change(bytes);
    let sum = 256;
    for (let i = 0; i < 512; i++) if (i < 148 || i >= 156) sum += bytes[i]!;
    bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
    return bytes;
  }
  const one = writeTar(new Map([['a.txt', Buffer.from('content')]]));
  const rename = (name: string) => crafted((header) => header.fill(0, 0, 100).write(name, 0));

  test.each([
    ['nothing', Buffer.alloc(0)],
    ['half an end', Buffer.alloc(512)],
    ['a cut off header', one.subarray(0, 300)],
    ['a cut off member', one.subarray(0, 1000)],
    ['no end', one.subarray(0, 1024)],
    ['one zero block', one.subarray(0, 1536)],
    ['trailing zeros', Buffer.concat([one, Buffer.alloc(512)])],
    ['trailing data', Buffer.concat([one, Buffer.from('x')])],
    ['data in the last block', Buffer.concat([one.subarray(0, -1), Buffer.from('x')])],
    ['a name twice', Buffer.concat([one.subarray(0, 1024), one])],
    ['an absolute name', rename('/etc/passwd')],
    ['a climbing name', rename('../a')],
    ['a climbing name within', rename('a/../../b')],
    ['a dot', rename('./a')],
    ['an empty part', rename('a//b')],
    ['a directory', rename('a/')],
    ['a backslash', rename('a\\b')],
    ['a control character', rename('a\u001b[2J')],
    ['no name', rename('')],
    ['a prefix', crafted((header) => header.write('etc', 345))],
    ['a hard link', crafted((header) => header.write('1', 156))],
    ['a symbolic link', crafted((header) => header.write('2', 156))],
    ['a device', crafted((header) => header.write('3', 156))],
    ['a directory entry', crafted((header) => header.write('5', 156))],
    ['a pax header', crafted((header) => header.write('x', 156))],
    ['a GNU long name', crafted((header) => header.write('L', 156))],
    ['another magic', crafted((header) => header.write('ustar  \0', 257))],
    ['a size beyond the file', crafted((header) => header.write('77777777777\0', 124))],
    ['a size in base 256', crafted((header) => header.fill(0xff, 124, 136))],
    ['a negative size', crafted((header) => header.write('-0000000007\0', 124))],
    ['a size that is no number', crafted((header) => header.fill(0, 124, 136))],
    ['a wrong checksum', Buffer.from(one).fill('x', 0, 1)],
  ])('with %s is refused with a readable reason', (_, bytes) => {
    expect(() => readTar(bytes)).toThrow(ArchiveError);
  });

  test('of random bytes is refused with a readable reason and nothing else', async () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 2048 }), (bytes) => {
        expect(() => readTar(bytes)).toThrow(ArchiveError);
      }),
    );
  });

  test('accepts no name that a package does not need', async () => {
    for (const bad of ['/a', '../a', 'a b', 'ä', 'x'.repeat(101), '']) {
      expect(() => writeTar(new Map([[bad, new Uint8Array()]]))).toThrow(RangeError);
    }
  });
});

// the last record but one of the chain is the last of the package, and the older checkpoint is by a retired key
const rows = chain(6);
const { bytes, manifest } = await makePackage(rows.slice(0, 4), {
  lead: rows.slice(4),
  checkpoints: [note(rows[1]!, vectorKey(2)), note(rows[3]!), note(rows[5]!)],
  span: windowOf(rows.slice(0, 4)),
});

describe.skipIf(skipped !== '')(`an auditor without this software${skipped}`, () => {
  /** The loop of VERIFY.md, as it is printed there. */
  function documentedLoop(directory: string): string {
    const text = readFileSync(join(directory, 'VERIFY.md'), 'utf8');
    const loop = /^ {4}prev=<prev_hash_before_first>; n=0\n(?: {4}.*\n)+/m.exec(text)![0];
    return loop.replace('<prev_hash_before_first>', manifest.prev_hash_before_first);
  }

  test('verifies a package with its own commands, and with check.sh', async () => {
    const directory = unpack(bytes);
    const signature =
      'openssl pkeyutl -verify -pubin -inkey pubkey.pem -rawin -in manifest.json -sigfile manifest.json.sig';
    expect(readFileSync(join(directory, 'VERIFY.md'), 'utf8')).toContain(signature);
    expect(bash(directory, '-c', signature).status).toBe(0);
    expect(bash(directory, '-c', 'sha256sum -c SHA256SUMS && b3sum --check B3SUMS').status).toBe(0);
    expect(bash(directory, '-c', documentedLoop(directory))).toEqual({
      status: 0,
      output: `ok 4 ${manifest.head_hash}\n`,
    });
    const der = 'openssl pkey -pubin -in pubkey.pem -outform DER | sha256sum';
    expect(bash(directory, '-c', der).output).toContain(FINGERPRINT.slice(7));
    const script = bash(directory, 'check.sh', FINGERPRINT);
    expect(script).toMatchObject({ status: 0, output: expect.stringContaining(`ok 4 ${manifest.head_hash}`) });
    expect(bash(root, join(directory, 'check.sh'))).toMatchObject({ status: 0 });
  });

  test('verifies each checkpoint with the commands of VERIFY.md', async () => {
    const directory = unpack(bytes);
    const text = readFileSync(join(directory, 'VERIFY.md'), 'utf8');
    const commands = [...text.matchAll(/^ {4}(?:P=|awk|for k in|grep).*$/gm)].map(([line]) => line);
    expect(commands.length).toBe(5);
    // three notes: by a retired key, by the current one, and of a record in lead.txt
    for (const [n, key] of [2, 1, 1].entries()) {
      const beside = mkdtempSync(join(root, 'n-'));
      // as they are read: one after the other
      const script = commands
        .join('\n')
        .replace('P=../package', `P=${directory}`)
        .replace('NR == 1', `NR == ${2 * n + 1}`)
        .replace('NR == 2', `NR == ${2 * n + 2}`);
      const { status, output } = bash(beside, '-c', script);
      expect(status, output).toBe(0);
      expect(output).toContain(`key-${key}.pem\nSignature Verified Successfully\n`);
      expect(output).toContain(`key-${3 - key}.pem\nSignature Verification Failure\n`);
      expect(output).toContain(`"id":"${rows[2 * n + 1]!.columns.event_id}"`);
    }
  });

  test('finds one changed byte in every file', async () => {
    const directory = unpack(bytes);
    for (const [name, content] of readTar(bytes)) {
      if (content.length === 0) continue;
      const changed = Buffer.from(content);
      // In check.sh itself a comment is changed, so that it still runs.
      const at = name === 'check.sh' ? changed.indexOf('with nothing but') : changed.length >> 1;
      changed[at]! ^= 1;
      writeFileSync(join(directory, name), changed);
      expect(bash(directory, 'check.sh'), name).toMatchObject({
        status: 1,
        output: expect.stringMatching(/^MISMATCH/),
      });
      writeFileSync(join(directory, name), content);
    }
    expect(bash(directory, 'check.sh').status).toBe(0);
  });

  test('finds the changed record by the loop alone', async () => {
    const directory = unpack(bytes);
    const records = readFileSync(join(directory, 'records.txt'), 'utf8');
    writeFileSync(join(directory, 'records.txt'), records.replace(/(?<="id":"evt_00000)3/, '9'));
    expect(bash(directory, '-c', documentedLoop(directory))).toEqual({ status: 1, output: 'MISMATCH 3\n' });
  });

  test('finds an extra file, a missing file, a link, and an unexpected key', async () => {
    const directory = unpack(bytes);
    expect(bash(directory, 'check.sh', keyFingerprint(vectorKey(2).publicKey)).output).toContain(FINGERPRINT);
    for (const name of ['.hidden', 'bundles/more', 'two words']) {
      writeFileSync(join(directory, name), 'x');
      expect(bash(directory, 'check.sh').output).toBe(`MISMATCH ${name}: not the file that the manifest lists\n`);
      unlinkSync(join(directory, name));
    }
    const target = join(directory, 'VERIFY.md');
    writeFileSync(join(root, 'VERIFY.md'), readFileSync(target));
    unlinkSync(target);
    expect(bash(directory, 'check.sh')).toMatchObject({ status: 1, output: expect.stringContaining('missing') });
    symlinkSync(join(root, 'VERIFY.md'), target);
    expect(bash(directory, 'check.sh')).toMatchObject({ status: 1, output: 'MISMATCH VERIFY.md: not a plain file\n' });
  });

  test('finds a checkpoint that was changed, signed by an unknown key, or is missing, with check.sh', async () => {
    const parts = { lead: rows.slice(4), span: windowOf(rows.slice(0, 4)) };
    const made = async (checkpoints: string[], lead = rows.slice(4)) =>
      bash(unpack((await makePackage(rows.slice(0, 4), { ...parts, lead, checkpoints })).bytes), 'check.sh');
    expect(await made([note(rows[3]!), note(rows[5]!)])).toMatchObject({
      status: 0,
      output: expect.stringContaining('tied to the signed checkpoint of record 6'),
    });
    expect(await made([note(rows[3]!)])).toMatchObject({ status: 1, output: expect.stringMatching(/^MISMATCH/m) });
    expect(await made([])).toMatchObject({ status: 1, output: expect.stringMatching(/^MISMATCH/m) });
    expect(await made([note({ ...rows[5]!, hash: Buffer.alloc(32, 1) })])).toMatchObject({
      status: 1,
      output: expect.stringContaining('MISMATCH lead.txt: line 2: a checkpoint states another hash'),
    });
    // after an accepted loss a note has a line more
    const later = await makePackage(rows.slice(0, 4), {
      ...parts,
      checkpoints: [note(rows[3]!), note(rows[5]!, vectorKey(1), 12)],
    });
    expect(checkPackage(later.bytes)).toMatchObject({ verified: true });
    expect(bash(unpack(later.bytes), 'check.sh')).toMatchObject({
      status: 0,
      output: expect.stringContaining('tied to the signed checkpoint of record 6'),
    });
    // the signer itself states too much: what the script compares it finds all the same
    const directory = unpack(bytes);
    const key = vectorKey(1);
    const files = readTar(bytes);
    const text = (name: string) => Buffer.from(files.get(name)!).toString();
    const resigned = (name: string, content: string) => {
      const sums = fileSums(Buffer.from(content));
      const manifest = JSON.parse(text('manifest.json')) as Manifest;
      manifest.files[name] = sums;
      const lists = sumLists(manifest.files);
      for (const [list, lines] of Object.entries(lists)) {
        manifest.files[list] = fileSums(Buffer.from(lines));
        writeFileSync(join(directory, list), lines);
      }
      const signed = Buffer.from(canonicalJson(manifest));
      writeFileSync(join(directory, name), content);
      writeFileSync(join(directory, 'manifest.json'), signed);
      writeFileSync(join(directory, 'manifest.json.sig'), sign(null, signed, key.privateKey));
      const ran = bash(directory, 'check.sh');
      writeFileSync(join(directory, name), text(name));
      return ran.output;
    };
    const notes = text('checkpoints.txt');
    expect(resigned('checkpoints.txt', notes)).toMatch(/^ok 4/);
    expect(resigned('checkpoints.txt', notes.replace('/tnt_vectors/', '/tnt_other/'))).toMatch(/^MISMATCH checkpoints/);
    expect(resigned('checkpoints.txt', notes.replace('\n6\n', '\n5\n'))).toContain('no key in pubkey.pem signed');
    expect(resigned('checkpoints.txt', notes.replace('\n6\n', '\na[$(touch hacked)]\n'))).toBe(
      'MISMATCH checkpoints.txt\n',
    );
    expect(resigned('checkpoints.txt', notes.slice(0, notes.lastIndexOf('svc-chain-head')))).toContain(
      'no checkpoint at',
    );
    expect(resigned('checkpoints.txt', note(rows[5]!, vectorKey(9)))).toContain('no key in pubkey.pem signed');
    const generation = notes.slice(0, notes.lastIndexOf('svc-chain-head')) + note(rows[5]!, key, 12);
    expect(resigned('checkpoints.txt', generation)).toMatch(/^ok 4/);
    for (const other of ['generation 13', 'generation 012', 'generation a[$(touch hacked)]', 'generations 12']) {
      expect(resigned('checkpoints.txt', generation.replace('generation 12', other)), other).toMatch(/^MISMATCH check/);
    }
    expect(resigned('checkpoints.txt', generation.replace('generation 12\n', ''))).toMatch(/^MISMATCH check/);
    expect(resigned('lead.txt', text('lead.txt').split('\n').slice(0, 1).join('\n'))).toMatch(/^MISMATCH/);
    expect(readdirSync(directory)).not.toContain('hacked');
  });

  /** Anything that the signer of a package could make of it. */
  function resigned(from: Uint8Array, change: (files: Map<string, Uint8Array>, manifest: Manifest) => void): Buffer {
    const files = readTar(from);
    const manifest = JSON.parse(Buffer.from(files.get('manifest.json')!).toString()) as Manifest;
    for (const name of ['manifest.json', 'manifest.json.sig', 'SHA256SUMS', 'B3SUMS']) files.delete(name);
    change(files, manifest);
    manifest.files = Object.fromEntries([...files].map(([name, content]) => [name, fileSums(content)]));
    for (const [name, list] of Object.entries(sumLists(manifest.files))) {
      files.set(name, Buffer.from(list));
      manifest.files[name] = fileSums(Buffer.from(list));
    }
    const signed = Buffer.from(canonicalJson(manifest));
    files.set('manifest.json', signed).set('manifest.json.sig', sign(null, signed, vectorKey(1).privateKey));
    return writeTar(files);
  }

  /** What check.sh says of a package, which is what svc-verify says. */
  function said(of: Uint8Array, name: string): { verified: boolean; output: string } {
    const { status, output } = bash(unpack(of), 'check.sh', FINGERPRINT);
    const report = checkPackage(of, { fingerprint: FINGERPRINT });
    expect(report.verified, `${name}: check.sh says ${output}and svc-verify ${report.reason ?? 'VERIFIED'}`).toBe(
      status === 0,
    );
    return { verified: report.verified, output };
  }

  const terms = 'multi_party, 2 approvals';
  const opened = (detail = terms) => ({ action: 'escrow.created', detail });
  const vote = (actor_id: string, detail = 'approve') => ({ action: 'escrow.vote_cast', actor_id, detail });
  const report = (detail: string) => ({ action: 'escrow.condition_reported', detail });
  const [released, used, cancelled] = ['released', 'consumed', 'cancelled'].map((what) => ({
    action: `escrow.${what}`,
  }));

  /** A package of records that a hold permitted, with a part of the audit log that tells these of it, one by one. */
  async function held(
    told: readonly object[],
    { records = 1, key = vectorKey(1), limit = undefined as number | undefined } = {},
  ) {
    const event = { ...ordinaryEvent(0), decision: 'allow' as const, escrow_id: 'esc_1' };
    const all = storedChain(
      TENANT,
      FINGERPRINT,
      Array.from({ length: records }, () => event),
    );
    const at = '2026-01-01T00:00:00.000Z';
    let hash: Buffer = Buffer.alloc(32);
    const lines = [
      genesisLine(TENANT, 'audit', at, FINGERPRINT),
      ...told.map((entry, n) =>
        canonicalJson({
          ...{
            v: 1,
            alg: 'BLAKE3',
            event_type: 'audit',
            id: `aud_${n}`,
            received_at: at,
            seq: n + 2,
            tenant_id: TENANT,
          },
          ...{ actor_id: 'system', target_id: 'esc_1', target_type: 'escrow', ...entry },
        }),
      ),
    ].map((line) => {
      hash = chainHash(hash, line);
      return { line, hash: hash.toString('hex') };
    });
    const origin = `control.example/${TENANT}/audit`;
    const head = { origin, seq: lines.length, hash: hash.toString('hex') };
    const segments = [
      {
        prev_hash: ZERO_HASH,
        records: async function* () {
          yield* lines;
        },
      },
    ];
    const checkpoints = [signHead(head, key.privateKey, key.publicKey)];
    const upTo = limit === undefined ? undefined : { seq: limit, generation: 0 };
    return makePackage(all, {
      checkpoints: [note(all.at(-1)!)],
      audit: async () => ({ segments, checkpoints }),
      former: upTo && { [keyFingerprint(key.publicKey)]: { seq: 0, generation: 0, bundles: 9, audit: upTo } },
    });
  }

  test('reads who approved as svc-verify does, whatever the log tells', async () => {
    const good = [opened(), vote('a'), vote('b'), released!, used!];
    const conditional = opened('conditional, 0 approvals, 2 conditions, 1 of a"b');
    const [one, other] = ['the "kyc" is met; x', 'b\n\u001b[31m\\ *'];
    for (const [name, verified, told] of [
      ['votes', true, good],
      ['refused uses afterwards', true, [...good, { action: 'escrow.use_refused' }, cancelled!]],
      [
        'conditions with hostile names',
        true,
        [
          conditional,
          report(`${one} is met`),
          report(`${other} is not met`),
          report(`${other} is met`),
          released!,
          used!,
        ],
      ],
      [
        'a condition that was withdrawn',
        false,
        [
          conditional,
          report(`${one} is met`),
          report(`${other} is met`),
          report(`${one} is not met`),
          released!,
          used!,
        ],
      ],
      ['time', true, [opened('time_delayed, 1 approval, after 300 seconds, 1 of x'), released!, used!]],
      ['an early approval', true, [opened('time_delayed, 1 approval, after 900 seconds'), vote('a'), released!, used!]],
      ['less than its time', false, [opened('time_delayed, 0 approvals, after 301 seconds'), released!, used!]],
      ['no time', false, [opened('time_delayed, 0 approvals'), released!, used!]],
      ['a person twice', false, [opened(), vote('a'), vote('a'), released!, used!]],
      ['a vote before the opening', false, [vote('a'), opened(), vote('b'), released!, used!]],
      ['a vote after the release', false, [opened(), vote('a'), released!, vote('b'), used!]],
      ['an opening with other terms', false, [opened(), vote('a'), opened('single, 1 approval'), released!, used!]],
      ['a release before the opening', false, [released!, ...good.slice(0, 3), used!]],
      ['a use before the release', false, [opened(), vote('a'), vote('b'), used!, released!]],
      ['a hold that had ended', false, [opened(), vote('a'), vote('b'), released!, cancelled!, used!]],
      ['no use', false, good.slice(0, 4)],
      ['terms that are none', false, [opened('many'), released!, used!]],
    ] as const) {
      expect(said((await held(told)).bytes, name).verified, name).toBe(verified);
    }
    // a release permits once
    expect(said((await held(good, { records: 2 })).bytes, 'two records').output).toContain('permitted 2 records');
    // before a move the log was signed by others, up to there
    const key = vectorKey(2);
    expect(said((await held(good, { key, limit: 6 })).bytes, 'moved').verified).toBe(true);
    const moved = (await held(good, { key, limit: 6 })).bytes;
    const later = resigned(moved, (_, { former_keys }) => {
      for (const { audit } of Object.values(former_keys!)) Object.assign(audit, { seq: 5 });
    });
    expect(said(later, 'signed after the move').output).toContain('does not count for it');
    for (const change of ['\n{', '{}\n', `${'0'.repeat(64)}\n`]) {
      const odd = resigned((await held(good)).bytes, (files) => {
        files.set('audit.txt', Buffer.concat([files.get('audit.txt')!, Buffer.from(change)]));
      });
      expect(said(odd, `more in the log: ${change}`).verified).toBe(false);
    }
  });

  test('refuses with svc-verify what a signer makes of a package', async () => {
    const all = chain(8);
    const window = windowOf(all.slice(2, 6), all[6]);
    const parts = { before: [all[1]!, all[0]!], lead: all.slice(6), checkpoints: [note(all[7]!)], span: window };
    const { bytes: sound } = await makePackage(all.slice(2, 6), parts);
    expect(said(sound, 'sound').verified).toBe(true);
    const add = (files: Map<string, Uint8Array>, name: string, text: string) =>
      void files.set(name, Buffer.concat([files.get(name) ?? Buffer.alloc(0), Buffer.from(text)]));
    const alone = [storedChain(TENANT, FINGERPRINT, [])[0]!];
    for (const [name, change] of Object.entries<(files: Map<string, Uint8Array>, manifest: Manifest) => void>({
      'a checkpoint of a later record': (files) => add(files, 'checkpoints.txt', `\n${note({ ...all[7]!, seq: 9 })}`),
      'two checkpoints of a record': (files) =>
        void files.set(
          'checkpoints.txt',
          Buffer.from(`${note({ ...all[7]!, hash: Buffer.alloc(32) })}\n${note(all[7]!)}`),
        ),
      'a checkpoint that names no hash': (files) =>
        add(files, 'checkpoints.txt', `\n${note({ ...all[5]!, hash: Buffer.alloc(3) })}`),
      'another hash before the first record': (files) =>
        add(files, 'checkpoints.txt', `\n${note({ ...all[0]!, hash: Buffer.alloc(32) })}`),
      'a line without its end': (files) => add(files, 'lead.txt', 'more'),
      'zeros in a record': (files) =>
        void files.set(
          'records.txt',
          Buffer.from(Buffer.from(files.get('records.txt')!).toString().replace('{', '{\0')),
        ),
      'one more file': (files) => add(files, 'more.txt', 'x\n'),
      'a missing file': (files) => void files.delete('audit.txt'),
      'another first record': (_, manifest) => Object.assign(manifest, { first_seq: 2 }),
      'another last record': (_, manifest) => Object.assign(manifest, { last_seq: 7 }),
      'another head': (_, { chain_head }) => Object.assign(chain_head, { hash: 'ab'.repeat(32) }),
      'a head within the range': (_, { chain_head }) =>
        Object.assign(chain_head, { seq: 5, hash: all[4]!.hash.toString('hex') }),
      'a later window': (_, manifest) =>
        Object.assign(manifest, { from: new Date(Date.parse(manifest.from!) + 1).toISOString() }),
      'a longer window': (_, manifest) =>
        Object.assign(manifest, { to: new Date(Date.parse(manifest.to!) + 1).toISOString() }),
      'an earlier window': (_, manifest) =>
        Object.assign(manifest, { from: new Date(Date.parse(manifest.from!) - 7).toISOString() }),
      'a session': (_, manifest) => Object.assign(manifest, { session_id: 'x' }),
      'a fault': (_, manifest) => Object.assign(manifest, { fault: { seq: 3, reason: 'x' } }),
      'altered checkpoints': (_, manifest) => Object.assign(manifest, { altered_checkpoints: [3] }),
    })) {
      expect(said(resigned(sound, change), name).verified, name).toBe(false);
    }
    // a chain that claims to begin in its middle
    const cut = { ...alone[0]!, line: all[4]!.line, seq: 5 };
    const begun = { ...cut, hash: chainHash(Buffer.alloc(32), cut.line) };
    const { bytes: headless } = await makePackage([begun], { checkpoints: [note(begun)] });
    const claimed = resigned(headless, (_, manifest) =>
      Object.assign(manifest, { chain_intact: true, checkpoint_seq: 5 }),
    );
    expect(said(claimed, 'begun in its middle').verified).toBe(false);
    // the exporter is no manifest, and a name does not control the terminal
    const exporter = { record_count: '4', head_hash: 'ab'.repeat(32) };
    const posing = resigned(sound, (_, manifest) => Object.assign(manifest, { exporter }));
    expect(bash(unpack(posing), 'check.sh').output).toContain('head_hash stands there twice');
    const directory = unpack(sound);
    writeFileSync(join(directory, 'x\u001b[31m'), 'x');
    expect(bash(directory, 'check.sh').output).toBe('MISMATCH x?[31m: not the file that the manifest lists\n');
    // a script of a forger is not run unread
    const script = resigned(sound, (files) => void files.set('check.sh', Buffer.from('echo ok\n')));
    expect(checkPackage(script).notes).toContain('Its check.sh is not the one known here: read it before you run it.');
  });

  test('checks a session, an empty window and rewritten records with check.sh', async () => {
    expect(bash(unpack((await goldenSession()).bytes), 'check.sh').status).toBe(0);
    const empty = bash(unpack((await goldenEmpty()).bytes), 'check.sh');
    expect(empty).toMatchObject({ status: 0, output: expect.stringContaining('checkpoint of record 4') });
    const rewritten = bash(unpack((await goldenRewritten()).bytes), 'check.sh');
    expect(rewritten).toMatchObject({ status: 1, output: expect.stringContaining('MISMATCH lead.txt: line 1') });
  });

  test('reports a chain that was broken before', async () => {
    const directory = unpack((await goldenBroken()).bytes);
    const { status, output } = bash(directory, 'check.sh');
    expect(status).toBe(1);
    expect(output).toBe('the manifest states a broken chain, first at: evt_000004\nMISMATCH records.txt: line 4\n');
    // beside an empty window its place is the one that the lead states
    const rows = chain(8);
    const span = { from: '2027-01-01T00:00:00.000Z', to: '2027-02-01T00:00:00.000Z' };
    const parts = { span, before: [rows[2]!, rows[1]!] };
    const lead = rows
      .slice(3)
      .map((row) => (row.seq === 7 ? { ...row, line: row.line.replace('"alg"', '"Alg"') } : row));
    const empty = await makePackage([], { ...parts, lead, checkpoints: [note(rows[4]!), note(rows[7]!)] });
    expect(bash(unpack(empty.bytes), 'check.sh').output).toContain('MISMATCH lead.txt: line 4\n');
    const wrong = { ...rows[4]!, hash: Buffer.alloc(32) };
    const rewritten = await makePackage([], {
      ...parts,
      lead: rows.slice(3),
      checkpoints: [note(wrong), note(rows[7]!)],
    });
    expect(bash(unpack(rewritten.bytes), 'check.sh').output).toContain('line 2: a checkpoint states another hash\n');
    const unsigned = await makePackage([], parts);
    expect(bash(unpack(unsigned.bytes), 'check.sh').output).toContain('MISMATCH the manifest states a broken chain\n');
  });
});
