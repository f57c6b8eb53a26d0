import { beforeAll, expect, test } from 'vitest';
import { inTransaction } from '../../db/client.ts';
import { type Ended, forgetEnded } from '../../db/forget.ts';
import { forgetJob } from '../../server/jobs/jobs.ts';
import { useDatabase } from '../helpers/database.ts';

const box = useDatabase();
const OLD = new Date('2020-01-01');
const before = new Date('2021-01-01');
const takes: Ended = { table: 'limit_take', key: 'id', time: 'expires_at', before };
const goOn = new AbortController().signal;

beforeAll(async () => {
  await box.db.owner.query(`insert into tenant values ('t', 't', '{}', now())`);
});

async function take(id: string, expires = OLD): Promise<void> {
  await box.db.owner.query(
    `insert into limit_take (tenant_id, id, source, expires_at, counts) values ('t', $1, 's', $2, '[]')`,
    [id, expires],
  );
}
async function left(): Promise<string[]> {
  const { rows } = await box.db.owner.query<{ id: string }>('select id from limit_take order by id');
  return rows.map(({ id }) => id);
}

test('what is renewed while it is being forgotten stays, and is not waited for', async () => {
  await take('ended');
  await take('renewed');
  await take('young', new Date('2022-01-01'));
  await inTransaction(box.db.owner, async (client) => {
    await client.query(`update limit_take set expires_at = '2022-01-01' where id = 'renewed'`);
    await forgetEnded(box.db, [takes]);
  });
  expect(await left()).toEqual(['renewed', 'young']);
  await box.db.owner.query('delete from limit_take');
});

test('a table that fails keeps no other from its turn, nor a part of a job another; the failures are reported', async () => {
  await take('ended');
  const job = forgetJob('forget', [
    { forget: (signal) => forgetEnded(box.db, [{ ...takes, table: 'nowhere' }, takes], signal) },
    { forget: () => take('another part', new Date('2022-01-01')) },
  ]);
  const error = await job.run(goOn).catch((reason: unknown) => reason);
  expect((error as AggregateError).errors[0].message).toContain('"nowhere" does not exist');
  expect(await left()).toEqual(['another part']);
  await box.db.owner.query('delete from limit_take');
});

test('an aborted job begins nothing more', async () => {
  await take('ended');
  const aborter = new AbortController();
  let begun = 0;
  const part = {
    forget: async (signal: AbortSignal) => {
      begun++;
      aborter.abort();
      await forgetEnded(box.db, [takes], signal);
    },
  };
  await forgetJob('forget', [part, part]).run(aborter.signal);
  expect([begun, await left()]).toEqual([1, ['ended']]);
});
