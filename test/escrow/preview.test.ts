import { expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });

test('approvers see the held action with the masks of its rules, and the hash binds the unmasked action', async () => {
  const tenant = await server.tenant();
  await deploy(
    server,
    tenant.admin,
    'cards',
    [
      '@escrow("single") permit(principal, action, resource == Tool::"charge");',
      '@mask("$.card.number,$.items[*].ssn") forbid(principal, action, resource == Tool::"charge");',
    ].join('\n'),
  );
  const agent = await tenant.agent('bot', 'clerk');
  const ask = (number: string) =>
    server.call<{ decision: string; action_hash: string; escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
      action_type: 'tool_call',
      tool_name: 'charge',
      arguments: { amount: 5, card: { number, holder: 'Ada' }, items: [{ ssn: '078-05-1120' }] },
    });
  const { body } = await ask('4111 1111 1111 1111');
  expect(body.decision).toBe('escrow');
  const hold = await server.call<{ action_hash: string; arguments_preview: unknown }>(
    200,
    `GET /v1/escrow/${body.escrow.id}`,
    await tenant.person('approver'),
  );
  expect(hold.body.arguments_preview).toEqual({
    amount: 5,
    card: { number: '[masked]', holder: 'Ada' },
    items: [{ ssn: '[masked]' }],
  });
  expect(hold.text).not.toMatch(/4111|078-05/);
  expect(hold.body.action_hash).toBe(body.action_hash);
  expect((await ask('4222 2222 2222 2222')).body.escrow.id).not.toBe(body.escrow.id);
});
