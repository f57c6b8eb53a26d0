import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { createClient } from '../../sdk/client/src/index.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

/** The policy of the README's first five minutes, as it stands there. */
function readmePolicy(): string {
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8');
  const [, source] = /cat > refunds\.cedar <<'CEDAR'\n([\s\S]*?)\nCEDAR\n/.exec(readme)!;
  return source!;
}

/** The answer of a call that must have succeeded. */
function ok<T>({ data, error, response }: { data?: T; error?: unknown; response: Response }): T {
  expect(error, `${response.status} of ${response.url}`).toBeUndefined();
  return data!;
}

test('the client that is generated from the document does the first five minutes of the README', async () => {
  const tenant = await server.tenant();
  const baseUrl = server.url;
  const admin = createClient({ baseUrl, key: tenant.admin.key });
  const dsl_source = readmePolicy();

  const checked = ok(await admin.POST('/v1/policies/validate', { body: { dsl_source } }));
  expect(checked).toMatchObject({ valid: true, errors: [] });
  const draft = ok(await admin.POST('/v1/policies', { body: { id: 'refunds', dsl_source } }));
  expect(draft).toMatchObject({ status: 'draft', version: 1 });
  const approve = { params: { path: { id: 'refunds' } }, body: { version: draft.version } };
  expect(ok(await admin.POST('/v1/policies/{id}/approve', approve))).toMatchObject({ live_version: 1 });

  const made = ok(await admin.POST('/v1/agent-keys', { body: { agent_id: 'support-bot-1', agent_role: 'support' } }));
  const agent = createClient({ baseUrl, key: made.key });
  const ask = (tool_name: string, args: Record<string, unknown>, hold?: string) =>
    agent.POST('/v1/evaluate', {
      params: { header: { 'X-Svc-Tenant': tenant.id, ...(hold && { 'X-Svc-Escrow-Id': hold }) } },
      body: { action_type: 'tool_call', tool_name, arguments: args },
    });
  expect(ok(await ask('refund', { amount: 20 })).decision).toBe('allow');
  const held = ok(await ask('refund', { amount: 900 }));
  expect(held.decision).toBe('escrow');
  expect(ok(await ask('delete_account', { user: 'u1' })).decision).toBe('deny');

  const approver = await tenant.person('approver');
  const id = held.escrow!.id;
  // a person has a session, not a key
  const session = createClient({
    baseUrl,
    key: '',
    fetch: (input) => {
      const request = new Request(input as Request);
      request.headers.delete('authorization');
      request.headers.set('cookie', approver.cookie!);
      request.headers.set('origin', server.origin);
      return fetch(request);
    },
  });
  const holds = ok(await session.GET('/v1/escrow', { params: { query: { status: 'held' } } }));
  expect(holds.holds.map((hold) => hold.id)).toEqual([id]);
  const vote = { params: { path: { id } }, body: { decision: 'approve', reason: 'as agreed' } } as const;
  expect(ok(await session.POST('/v1/escrow/{id}/vote', vote)).status).toBe('released');
  expect(ok(await ask('refund', { amount: 900 }, id)).decision).toBe('allow');

  // what is refused is a typed problem
  const again = await ask('refund', { amount: 900 }, id);
  expect([again.response.status, again.error?.code]).toEqual([409, 'ALREADY_CONSUMED']);

  const denied = ok(await admin.GET('/v1/events', { params: { query: { decision: 'deny' } } }));
  expect(denied.events.map((event) => [event.tool_name, event.deny_reason])).toEqual([
    ['delete_account', 'accounts are never deleted by agents'],
  ]);
  expect(ok(await admin.GET('/v1/forensics/verify'))).toMatchObject({ verified: true });
  const exported = ok(await session.POST('/v1/forensics/export', { body: { purpose: 'first look' } }));
  const file = await session.GET('/v1/forensics/packages/{id}/download', {
    params: { path: { id: exported.package_id } },
    parseAs: 'arrayBuffer',
  });
  expect((ok(file) as unknown as ArrayBuffer).byteLength).toBeGreaterThan(1000);

  const proxyKey = ok(await admin.POST('/v1/keys', { body: { label: 'first proxy', scopes: ['proxy'] } }));
  const proxy = createClient({ baseUrl, key: proxyKey.key });
  const bundle = await proxy.GET('/v1/policies/bundle', { parseAs: 'arrayBuffer' });
  const hash = bundle.response.headers.get('x-svc-bundle-hash')!;
  const unchanged = await proxy.GET('/v1/policies/bundle', { params: { query: { current_hash: hash } } });
  expect(unchanged.response.status).toBe(304);
});
