import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { MOST_AN_HOUR } from '../../server/letters/person-mail.ts';
import { changed, deploy, fingerprint, sql } from '../helpers/api.ts';
import { type Credential, type TestServer, type TestTenant, useServer } from '../helpers/server.ts';
import { type MailServer, startMailServer } from '../helpers/smtp.ts';

let smtp: MailServer;
beforeAll(async () => {
  smtp = await startMailServer();
});
afterAll(() => smtp.close());
const server = useServer({
  get SMTP_URL() {
    return smtp.url;
  },
});
const silent = useServer({}, { shared: true });

const POLICY = `
@id("all-others") @escrow("single") @ttl("4h") @reason("a person looks at it first") @mask("$.card")
permit(principal in AgentRole::"clerk", action, resource);
`;

interface World {
  tenant: TestTenant;
  bot: Credential;
  hold(action?: Record<string, unknown>): Promise<string>;
}

async function world(where: TestServer = server): Promise<World> {
  const tenant = await where.tenant();
  await deploy(where, tenant.admin, 'guard', POLICY);
  const bot = await tenant.agent('payer', 'clerk');
  let n = 0;
  const hold = async (action: Record<string, unknown> = {}) => {
    const { body } = await where.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', bot, {
      ...{ action_type: 'tool_call', tool_name: 'pay', arguments: { amount: 900, n: n++ }, ...action },
    });
    return body.escrow.id;
  };
  return { tenant, bot, hold };
}

let people = 0;
/** A signed-in person with an address of their own, who asked for this mail. */
async function reader({ tenant }: World, pace: string, roles = ['approver'], more: object = {}, where = server) {
  const email = `reader${++people}@example.test`;
  const person = await tenant.enter(await tenant.member({ email, roles }));
  await where.call(204, 'PUT /v1/mail-preferences', person, { pace, kinds: ['hold', 'review'], ...more });
  return { ...person, email };
}

const lettersTo = (email: string) => smtp.received.filter(({ to }) => to.includes(email)).map(({ text }) => text);
const subjectOf = (letter: string) => /^Subject: (.*(?:\r\n[ \t].*)*)/m.exec(letter)![1]!.replace(/\r\n/g, '');

/** So many held actions, with a notice each for who asked for it: one, and others like it, as if each had been asked for. */
async function flooded(w: World, count: number): Promise<void> {
  const id = await w.hold();
  await sql(
    server,
    `with made as (
       insert into escrow_hold select h.* from generate_series(1, $3::int) n,
         (select * from escrow_hold where tenant_id = $1 and id = $2) one,
         jsonb_populate_record(null::escrow_hold, to_jsonb(one) || jsonb_build_object('id', one.id || n,
           'action_hash', 'sha256:' || lpad(n::text, 64, '0'))) h
       returning tenant_id, id)
     insert into mail_notice select notice.* from made, (select * from mail_notice where tenant_id = $1 and subject_id = $2) one,
       jsonb_populate_record(null::mail_notice, to_jsonb(one) || jsonb_build_object('subject_id', made.id)) notice`,
    [w.tenant.id, id, count - 1],
  );
}

/** What the job does within the second. */
async function written(): Promise<void> {
  while ((await server.core.personMail.writeDue()) > 0);
  while ((await server.core.mailQueue.sendDue()) > 0);
  await expect
    .poll(
      async () => {
        const { rows } = await server.core.db.owner.query<{ n: number }>(
          // one that is being sent is set aside for two minutes; one that was refused waits for seconds
          `select ((select count(*) from mail_notice where due_at <= $1)
             + (select count(*) from mail_message
                where next_at <= $1 or next_at > $1::timestamptz + interval '1 minute'))::int as n`,
          [new Date(server.clock.now())],
        );
        return rows[0]!.n;
      },
      { interval: 20 },
    )
    .toBe(0);
}
const noticesOf = async (userId: string) =>
  (await server.core.db.owner.query('select 1 from mail_notice where user_id = $1', [userId])).rowCount;

beforeEach(() => {
  smtp.received.length = 0;
  smtp.answers.length = 0;
});

describe('a held action', () => {
  test('is mailed to who asked for it, with what an approver reads, and with links that open the vote', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    const other = await reader(w, 'none');
    const id = await w.hold({ arguments: { amount: 900, card: '4111 1111 1111 1111' }, action_summary: 'pays Ann' });
    await written();
    const [letter, ...more] = lettersTo(approver.email);
    expect(more).toEqual([]);
    expect(lettersTo(other.email)).toEqual([]);
    expect(subjectOf(letter!)).toBe('A held action waits for you: guard#all-others');
    expect(letter).toContain('Tool: pay');
    expect(letter).toContain('a person looks at it first');
    expect(letter).toContain('Arguments: {"card":"[masked]","amount":900}');
    expect(letter).toMatch(/Ends: \d{4}-\d\d-\d\d \d\d:\d\d UTC/);
    expect(letter).toContain('The agent says, and nobody has checked:\r\n> pays Ann');
    for (const path of [`/approvals/${id}?vote=approve&`, `/approvals/${id}?vote=deny&`, '/account?']) {
      expect(letter).toContain(`\r\nhttp://control.test${path}tenant=${w.tenant.id}\r\n`);
    }
    expect(letter).not.toMatch(/\b4111\b/);
  });

  test('is mailed once, however many processes write letters', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    await w.hold();
    await Promise.all(Array.from({ length: 5 }, () => server.core.personMail.writeDue()));
    await written();
    expect(lettersTo(approver.email)).toHaveLength(1);
    // the same request again is the same hold
    expect(await noticesOf(approver.userId)).toBe(0);
  });

  test('is mailed although writing it failed at first', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    await server.core.db.owner.query('alter table mail_message rename to mail_message_gone');
    try {
      await w.hold();
      await expect.poll(() => server.core.personMail.writeDue()).toBe(0);
      expect(await noticesOf(approver.userId)).toBe(1);
    } finally {
      await server.core.db.owner.query('alter table mail_message_gone rename to mail_message');
    }
    server.clock.advance(6 * 60_000);
    await written();
    expect(lettersTo(approver.email)).toHaveLength(1);
  });

  test('of a transaction that fails is mailed to nobody', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    await server.core.db.owner.query('alter table audit_record rename to audit_record_gone');
    try {
      await server.call(500, 'POST /v1/evaluate', w.bot, { action_type: 'tool_call', tool_name: 'pay' });
    } finally {
      await server.core.db.owner.query('alter table audit_record_gone rename to audit_record');
    }
    expect(await noticesOf(approver.userId)).toBe(0);
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
  });

  test('that ended, or has their vote, is not mailed any more', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly');
    const [first, second] = [await w.hold(), await w.hold()];
    await server.call(200, `POST /v1/escrow/${first}/cancel`, w.tenant.admin, { reason: 'no' });
    await server.call(200, `POST /v1/escrow/${second}/vote`, approver, { decision: 'reject', reason: 'no' });
    server.clock.advance(3_600_000);
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
    expect(await noticesOf(approver.userId)).toBe(0);
  });

  test('is not mailed to who may not vote on it', async () => {
    const w = await world();
    const viewer = await reader(w, 'each', ['author']);
    const owner = await reader(w, 'each');
    await server.core.keys.createAgentKey(
      w.tenant.id,
      { label: 'x', agentId: 'payer', agentRole: 'clerk', owner: owner.userId },
      { actor: { type: 'operator', id: 'test' } },
    );
    await w.hold();
    await written();
    expect(lettersTo(viewer.email)).toEqual([]);
    expect(lettersTo(owner.email)).toEqual([]);
  });

  test('is voted on by no link: opening one changes nothing', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    const id = await w.hold();
    await written();
    const links = [...lettersTo(approver.email)[0]!.matchAll(/^http:\/\/control\.test(\S+)\r$/gm)].map(([, at]) => at!);
    expect(links.length).toBeGreaterThan(3);
    const before = await fingerprint(server);
    for (const link of links) {
      await fetch(server.url + link, { headers: { cookie: approver.cookie!, accept: 'text/html' } });
      await fetch(server.url + link, { method: 'HEAD', headers: { cookie: approver.cookie! } });
    }
    expect(changed(before, await fingerprint(server))).toEqual([]);
    expect((await server.call(200, `GET /v1/escrow/${id}`, approver)).body).toMatchObject({
      status: 'held',
      votes: [],
    });
  });
});

describe('what an agent writes', () => {
  const EVIL =
    'evil.example/vote now\r\nBcc: evil@evil.example\r\nSubject: Refund approved\r\n\r\nhttps://evil.example';

  test('is in no subject, adds no header and no recipient, and is no link', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    await w.hold({
      tool_name: EVIL,
      tool_server: EVIL,
      method: 'Bcc',
      resource: EVIL,
      action_summary: EVIL,
      value_currency: 'EUR\r\nCc:',
      estimated_value: 5,
      arguments: { [EVIL]: EVIL },
    });
    await written();
    expect(smtp.received.map(({ to }) => to)).toEqual([[approver.email]]);
    const letter = lettersTo(approver.email)[0]!;
    const [head] = letter.split('\r\n\r\n') as [string];
    expect(head.match(/^(?:to|cc|bcc|subject):.*/gim)).toEqual([
      `To: ${approver.email}`,
      'Subject: A held action waits for you: guard#all-others',
    ]);
    const said = decoded(letter);
    expect(said).toContain('evil');
    for (const address of said.match(/\w+:\/\/[^\s"<]+/g)!) expect(address).toMatch(/^http:\/\/control\.test\//);
    expect(said).not.toMatch(/evil\.example|@evil\./);
    // each value stays on its line, behind its label
    expect(said).not.toMatch(/^(?:Bcc|Subject: Refund)/m);
  });

  test('does not become markup', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    await w.hold({ tool_name: '<img src=x onerror=alert(1)>', action_summary: '</blockquote><a href="x">Approve</a>' });
    await written();
    const page = decoded(lettersTo(approver.email)[0]!).split('<!doctype html>')[1]!;
    expect(page).not.toMatch(/<img|<a href="x"|<script/);
  });
});

describe('a person who was removed', () => {
  test('is not written to about what was held before', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly');
    await w.hold();
    expect(await noticesOf(approver.userId)).toBe(1);
    await server.call(204, `DELETE /v1/team/${approver.userId}`, w.tenant.admin);
    expect(await noticesOf(approver.userId)).toBe(0);
    await w.hold();
    server.clock.advance(3_600_000);
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
  });

  test('does not get a letter that was queued already', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    smtp.answers.push('451 not now');
    await w.hold();
    await written();
    const queued = () => server.core.db.owner.query('select 1 from mail_message where user_id = $1', [approver.userId]);
    expect((await queued()).rowCount).toBe(1);
    await server.call(204, `DELETE /v1/team/${approver.userId}`, w.tenant.admin);
    expect((await queued()).rowCount).toBe(0);
    server.clock.advance(10_000);
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
  });

  test('asks again when they are back', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    await server.call(204, `DELETE /v1/team/${approver.userId}`, w.tenant.admin);
    await w.tenant.member({ email: approver.email, roles: ['approver'] });
    await w.hold();
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
  });

  test('nor is one written to who lost the role', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly', ['approver', 'viewer']);
    await w.hold();
    await server.call(200, `DELETE /v1/users/${approver.userId}/roles/approver`, w.tenant.admin);
    server.clock.advance(3_600_000);
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
  });
});

describe('an agent that floods', () => {
  test('fills no mailbox: ten letters an hour, and then one with all that waits', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    for (let i = 0; i < MOST_AN_HOUR - 1; i++) await w.hold();
    await written();
    for (let i = 0; i < 4; i++) {
      await w.hold();
      await written();
    }
    const received = () => lettersTo(approver.email);
    expect(received()).toHaveLength(MOST_AN_HOUR);
    await flooded(w, MOST_AN_HOUR);
    await written();
    expect(received()).toHaveLength(MOST_AN_HOUR);
    server.clock.advance(3_600_000);
    await written();
    expect(received()).toHaveLength(MOST_AN_HOUR + 1);
    const all = 2 * MOST_AN_HOUR + 3;
    expect(subjectOf(received().at(-1)!)).toBe(`${all} held actions wait for you`);
    expect(received().at(-1)).toContain(`Not listed here: ${all - 20} more held actions`);
  });

  test('in one letter with all that waits, each action has its arguments, masked, and links that open its vote', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly');
    const ids = [await w.hold({ arguments: { card: '4111' } }), await w.hold({ tool_name: 'rеfund' })];
    server.clock.advance(3_600_000);
    await written();
    const letter = decoded(lettersTo(approver.email)[0]!).replaceAll('\r\n', '\n');
    expect(letter).toContain('Arguments: {"card":"[masked]"}');
    expect(letter).toContain('Letters in the tool that can be taken for others: rеfund\n');
    for (const id of ids) {
      for (const vote of ['approve', 'deny']) {
        expect(letter).toContain(`\nhttp://control.test/approvals/${id}?vote=${vote}&tenant=${w.tenant.id}\n`);
      }
    }
  });

  test('leaves a bounded number of notices, and the letter counts what waits all the same', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly');
    await flooded(w, 98);
    for (let i = 0; i < 5; i++) await w.hold();
    expect(await noticesOf(approver.userId)).toBe(100);
    server.clock.advance(3_600_000);
    await written();
    expect(lettersTo(approver.email).map(subjectOf)).toEqual(['103 held actions wait for you']);
  });
});

describe('an agent that floods keeps nobody from reviews', () => {
  /** So many policies of another person that wait for a review. */
  async function submitted(w: World, count: number): Promise<void> {
    await w.tenant.set({ approval_required: true });
    const author = await w.tenant.person('author');
    for (let i = 0; i < count; i++) {
      await server.call(201, 'POST /v1/policies', author, { id: `fresh-${i}`, dsl_source: POLICY });
      await server.call(200, `POST /v1/policies/fresh-${i}/submit`, author, {});
    }
  }

  test('where more holds wait than leave a notice', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly');
    await flooded(w, 100);
    await w.hold();
    await submitted(w, 1);
    server.clock.advance(3_600_000);
    await written();
    expect(lettersTo(approver.email).map(subjectOf)).toEqual(['101 held actions and 1 review wait for you']);
  });

  test('where their holds have used up the letters of the hour', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    for (let i = 0; i < MOST_AN_HOUR; i++) await w.hold();
    await written();
    await w.hold();
    await submitted(w, 1);
    await written();
    const subjects = lettersTo(approver.email).map(subjectOf);
    expect(subjects).toHaveLength(MOST_AN_HOUR + 1);
    expect(subjects.at(-1)).toBe('A policy waits for your review: fresh-0');
  });

  test('and of many reviews each is listed or counted', async () => {
    const w = await world();
    const approver = await reader(w, 'hourly');
    await submitted(w, 23);
    server.clock.advance(3_600_000);
    await written();
    const [letter] = lettersTo(approver.email);
    expect(subjectOf(letter!)).toBe('23 reviews wait for you');
    expect(letter!.match(/^http:\/\/control\.test\/review\/fresh-\d+\?tenant=\S+\r$/gm)).toHaveLength(20);
    expect(letter).toContain('Not listed here: 3 more reviews');
    expect(letter).toContain(`\r\nhttp://control.test/review?tenant=${w.tenant.id}\r\n`);
  });
});

test('what is held while a letter is written is in the next one', async () => {
  const w = await world();
  const approver = await reader(w, 'each');
  await w.hold();
  const client = await server.core.db.owner.connect();
  let writing: Promise<number>;
  try {
    // nothing can be queued for now
    await client.query('begin; lock table mail_message in access exclusive mode');
    writing = server.core.personMail.writeDue();
    await expect
      .poll(async () => {
        const { rowCount } = await server.core.db.owner.query(
          `select 1 from pg_stat_activity
           where datname = current_database() and wait_event_type = 'Lock' and query like 'insert into mail_message%'`,
        );
        return rowCount! > 0;
      })
      .toBe(true);
    const id = await w.hold();
    // due already when the letter was begun
    await server.core.db.owner.query(
      `update mail_notice set due_at = due_at - interval '1 hour' where tenant_id = $1 and subject_id = $2`,
      [w.tenant.id, id],
    );
    await client.query('commit');
  } finally {
    client.release(true);
  }
  await writing;
  await written();
  expect(lettersTo(approver.email)).toHaveLength(2);
});

describe('a preference', () => {
  test('of one letter a day puts all into one, at that hour', async () => {
    const w = await world();
    const hour = new Date(server.clock.now()).getUTCHours();
    const approver = await reader(w, 'daily', ['approver'], { daily_hour: (hour + 2) % 24 });
    for (let i = 0; i < 3; i++) await w.hold();
    server.clock.advance(3_600_000 - 1000 * 60);
    await written();
    expect(lettersTo(approver.email)).toEqual([]);
    // the hour, and what each person has of their own after it
    server.clock.advance(3_600_000 + 11 * 60_000);
    await written();
    expect(lettersTo(approver.email).map(subjectOf)).toEqual(['3 held actions wait for you']);
  });

  test('applies to what waits to be mailed, too', async () => {
    const w = await world();
    const approver = await reader(w, 'daily');
    await w.hold();
    const prefer = (body: object) => server.call(204, 'PUT /v1/mail-preferences', approver, body);
    await prefer({ pace: 'each', kinds: ['hold'] });
    await written();
    expect(lettersTo(approver.email)).toHaveLength(1);
    await prefer({ pace: 'daily', kinds: ['hold'] });
    await w.hold();
    expect(await noticesOf(approver.userId)).toBe(1);
    await prefer({ pace: 'daily', kinds: ['review'] });
    expect(await noticesOf(approver.userId)).toBe(0);
    await prefer({ pace: 'none', kinds: ['hold'] });
    await w.hold();
    expect(await noticesOf(approver.userId)).toBe(0);
  });

  test('is a person’s own, is in the audit log, and is nobody else’s to set', async () => {
    const w = await world();
    const approver = await reader(w, 'each');
    const read = (who: Credential) => server.call(200, 'GET /v1/mail-preferences', who).then(({ body }) => body);
    expect(await read(approver)).toEqual({ pace: 'each', kinds: ['hold', 'review'], daily_hour: 7, available: true });
    expect(await read(await w.tenant.person('viewer'))).toMatchObject({ pace: 'none' });
    await server.call(403, 'GET /v1/mail-preferences', w.tenant.admin);
    await server.call(403, 'PUT /v1/mail-preferences', w.tenant.admin, { pace: 'each', kinds: ['hold'] });
    await server.call(400, 'PUT /v1/mail-preferences', approver, { pace: 'each', kinds: ['hold'], daily_hour: 24 });
    const { body } = await server.call<{ records: { target: { id: string }; detail: string }[] }>(
      200,
      'GET /v1/audit?action=mail_preferences.changed',
      w.tenant.admin,
    );
    expect(body.records).toMatchObject([{ target: { id: approver.userId }, detail: 'each: hold, review' }]);
  });

  test('does nothing where there is no mail server, and says so', async () => {
    const w = await world(silent);
    const approver = await reader(w, 'each', ['approver'], {}, silent);
    expect((await silent.call(200, 'GET /v1/mail-preferences', approver)).body).toMatchObject({ available: false });
    await w.hold();
    const waiting = async () =>
      (
        await silent.core.db.owner.query(
          'select 1 from mail_notice where tenant_id = $1 union all select 1 from mail_message where tenant_id = $1',
          [w.tenant.id],
        )
      ).rowCount;
    await silent.core.personMail.writeDue();
    await expect.poll(waiting).toBe(0);
  });
});

describe('a person of two tenants', () => {
  test('reads which one a letter is from, and finds the hold of one in the other under no link', async () => {
    const [one, two] = [await world(), await world()];
    const approver = await reader(one, 'each');
    const elsewhere = await two.tenant.enter(await two.tenant.member({ email: approver.email, roles: ['approver'] }));
    await server.core.db.owner.query(`update tenant set name = 'First' where tenant_id = $1`, [one.tenant.id]);
    const id = await one.hold();
    // the other tenant's holds are not mailed: there they asked for nothing
    await two.hold();
    await written();
    const letters = lettersTo(approver.email);
    expect(letters).toHaveLength(1);
    expect(letters[0]).toContain('Organization: First');
    await server.call(404, `GET /v1/escrow/${id}`, elsewhere);
    await server.call(404, `POST /v1/escrow/${id}/vote`, elsewhere, { decision: 'approve' });
  });
});

describe('a version that waits for a review', () => {
  test('is mailed to others than its author', async () => {
    const w = await world();
    await w.tenant.set({ approval_required: true });
    const author = await reader(w, 'each', ['approver', 'author']);
    const reviewer = await reader(w, 'each');
    await server.call(201, 'POST /v1/policies', author, { id: 'fresh', dsl_source: POLICY });
    await server.call(200, 'POST /v1/policies/fresh/submit', author, {});
    await written();
    expect(lettersTo(author.email)).toEqual([]);
    const [letter] = lettersTo(reviewer.email);
    expect(subjectOf(letter!)).toBe('A policy waits for your review: fresh');
    expect(letter).toContain(`\r\nhttp://control.test/review/fresh?tenant=${w.tenant.id}\r\n`);
  });

  test('is not mailed once it was approved', async () => {
    const w = await world();
    await w.tenant.set({ approval_required: true });
    const author = await w.tenant.person('author');
    const reviewer = await reader(w, 'hourly');
    await server.call(201, 'POST /v1/policies', author, { id: 'fresh', dsl_source: POLICY });
    await server.call(200, 'POST /v1/policies/fresh/submit', author, {});
    await server.call(200, 'POST /v1/policies/fresh/approve', reviewer, { version: 1 });
    server.clock.advance(3_600_000);
    await written();
    expect(lettersTo(reviewer.email)).toEqual([]);
  });
});

test('a settings change and a list that wait for a second person are mailed to them, not to who asked, and are events', async () => {
  const w = await world();
  await w.tenant.set({ approval_required: true });
  const asker = await reader(w, 'each', ['admin', 'author']);
  const second = await reader(w, 'each');
  const viewer = await reader(w, 'each', ['viewer']);
  await server.call(200, 'PATCH /v1/settings', asker, { approval_required: false, reason: 'it is in the way' });
  await server.call(200, 'PUT /v1/lists/payees', asker, { version: 0, values: ['Ann', 'Bob'] });
  await written();
  for (const { email } of [asker, viewer]) expect(lettersTo(email)).toEqual([]);
  const letters = lettersTo(second.email);
  expect(letters.map(subjectOf).sort()).toEqual([
    'A list waits for your review: payees',
    'A settings change waits for your review',
  ]);
  const all = letters.join('\n');
  for (const text of [
    'Settings: approval_required',
    '> it is in the way',
    `http://control.test/settings?tenant=${w.tenant.id}`,
    'Version: 1: 2 added, 0 removed',
    `http://control.test/lists/payees?tenant=${w.tenant.id}`,
  ]) {
    expect(all).toContain(text);
  }
  const events = await sql<{ payload: object }>(
    server,
    `select payload from event_outbox where tenant_id = $1 and event_type = 'settings.change_proposed'`,
    [w.tenant.id],
  );
  expect(events.map(({ payload }) => payload)).toMatchObject([
    { settings: ['approval_required'], actor_id: asker.userId, reason: 'it is in the way' },
  ]);
  // what was decided meanwhile is not mailed any more
  const late = await reader(w, 'hourly');
  await server.call(200, 'PATCH /v1/settings', asker, { self_approval: true, reason: 'again' });
  const { body } = await server.call<{ changes: { id: string }[] }>(
    200,
    'GET /v1/settings/changes?status=pending',
    second,
  );
  for (const { id } of body.changes) {
    await server.call(200, `POST /v1/settings/changes/${id}/reject`, second, { reason: 'no' });
  }
  server.clock.advance(3_700_000);
  await written();
  expect(lettersTo(late.email)).toEqual([]);
});

test('no letter and no address is in the log or readable in the database', async () => {
  const w = await world();
  const approver = await reader(w, 'each');
  smtp.answers.push('451 not now');
  await w.hold({ arguments: { note: 'the quick brown fox' } });
  await written();
  const { rows } = await server.core.db.owner.query<{ line: string }>(
    `select n::text as line from mail_notice n union all select m::text from mail_message m where user_id = $1`,
    [approver.userId],
  );
  expect(rows).toHaveLength(1);
  for (const text of [rows[0]!.line, server.logged.join('\n')]) {
    expect(text).not.toMatch(/quick brown fox/);
    expect(text).not.toContain(approver.email);
  }
});

/** The parts of a letter as a mail program reads them. */
function decoded(letter: string): string {
  const boundary = /boundary="([^"]+)"/.exec(letter)![1]!;
  return letter
    .split(`--${boundary}`)
    .slice(1)
    .map((part) => {
      const [head, ...rest] = part.split('\r\n\r\n') as [string, ...string[]];
      const body = rest.join('\r\n\r\n');
      if (/quoted-printable/i.test(head)) {
        const bytes = body
          .replace(/=\r\n/g, '')
          .replace(/=([0-9A-F]{2})/g, (_, hex) => String.fromCharCode(Number.parseInt(hex, 16)));
        return Buffer.from(bytes, 'latin1').toString();
      }
      return /base64/i.test(head) ? Buffer.from(body, 'base64').toString() : body;
    })
    .join('\n');
}
