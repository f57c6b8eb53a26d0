import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { Outline, Pipe } from '../../server/proxy/mcp/pipe.ts';
import type { Message } from '../../server/proxy/mcp/wire.ts';
import { until } from '../helpers/until.ts';

/** Newline-delimited messages: what is too long or has two readings fails alone. */

function outline(...chunks: string[]) {
  const found = new Outline();
  for (const chunk of chunks) found.push(Buffer.from(chunk));
  return { id: found.id, method: found.method };
}

test('finds the id of a message in its outermost object, wherever it stands and is cut', () => {
  expect(outline('{"jsonrpc":"2.0","id":7,"method":"x","params":{"id":8}}')).toEqual({ id: 7, method: true });
  expect(outline('{"result":{"id":1,"a":["id",{"id":2}]},"jsonrpc":"2.0","id":"é\\"}"}')).toEqual({
    id: 'é"}',
    method: false,
  });
  expect(outline('{"a":"\\"id\\":3,","b":"{\\"id\\":4}","id" : 5 }')).toEqual({ id: 5, method: false });
  expect(outline('{"params":{"x":"\\\\"},"i', 'd":1', '2,"meth', 'od":"x"}')).toEqual({ id: 12, method: true });
  // the first of two counts, and what is no id is none
  expect(outline('{"id":1,"id":2}').id).toBe(1);
  for (const id of ['null', '1.5', 'true', '[1]', '{"id":1}', `"${'x'.repeat(400)}"`]) {
    expect(outline(`{"id":${id},"method":"x"}`), id).toEqual({ id: undefined, method: true });
  }
});

async function pipe(strict: boolean) {
  const [input, output] = [new PassThrough(), new PassThrough()];
  const made = new Pipe(input, output, { maxBytes: 100, strict });
  const received: Message[] = [];
  const faults: string[] = [];
  made.onmessage = (message) => received.push(message);
  made.onerror = ({ message }) => faults.push(message);
  await made.start();
  let sent = '';
  output.on('data', (data) => {
    sent += data;
  });
  return { input, received, faults, sent: () => sent };
}

test.each([true, false])('ignores a byte order mark at the start of a line (strict: %s)', async (strict) => {
  const { input, received, faults } = await pipe(strict);
  const mark = '\ufeff';
  input.write(
    `${mark}{"jsonrpc":"2.0","id":1,"method":"a"}\n${mark}\r\n${mark}\n{"jsonrpc":"2.0","id":2,"method":"b"}\n`,
  );
  const bytes = Buffer.from(`${mark}{"jsonrpc":"2.0","id":3,"method":"${mark}c"}\n`);
  // in parts, as it may arrive
  for (const at of bytes.keys()) input.write(bytes.subarray(at, at + 1));
  await until(() => received.length === 3, 'all are there');
  expect(received.map((one) => 'method' in one && one.method)).toEqual(['a', 'b', `${mark}c`]);
  expect(faults).toEqual([]);
});

test('refuses a request that is too long, and goes on', async () => {
  const { input, received, sent } = await pipe(true);
  const long = JSON.stringify({ jsonrpc: '2.0', method: 'a', params: { text: 'x'.repeat(200) }, id: 1 });
  for (const part of [
    long.slice(0, 50),
    long.slice(50, 130),
    `${long.slice(130)}\n{"jsonrpc":"2.0","id":2,`,
    '"method":"b"}\n',
  ]) {
    input.write(part);
  }
  await until(() => received.length > 0, 'the second is there');
  expect(received).toEqual([{ jsonrpc: '2.0', id: 2, method: 'b' }]);
  expect(JSON.parse(sent())).toMatchObject({ id: 1, error: { code: -32600 } });
});

test('takes an answer that is too long for one that failed', async () => {
  const { input, received } = await pipe(false);
  input.write(`${JSON.stringify({ result: { text: 'x'.repeat(200) }, jsonrpc: '2.0', id: 9 })}\n`);
  await until(() => received.length > 0, 'it is there');
  expect(received).toEqual([{ jsonrpc: '2.0', id: 9, error: expect.objectContaining({ code: -32600 }) }]);
});

test('refuses what has two readings, what is no message, and what is a list of messages', async () => {
  const { input, received, faults, sent } = await pipe(true);
  const refused = [
    '{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}',
    '{"id":3,"method":"c"}',
    '{"jsonrpc":"2.0","id":4,"method":7}',
  ];
  for (const line of refused) input.write(`${line}\n`);
  for (const line of ['[{"jsonrpc":"2.0","id":5,"method":"d"}]', 'hello', '', '\r']) input.write(`${line}\n`);
  input.write('{"jsonrpc":"2.0","id":6,"method":"e","Method":"f"}\r\n');
  await until(() => received.length > 0, 'the last is there');
  expect(received).toEqual([{ jsonrpc: '2.0', id: 6, method: 'e' }]);
  expect(
    sent()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).id),
  ).toEqual([1, 3, 4]);
  expect(faults).toHaveLength(5);
});

test('leaves no listener behind for what was sent, however long it was', async () => {
  const output = new PassThrough();
  const made = new Pipe(new PassThrough(), output, { maxBytes: 100, strict: true });
  await made.start();
  output.resume();
  const listeners = () => ['drain', 'close', 'error'].map((event) => output.listenerCount(event));
  const before = listeners();
  for (let id = 0; id < 5; id++) await made.send({ jsonrpc: '2.0', id, result: { text: 'x'.repeat(100_000) } });
  expect(listeners()).toEqual(before);
});
