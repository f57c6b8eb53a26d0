import { expect, test } from 'vitest';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });
const request = {
  agent_id: 'bot',
  agent_role: 'clerk',
  action_type: 'tool_call',
  tool_name: 'pay',
  arguments: { amount: 5 },
};
const list = async (who: Credential) =>
  (await server.call<{ questions: { id: string; name: string }[] }>(200, 'GET /v1/questions', who)).body.questions;

test('a question is the tenant’s: its authors read, save and delete it, and nobody else', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const [author, colleague] = [await tenant.person('author'), await tenant.person('approver')];
  const { body } = await server.call<{ id: string }>(201, 'POST /v1/questions', author, {
    name: 'five euros',
    request,
  });
  expect(await list(colleague)).toMatchObject([
    { id: body.id, name: 'five euros', request, created_by: author.userId },
  ]);
  const foreign = await other.person('admin');
  expect(await list(foreign)).toEqual([]);
  await server.call(404, `DELETE /v1/questions/${body.id}`, foreign);
  // what authors typed is for people who write policies: neither viewers nor any key
  for (const who of [await tenant.person('viewer'), tenant.admin, await tenant.agent('bot', 'clerk')]) {
    await server.call(403, 'GET /v1/questions', who);
    await server.call(403, 'POST /v1/questions', who, { name: 'x', request });
    await server.call(403, `DELETE /v1/questions/${body.id}`, who);
  }
  await server.call(204, `DELETE /v1/questions/${body.id}`, colleague);
  await server.call(404, `DELETE /v1/questions/${body.id}`, author);
  expect(await list(author)).toEqual([]);
  const audit = await server.call<{ records: { action: string; detail: string }[] }>(
    200,
    `GET /v1/audit?target_id=${body.id}`,
    tenant.admin,
  );
  expect(audit.body.records.map(({ action, detail }) => [action, detail])).toEqual([
    ['saved_question.deleted', 'five euros'],
    ['saved_question.created', 'five euros'],
  ]);
  // what was asked is in no record
  expect(audit.text).not.toContain('amount');
});

test('a question has a name of its own, in one visible line, and a bounded request', async () => {
  const tenant = await server.tenant();
  const author = await tenant.person('author');
  const save = (status: number, name: string, more: object = {}) =>
    server.call(status, 'POST /v1/questions', author, { name, request: { ...request, ...more } });
  await save(201, 'a');
  await save(409, 'a');
  for (const name of ['', ' b', 'b\nc', 'b\u202ec', 'b\u200bc', 'x'.repeat(61)]) await save(400, name);
  await save(400, 'large', { arguments: { text: 'x'.repeat(17_000) } });
  await save(400, 'wrong', { agent_id: 'x'.repeat(201) });
  const race = await Promise.all(
    Array.from({ length: 4 }, () =>
      fetch(`${server.url}/v1/questions`, {
        method: 'POST',
        headers: { cookie: author.cookie!, origin: server.origin, 'content-type': 'application/json' },
        body: JSON.stringify({ name: 'same', request }),
      }),
    ),
  );
  expect(race.map(({ status }) => status).sort()).toEqual([201, 409, 409, 409]);
  for (let i = 2; i < 100; i++) await save(201, `q${i}`);
  await save(409, 'one too many');
  expect(await list(author)).toHaveLength(100);
});
