import { mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import type { CedarTest } from '../../server/cli/policy/cedar.ts';
import { CedarHost } from '../../server/policy/language/host.ts';
import { deploy } from '../helpers/api.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { audienceOf, GITHUB_RUN, TokenIssuer, trust } from '../helpers/token-issuer.ts';
import { svcHere, temporaryDirectory } from './svc.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' });
const root = temporaryDirectory();
let tenant: TestTenant;
let env: Record<string, string>;
beforeAll(async () => {
  tenant = await server.tenant();
  env = { SVC_URL: server.url, SVC_TOKEN: (await tenant.key('pipeline')).key! };
});

let folders = 0;
function folder(files: Record<string, string> = {}): string {
  const dir = path.join(root, `f${++folders}`);
  mkdirSync(dir);
  put(dir, files);
  return dir;
}
function put(dir: string, files: Record<string, string>): void {
  for (const [name, text] of Object.entries(files)) writeFileSync(path.join(dir, name), text);
}
const read = (dir: string, name: string) => readFileSync(path.join(dir, name), 'utf8');

const SMALL = '@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund");\n';
const SUITE = `defaults: { agent_role: clerk, action_type: tool_call, tool_name: refund }
tests:
  - { name: a clerk refunds, request: {}, expect: { decision: allow, rule: refunds#small } }
`;

interface PlanOut {
  policies: { id: string; change: string; drift: string | null }[];
  removed: string[];
  unmanaged: string[];
}
const plan = async (code: number, dir: string, as = env, ...more: string[]) =>
  (await svcHere(code, as, 'policy', 'plan', dir, '--json', ...more)).json<PlanOut>();

describe('a test of a folder needs no server', () => {
  test('and exits with 0, 3 for what does not compile or cannot be read, and 4 for a test that fails', async () => {
    const dir = folder({ 'refunds.cedar': SMALL, 'refunds.test.yaml': SUITE });
    const none = { SVC_DATA_DIR: '/nonexistent/svc' };
    expect((await svcHere(0, none, 'policy', 'test', dir)).stdout).toContain('1 of 1 tests pass, coverage 100 %');
    // the other policies of the folder decide too
    put(dir, { 'stop.cedar': '@id("all") forbid(principal, action, resource);' });
    const failed = await svcHere(4, none, 'policy', 'test', dir);
    expect(failed.stdout).toContain('refunds.test.yaml:3:5: "a clerk refunds": decision: expected "allow", got "deny"');
    put(dir, { 'stop.cedar': 'forbid(principal, action, resource) when { nothing };' });
    const broken = await svcHere(3, none, 'policy', 'test', dir, '--json');
    expect(broken.json<{ policies: { id: string; errors: object[] }[] }>().policies[1]!.errors).toHaveLength(1);
    put(dir, { 'stop.cedar': SMALL, 'stop.test.yaml': 'tests: *x' });
    expect((await svcHere(3, none, 'policy', 'test', dir)).stdout).toContain('stop.test.yaml:1:8: aliases');
    await svcHere(1, none, 'policy', 'test', folder());
  });

  test('with the action types and lists of svc.yaml', async () => {
    const dir = folder({
      'svc.yaml': 'action_types: { write: [wire] }\nlists: { known-ibans: [DE1] }\n',
      'pay.cedar':
        'permit(principal, action == Action::"wire", resource) when { context.facts.hasTag("iban in known-ibans") };',
      'pay.test.yaml': `defaults: { agent_role: clerk, action_type: wire, tool_name: pay }
tests:
  - { name: known, request: { arguments: { iban: DE1 } }, expect: { decision: allow } }
  - { name: unknown, request: { arguments: { iban: DE2 } }, expect: { decision: deny } }
`,
    });
    await svcHere(0, {}, 'policy', 'test', dir);
    put(dir, { 'svc.yaml': 'prune: maybe' });
    expect((await svcHere(1, {}, 'policy', 'test', dir)).stderr).toContain('svc.yaml: prune');
  });

  test('refuses links, whatever they lead to, so that no secret of the machine leaves it', async () => {
    const dir = folder();
    const secret = path.join(root, 'secret');
    writeFileSync(secret, 'a secret');
    symlinkSync(secret, path.join(dir, 'p.cedar'));
    for (const words of [['test'], ['plan'], ['push'], ['pull', '--theirs']]) {
      const { stdout, stderr } = await svcHere(1, env, 'policy', words[0]!, dir, ...words.slice(1));
      expect(stderr).toContain('p.cedar is not a regular file');
      expect(stdout + stderr).not.toContain('a secret');
    }
    expect(readFileSync(secret, 'utf8')).toBe('a secret');
  });
});

describe('an export for the Cedar command line', () => {
  const POLICIES = `@id("reads") permit(principal in AgentRole::"clerk", action in Action::"read", resource);
@id("pays") permit(principal in AgentRole::"clerk", action in Action::"write", resource in ToolServer::"bank")
when { context.facts.hasTag("iban in known") && context.num.hasTag("amount") };
@id("holds") @escrow("single") @ttl("1h") forbid(principal, action in Action::"write", resource)
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("often") @reason("never") forbid(principal, action == Action::"wire", resource)
when { context.session.call_count > 3 || (context has source_ip && context.source_ip.isInRange(ip("10.0.0.0/8"))) };
`;
  const TESTS = `defaults: { agent_role: clerk, action_type: wire, tool_name: pay, tool_server: bank, source_ip: 192.0.2.1 }
tests:
  - name: reads
    table: [{ action_type: lookup }, { action_type: lookup, tool_name: 'b"ü\\d' }]
    expect: { decision: allow }
  - { name: small, request: { arguments: { iban: DE1, amount: 7 } }, expect: { decision: allow } }
  - { name: large, request: { arguments: { iban: DE1, amount: "70" } }, expect: { decision: escrow } }
  - { name: unknown, request: { arguments: { iban: DE2, amount: 7 } }, expect: { decision: deny } }
  - { name: guarded, request: { arguments: { iban: DE2, amount: 70 } }, expect: { decision: deny } }
  - { name: often, request: { session: { call_count: 4, started: 2026-01-01T00:00:00Z } }, expect: { decision: deny } }
  - { name: in doubt, request: { arguments: { amount: 7 euros } }, expect: { decision: deny } }
`;

  test('holds the same matches, as the engine reads the written files', async () => {
    const dir = folder({
      'svc.yaml': 'action_types: { read: [lookup], write: [wire] }\nlists: { known: [DE1] }\n',
      'bank.cedar': POLICIES,
      'bank.test.yaml': TESTS,
      'alone.cedar': '@id("x") permit(principal, action == Action::"lookup", resource);',
      'alone.test.yaml': `scope: policy
tests: [{ name: x, request: { agent_role: a, action_type: lookup, tool_name: t }, expect: { decision: allow } }]`,
    });
    const out = path.join(root, 'cedar');
    const { json } = await svcHere(0, {}, 'policy', 'test', dir, '--cedar', out, '--json');
    expect(json().exported).toEqual({
      tests: 6,
      omitted: [
        { policy: 'alone', name: 'x', why: expect.stringContaining('without the other policies') },
        { policy: 'bank', name: 'guarded', why: expect.stringContaining('guardrails') },
        { policy: 'bank', name: 'in doubt', why: expect.stringContaining('ambiguous') },
      ],
    });
    const text = read(out, 'policies.cedar');
    const schema = read(out, 'schema.cedarschema');
    const tests = JSON.parse(read(out, 'tests.json')) as CedarTest[];
    const host = new CedarHost();
    const valid = host.call('validate', { schema, policies: { staticPolicies: text } });
    expect(valid).toMatchObject({ type: 'success', validationErrors: [], validationWarnings: [] });
    // the Cedar command line names a policy by its annotation @id
    const ids = [...text.matchAll(/^@id\("(.*)"\)$/gm)].map(([, id]) =>
      id!.replace(/\\u\{(\w+)\}/g, (_, hex) => String.fromCodePoint(Number.parseInt(hex, 16))).replace(/\\(.)/g, '$1'),
    );
    expect(ids).toEqual(['alone#x', 'bank#reads', 'bank#pays', 'bank#holds', 'bank#often']);
    for (const one of tests) {
      const answer = host.call('isAuthorized', {
        ...Object.fromEntries(
          (['principal', 'action', 'resource'] as const).map((part) => {
            const [, type, id] = /^(\w+)::"(.*)"$/.exec(one.request[part])!;
            const plain = id!.replace(/\\u\{(\w+)\}/g, (_, hex) => String.fromCodePoint(Number.parseInt(hex, 16)));
            return [part, { type, id: plain.replace(/\\(.)/g, '$1') }];
          }),
        ),
        ...{ context: one.request.context, entities: one.entities, policies: { staticPolicies: text } },
        ...{ schema, validateRequest: true },
      } as never);
      if (answer.type !== 'success') throw new Error(JSON.stringify(answer.errors));
      const { decision, diagnostics } = answer.response;
      const reason = diagnostics.reason.map((id) => ids[Number(id.slice('policy'.length))]).sort();
      expect({ decision, reason, errors: diagnostics.errors.length }, one.name).toEqual({
        ...{ decision: one.decision, reason: one.reason, errors: 0 },
      });
    }
    expect(tests.map(({ name, decision, reason }) => [name, decision, reason])).toEqual([
      ['bank: reads (row 1)', 'allow', ['alone#x', 'bank#reads']],
      ['bank: reads (row 2)', 'allow', ['alone#x', 'bank#reads']],
      ['bank: small', 'allow', ['bank#pays']],
      ['bank: large', 'allow', ['bank#holds', 'bank#pays']],
      ['bank: unknown', 'deny', []],
      ['bank: often', 'deny', ['bank#often']],
    ]);
  });
});

describe('a folder and a server', () => {
  test('a push creates what differs, once, and a plan says what it would do', async () => {
    const dir = folder({ 'refunds.cedar': SMALL, 'refunds.test.yaml': SUITE });
    expect(await plan(2, dir)).toMatchObject({ policies: [{ id: 'refunds', change: 'create', drift: null }] });
    const first = await svcHere(0, env, 'policy', 'push', dir, '--json');
    expect(first.json()).toMatchObject({ pushed: [{ id: 'refunds', version: 1, status: 'draft', did: 'created' }] });
    expect((await plan(0, dir)).policies[0]!.change).toBe('none');
    const again = await svcHere(0, env, 'policy', 'push', dir, '--json');
    expect(again.json()).toMatchObject({ pushed: [{ version: 1, did: 'unchanged' }] });
    put(dir, {
      'refunds.cedar': SMALL.replace('"refund"', '"repay"'),
      'refunds.test.yaml': SUITE.replace('refund,', 'repay,').replace('refund }', 'repay }'),
    });
    const md = await svcHere(2, env, 'policy', 'plan', dir, '--md');
    expect(md.stdout).toContain('### Policies: 0 to create, 1 to change, 0 unchanged.');
    expect(md.stdout).toContain('```diff');
    expect(md.stdout).toContain('~small');
    const pushed = await svcHere(0, env, 'policy', 'push', dir, '--json');
    expect(pushed.json()).toMatchObject({ pushed: [{ version: 2, did: 'changed' }] });
    await server.call(200, 'POST /v1/policies/refunds/approve', tenant.admin, { version: 2 });
    expect((await svcHere(0, env, 'policy', 'status', dir)).stdout).toContain('0 of 0 proxies');
  });

  test('what was changed elsewhere is shown and never overwritten in silence', async () => {
    const own = await server.tenant();
    const as = { SVC_URL: server.url, SVC_TOKEN: (await own.key('pipeline')).key! };
    await deploy(server, own.admin, 'refunds', SMALL);
    const dir = folder();
    expect((await svcHere(0, as, 'policy', 'pull', dir)).stdout).toContain('written    refunds');
    expect(readdirSync(dir).sort()).toEqual(['refunds.cedar', 'svc.lock.json']);
    const edited = `// edited in the dashboard\n${SMALL}`;
    await server.call(200, 'PUT /v1/policies/refunds', own.admin, { dsl_source: edited });
    put(dir, { 'refunds.cedar': `// edited here\n${SMALL}` });
    expect((await plan(2, dir, as)).policies[0]!.drift).toContain('has version 2 by ');
    const refused = await svcHere(1, as, 'policy', 'push', dir);
    expect(refused.stderr).toContain('Use --ours or --theirs');
    expect((await server.call(200, 'GET /v1/policies/refunds', own.admin)).body.version).toBe(2);
    expect((await svcHere(1, as, 'policy', 'pull', dir)).stdout).toContain('kept       refunds');
    expect(read(dir, 'refunds.cedar')).toContain('edited here');
    await svcHere(0, as, 'policy', 'push', dir, '--theirs');
    expect(read(dir, 'refunds.cedar')).toBe(edited);
    await plan(0, dir, as);
    // and with --ours
    await server.call(200, 'PUT /v1/policies/refunds', own.admin, { dsl_source: SMALL });
    await svcHere(1, as, 'policy', 'push', dir);
    await svcHere(0, as, 'policy', 'push', dir, '--ours');
    expect((await server.call(200, 'GET /v1/policies/refunds', own.admin)).body).toMatchObject({
      ...{ version: 4, dsl_source: edited },
    });
    // ended in the dashboard: not brought back to life in silence either
    await server.call(200, 'DELETE /v1/policies/refunds', own.admin, {});
    expect((await svcHere(1, as, 'policy', 'push', dir)).stderr).toContain('was revoked in version 4');
  });

  test('nothing is revoked unless asked for, and then only what the folder had', async () => {
    const own = await server.tenant();
    const as = { SVC_URL: server.url, SVC_TOKEN: (await own.key('pipeline')).key! };
    await deploy(server, own.admin, 'elsewhere', SMALL);
    const dir = folder({ 'a.cedar': SMALL, 'b.cedar': SMALL });
    await svcHere(0, as, 'policy', 'push', dir);
    rmSync(path.join(dir, 'b.cedar'));
    expect(await plan(0, dir, as)).toMatchObject({ removed: ['b'], unmanaged: ['elsewhere'] });
    await svcHere(0, as, 'policy', 'push', dir);
    await plan(2, dir, as, '--prune');
    await svcHere(0, as, 'policy', 'push', dir, '--prune');
    const status = async (id: string) => (await server.call(200, `GET /v1/policies/${id}`, own.admin)).body.status;
    expect([await status('a'), await status('b'), await status('elsewhere')]).toEqual(['draft', 'revoked', 'deployed']);
  });

  test('nothing is pushed while a test fails, a text has a fault or the server is another one', async () => {
    const dir = folder({ 'a.cedar': SMALL, 'b.cedar': SMALL, 'b.test.yaml': SUITE.replace('allow', 'deny') });
    await plan(1, dir);
    const { stdout } = await svcHere(1, env, 'policy', 'push', dir);
    expect(stdout).toContain('b.test.yaml:3:5: "a clerk refunds"');
    await server.call(404, 'GET /v1/policies/a', tenant.admin);
    await svcHere(1, { ...env, SVC_TOKEN: 'svc_key_nonsense' }, 'policy', 'plan', dir);
    // exit code 2 would say that something changes
    expect((await svcHere(1, {}, 'policy', 'plan', dir)).stderr).toContain('the address of the server is missing');
    expect((await svcHere(1, { SVC_TOKEN: 'x' }, 'policy', 'plan', dir, '--url', 'http://10.0.0.1')).stderr).toContain(
      'is not an https address',
    );
  });

  test('a file under review cannot say where a credential is sent', async () => {
    const sent: string[] = [];
    const elsewhere = createServer(async (request, response) => {
      sent.push(request.url!);
      for await (const part of request) sent.push(String(part));
      response.setHeader('content-type', 'application/json').end('{"value":"x","access_token":"x"}');
    });
    await new Promise<void>((resolve) => elsewhere.listen(0, '127.0.0.1', resolve));
    atEnd(() => void elsewhere.close());
    const url = `http://127.0.0.1:${(elsewhere.address() as AddressInfo).port}`;
    const { SVC_TOKEN } = env as { SVC_TOKEN: string };
    const github = { ACTIONS_ID_TOKEN_REQUEST_URL: `${url}/token?x=1`, ACTIONS_ID_TOKEN_REQUEST_TOKEN: 'run-token' };
    for (const file of [`url: ${url}\ntenant: x\n`, 'tenant: x\n']) {
      const dir = folder({ 'a.cedar': SMALL, 'svc.yaml': file });
      for (const credential of [{ SVC_TOKEN }, { SVC_OIDC_TOKEN: 'of-the-run' }, github]) {
        for (const command of 'SVC_TOKEN' in credential ? ['plan', 'push'] : ['plan', 'push', 'login']) {
          const code = file.startsWith('url') || command === 'plan' ? 1 : 2;
          const { stderr } = await svcHere(code, { ...credential, SVC_URL: '' }, 'policy', command, dir);
          expect(stderr).toContain(file.startsWith('url') ? 'url' : 'set SVC_URL, or use --url');
        }
      }
    }
    expect(sent).toEqual([]);
  });

  test('what a policy says cannot leave its place in a comment', async () => {
    const dir = folder({
      'a.cedar': `// \`\`\`\n// </details> @everyone [x](http://evil) \n${SMALL}`,
      'a.test.yaml': SUITE.replace('a clerk refunds', '"`x` | <img src=x> @everyone"')
        .replace('refunds#', 'a#')
        .replace('allow', 'deny'),
    });
    await deploy(server, tenant.admin, 'a', SMALL);
    const { stdout } = await svcHere(1, env, 'policy', 'plan', dir, '--md');
    expect(stdout).toContain('````diff\n');
    expect(stdout).toMatch(/^- `` a\.test\.yaml.*\\\|.* ``$/m);
  });

  test('as a pipeline signs in: with its own token, to drafts that wait for a person', async () => {
    const own = await server.tenant();
    const issuer = await TokenIssuer.start(() => server.clock.now());
    await trust(server, own, issuer);
    await own.set({ approval_required: true });
    const dir = folder({ 'refunds.cedar': SMALL, 'refunds.test.yaml': SUITE, 'svc.yaml': `tenant: ${own.id}\n` });
    const run = async () => ({
      SVC_URL: server.url,
      SVC_OIDC_TOKEN: await issuer.sign({ ...GITHUB_RUN, aud: audienceOf(server, own) }),
    });
    const pushed = await svcHere(0, await run(), 'policy', 'push', dir, '--submit', '--message', 'as agreed', '--json');
    expect(pushed.json()).toMatchObject({ pushed: [{ status: 'pending_approval', did: 'created, submitted' }] });
    await svcHere(0, await run(), 'policy', 'push', dir, '--submit');
    const { body } = await server.call<{ versions: { note: string; source: object }[] }>(
      200,
      'GET /v1/policies/refunds',
      own.admin,
    );
    expect(body.versions).toHaveLength(1);
    expect(body.versions[0]).toMatchObject({
      note: 'as agreed',
      source: { repo: 'acme/policies', path: 'refunds.cedar', proven: ['repo', 'commit', 'ref', 'actor'] },
    });
    expect((await svcHere(2, await run(), 'policy', 'status', dir)).stdout).toContain('pending approval');
    const token = (await svcHere(0, await run(), 'policy', 'login', dir)).stdout.trim();
    const waiting = svcHere(0, { SVC_URL: server.url, SVC_TOKEN: token }, 'policy', 'status', dir, '--wait', '60s');
    await server.call(200, 'POST /v1/policies/refunds/approve', await own.person('approver'), { version: 1 });
    expect((await waiting).stdout).toContain('live');
    // a key alone may not submit: its holder could approve alone
    put(dir, { 'refunds.cedar': `${SMALL}\n` });
    const key = { SVC_URL: server.url, SVC_TOKEN: own.operatorKey.key };
    expect((await svcHere(1, key, 'policy', 'push', dir, '--submit')).stderr).toContain('saved but not submitted');
  });
});
