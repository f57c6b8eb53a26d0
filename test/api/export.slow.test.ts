import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, describe, expect, test } from 'vitest';
import { chainHash } from '../../server/chain/record.ts';
import type { Manifest } from '../../server/forensics/archive.ts';
import { checkPackage } from '../../server/forensics/check-package.ts';
import { svcVerify } from '../../server/forensics/svc-verify.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { readTar } from '../../server/lib/tar.ts';
import { deploy, event, GUARD, sql } from '../helpers/api.ts';
import { COLLIDING } from '../helpers/collisions.ts';
import { untilBlocked } from '../helpers/locks.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
const root = mkdtempSync(path.join(tmpdir(), 'svc-export-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

interface Summary {
  package_id: string;
  from: string;
  to: string;
  sequence_id: string | null;
  first_seq: number;
  last_seq: number;
  record_count: number;
  chain_intact: boolean;
  package_hash: string;
  size: number;
}

async function ingest(tenant: TestTenant, events: Record<string, unknown>[]): Promise<void> {
  server.clock.advance(1000);
  const proxy = await tenant.key('proxy');
  const batch = JSON.stringify(events[0]).length > 2000 ? 50 : 100;
  for (let at = 0; at < events.length; at += batch) {
    await server.call(202, 'POST /v1/events/ingest', proxy, { events: events.slice(at, at + batch) });
  }
}

/** When the record of this place was received, or so many milliseconds after it. */
async function timeOf(tenant: TestTenant, seq: number, later = 0): Promise<string> {
  const rows = await server.core.db.query<{ received_at: Date }>(
    tenant.id,
    'select received_at from forensic_record where tenant_id = $1 and seq = $2',
    [tenant.id, seq],
  );
  return new Date(rows[0]!.received_at.getTime() + later).toISOString();
}

const some = (count: number, more: Record<string, unknown> = {}) => Array.from({ length: count }, () => event(more));

async function exported(person: Credential, ask: Record<string, unknown> = {}) {
  const { body } = await server.call<Summary>(201, 'POST /v1/forensics/export', person, { purpose: 'a test', ...ask });
  const download = `GET /v1/forensics/packages/${body.package_id}/download`;
  const { body: bytes, headers } = await server.call<Buffer>(200, download, person);
  const manifest = JSON.parse(Buffer.from(readTar(bytes).get('manifest.json')!).toString()) as Manifest;
  return { summary: body, bytes, headers, manifest, download };
}

/** What the two programs of an auditor say of a package, with the fingerprint that the server publishes. */
function verdicts(bytes: Uint8Array) {
  const { fingerprint } = server.core.keyring.current;
  const dir = mkdtempSync(path.join(root, 'p-'));
  writeFileSync(path.join(dir, 'package.tar'), bytes);
  const report = svcVerify([path.join(dir, 'package.tar'), '--fingerprint', fingerprint, '--json']);
  const files = path.join(dir, 'files');
  for (const [name, content] of readTar(bytes)) {
    mkdirSync(path.dirname(path.join(files, name)), { recursive: true });
    writeFileSync(path.join(files, name), content);
  }
  const script = spawnSync('bash', ['check.sh', fingerprint], { cwd: files, encoding: 'utf8' });
  expect(script.status, script.stdout + script.stderr).toBe(report.exitCode);
  return { verified: report.exitCode === 0, script: script.stdout, report: JSON.parse(report.stdout) };
}

describe('a package exported by the API', () => {
  test('is verified, from record 1 and from further on, and is the same file at each download', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await ingest(tenant, some(5));
    await ingest(tenant, some(4));
    await server.core.checkpoints.take(tenant.id, 'forensics');
    await ingest(tenant, some(4));
    const [from, to] = [await timeOf(tenant, 7), await timeOf(tenant, 11)];
    const whole = await exported(person);
    expect(whole.summary).toMatchObject({ first_seq: 1, last_seq: 14, record_count: 14, chain_intact: true });
    expect(verdicts(whole.bytes)).toMatchObject({ verified: true });
    expect(whole.summary.package_hash).toBe(sha256Tag(whole.bytes));
    expect(whole.summary.size).toBe(whole.bytes.length);
    const again = await server.call<Buffer>(200, whole.download, person);
    expect(again.body.equals(whole.bytes)).toBe(true);

    // the window holds records 7 to 10: the checkpoint of the last says nothing of whether more came within it
    const part = await exported(person, { from, to });
    expect(part.manifest).toMatchObject({
      first_seq: 7,
      last_seq: 10,
      checkpoint_seq: 14,
      chain_intact: true,
      from,
      to,
    });
    expect(part.manifest.chain_head).toMatchObject({ seq: 14, hash: whole.manifest.head_hash });
    expect(verdicts(part.bytes).report.chain_head.seq).toBe(14);
    expect(verdicts(part.bytes)).toMatchObject({ verified: true });
    // the end of the first: it is led on to that checkpoint
    const first = await exported(person, { to: from });
    expect(first.manifest).toMatchObject({ first_seq: 1, last_seq: 6, checkpoint_seq: 10, record_count: 6 });
    expect(verdicts(first.bytes).script).toContain('tied to the signed checkpoint of record 10');
    // a window in which nothing came is tied to what came after it
    const empty = await exported(person, { from: new Date(Date.parse(from) - 500).toISOString(), to: from });
    expect(empty.manifest).toMatchObject({ record_count: 0, checkpoint_seq: 10, chain_intact: true });
    expect(verdicts(empty.bytes)).toMatchObject({ verified: true });
  });

  test('is verified where there is nothing: of a tenant without records, and of a window to come', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const none = await exported(person);
    expect(none.manifest).toMatchObject({ record_count: 0, chain_intact: true, chain_head: { seq: 0 } });
    expect(verdicts(none.bytes)).toMatchObject({ verified: true });
    await ingest(tenant, some(3));
    const to_come = await exported(person, { from: '2090-01-01T00:00:00.000Z', to: '2091-01-01T00:00:00.000Z' });
    expect(to_come.manifest).toMatchObject({ record_count: 0, chain_intact: true, chain_head: { seq: 4 } });
    expect(verdicts(to_come.bytes)).toMatchObject({ verified: true });
  });

  test('is verified after a rotation of the signing key, with checkpoints by the retired one', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await ingest(tenant, some(3));
    await server.core.checkpoints.take(tenant.id, 'forensics');
    await server.core.keyring.rotate();
    const before = await exported(person);
    expect(before.manifest.checkpoint_seq).toBe(4);
    expect(verdicts(before.bytes)).toMatchObject({ verified: true });
    await ingest(tenant, some(3));
    const after = await exported(person);
    expect(after.manifest.checkpoint_seq).toBe(7);
    expect(verdicts(after.bytes)).toMatchObject({ verified: true });
  });

  test('of a session signs the session and its real time span; an additional window is refused', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await ingest(tenant, some(3));
    await ingest(tenant, some(2, { session_id: 'case "7"' }));
    await ingest(tenant, some(3));
    await ingest(tenant, some(1, { session_id: 'case "7"' }));
    await ingest(tenant, some(3));
    const [from, to] = [await timeOf(tenant, 5), await timeOf(tenant, 10, 1)];
    const { manifest, summary, bytes } = await exported(person, { sequence_id: 'case "7"' });
    expect(manifest).toMatchObject({
      session_id: 'case "7"',
      from,
      to,
      first_seq: 5,
      last_seq: 10,
      chain_intact: true,
    });
    expect(summary).toMatchObject({ sequence_id: 'case "7"', from, to, record_count: 6 });
    expect(verdicts(bytes)).toMatchObject({ verified: true });
    const list = await server.call<{ packages: Summary[] }>(200, 'GET /v1/forensics/packages', person);
    expect(list.body.packages[0]).toEqual(summary);
    for (const window of [{ from }, { to }, { from, to }]) {
      const body = { purpose: 'x', sequence_id: 'case "7"', ...window };
      const { body: problem } = await server.call<{ errors: { pointer: string }[] }>(
        400,
        'POST /v1/forensics/export',
        person,
        body,
      );
      expect(problem.errors[0]?.pointer).toBe('/sequence_id');
      const query = new URLSearchParams({ sequence_id: 'case "7"', ...window });
      await server.call(400, `GET /v1/forensics/export/plan?${query}`, person);
    }
  });

  test('of a session that goes on meanwhile is of what was there, and is verified', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await ingest(tenant, some(2, { session_id: 'long' }));
    await ingest(tenant, some(2));
    const proxy = await tenant.key('proxy');
    // once it knows the head of the decisions, it waits for the audit log
    const client = await server.core.db.connectOwner();
    try {
      await client.query('begin');
      await client.query('lock table audit_record in access exclusive mode');
      const made = exported(person, { sequence_id: 'long' });
      await untilBlocked(server.core.db, 1);
      const events = [...some(1), ...some(2, { session_id: 'long' })];
      await server.call(202, 'POST /v1/events/ingest', proxy, { events });
      await server.core.checkpoints.take(tenant.id, 'forensics');
      await client.query('rollback');
      const { manifest, bytes } = await made;
      expect(manifest).toMatchObject({ first_seq: 2, last_seq: 3, chain_head: { seq: 5 }, checkpoint_seq: 8 });
      expect(verdicts(bytes)).toMatchObject({ verified: true });
    } finally {
      await client.end();
    }
  });

  test('of a session contains only that session, even if another session has the same hash', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const [one, other] = COLLIDING;
    await ingest(tenant, [
      ...some(2, { session_id: other }),
      ...some(2, { session_id: one }),
      ...some(2, { session_id: other }),
    ]);
    const { manifest, bytes } = await exported(person, { sequence_id: one });
    expect(manifest).toMatchObject({ first_seq: 4, last_seq: 5, record_count: 2, session_id: one });
    expect(verdicts(bytes)).toMatchObject({ verified: true });
    const plan = await server.call(200, `GET /v1/forensics/export/plan?sequence_id=${one}`, person);
    expect(plan.body).toMatchObject({ record_count: 2, first_seq: 4, last_seq: 5 });
    await sql(server, `delete from forensic_record where tenant_id = $1 and seq in (4, 5)`, [tenant.id]);
    await server.call(404, 'POST /v1/forensics/export', person, { purpose: 'x', sequence_id: one });
  });
});

describe('a database holder', () => {
  /** Rewrites records as anyone with the database can: texts, hashes and, when asked, everything after them. */
  async function rewrite(tenantId: string, from: number, to: number): Promise<void> {
    const rows = await server.core.db.query<{ seq: number; line: string; hash: Buffer }>(
      tenantId,
      'select seq, line, hash from forensic_record where tenant_id = $1 and seq >= $2 order by seq',
      [tenantId, from - 1],
    );
    let previous = rows[0]!.hash;
    for (const row of rows.slice(1)) {
      if (row.seq > to) break;
      const line = row.line
        .replace('"decision":"allow"', '"decision":"deny"')
        .replace('decision.allow', 'decision.deny');
      previous = chainHash(previous, line);
      await sql(
        server,
        `update forensic_record set line = $3, hash = $4, decision = 2 where tenant_id = $1 and seq = $2`,
        [tenantId, row.seq, line, previous],
      );
    }
  }

  async function history() {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await ingest(tenant, some(4));
    await ingest(tenant, some(3, { session_id: 'fraud' }));
    await ingest(tenant, some(4));
    return { tenant, person };
  }

  /** No package is made of a chain that contradicts what is known, and an export alone raises the alarm. */
  async function refused(tenant: TestTenant, person: Credential, range: object): Promise<void> {
    const { body } = await server.call(503, 'POST /v1/forensics/export', person, { purpose: 'evidence', ...range });
    expect(body.detail).toContain('the decision chain is closed');
    const closed = await server.call<{ closed: object[] }>(200, 'GET /v1/forensics/closed', tenant.admin);
    expect(closed.body.closed).toMatchObject([{ chain: 'forensics' }]);
    const list = await server.call<{ total: number }>(200, 'GET /v1/forensics/packages', person);
    expect(list.body.total).toBe(0);
  }

  test('who rewrites a session, hashes and all, gets no package that verifies', async () => {
    const { tenant, person } = await history();
    await server.core.checkpoints.take(tenant.id, 'forensics');
    await rewrite(tenant.id, 6, 8);
    const { manifest, summary, bytes } = await exported(person, { sequence_id: 'fraud' });
    expect(summary).toMatchObject({ chain_intact: false, first_seq: 6, last_seq: 8 });
    expect(manifest.checkpoint_seq).toBeNull();
    expect(verdicts(bytes)).toMatchObject({ verified: false, report: { authentic: true, chain_intact: false } });
    const audit = await server.call<{ records: { severity: string }[] }>(
      200,
      'GET /v1/audit?action=forensics.exported',
      person,
    );
    expect(audit.body.records[0]?.severity).toBe('critical');
  });

  test('who rewrites the chain up to its end is found by the checkpoint that was signed before', async () => {
    const { tenant, person } = await history();
    await server.core.checkpoints.take(tenant.id, 'forensics');
    await rewrite(tenant.id, 6, 12);
    await refused(tenant, person, { sequence_id: 'fraud' });
  });

  test('who cuts the chain back to a checkpoint, with the later ones and the head, gets no package at all', async () => {
    const { tenant, person } = await history();
    await server.core.checkpoints.take(tenant.id, 'forensics');
    await ingest(tenant, some(5));
    await server.core.checkpoints.take(tenant.id, 'forensics');
    for (const statement of [
      'delete from forensic_record where tenant_id = $1 and seq > 12',
      `delete from chain_checkpoint where tenant_id = $1 and chain = 'forensics' and seq > 12`,
      `update chain_head set seq = 12, hash = (select hash from forensic_record where tenant_id = $1 and seq = 12)
       where tenant_id = $1 and chain = 'forensics'`,
    ]) {
      await sql(server, statement, [tenant.id]);
    }
    // nobody has verified or written anything since: the export itself finds it
    await refused(tenant, person, {});
  });

  test('who adds checkpoints prevents no package: it names them, and is not verified', async () => {
    const { tenant, person } = await history();
    await server.core.checkpoints.take(tenant.id, 'forensics');
    const add = (seq: number, note: string) =>
      sql(
        server,
        `insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at)
         select tenant_id, chain, $2, kid, replace(note, E'\n12\n', $3), created_at from chain_checkpoint
         where tenant_id = $1 and chain = 'forensics' and seq = 12`,
        [tenant.id, seq, note],
      );
    await add(7, '\n7\n');
    await add(8, '\n12\n');
    const { manifest, bytes } = await exported(person, { sequence_id: 'fraud' });
    expect(manifest).toMatchObject({ chain_intact: false, checkpoint_seq: 12, altered_checkpoints: [7, 8] });
    const { verified, report } = verdicts(bytes);
    expect([verified, report.authentic]).toEqual([false, true]);
    expect(report.reason).toContain('the stored checkpoint of record 7 was altered');
  });

  test('who cuts the tail that a checkpoint states gets no package, and who corrupts a text one that says so', async () => {
    const cut = await history();
    await server.core.checkpoints.take(cut.tenant.id, 'forensics');
    await sql(server, 'delete from forensic_record where tenant_id = $1 and seq > 9', [cut.tenant.id]);
    await refused(cut.tenant, cut.person, {});

    const spoiled = await history();
    await sql(server, `update forensic_record set line = '{"seq":7' where tenant_id = $1 and seq = 7`, [
      spoiled.tenant.id,
    ]);
    const odd = await exported(spoiled.person, { sequence_id: 'fraud' });
    expect(odd.summary.chain_intact).toBe(false);
    expect(verdicts(odd.bytes)).toMatchObject({ verified: false });
  });

  test('who moves records out of a session by a column gets a package that says so, and does not verify', async () => {
    const { tenant, person } = await history();
    await sql(server, 'update forensic_record set session_h = session_h + 1 where tenant_id = $1 and seq in (7, 8)', [
      tenant.id,
    ]);
    const { manifest, bytes } = await exported(person, { sequence_id: 'fraud' });
    expect(manifest).toMatchObject({ chain_intact: false, fault: { seq: 7 } });
    const { verified, report } = verdicts(bytes);
    expect([verified, report.authentic]).toEqual([false, true]);
    expect(report.reason).toContain('records of the session are outside the range');
  });

  test('who moves the first records out of a window by their columns gets none that verifies either', async () => {
    const { tenant, person } = await history();
    const [from, to] = [await timeOf(tenant, 6), await timeOf(tenant, 9)];
    const earlier = new Date(Date.parse(from) - 1).toISOString();
    await sql(server, 'update forensic_record set received_at = $2 where tenant_id = $1 and seq in (6, 7)', [
      tenant.id,
      earlier,
    ]);
    const { manifest, bytes } = await exported(person, { from, to });
    expect(manifest).toMatchObject({ first_seq: 8, chain_intact: false });
    expect(verdicts(bytes).report.reason).toContain('the record before the first one was received within the window');
  });

  test('who alters a column that no search reads gets a package that names it', async () => {
    const { tenant, person } = await history();
    await sql(server, 'update forensic_record set decision = 2 where tenant_id = $1 and seq = 8', [tenant.id]);
    const { manifest, bytes } = await exported(person);
    expect(manifest.fault).toEqual({ seq: 8, reason: 'the stored decision of record 8 is not that of its text' });
    expect(verdicts(bytes).verified).toBe(false);
  });

  test('who moves records out of a window by their columns gets no package of the window that verifies', async () => {
    const { tenant, person } = await history();
    const [from, to] = [await timeOf(tenant, 6), await timeOf(tenant, 9)];
    expect((await exported(person, { from, to })).manifest).toMatchObject({ record_count: 3, chain_intact: true });
    await sql(server, `update forensic_record set received_at = $2 where tenant_id = $1 and seq = 8`, [tenant.id, to]);
    const { manifest, bytes } = await exported(person, { from, to });
    expect(manifest).toMatchObject({ record_count: 2, chain_intact: false });
    expect(verdicts(bytes).report.reason).toContain('received within the window');
  });
});

test('an audit log whose newest record was deleted takes no more, before anyone verifies it', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('admin');
  const make = { label: 'k', scopes: ['proxy'] };
  await server.call(201, 'POST /v1/keys', person, make);
  await sql(
    server,
    `delete from audit_record r where tenant_id = $1
     and seq = (select max(seq) from audit_record where tenant_id = r.tenant_id)`,
    [tenant.id],
  );
  const { body } = await server.call(503, 'POST /v1/keys', person, make);
  expect(body.detail).toContain('the audit chain is closed');
});

describe('who approved', () => {
  async function used() {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const agent = await tenant.agent('agent-1', 'clerk');
    const source = GUARD.replace('@escrow("single")', '@escrow("multi_party") @approvals("2")');
    await deploy(server, tenant.admin, 'guard', source);
    // the part about the policy ends here
    await server.core.checkpoints.take(tenant.id, 'audit');
    const action = { action_type: 'tool_call', tool_name: 'pay', call_id: 'c1' };
    const held = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, action);
    const hold = held.body.escrow.id;
    const approvers = [await tenant.person('approver'), await tenant.person('approver')];
    for (const [n, approver] of approvers.entries()) {
      const vote = { decision: 'approve', reason: `seen, "${n}" and \\` };
      await server.call(200, `POST /v1/escrow/${hold}/vote`, approver, vote);
    }
    const done = await server.call(200, 'POST /v1/evaluate', agent, { ...action, resume: true });
    expect(done.body.decision).toBe('allow');
    return { tenant, person, hold, approvers };
  }

  test('is in the package of a decision, by the audit log itself, and both programs check it', async () => {
    const { tenant, person, hold, approvers } = await used();
    const { bytes, manifest } = await exported(person);
    expect(manifest.audit_record_count).toBeGreaterThan(5);
    const { report, script, verified } = verdicts(bytes);
    expect(verified, report.reason).toBe(true);
    const [approval] = report.approvals;
    expect(approval).toMatchObject({ hold, terms: 'multi_party, 2 approvals' });
    expect(approval.approved_by).toMatchObject([
      { actor: expect.stringContaining('@example.test'), reason: 'seen, "0" and \\' },
      { actor: expect.stringContaining('@example.test') },
    ]);
    expect(approval.approved_by[0].shown_hash).toMatch(/^sha256:/);
    expect(report.policies.map(({ action }: { action: string }) => action)).toEqual([
      'policy.created',
      'policy.approved',
    ]);
    const people = approvers.map(({ userId }) => userId).join(' ');
    expect(script).toContain(`hold ${hold}: approved by ${people}; its terms: multi_party, 2 approvals\n`);

    // the audit log itself is exported in the same way
    const log = await exported(person, { chain: 'audit' });
    expect(log.manifest).toMatchObject({ chain: 'audit', chain_intact: true, first_seq: 1 });
    expect(verdicts(log.bytes)).toMatchObject({ verified: true });
    expect(Buffer.from(readTar(log.bytes).get('records.txt')!).toString()).toContain('"action":"escrow.vote_cast"');

    // a vote that is hidden from its hold by a column is in the part all the same; a hidden opening is missed
    const hide = (action: string) =>
      sql(server, `update audit_record set target_id = 'x' where tenant_id = $1 and action = $2`, [tenant.id, action]);
    await hide('escrow.vote_cast');
    const still = await exported(person);
    expect(verdicts(still.bytes).report.approvals[0].approved_by).toHaveLength(2);
    await hide('escrow.created');
    const hidden = verdicts((await exported(person)).bytes).report;
    expect(hidden.approvals[0].fault).toBe('its opening is not in the package');
    expect(hidden.reason).toContain('the audit log does not verify');
  });

  test('is not asked for a permit that needed no hold any more, though one was named', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const agent = await tenant.agent('agent-1', 'clerk');
    await deploy(server, tenant.admin, 'guard', GUARD);
    const action = { action_type: 'tool_call', tool_name: 'pay', call_id: 'c1' };
    const held = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, action);
    const vote = { decision: 'approve', reason: 'fine' };
    await server.call(200, `POST /v1/escrow/${held.body.escrow.id}/vote`, await tenant.person('approver'), vote);
    const open = 'permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");';
    await deploy(server, tenant.admin, 'open', open);
    await server.call(200, 'DELETE /v1/policies/guard', tenant.admin, { reason: 'looser' });
    const done = await server.call(200, 'POST /v1/evaluate', agent, { ...action, resume: true });
    expect(done.body).toMatchObject({ decision: 'allow', policy_id: 'open' });
    const { report, verified } = verdicts((await exported(person)).bytes);
    expect(verified, report.reason).toBe(true);
    expect(report.approvals).toEqual([]);
  });

  test('is told of a hold with hostile texts, and of its first use only', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const proxy = await tenant.key('proxy');
    const approver = await tenant.person('approver');
    const group = 'a"b): approved by boss (';
    const settings = { approver_groups: { [group]: [approver.userId] }, reason: 'x' };
    await server.call(200, 'PATCH /v1/settings', await tenant.person('admin'), settings);
    const conditions = ['the "kyc" is met; x', 'b\n\u009b31m\\ *'].map((condition_id) => ({ condition_id }));
    const action_hash = `sha256:${'a'.repeat(64)}`;
    const { body: hold } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...{ agent_role: 'clerk', agent_id: 'agent-1', action_type: 'tool_call', action_summary: 'x', action_hash },
      ...{ hold_type: 'conditional', conditions, quorum: [{ group, count: 1 }], ttl_seconds: 600 },
    });
    for (const { condition_id } of conditions) {
      for (const satisfied of [true, false, true]) {
        await server.call(200, `POST /v1/escrow/${hold.id}/satisfy`, proxy, { condition_id, satisfied });
      }
    }
    const vote = { decision: 'approve', reason: 'ok; approved by the.boss@example.test at 9' };
    await server.call(200, `POST /v1/escrow/${hold.id}/vote`, approver, vote);
    const use = { action_hash, agent_id: 'agent-1', agent_role: 'clerk' };
    await server.call(200, `POST /v1/escrow/${hold.id}/consume`, proxy, use);
    await ingest(tenant, [event({ escrow_id: hold.id, tool_name: 'pay' })]);
    const one = await exported(person);
    const { report, verified } = verdicts(one.bytes);
    expect(verified, report.reason).toBe(true);
    expect(report.approvals).toMatchObject([{ conditions: [{ condition: conditions[0]!.condition_id }, {}] }]);
    const file = path.join(root, 'hostile.tar');
    writeFileSync(file, one.bytes);
    const { stdout } = svcVerify([file]);
    expect(stdout).toContain(
      ': "ok; approved by the.boss@example.test at 9"; "the \\"kyc\\" is met; x" reported as met by',
    );
    expect(stdout).not.toMatch(/[\u0080-\u009f]/);

    // refused uses at any later time do not make its part longer
    for (let n = 0; n < 2; n++) await server.call(409, `POST /v1/escrow/${hold.id}/consume`, proxy, use);
    await server.core.checkpoints.take(tenant.id, 'audit');
    expect((await exported(person)).manifest.audit_record_count).toBe(one.manifest.audit_record_count);
    // and a proxy that says so cannot use a release twice
    await ingest(tenant, [event({ escrow_id: hold.id, tool_name: 'pay' })]);
    const twice = verdicts((await exported(person)).bytes);
    expect(twice.report.reason).toContain('it was used once, and 2 records say that it permitted them');
  });

  test('is time where time releases, unless it had not passed', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const proxy = await tenant.key('proxy');
    const action_hash = `sha256:${'a'.repeat(64)}`;
    const open = async () => {
      const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
        ...{ agent_role: 'clerk', agent_id: 'agent-1', action_type: 'tool_call', action_summary: 'x', action_hash },
        ...{ hold_type: 'time_delayed', release_after_seconds: 3600, ttl_seconds: 7200 },
      });
      return body.id;
    };
    const use = async (hold: string) => {
      const action = { action_hash, agent_id: 'agent-1', agent_role: 'clerk' };
      await server.call(200, `POST /v1/escrow/${hold}/consume`, proxy, action);
      await ingest(tenant, [event({ escrow_id: hold, tool_name: 'pay' })]);
      return verdicts((await exported(person)).bytes);
    };
    const patient = await open();
    server.clock.advance(3600_000);
    const { report, verified } = await use(patient);
    expect(verified, report.reason).toBe(true);
    expect(report.approvals).toMatchObject([
      { terms: 'time_delayed, 0 approvals, after 3600 seconds', approved_by: [] },
    ]);
    // by who can write to the table of holds
    const hurried = await open();
    await sql(
      server,
      `update escrow_hold set machine_context = regexp_replace(machine_context::text, '"after": *\\d+', '"after": 1')::jsonb
       where tenant_id = $1 and id = $2`,
      [tenant.id, hurried],
    );
    const early = (await use(hurried)).report;
    expect(early).toMatchObject({ verified: false, authentic: true });
    expect(early.reason).toContain(`hold ${hurried}: it was released at`);
  });

  test('is not hidden, where a policy came into force, by a column of the audit log', async () => {
    const { tenant, person } = await used();
    // enforced by being written
    await server.call(200, 'PUT /v1/policies/guard', tenant.admin, { dsl_source: GUARD });
    const agent = await tenant.agent('agent-1', 'clerk');
    await server.call(200, 'POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name: 'read' });
    const shown = verdicts((await exported(person)).bytes);
    expect(shown.verified).toBe(true);
    expect(shown.report.policies.at(-1)).toMatchObject({ action: 'policy.updated', detail: 'version 2, enforced' });
    await sql(
      server,
      `update audit_record set action = 'policy.commented' where tenant_id = $1 and action like 'policy.%'`,
      [tenant.id],
    );
    const { report } = verdicts((await exported(person)).bytes);
    expect(report).toMatchObject({ verified: false, authentic: true });
    expect(report.reason).toContain('the audit log does not verify, so parts of it may be missing');
  });

  test('is not shown by votes that are altered, or cut out, in the audit log', async () => {
    const { tenant, person } = await used();
    await sql(
      server,
      `update audit_record set line = replace(line, '"detail":"approve"', '"detail":"reject"')
       where tenant_id = $1 and action = 'escrow.vote_cast'`,
      [tenant.id],
    );
    const { bytes, manifest } = await exported(person);
    expect(manifest.chain_intact).toBe(false);
    expect(verdicts(bytes).report).toMatchObject({ verified: false, authentic: true });
    await sql(server, `delete from audit_record where tenant_id = $1 and action = 'escrow.vote_cast'`, [tenant.id]);
    expect(verdicts((await exported(person)).bytes)).toMatchObject({ verified: false });
  });
});

describe('an export', () => {
  test('runs once at a time for each tenant, and no tenant waits for another', async () => {
    const [one, other] = [await server.tenant(), await server.tenant()];
    const [person, else_] = [await one.person('viewer'), await other.person('viewer')];
    await ingest(one, some(300));
    await ingest(other, some(3));
    // held open by a lock on what it writes last
    const client = await server.core.db.connectOwner();
    try {
      await client.query('begin');
      await client.query(`select pg_advisory_xact_lock(hashtextextended('export ' || $1, 2))`, [one.id]);
      const { headers } = await server.call(429, 'POST /v1/forensics/export', person, { purpose: 'x' });
      expect(headers.get('retry-after')).toBe('5');
      await server.call(201, 'POST /v1/forensics/export', else_, { purpose: 'x' });
      await client.query('rollback');
    } finally {
      await client.end();
    }
    const statuses = await Promise.all(
      Array.from({ length: 4 }, async () => {
        const response = await fetch(`${server.url}/v1/forensics/export`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', origin: server.origin, cookie: person.cookie! },
          body: JSON.stringify({ purpose: 'x' }),
        });
        await response.arrayBuffer();
        return response.status;
      }),
    );
    expect(statuses.sort()).toEqual([201, 429, 429, 429]);
    await server.call(201, 'POST /v1/forensics/export', person, { purpose: 'x' });
  });

  test('needs the same memory for many times the records, as does its download', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    const large = { obligations: Array.from({ length: 32 }, () => 'o'.repeat(500)), deny_reason: 'r'.repeat(2000) };
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    // what is still in use; only the second collection waits for the buffers that the first one frees
    const used = () => {
      collect();
      collect();
      const { heapUsed, arrayBuffers } = process.memoryUsage();
      return heapUsed + arrayBuffers;
    };
    const growth = async (work: () => Promise<void>) => {
      const start = used();
      let peak = start;
      // a collection of what earlier files left may take long: never more than a tenth of the time
      const look = () => {
        const began = performance.now();
        peak = Math.max(peak, used());
        watch = setTimeout(look, Math.max(1000, 9 * (performance.now() - began)));
      };
      let watch = setTimeout(look, 1000);
      await work().finally(() => clearTimeout(watch));
      return peak - start;
    };
    const measured = async (records: number) => {
      await ingest(tenant, some(records, large));
      let summary: Summary | undefined;
      const made = await growth(async () => {
        ({ body: summary } = await server.call<Summary>(201, 'POST /v1/forensics/export', person, { purpose: 'x' }));
      });
      const { package_id, size } = summary!;
      const sent = await growth(async () => {
        const response = await fetch(`${server.url}/v1/forensics/packages/${package_id}/download`, {
          headers: { cookie: person.cookie! },
        });
        expect(response.headers.get('content-length')).toBe(String(size));
        let bytes = 0;
        for await (const chunk of response.body!) bytes += chunk.length;
        expect(bytes).toBe(size);
      });
      const { rows } = await server.core.db.owner.query<{ most: number; count: number }>(
        `select max(length(bytes))::int as most, count(*)::int as count from evidence_chunk where package_id = $1`,
        [package_id],
      );
      expect(rows[0]).toEqual({ most: 256 * 1024, count: Math.ceil(size / (256 * 1024)) });
      return { size, made, sent };
    };
    const one = await measured(100);
    const many = await measured(600);
    const more = many.size - one.size;
    expect(more).toBeGreaterThan(10_000_000);
    // pages, pieces and what the streams hold, whatever there is to read
    const bound = 6 * 1024 * 1024;
    for (const { made, sent } of [one, many]) {
      expect(made, 'growth while it was made').toBeLessThan(bound);
      expect(sent, 'growth while it was sent').toBeLessThan(bound);
    }
  });

  test('that fails leaves nothing behind', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('viewer');
    await ingest(tenant, some(20));
    await sql(server, 'alter table evidence_package rename to evidence_gone');
    try {
      await server.call(500, 'POST /v1/forensics/export', person, { purpose: 'x' });
    } finally {
      await sql(server, 'alter table evidence_gone rename to evidence_package');
    }
    const { rows } = await server.core.db.owner.query('select 1 from evidence_chunk where tenant_id = $1', [tenant.id]);
    expect(rows).toEqual([]);
    expect(checkPackage((await exported(person)).bytes).verified).toBe(true);
  });
});
