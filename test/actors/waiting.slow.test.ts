import { expect, test } from 'vitest';
import { inTransaction, LONG_TRANSACTION } from '../../db/client.ts';
import { event } from '../helpers/api.ts';
import { untilBlocked } from '../helpers/locks.ts';
import { useUsualLimits } from '../helpers/patience.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { enforce } from '../proxy/support.ts';

useUsualLimits();
const server = useServer({});

test('a request whose tenant cannot be opened is answered in time, and others are served', async () => {
  const [stuck, other] = [await server.tenant(), await server.tenant()];
  await enforce(server, stuck, 'p', '@id("r") permit(principal, action, resource);');
  const agent = await stuck.agent('bot', 'clerk');
  const { db } = server.core;
  const ingest = async (key: string, event_id: string) => {
    const response = await fetch(`${server.url}/v1/events/ingest`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ events: [event({ event_id })] }),
    });
    return { status: response.status, again: response.headers.has('retry-after') };
  };
  const evaluate = async () => {
    const response = await fetch(`${server.url}/v1/evaluate`, {
      method: 'POST',
      headers: { authorization: `Bearer ${agent.key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ action_type: 'tool_call', tool_name: 'pay', arguments: { n: 1 }, call_id: 'call-1' }),
    });
    const body = (await response.json()) as { decision?: string; event_id?: string };
    return { status: response.status, again: response.headers.has('retry-after'), ...body };
  };
  // its own limits may pass on a busy machine; it is never served if it has to wait for the one that is stuck
  const served = (event_id: string) =>
    until(async () => (await ingest(other.admin.key, event_id)).status === 202, 'another tenant is served');
  await served('before');
  await inTransaction(db.owner, async (client) => {
    await client.query(LONG_TRANSACTION);
    // what a chain is compared with when it is opened cannot be read, for longer than anybody may wait
    await client.query('lock table chain_alarm in access exclusive mode');
    const [waiting, asking] = [ingest(stuck.admin.key, 'waiting'), evaluate()];
    await untilBlocked(db, 1);
    await served('meanwhile');
    expect(await waiting).toEqual({ status: 503, again: true });
    expect(await asking).toMatchObject({ status: 503, again: true });
  });
  await until(async () => (await ingest(stuck.admin.key, 'waiting')).status === 202, 'it is opened');
  // what is asked for again is decided once: nothing of the refused attempt is recorded afterwards
  const answer = await until(async () => {
    const found = await evaluate();
    return found.status === 200 && found;
  }, 'it is decided');
  expect(answer).toMatchObject({ decision: 'allow' });
  expect(await evaluate()).toEqual(answer);
});

/** As when the process, or its whole machine, stood still. */
const standStill = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 6500);

test('what was answered while the process itself did not run is not given up', async () => {
  const { owner } = server.core.db;
  const client = await owner.connect();
  const answer = client.query('update sign_in_request set id = id where false');
  standStill();
  expect((await answer).rowCount).toBe(0);
  client.release();
});

test('nor is a transaction within which it did not run', async () => {
  const { owner } = server.core.db;
  const client = await owner.connect();
  await client.query('begin');
  standStill();
  // the limit of the transaction passed before this statement was asked
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect((await client.query('update sign_in_request set id = id where false')).rowCount).toBe(0);
  expect((await client.query('commit')).command).toBe('COMMIT');
  client.release();
});

test('what is asked of a pool in one statement is given up as well', async () => {
  const { db } = server.core;
  await inTransaction(db.owner, async (client) => {
    await client.query(LONG_TRANSACTION);
    await client.query('lock table sign_in_request in access exclusive mode');
    await expect(db.owner.query('delete from sign_in_request where id = $1', ['none'])).rejects.toThrow();
  });
  expect((await db.owner.query('delete from sign_in_request where id = $1', ['none'])).rowCount).toBe(0);
});
