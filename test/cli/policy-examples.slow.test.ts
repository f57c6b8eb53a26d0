import { spawn } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { atEnd } from '../helpers/cleanups.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { audienceOf, GITHUB_RUN, TokenIssuer, trust } from '../helpers/token-issuer.ts';
import { ended, temporaryDirectory } from './svc.ts';

/** The steps of the pipelines in docs/examples, run by a shell as the platform runs them. */
const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }, { browsed: true });
const dir = temporaryDirectory();
const root = path.resolve(import.meta.dirname, '../..');
const example = (name: string) => parse(readFileSync(path.join(root, 'docs/examples', name), 'utf8'));
const POLICY = '@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund");\n';
const SUITE = `tests:
  - name: a clerk refunds
    request: { agent_role: clerk, action_type: tool_call, tool_name: refund }
    expect: { decision: allow }
`;

let issuer: TokenIssuer;
beforeAll(async () => {
  issuer = await TokenIssuer.start();
  const bin = path.join(dir, 'svc');
  writeFileSync(bin, `#!/bin/sh\nexec "${process.execPath}" "${path.join(root, 'server/cli.ts')}" "$@"\n`);
  chmodSync(bin, 0o755);
});

/** A checkout with policies of a tenant that trusts its main branch. */
async function checkout(claims: Record<string, string>): Promise<{ cwd: string; tenant: TestTenant }> {
  const tenant = await server.tenant();
  const match = claims.project_id ? { project_id: claims.project_id } : { repository_id: claims.repository_id };
  await trust(server, tenant, issuer, { match, scopes: ['policies:read'] });
  await trust(server, tenant, issuer, { match: { ...match, environment: 'policies' } });
  await tenant.set({ approval_required: true });
  const cwd = path.join(dir, tenant.id);
  mkdirSync(path.join(cwd, 'policies'), { recursive: true });
  const put = (name: string, text: string) => writeFileSync(path.join(cwd, 'policies', name), text);
  put('refunds.cedar', POLICY);
  put('refunds.test.yaml', SUITE);
  put('svc.yaml', `tenant: ${tenant.id}\n`);
  return { cwd, tenant };
}

async function shell(cwd: string, script: string, env: Record<string, string>) {
  const child = spawn('bash', ['-e', '-o', 'pipefail', '-c', script], {
    cwd,
    env: { PATH: `${dir}:${process.env.PATH}`, HOME: cwd, SVC_URL: server.url, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  return ended(child);
}

const approve = async (tenant: TestTenant) =>
  server.call(200, 'POST /v1/policies/refunds/approve', await tenant.person('approver'), { version: 1 });
const stored = async (tenant: TestTenant) =>
  (await server.call(200, 'GET /v1/policies/refunds', tenant.admin)).body as Record<string, unknown>;

describe('the pipeline of', () => {
  test('GitHub plans pull requests, pushes the main branch, and never the other way around', async () => {
    const { jobs } = example('github.yml') as {
      jobs: Record<string, { steps: { name?: string; run?: string; if?: string }[]; permissions: object }>;
    };
    const { cwd, tenant } = await checkout(GITHUB_RUN);
    let claims: Record<string, unknown> = {};
    // what GitHub offers its runs
    const http = createServer(async (request, response) => {
      const aud = new URL(request.url!, 'http://x').searchParams.get('audience');
      const value = await issuer.sign({ ...GITHUB_RUN, ...claims, aud });
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(request.headers.authorization === 'Bearer run-token' ? { value } : {}));
    });
    await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
    atEnd(() => void http.close());
    const env = {
      GITHUB_ACTIONS: 'true',
      GITHUB_REPOSITORY: 'acme/policies',
      GITHUB_SHA: GITHUB_RUN.sha,
      GITHUB_STEP_SUMMARY: path.join(cwd, 'summary.md'),
      ACTIONS_ID_TOKEN_REQUEST_URL: `http://127.0.0.1:${(http.address() as AddressInfo).port}/token?api-version=2`,
      ACTIONS_ID_TOKEN_REQUEST_TOKEN: 'run-token',
    };
    const steps = (job: string) => jobs[job]!.steps.flatMap(({ run }) => run ?? []);
    claims = { event_name: 'pull_request', ref: 'refs/pull/1/merge' };
    for (const run of steps('plan')) {
      const ran = await shell(cwd, run, env);
      expect(ran.code, `${run}\n${ran.stdout}${ran.stderr}`).toBe(0);
    }
    expect(readFileSync(env.GITHUB_STEP_SUMMARY, 'utf8')).toContain('### Policies: 1 to create');
    // a pull request that runs the steps of the main branch
    claims = { event_name: 'pull_request', ref: 'refs/pull/1/merge', environment: 'policies' };
    const hostile = await shell(cwd, steps('push')[1]!, env);
    expect([hostile.code, hostile.stderr]).toEqual([1, expect.stringContaining('event_name cannot write')]);
    await server.call(404, 'GET /v1/policies/refunds', tenant.admin);
    claims = { environment: 'policies' };
    const [tested, pushed, waiting] = steps('push');
    for (const run of [tested!, pushed!, pushed!]) {
      const ran = await shell(cwd, run, env);
      expect(ran.code, `${run}\n${ran.stdout}${ran.stderr}`).toBe(0);
    }
    expect(await stored(tenant)).toMatchObject({ status: 'pending_approval', version: 1 });
    const waits = shell(cwd, waiting!, env);
    await approve(tenant);
    const ran = await waits;
    expect(ran.code, ran.stdout + ran.stderr).toBe(0);
  });

  test('GitLab does the same with the one token of each job', async () => {
    const jobs = example('gitlab.yml') as Record<
      string,
      { script: string[]; id_tokens: { SVC_OIDC_TOKEN: { aud: string } } }
    >;
    const run = {
      ...{ project_id: '55', project_path: 'acme/policies', namespace_id: '3', user_login: 'ann', job_id: '9' },
      ...{ ref: 'main', ref_path: 'refs/heads/main', sha: GITHUB_RUN.sha, sub: 'project_path:acme/policies' },
    };
    const { cwd, tenant } = await checkout(run);
    const job = async (name: string, claims: Record<string, string>) => {
      expect(jobs[name]!.id_tokens.SVC_OIDC_TOKEN.aud).toBe('$SVC_URL/tenants/acme');
      const SVC_OIDC_TOKEN = await issuer.sign({ ...run, ...claims, aud: audienceOf(server, tenant) });
      const CI = { CI_PROJECT_PATH: 'acme/policies', CI_COMMIT_SHA: run.sha };
      return shell(cwd, jobs[name]!.script.join('\n'), { ...CI, SVC_OIDC_TOKEN });
    };
    const planned = await job('plan policies', { pipeline_source: 'merge_request_event' });
    expect(planned.code, planned.stdout + planned.stderr).toBe(0);
    expect(planned.stdout).toContain('### Policies: 1 to create');
    const hostile = await job('push policies', { pipeline_source: 'merge_request_event', environment: 'policies' });
    expect(hostile.code).not.toBe(0);
    await server.call(404, 'GET /v1/policies/refunds', tenant.admin);
    const pushing = job('push policies', { pipeline_source: 'push', environment: 'policies' });
    await expect
      .poll(async () =>
        (
          await fetch(`${server.url}/v1/policies/refunds`, {
            headers: { authorization: `Bearer ${tenant.admin.key}` },
          })
        ).json(),
      )
      .toMatchObject({ status: 'pending_approval' });
    await approve(tenant);
    const pushed = await pushing;
    expect(pushed.code, pushed.stdout + pushed.stderr).toBe(0);
    expect((await stored(tenant)).versions).toMatchObject([
      { source: { repo: 'acme/policies', actor: 'ann', proven: ['repo', 'commit', 'ref', 'actor'] } },
    ]);
  });
});
