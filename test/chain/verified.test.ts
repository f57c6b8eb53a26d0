import { expect, test } from 'vitest';
import { makeWorld, sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer();
const last = async (who: { cookie?: string; key?: string }) => {
  const line = 'GET /v1/audit?target_type=chain&target_id=forensics&limit=1';
  const { body } = await server.call<{ records: { action: string; severity: string }[] }>(200, line, who);
  return body.records[0];
};

test('the audit log records when a person last verified the chain, and every failure that anyone found', async () => {
  const { tenant, credential } = await makeWorld(server);
  await server.call(200, 'GET /v1/forensics/verify', tenant.admin);
  expect(await last(tenant.admin)).toBeUndefined();
  await server.call(200, 'GET /v1/forensics/verify', credential.admin);
  expect(await last(tenant.admin)).toMatchObject({ action: 'forensics.verified', severity: 'info' });

  await sql(server, `update forensic_record set line = replace(line, '"pay"', '"buy"') where tenant_id = $1`, [
    tenant.id,
  ]);
  await server.call(200, 'GET /v1/forensics/verify', tenant.admin);
  expect(await last(tenant.admin)).toMatchObject({
    action: 'forensics.verification_failed',
    severity: 'critical',
    detail: expect.stringMatching(/^\d+ records, the first mismatch is record \d+$/),
  });
});
