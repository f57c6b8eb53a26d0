import { expect, test, vi } from 'vitest';
import { Notices } from '../../db/notices.ts';
import { useDatabase } from '../helpers/database.ts';
import { until } from '../helpers/until.ts';

const box = useDatabase();

/** Makes a change of which everybody is to hear, and does `act` between its commit and the wait for the others. */
async function change(act: () => unknown): Promise<number> {
  const off = box.db.notices.on('settings', (_, own) => own && act());
  const began = performance.now();
  await box.db.transaction('tnt_1', (_, notify) => notify('settings'));
  off();
  return performance.now() - began;
}

/** A wait that nobody heard takes two seconds each time; a commit on a busy machine may, now and then. */
const isQuick = async () => (await change(() => undefined)) < 1500;

test('a change is answered as committed although the listening connection ends: the others have had their time by then', async () => {
  await until(isQuick, 'a change is answered without the whole wait');
  const endListening = () =>
    box.db.owner.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and application_name = 'svc notices'`,
    );
  expect(await change(endListening)).toBeGreaterThan(1900);
  await until(async () => box.db.notices.healthy, 'notices arrive again');
  await until(isQuick, 'so are later changes');
});

test('nor does it wait longer for a connection that hangs', async () => {
  const client = await box.db.connectOwner();
  const notices = new Notices(async () => client);
  await notices.start();
  const { notice } = notices.issue('settings', 'tnt_1', '');
  client.query = () => new Promise<never>(() => undefined);
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'] });
  try {
    let delivered = false;
    const delivery = notices.deliver(notice).then(() => {
      delivered = true;
    });
    await vi.advanceTimersByTimeAsync(1999);
    expect(delivered).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    expect(delivered).toBe(true);
    await delivery;
  } finally {
    vi.useRealTimers();
  }
  await notices.close();
});
