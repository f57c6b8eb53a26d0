import { Counter } from 'prom-client';
import { expect, onTestFinished, test, vi } from 'vitest';
import { Disputes } from '../../server/decisions/disputes.ts';
import { createLog } from '../../server/lib/log.ts';
import { conditionsOf } from '../../server/policy/evaluation/cedar/parse.ts';
import { decisionHost, PolicyEngine } from '../../server/policy/evaluation/evaluate.ts';
import { ruleReference } from '../../server/policy/evaluation/hold-terms.ts';
import { svcHere } from '../cli/svc.ts';
import { useServer } from '../helpers/server.ts';
import { contentOf, request } from '../policy/support.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer();

test('a dispute between Cedar and the compiled conditions is logged, counted and audited, and the statement stays with Cedar', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const logged: string[] = [];
  const count = new Counter({ name: 'disputes', help: 'disputes', registers: [] });
  const disputes = new Disputes({
    db: server.core.db,
    audit: server.core.audit,
    log: createLog('info', { write: (line: string) => logged.push(line) }),
    count,
  });
  const content = contentOf({
    pol: [
      '@id("wrong") permit(principal, action, resource) when { context.str.hasTag("disputed here") };',
      '@id("right") permit(principal, action, resource) when { context.str.hasTag("nobody disputes") };',
    ].join('\n'),
  });
  const wrongly: typeof conditionsOf = (host, texts) =>
    conditionsOf(host, texts).map((condition, n) => (texts[n]!.includes('"wrong"') ? () => true : condition));
  const first = new PolicyEngine(content, { conditionsOf: wrongly });
  const { disputed, hits } = first.match(request());
  expect(disputed).toEqual(['pol#wrong']);
  await disputes.raise(tenant.id, hits, 'evt_1');

  expect(logged.join()).toContain('pol#wrong');
  expect((await count.get()).values).toMatchObject([{ value: 1 }]);
  const { body } = await server.call<{ records: unknown[] }>(
    200,
    'GET /v1/audit?action=policy.evaluation_disputed',
    tenant.admin,
  );
  const { hash } = ruleReference(hits[0]!);
  expect(body.records).toMatchObject([
    { code: 'POL012E', severity: 'critical', target: { type: 'rule', id: 'pol#wrong' }, after_hash: hash },
  ]);

  const left = await disputes.known(tenant.id);
  expect([...left]).toEqual([hash]);
  expect(await disputes.known(other.id)).toEqual(new Set());
  const env = {
    DATABASE_URL: server.databaseUrl,
    SVC_DATA_DIR: server.dataDir,
    SVC_MASTER_KEY: Buffer.alloc(32, 7).toString('hex'),
  };
  // the database of tests does not flush, which fails a check
  const { stdout } = await svcHere(1, env, 'doctor');
  expect(stdout).toMatch(
    new RegExp(`warn +policy engine +${tenant.id}: the compiled conditions of pol#wrong differed`),
  );
  // an engine that is told about it compiles only the other one
  const compiled: string[] = [];
  const next = new PolicyEngine(content, {
    left,
    conditionsOf: (host, texts) => {
      compiled.push(...texts);
      return conditionsOf(host, texts);
    },
  });
  expect(next.match(request()).outcome).toBe('unpermitted');
  expect(compiled.map((text) => /@id\("(\w+)"\)/.exec(text)?.[1])).toEqual(['right']);
  for (const engine of [first, next]) engine.dispose();
});

test('a dispute that another process found reaches the engines that are loaded here', async () => {
  const tenant = await server.tenant();
  const source = '@id("loaded") permit(principal, action, resource == Tool::"loaded here");';
  await enforce(server, tenant, 'desk', source);
  const agent = await tenant.agent('bot-1', 'clerk');
  const host = vi.spyOn(decisionHost(), 'call');
  onTestFinished(() => host.mockRestore());
  const asksCedar = async () => {
    host.mockClear();
    const body = { action_type: 'tool_call', tool_name: 'loaded here' };
    const answer = await server.call(200, 'POST /v1/evaluate', agent, body);
    expect(answer.body).toMatchObject({ decision: 'allow' });
    return host.mock.calls.some(([name]) => name === 'statefulIsAuthorized');
  };
  // the first answer is compared
  expect([await asksCedar(), await asksCedar()]).toEqual([true, false]);
  const { db, audit } = server.core;
  const count = new Counter({ name: 'elsewhere', help: 'disputes', registers: [] });
  const elsewhere = new Disputes({ db, audit, log: createLog('silent'), count });
  expect(await elsewhere.known(tenant.id)).toEqual(new Set());
  await elsewhere.raise(tenant.id, contentOf({ desk: source }).policies, 'evt_1');
  expect((await elsewhere.known(tenant.id)).size).toBe(1);
  expect([await asksCedar(), await asksCedar()]).toEqual([true, true]);
});
