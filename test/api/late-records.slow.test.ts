import { afterAll, beforeAll, expect, test } from 'vitest';
import { setPatience } from '../../server/lib/patience.ts';
import { deploy, sql } from '../helpers/api.ts';
import { PATIENCE } from '../helpers/patience.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

// the test waits until the server gives up: not as long as in other files, and twice as long as usual for a busy machine
beforeAll(() => setPatience(2));
afterAll(() => setPatience(PATIENCE));
const server = useServer();

test('what a call took of limits stays taken where its record is stored after all', async () => {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'desk', '@id("read") @rate("3/h") permit(principal, action, resource);');
  const agent = await tenant.agent('reader', 'clerk');
  const ask = (status: number, call_id?: string) =>
    server
      .call<{ decision: string }>(status, 'POST /v1/evaluate', agent, {
        ...{ action_type: 'tool_call', tool_name: 'read', call_id },
      })
      .then(({ body }) => body.decision);
  // until the chain no longer waits: it gives the connection up, and the database commits what came over it
  await sql(
    server,
    `create table given_up (x int);
     create function dawdle() returns trigger language plpgsql as $$ begin
       while not exists (select from given_up) loop perform pg_sleep(0.02); end loop;
       return new;
     end $$;
     create trigger dawdle before insert on forensic_record for each row execute function dawdle()`,
  );
  await ask(503, 'late');
  await sql(server, 'insert into given_up values (1)');
  await until(
    async () => (await sql(server, `select 1 from forensic_record where line like '%"reader"%'`)).length === 1,
    'the record is stored',
  );
  await sql(server, 'drop trigger dawdle on forensic_record; drop function dawdle(); drop table given_up');
  expect(await ask(200, 'late')).toBe('allow');
  expect([await ask(200), await ask(200), await ask(200)]).toEqual(['allow', 'allow', 'rate_limited']);
});
