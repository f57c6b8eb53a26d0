import { sign, verify } from 'node:crypto';
import { expect, test } from 'vitest';
import { Keyring, SealedError, sealFormerKey } from '../../server/keys/keyring.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { keyThumbprint, newSigningKey, SecretBox, spkiDer } from '../../server/lib/crypto.ts';
import { useDatabase } from '../helpers/database.ts';

const box = useDatabase();
const master = Buffer.alloc(32, 1);
const open = (key = master) => Keyring.open(box.db, new SecretBox(key), systemClock);

test('an empty database gets one key, which opens again with the same master key', async () => {
  const first = await open();
  expect(first.all).toHaveLength(1);
  const again = await open();
  expect(again.current.kid).toBe(first.current.kid);
  const data = Buffer.from('signed');
  expect(verify(null, data, first.current.publicKey, sign(null, data, again.current.privateKey))).toBe(true);
});

test('a wrong master key opens nothing and changes nothing', async () => {
  const before = await box.db.owner.query('select * from signing_key');
  await expect(open(Buffer.alloc(32, 2))).rejects.toBeInstanceOf(SealedError);
  expect((await box.db.owner.query('select * from signing_key')).rows).toEqual(before.rows);
  await open();
});

test('rotation makes a new current key, keeps the old ones for verification, and reaches other processes', async () => {
  const [here, there] = [await open(), await open()];
  const old = here.current;
  const made = await here.rotate();
  expect(made.kid).not.toBe(old.kid);
  expect(here.current.kid).toBe(made.kid);
  expect(here.all.map(({ retiredAt }) => retiredAt === null)).toEqual([true, false]);
  const data = Buffer.from('signed before');
  expect(verify(null, data, here.find(old.kid)!, sign(null, data, old.privateKey))).toBe(true);
  await expect.poll(() => there.current.kid).toBe(made.kid);
  await there.settled();
  expect(there.find('unknown')).toBeUndefined();
});

test('concurrent rotations leave one current key', async () => {
  const keyring = await open();
  await Promise.all([keyring.rotate(), keyring.rotate(), keyring.rotate()]);
  const { rows } = await box.db.owner.query<{ n: number }>(
    'select count(*)::int as n from signing_key where retired_at is null',
  );
  expect(rows[0]!.n).toBe(1);
});

test('private keys swapped between rows do not open: each is bound to its own', async () => {
  const { rows } = await box.db.owner.query<{ kid: string; private_key: Buffer; retired_at: Date | null }>(
    'select * from signing_key order by retired_at nulls first',
  );
  const [current, other] = rows;
  await box.db.owner.query('update signing_key set private_key = $1 where kid = $2', [
    other!.private_key,
    current!.kid,
  ]);
  await expect(open()).rejects.toThrow();
  await box.db.owner.query('update signing_key set private_key = $1 where kid = $2', [
    current!.private_key,
    current!.kid,
  ]);
  await open();
});

test('a key that was inserted or altered in the table is refused: nothing it signed is trusted', async () => {
  const here = await open();
  const forged = newSigningKey();
  const kid = keyThumbprint(forged.publicKey);
  const { rows } = await box.db.owner.query<{ kid: string; public_key: Buffer; private_key: Buffer }>(
    'select kid, public_key, private_key from signing_key where retired_at is null',
  );
  const [own] = rows;
  // with no private key, with one sealed under another master key, and with that of another row
  for (const sealed of [
    Buffer.alloc(60),
    new SecretBox(Buffer.alloc(32, 9)).seal(
      forged.privateKey.export({ type: 'pkcs8', format: 'der' }) as Buffer,
      `signing_key/${kid}/private_key`,
    ),
    own!.private_key,
  ]) {
    await box.db.owner.query(
      'insert into signing_key (kid, public_key, private_key, created_at, retired_at) values ($1, $2, $3, now(), now())',
      [kid, spkiDer(forged.publicKey), sealed],
    );
    await expect(open()).rejects.toBeInstanceOf(SealedError);
    await box.db.owner.query(`select pg_notify('svc_notice', 'signing_keys * ')`);
    await here.settled().catch(() => undefined);
    expect(here.find(kid)).toBeUndefined();
    await box.db.owner.query('delete from signing_key where kid = $1', [kid]);
  }
  const swap = (key: Buffer) =>
    box.db.owner.query('update signing_key set public_key = $1 where kid = $2', [key, own!.kid]);
  await swap(spkiDer(forged.publicKey));
  await expect(open()).rejects.toBeInstanceOf(SealedError);
  await swap(own!.public_key);
  await open();
});

test('a former key verifies what it signed of its tenant before the move, and nothing else', async () => {
  const { publicKey } = newSigningKey();
  const kid = keyThumbprint(publicKey);
  const upTo = { forensics: { seq: 10, generation: 0 }, audit: { seq: 5, generation: 1 }, bundles: 3 };
  const row = sealFormerKey(new SecretBox(master), { tenantId: 'moved', kid, publicKey, upTo });
  const add = (tenantId: string, sealed: Buffer) =>
    box.db.owner.query('insert into former_key (tenant_id, kid, sealed) values ($1, $2, $3)', [tenantId, kid, sealed]);
  await add('moved', row.sealed);
  const keyring = await open();
  expect(keyring.ofChain('moved', 'audit').at(-1)).toMatchObject({ upTo: { seq: 5, generation: 1 } });
  expect(keyring.ofChain('other', 'audit')).toHaveLength(keyring.all.length);
  expect(keyring.ofBundle(kid, { tenant: 'moved', seq: 3 })).toBeDefined();
  expect(keyring.ofBundle(kid, { tenant: 'moved', seq: 4 })).toBeUndefined();
  expect(keyring.ofBundle(kid, { tenant: 'other', seq: 1 })).toBeUndefined();
  // it is none of the installation's own: not published, and never the one that signs
  expect(keyring.find(kid)).toBeUndefined();
  expect(keyring.all.map((key) => key.kid)).not.toContain(kid);
  // put in another tenant's place, or sealed by somebody else
  for (const sealed of [
    row.sealed,
    sealFormerKey(new SecretBox(Buffer.alloc(32, 9)), { tenantId: 'other', kid, publicKey, upTo }).sealed,
  ]) {
    await add('other', sealed);
    await expect(open()).rejects.toBeInstanceOf(SealedError);
    await box.db.owner.query(`delete from former_key where tenant_id = 'other'`);
  }
  await open();
});
