import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { signatureHeaders } from '../../server/subscriptions/signature.ts';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';

/** The receivers of docs/webhooks.md, run as they are there. */
const page = readFileSync(new URL('../../docs/webhooks.md', import.meta.url), 'utf8');
const block = (language: string, first: string) =>
  [...page.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, 'gm'))]
    .map(([, text]) => text!)
    .find((text) => text.includes(first))!;
const python = spawnSync('python3', ['--version']).status === 0;
if (!python) console.warn('SKIPPED: the receiver in Python, because python3 is not on the PATH');

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' });
const dir = mkdtempSync(path.join(tmpdir(), 'svc-receiver-'));
const children: ChildProcess[] = [];
afterAll(() => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(dir, { recursive: true, force: true });
});

describe.each([
  ['TypeScript', 'ts', 'receiver.ts', process.execPath],
  ['Python', 'python', 'receiver.py', 'python3'],
])('the receiver in %s', (_, language, file, command) => {
  test.skipIf(language === 'python' && !python)(
    'takes what this server signs, once, and answers 400 to everything else',
    async () => {
      writeFileSync(path.join(dir, file), block(language, `${file}: PORT`));
      const port = await freePort();
      const secret = 'a signing secret of mine';
      const env = { ...process.env, PORT: String(port), WEBHOOK_SECRET: secret };
      const child = spawn(command, [path.join(dir, file)], { env, stdio: ['ignore', 'pipe', 'pipe'] });
      children.push(child);
      let output = '';
      let errors = '';
      child.stdout.on('data', (data) => {
        output += String(data);
      });
      child.stderr.on('data', (data) => {
        errors += String(data);
      });
      const url = `http://127.0.0.1:${port}/`;
      await expect
        .poll(() =>
          fetch(url, { method: 'POST', body: '{}' }).then(
            ({ status }) => status,
            () => errors,
          ),
        )
        .toBe(400);
      const tenant = await server.tenant();
      const { body: made } = await server.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, {
        url,
        secret,
        event_types: ['policy.created'],
      });
      const line = `POST /v1/subscriptions/${made.id}/test`;
      expect((await server.call(200, line, tenant.admin, {})).body).toMatchObject({
        delivered: true,
        http_status: 204,
      });
      await server.call(201, 'POST /v1/policies', tenant.admin, {
        id: 'guard',
        dsl_source: 'permit(principal, action, resource);',
      });
      await expect.poll(() => output.trim().split(/\s+/)).toEqual(['svc.test', 'policy.created']);
      // while the secret is replaced both are taken
      await server.call(200, `PATCH /v1/subscriptions/${made.id}`, tenant.admin, { secret: 'the secret after that' });
      expect((await server.call(200, line, tenant.admin, {})).body).toMatchObject({ delivered: true });

      const now = Math.floor(Date.now() / 1000);
      const body = JSON.stringify({ event: 'forged' });
      const signed = (more: Partial<Parameters<typeof signatureHeaders>[0]> = {}) =>
        signatureHeaders({ body, eventId: 'oev_x', timestamp: now, secrets: [secret], ...more });
      const send = async (headers: Record<string, string>, text = body) =>
        (await fetch(url, { method: 'POST', body: text, headers })).status;
      expect(await send(signed({ secrets: ['another secret'] }))).toBe(400);
      expect(await send(signed({ timestamp: now - 3600 }))).toBe(400);
      expect(await send(signed(), `${body} `)).toBe(400);
      expect(await send({ 'x-svc-signature': 't=,v1=' })).toBe(400);
      expect(await send({ 'x-svc-signature': `t=${now},v1=é` })).toBe(400);
      expect(await send({})).toBe(400);
      expect(output).not.toContain('forged');
      expect(await send(signed())).toBe(204);
      expect(await send(signed())).toBe(204);
      await expect.poll(() => output.match(/forged/g)?.length).toBe(1);
    },
  );
});
