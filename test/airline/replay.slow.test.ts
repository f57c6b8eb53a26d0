import { execFile } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ask, type ServerProcess, signIn, startServer, svc, svcHere, temporaryDirectory } from '../cli/svc.ts';
import { SIEGE } from '../siege/rounds.ts';

/**
 * A recorded day of an airline's agent, through the whole program: a server of its own, its policies, every call decided
 * and recorded, and an evidence package of it that an auditor checks without the server.
 */
const root = path.resolve(import.meta.dirname, '../..');
const data = process.env.SVC_TEST_DATA ?? path.join(root, '../shared/data');
const file = process.env.SVC_AIRLINE_DATA ?? path.join(data, 'airline-agent-tool-calls.jsonl');
const there = existsSync(file);
if (!there) console.warn(`${file} is not at hand (SVC_AIRLINE_DATA): the replay of the airline is skipped`);

interface Call {
  session_id: string;
  tool_name: string;
  arguments: Record<string, never>;
}
interface Result {
  tenant_id: string;
  calls: number;
  sessions: number;
  decisions: Record<string, number>;
  tools: Record<string, Record<string, number>>;
  rules: Record<string, Record<string, number>>;
  deny_reasons: Record<string, number>;
  bad_lines: object[];
}

const dir = temporaryDirectory();
let server: ServerProcess;
let calls: Call[];
let result: Result;

describe.skipIf(!there)('the recorded calls of an airline', () => {
  beforeAll(async () => {
    const recorded: Call[] = readFileSync(file, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    // CI replays every fourth session, the siege the whole day
    const sessions = new Set([...new Set(recorded.map((c) => c.session_id))].filter((_, n) => SIEGE || n % 4 === 1));
    calls = recorded.filter((c) => sessions.has(c.session_id));
    const replayed = path.join(dir, 'calls.jsonl');
    writeFileSync(replayed, calls.map((call) => `${JSON.stringify(call)}\n`).join(''));
    server = await startServer(dir, { SVC_RATE_EVALUATE: '100000', SVC_RATE_KEY: '100000' });
    const policies = path.join(import.meta.dirname, 'policies');
    // a session is a customer, and the limits of the policies are meant for one
    const ran = await svc(0, server.env, 'replay', replayed, '--policies', policies, '--agent-per-session', '--json');
    result = ran.json<Result>();
  });
  afterAll(() => server?.stop());

  test('are all decided, tool by tool', () => {
    expect(calls.length).toBeGreaterThan(SIEGE ? 1163 : 250);
    expect(result).toMatchObject({
      calls: calls.length,
      sessions: new Set(calls.map((c) => c.session_id)).size,
      bad_lines: [],
    });
    const sums = (counts: Record<string, number>) => Object.values(counts).reduce((sum, count) => sum + count, 0);
    expect(sums(result.decisions)).toBe(calls.length);
    const ofTool = Object.fromEntries(Object.entries(result.tools).map(([tool, counts]) => [tool, sums(counts)]));
    const recorded: Record<string, number> = {};
    for (const { tool_name } of calls) recorded[tool_name] = (recorded[tool_name] ?? 0) + 1;
    expect(ofTool).toEqual(recorded);
    expect(sums(Object.fromEntries(Object.entries(result.rules).map(([rule, counts]) => [rule, sums(counts)])))).toBe(
      calls.length,
    );
  });

  test('are decided as the published rules say, worked out again without the policy language', () => {
    const count = (tool: string, matches: (args: Record<string, unknown>) => boolean) =>
      calls.filter((call) => call.tool_name === tool && matches(call.arguments)).length;
    const means = (args: Record<string, unknown>, kind: string) =>
      (args.payment_methods as { payment_id: string }[]).filter(({ payment_id }) => payment_id.startsWith(kind)).length;
    const breaks = (args: Record<string, unknown>) =>
      (args.passengers as object[]).length > 5 ||
      means(args, 'certificate_') > 1 ||
      means(args, 'credit_card_') > 1 ||
      means(args, 'gift_card_') > 3;
    const refused = count('book_reservation', breaks);
    expect(refused).toBeGreaterThan(0);
    expect(result.tools.book_reservation).toEqual({
      allow: count('book_reservation', () => true) - refused,
      deny: refused,
    });
    expect(result.decisions.deny).toBe(refused);

    const large = count('send_certificate', ({ amount }) => Number(amount) > 100);
    expect(result.tools.send_certificate).toEqual({
      allow: count('send_certificate', () => true) - large,
      escrow: large,
    });
    // what the history of the reservation decides is put before a person
    expect(result.tools.cancel_reservation).toEqual({ escrow: count('cancel_reservation', () => true) });
    expect(result.decisions.escrow).toBe(
      large +
        count('cancel_reservation', () => true) +
        count('update_reservation_passengers', () => true) +
        count('update_reservation_flights', ({ cabin }) => cabin === 'basic_economy'),
    );
    // the other tools read, and nothing that reads was held back
    for (const tool of ['get_user_details', 'get_reservation_details', 'search_direct_flight', 'think', 'calculate']) {
      expect(result.tools[tool]).toEqual({ allow: count(tool, () => true) });
    }
  });

  test('are evidence: the chain verifies, and a package of it does so without the server', async () => {
    const tenant = ['--tenant', result.tenant_id];
    const { key } = (await svcHere(0, server.env, 'key', 'create', ...tenant, '--scopes', 'pipeline', '--json')).json<{
      key: string;
    }>();
    const verdict = await ask(200, `${server.url}/v1/forensics/verify`, key);
    expect(verdict).toMatchObject({
      verified: true,
      linear: true,
      records_checked: calls.length + 1,
      head: { seq: calls.length + 1 },
    });
    const { events } = await ask<{ events: object[] }>(200, `${server.url}/v1/events?decision=deny`, key);
    expect(events).toHaveLength(result.decisions.deny!);

    const link = await svcHere(0, server.env, 'sign-in-link', ...tenant, '--email', 'replay@localhost', '--json');
    const cookie = await signIn(link.json<{ sign_in_url: string }>().sign_in_url, server.url);
    const headers = { cookie, origin: server.url };
    const made = await ask<{ package_id: string; record_count: number; package_hash: string }>(
      201,
      `${server.url}/v1/forensics/export`,
      undefined,
      { body: { purpose: 'replay of the recorded calls' }, headers },
    );
    expect(made).toMatchObject({ record_count: calls.length + 1, chain_intact: true });
    const download = await fetch(`${server.url}/v1/forensics/packages/${made.package_id}/download`, { headers });
    expect(download.status).toBe(200);
    const evidence = path.join(dir, 'evidence.tar');
    const pubkey = path.join(dir, 'pubkey.pem');
    writeFileSync(evidence, Buffer.from(await download.arrayBuffer()));
    writeFileSync(pubkey, await ask<string>(200, `${server.url}/pubkey`, undefined));

    const verify = path.join(root, 'server/forensics/svc-verify.ts');
    const { stdout } = await promisify(execFile)(process.execPath, [verify, evidence, '--pubkey', pubkey, '--json']);
    expect(JSON.parse(stdout)).toMatchObject({
      verified: true,
      tenant_id: result.tenant_id,
      record_count: calls.length + 1,
      package_hash: made.package_hash,
    });
  });
});
