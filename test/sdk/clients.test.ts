import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { inspect } from 'node:util';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { AgentClient, mask, SvcError, UnavailableError, verifyWebhook } from '../../sdk/client/src/index.ts';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

/** The clients in TypeScript and in Python: the same verbs, one set of tests, one set of vectors. */

const server = useServer({}, { shared: true });
const ROOT = path.resolve(import.meta.dirname, '../..');
const vectors = (name: string) => JSON.parse(readFileSync(path.join(ROOT, 'test/vectors/client', name), 'utf8'));

interface Answer {
  decision?: string;
  event_id?: string;
  status?: string;
  masks?: string[];
  escrow?: { id: string; status: string; page_url: string };
  /** Of what was thrown: its class, the code of the problem, and all that it prints. */
  error?: string;
  code?: string | null;
  text?: string;
  retryAfter?: number | null;
}
interface Options {
  maxWaitMs?: number;
  onHold?: (hold: { id: string }) => void;
}
interface Opening {
  baseUrl?: string;
  key: string;
  tenant?: string;
  timeoutMs?: number;
  retries?: number;
}
interface Opened {
  /** All that it prints of itself. */
  printed: string;
  call(op: 'evaluate' | 'evaluateAll' | 'ask' | 'wait' | 'report', args: unknown, options?: Options): Promise<Answer>;
}
interface Language {
  name: string;
  open(opening: Opening): Promise<Opened>;
  mask(value: unknown, masks: unknown): Promise<unknown>;
  webhook(received: object): Promise<unknown>;
}

function faultOf(error: unknown): Answer {
  const { name, code, retryAfter } = error as SvcError & { code?: string; retryAfter?: number };
  return { error: name, code: code ?? null, text: inspect(error, { depth: 9 }), retryAfter: retryAfter ?? null };
}

const typescript: Language = {
  name: 'TypeScript',
  async open({ baseUrl = server.url, timeoutMs = 60_000, ...more }) {
    const client = new AgentClient({ baseUrl, timeoutMs, ...more });
    return {
      printed: inspect(client, { depth: 9, showHidden: true }) + JSON.stringify(client),
      async call(op, args, options = {}) {
        try {
          const answer = (await client[op](args as never, options as never)) as unknown;
          return (
            Array.isArray(answer) ? answer.map((one) => (one instanceof SvcError ? faultOf(one) : one)) : answer
          ) as Answer;
        } catch (error) {
          return faultOf(error);
        }
      },
    };
  },
  mask: async (value, masks) => {
    try {
      return mask(value, masks as string[]);
    } catch (error) {
      return faultOf(error);
    }
  },
  webhook: async (received) => {
    const { secrets, now, ...rest } = received as { secrets: string[]; now: number };
    return verifyWebhook({ ...rest, secret: secrets, now: now * 1000 } as never).catch(faultOf);
  },
};

class Python implements Language {
  readonly name = 'Python';
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, (line: { result?: unknown; fault?: Answer; hold?: { id: string } }) => void>();
  #count = 0;

  constructor() {
    const args = [path.join(ROOT, 'test/sdk/drive.py'), path.join(ROOT, 'sdk/python')];
    this.#child = spawn('python3', args, {
      stdio: ['pipe', 'pipe', 'inherit'],
      env: { PATH: process.env.PATH, PYTHONDONTWRITEBYTECODE: '1', no_proxy: '*' },
    });
    createInterface({ input: this.#child.stdout! }).on('line', (text) => {
      const line = JSON.parse(text);
      this.#waiting.get(line.n)?.(line);
    });
  }

  stop(): void {
    this.#child.kill('SIGKILL');
  }

  send(op: string, args: unknown, { maxWaitMs, onHold, ...options }: Options & { client?: string } = {}) {
    const n = ++this.#count;
    return new Promise<unknown>((resolve) => {
      this.#waiting.set(n, ({ result, fault, hold }) => {
        if (hold) return onHold?.(hold);
        this.#waiting.delete(n);
        resolve(fault ?? result);
      });
      const more = { ...options, ...(maxWaitMs !== undefined && { maxWait: maxWaitMs / 1000 }) };
      this.#child.stdin!.write(`${JSON.stringify({ n, op, args: args ?? null, options: more })}\n`);
    });
  }

  async open({ baseUrl = server.url, timeoutMs = 60_000, retries = 4, ...more }: Opening): Promise<Opened> {
    const name = `client ${++this.#count}`;
    const printed = await this.send('open', { ...more, name, baseUrl, timeout: timeoutMs / 1000, retries });
    return {
      printed: JSON.stringify(printed),
      call: (op, args, options) => this.send(op, args, { ...options, client: name }) as Promise<Answer>,
    };
  }

  mask(value: unknown, masks: unknown) {
    return this.send('mask', [value, masks]);
  }

  webhook(received: object) {
    return this.send('webhook', received);
  }
}

const python = new Python();
afterAll(() => python.stop());

const POLICY = `
@id("read") @rate("3/h") permit(principal in AgentRole::"clerk", action, resource == Tool::"read");
@id("card") @mask("$.card.number") permit(principal in AgentRole::"clerk", action, resource == Tool::"card");
@id("pay") @escrow("single") @ttl("1h") @reason("payments are looked at")
permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");
`;

let tenant: TestTenant;
let approver: Credential;
let counter = 0;
beforeAll(async () => {
  tenant = await server.tenant();
  await deploy(server, tenant.admin, 'desk', POLICY);
  approver = await tenant.person('approver');
});
const newKey = async () => (await tenant.agent(`of-an-sdk-${++counter}`, 'clerk')).key!;
const vote = (id: string, decision = 'approve') =>
  server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision, reason: 'r' });
const request = (tool_name: string, more: Record<string, unknown> = {}) => ({
  action_type: 'tool_call',
  tool_name,
  ...more,
});

/** A server that answers what it is told to, and says what it was asked. */
async function impostor(
  answer: (
    n: number,
    request: http.IncomingMessage,
  ) => [status: number, headers: object, body: string] | 'cut' | 'silent',
) {
  const asked: { line: string; authorization: string | undefined; body: string }[] = [];
  const listening = http.createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    asked.push({
      line: `${request.method} ${request.url}`,
      authorization: request.headers.authorization,
      body: Buffer.concat(chunks).toString(),
    });
    const made = answer(asked.length, request);
    if (made === 'silent') return;
    if (made === 'cut') return void request.socket.destroy();
    response.writeHead(made[0], { 'content-type': 'application/json', ...made[1] }).end(made[2]);
  });
  await new Promise<void>((resolve) => listening.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    listening.closeAllConnections();
    listening.close();
  });
  return { url: `http://127.0.0.1:${(listening.address() as AddressInfo).port}`, asked };
}
const ALLOW = JSON.stringify({ decision: 'allow', event_id: 'evt_1' });
const problem = (code: string, status: number) => JSON.stringify({ type: 'x', title: 'T', code, status, detail: 'D' });

describe.each([typescript, python])('the client in $name', (language) => {
  test('masks as the server does', async () => {
    const { cases, refused } = vectors('masks.json');
    expect(cases.length).toBeGreaterThan(30);
    for (const { value, masks, result } of cases) {
      // a text is taken as JSON, as a proxy takes it: its own test is below
      if (typeof value === 'string') continue;
      expect(await language.mask(value, masks), masks.join()).toEqual(result);
      if (masks.length === 0) continue;
      const text = (await language.mask(JSON.stringify(value), masks)) as string;
      expect(JSON.parse(text), masks.join()).toEqual(result);
    }
    for (const path of refused) {
      expect(await language.mask({ a: 1 }, [path]), path).toMatchObject({ error: 'MaskError' });
    }
  });

  test('withholds what cannot be masked, and changes nothing without masks', async () => {
    for (const text of ['prose with 4111', '{"card": {"number": "4111"}', '"4111"', 'NaN', '[1,]', '']) {
      const refused = (await language.mask(text, ['$.card.number'])) as Answer;
      expect(refused, text).toMatchObject({ error: 'MaskError' });
      expect(refused.text).not.toContain('4111');
    }
    expect(await language.mask('"4111"', ['$'])).toBe('"[masked]"');
    expect(await language.mask('prose', [])).toBe('prose');
    expect(await language.mask('{"id": 12345678901234567890, "ssn": 1}', ['$.ssn'])).toBe(
      '{"id":12345678901234567890,"ssn":"[masked]"}',
    );
    for (const masks of ['$.ssn', null, 0, false, '']) {
      expect(await language.mask({ ssn: 1 }, masks), String(masks)).toMatchObject({ error: expect.anything() });
    }
    expect(await language.mask({ ssn: 1 }, {})).toEqual({ ssn: 1 });
  });

  test('takes the webhooks that the server signed, and no other', async () => {
    const { valid, invalid } = vectors('webhooks.json');
    for (const { name, ...received } of valid) {
      expect(await language.webhook(received), name).toEqual({
        id: 'oev_1',
        timestamp: 1_750_000_000,
        event: JSON.parse(received.body),
      });
    }
    for (const { name, ...received } of invalid) {
      expect(await language.webhook(received), name).toMatchObject({ error: 'WebhookError' });
    }
    const { headers, ...first } = valid[0];
    const spelled = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toUpperCase(), value]));
    expect(await language.webhook({ ...first, headers: spelled })).toMatchObject({ id: 'oev_1' });
    const twice = { ...headers, 'Webhook-Id': 'oev_2' };
    expect(await language.webhook({ ...first, headers: twice })).toMatchObject({ error: 'WebhookError' });
  });

  test('decides, masks, reports and counts as the server says', async () => {
    const client = await language.open({ key: await newKey(), tenant: tenant.id });
    const masked = await client.call(
      'evaluate',
      request('card', { arguments: { card: { number: 1 } }, apply_masks: true }),
    );
    expect(masked).toMatchObject({
      decision: 'allow_with_masking',
      masks: ['$.card.number'],
      arguments: { card: { number: '[masked]' } },
    });
    expect(await client.call('evaluate', request('wipe'))).toMatchObject({ decision: 'deny' });
    for (let n = 0; n < 3; n++)
      expect(await client.call('evaluate', request('read'))).toMatchObject({ decision: 'allow' });
    expect(await client.call('ask', request('read'))).toMatchObject({ decision: 'rate_limited' });
    const done = { event_id: masked.event_id, outcome: 'succeeded', answer: { ok: true } };
    for (let n = 0; n < 2; n++) expect((await client.call('report', done)) ?? {}).toEqual({});
    expect(await client.call('report', { ...done, outcome: 'failed' })).toMatchObject({
      error: 'ProblemError',
      code: 'CONFLICT',
    });
  });

  test('waits for people, and goes on; another process takes up the same call', async () => {
    const key = await newKey();
    const [one, two] = [await language.open({ key }), await language.open({ key })];
    const pay = request('pay', { arguments: { amount: 900 }, call_id: 'call_1' });
    const waited = await one.call('ask', pay, { maxWaitMs: 10 });
    expect(waited).toMatchObject({ decision: 'escrow', escrow: { status: 'held' } });
    const held: string[] = [];
    const asked = two.call('ask', pay, { onHold: ({ id }) => held.push(id) });
    await until(() => held.length === 1, 'it waits for people');
    expect(held).toEqual([waited.escrow!.id]);
    await vote(held[0]!);
    const allowed = await asked;
    expect(allowed).toMatchObject({ decision: 'allow', escrow: { status: 'consumed' } });
    expect(await one.call('ask', pay)).toEqual(allowed);
    expect(await one.call('wait', held[0])).toMatchObject({ status: 'consumed' });
    expect(await one.call('evaluate', { ...pay, arguments: { amount: 901 } })).toMatchObject({
      error: 'ProblemError',
      code: 'CONFLICT',
    });
    const other = request('pay', { arguments: { amount: 1 } });
    const rejected = one.call('ask', other, { onHold: ({ id }) => vote(id, 'reject') });
    expect(await rejected).toMatchObject({ decision: 'deny', deny_reason: 'the hold was rejected' });
  });

  test('waits for the new hold where the policies change meanwhile', async () => {
    const own = await server.tenant();
    await deploy(server, own.admin, 'desk', POLICY);
    const person = await own.person('approver');
    const approve = (id: string) =>
      server.call(200, `POST /v1/escrow/${id}/vote`, person, { decision: 'approve', reason: 'r' });
    const client = await language.open({ key: (await own.agent('a', 'clerk')).key! });
    const pay = request('pay', { call_id: 'c' });
    const { escrow } = await client.call('evaluate', pay);
    await approve(escrow!.id);
    await deploy(
      server,
      own.admin,
      'more',
      '@id("m") @escrow("single") @ttl("1h") permit(principal, action, resource == Tool::"pay");',
    );
    const answer = await client.call('ask', pay, { onHold: ({ id }) => approve(id) });
    expect(answer).toMatchObject({ decision: 'allow' });
    expect(answer.escrow!.id).not.toBe(escrow!.id);
  });

  test('asks for several at once, each by itself, and from many threads', async () => {
    const client = await language.open({ key: await newKey() });
    const results = (await client.call('evaluateAll', [
      request('card'),
      request('pay'),
      { action_type: 'tool_call' },
      request('wipe'),
    ])) as unknown as Answer[];
    expect(results.map(({ decision, code }) => decision ?? code)).toEqual([
      'allow_with_masking',
      'escrow',
      'VALIDATION_FAILED',
      'deny',
    ]);
    const many = await Promise.all(
      Array.from({ length: 20 }, (_, n) => client.call('evaluate', request('card', { arguments: { n } }))),
    );
    expect(new Set(many.map(({ event_id }) => event_id)).size).toBe(20);
  });

  test('sends again what had no answer, as the same call; after Retry-After, and not for ever', async () => {
    const flaky = await impostor((n) =>
      n === 1 ? 'cut' : n === 2 ? [503, { 'retry-after': '0' }, problem('UNAVAILABLE', 503)] : [200, {}, ALLOW],
    );
    const client = await language.open({ baseUrl: flaky.url, key: 'svc_agent_x' });
    expect(await client.call('evaluate', request('read'))).toMatchObject({ decision: 'allow' });
    expect(flaky.asked).toHaveLength(3);
    const ids = flaky.asked.map(({ body }) => JSON.parse(body).call_id);
    expect(ids[0]).toMatch(/^[\w-]{36}$/);
    expect(new Set(ids).size).toBe(1);

    const busy = await impostor(() => [429, { 'retry-after': '3600' }, problem('RATE_LIMITED', 429)]);
    const limited = await language.open({ baseUrl: busy.url, key: 'svc_agent_x' });
    expect(await limited.call('evaluate', request('read'))).toMatchObject({ code: 'RATE_LIMITED', retryAfter: 3600 });
    expect(busy.asked).toHaveLength(1);

    const down = await impostor(() => 'cut');
    const lost = await language.open({ baseUrl: down.url, key: 'svc_agent_x', retries: 2 });
    expect(await lost.call('ask', request('read'))).toMatchObject({ error: 'UnavailableError' });
    expect(down.asked).toHaveLength(3);
    const silent = await impostor(() => 'silent');
    const slow = await language.open({ baseUrl: silent.url, key: 'svc_agent_x', retries: 0, timeoutMs: 200 });
    expect(await slow.call('evaluate', request('read'))).toMatchObject({ error: 'UnavailableError' });
  });

  test('takes nothing for a permit that is not one', async () => {
    for (const [status, body] of [
      [200, ''],
      [200, 'allow'],
      [200, '"allow"'],
      [200, 'null'],
      [200, '[]'],
      [200, '{}'],
      [200, '{"decision":"allow"}'],
      [200, '{"decision":"Allow","event_id":"e"}'],
      [200, '{"decision":["allow"],"event_id":"e"}'],
      [200, '{"decision":"toString","event_id":"e"}'],
      [204, ''],
      [500, ALLOW],
      [404, ALLOW],
      [404, '<html>'],
    ] as const) {
      const { url } = await impostor(() => [status, {}, body]);
      const client = await language.open({ baseUrl: url, key: 'svc_agent_x', retries: 0 });
      expect(await client.call('ask', request('read')), `${status} ${body}`).toMatchObject({
        error: 'UnavailableError',
      });
      expect(await client.call('evaluateAll', [request('read')]), `${status} ${body}`).toMatchObject({
        error: 'UnavailableError',
      });
    }
    const { url } = await impostor(() => [200, {}, JSON.stringify({ results: [JSON.parse(ALLOW)] })]);
    const client = await language.open({ baseUrl: url, key: 'svc_agent_x' });
    expect(await client.call('evaluateAll', [request('read'), request('pay')])).toMatchObject({
      error: 'UnavailableError',
    });
  });

  test('follows no redirect with its key, and prints it nowhere', async () => {
    const thief = await impostor(() => [200, {}, ALLOW]);
    for (const status of [301, 302, 303, 307, 308]) {
      const moved = await impostor(() => [status, { location: thief.url }, '']);
      const client = await language.open({ baseUrl: moved.url, key: 'svc_agent_SECRET', retries: 0 });
      const answer = await client.call('evaluate', request('read', { arguments: { note: 'PRIVATE' } }));
      expect(answer).toMatchObject({ error: 'UnavailableError' });
      expect(answer.text).not.toMatch(/SECRET|PRIVATE/);
    }
    expect(thief.asked).toEqual([]);
    const closed = await language.open({ baseUrl: 'http://127.0.0.1:9', key: 'svc_agent_SECRET', retries: 0 });
    expect(closed.printed).not.toContain('SECRET');
    const answer = await closed.call('evaluate', request('read', { arguments: { note: 'PRIVATE' } }));
    expect(answer.text).not.toMatch(/SECRET|PRIVATE/);
    const refusing = await language.open({ key: 'svc_agent_SECRET' });
    const refused = await refusing.call('evaluate', request('read'));
    expect(refused).toMatchObject({ error: 'ProblemError', code: 'UNAUTHENTICATED' });
    expect(refused.text).not.toContain('SECRET');
  });

  test('is refused where it means another tenant', async () => {
    const client = await language.open({ key: await newKey(), tenant: 'another' });
    expect(await client.call('evaluate', request('read'))).toMatchObject({ error: 'ProblemError', code: 'FORBIDDEN' });
    const rows = await sql(server, `select 1 from forensic_record where line::json->>'agent_id' = $1`, [
      `of-an-sdk-${counter}`,
    ]);
    expect(rows).toEqual([]);
  });
});

test('waiting ends with the reason of its signal', async () => {
  const client = new AgentClient({ baseUrl: server.url, key: await newKey() });
  const leaving = new AbortController();
  const why = new Error('enough');
  const asked = client.ask(
    { action_type: 'tool_call', tool_name: 'pay' },
    { signal: leaving.signal, onHold: () => setTimeout(() => leaving.abort(why)) },
  );
  await expect(asked).rejects.toBe(why);
  await expect(
    client.evaluate({ action_type: 'tool_call', tool_name: 'card' }, { signal: leaving.signal }),
  ).rejects.toBe(why);
  const closed = new AgentClient({ baseUrl: 'http://127.0.0.1:9', key: 'k' });
  const late = closed.evaluate({ action_type: 'tool_call', tool_name: 'x' }, { signal: AbortSignal.timeout(50) });
  await expect(late).rejects.toMatchObject({ name: 'TimeoutError' });
  await expect(
    new AgentClient({ baseUrl: 'http://127.0.0.1:9', key: 'k', retries: 0 }).report({
      event_id: 'e',
      outcome: 'failed',
    }),
  ).rejects.toBeInstanceOf(UnavailableError);
});

test('what JSON cannot say is not asked: the policies would see something else', async () => {
  const { url, asked } = await impostor(() => [200, {}, ALLOW]);
  const client = new AgentClient({ baseUrl: url, key: 'k' });
  for (const amount of [
    JSON.parse('1e999'),
    Number.NaN,
    1n,
    () => 1,
    new Map([['to', 'x']]),
    new Set([1]),
    [undefined],
  ]) {
    const action = { ...request('pay'), arguments: { amount } };
    await expect(client.evaluate(action)).rejects.toBeInstanceOf(SvcError);
    await expect(client.ask(action)).rejects.toThrow('the request is not JSON');
    await expect(client.evaluateAll([request('pay'), action])).rejects.toBeInstanceOf(SvcError);
  }
  expect(asked).toEqual([]);
  await client.evaluate({ ...request('pay'), arguments: { at: new Date(0), not: undefined } });
  expect(JSON.parse(asked[0]!.body).arguments).toEqual({ at: '1970-01-01T00:00:00.000Z' });
});

test('the typed client of an agent does not send again what names no call', async () => {
  const { url, asked } = await impostor(() => 'cut');
  const client = new AgentClient({ baseUrl: url, key: 'k', retries: 2 });
  await expect(client.api.POST('/v1/evaluate', { body: request('pay') })).rejects.toThrow();
  expect(asked).toHaveLength(1);
});

test('what is no JSON has no mask', () => {
  expect(mask(new Map([['ssn', 1]]), ['$.ssn'])).toEqual({});
  const circle: Record<string, unknown> = { ssn: '4111' };
  circle.self = circle;
  for (const value of [circle, 1n, () => '4111', Symbol('4111')]) {
    expect(() => mask(value, ['$.ssn'])).toThrow(expect.not.stringContaining('4111'));
    expect(() => mask(value, ['$.ssn'])).toThrow(expect.objectContaining({ name: 'MaskError' }));
  }
  const given = { ssn: 1 };
  expect(mask(given, { masks: ['$.ssn'] })).toEqual({ ssn: '[masked]' });
  expect(given).toEqual({ ssn: 1 });
  expect(mask(undefined, ['$.ssn'])).toBeUndefined();
});
