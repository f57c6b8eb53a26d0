import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { MailQueue } from '../../server/jobs/mail.ts';
import { SecretBox } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';
import { type Letter, Mail } from '../../server/lib/mail.ts';
import { useDatabase } from '../helpers/database.ts';
import { TestClock } from '../helpers/server.ts';
import { type MailServer, startMailServer } from '../helpers/smtp.ts';

const box = useDatabase();
const clock = new TestClock();
const seal = new SecretBox(Buffer.alloc(32, 3));
const logged: string[] = [];
const log = createLog('debug', { write: (line: string) => logged.push(line) });
const dir = mkdtempSync(path.join(tmpdir(), 'svc-mail-'));
const LINK = `http://localhost:8080/auth/magic-link/verify?token=svc_link_${'A'.repeat(38)}`;
const letter = (to: string): Letter => ({
  to,
  subject: 'Sign in to Test',
  text: `Open this:\n\n${LINK}\n`,
  html: `<p><a href="${LINK}">Sign in</a></p>`,
});
let smtp: MailServer;

beforeAll(async () => {
  smtp = await startMailServer();
  await box.db.owner.query(`insert into tenant values ('t', 't', '{}', now())`);
});
afterAll(async () => {
  await smtp.close();
  rmSync(dir, { recursive: true, force: true });
});

const sender = (smtpUrl?: string) => new Mail({ smtpUrl, from: 'Test <no-reply@control.test>', directory: dir, log });
const queueOf = (mail: Mail) => new MailQueue({ db: box.db, box: seal, mail, clock, log, isLost: async () => false });
/** As the job does: until there is nothing to send. */
const sendAll = async (mail: Mail) => {
  while ((await queueOf(mail).sendDue()) > 0);
};
const queue = (to: string, seconds = 900) =>
  box.db.transaction('t', (em) => queueOf(sender()).queue(em, 't', letter(to), new Date(clock.now() + seconds * 1000)));
const waiting = async () =>
  (await box.db.owner.query<{ attempts: number }>('select attempts from mail_message order by next_at')).rows;

describe('a letter', () => {
  test('is a file, in text and HTML with links that can be copied, where there is no mail server', async () => {
    await queue('one@example.test');
    const mail = sender();
    await sendAll(mail);
    await mail.close();
    const [name, ...more] = readdirSync(dir);
    expect(more).toEqual([]);
    expect(name).toMatch(/^\d{4}-\d\d-\d\dT[\d-]+Z-mail_\w+\.eml$/);
    const file = path.join(dir, name!);
    const text = readFileSync(file, 'utf8');
    expect(text).toMatch(/^From: Test <no-reply@control\.test>\r\nTo: one@example\.test\r\n/m);
    expect(text).toContain(`\r\n${LINK}\r\n`);
    expect(text).toContain(`<a href="${LINK}">`);
    expect(text).toMatch(/text\/plain[\s\S]*text\/html/);
    expect(statSync(file).mode & 0o077).toBe(0);
    expect(logged.join('\n')).toContain(name);
    expect(await waiting()).toEqual([]);
  });

  test('is not readable in the database, and is in no log', async () => {
    await queue('secret@example.test');
    const { rows } = await box.db.owner.query<{ line: string }>('select m::text as line from mail_message m');
    const plain = Buffer.from(rows[0]!.line.match(/\\\\x([0-9a-f]+)/)![1]!, 'hex').toString('latin1');
    for (const text of [rows[0]!.line, plain, logged.join('\n')]) {
      expect(text).not.toMatch(/secret@example|svc_link_/);
    }
    await box.db.owner.query('delete from mail_message');
  });

  test('of a transaction that fails is never sent', async () => {
    await expect(
      box.db.transaction('t', async (em) => {
        await queueOf(sender()).queue(em, 't', letter('never@example.test'), new Date(clock.now() + 60_000));
        throw new Error('no');
      }),
    ).rejects.toThrow('no');
    expect(await waiting()).toEqual([]);
  });

  test('that the mail server refuses is tried again later, and sent once', async () => {
    const mail = sender(smtp.url);
    await queue('later@example.test');
    smtp.answers.push('451 not now', '451 not now');
    await sendAll(mail);
    expect(smtp.received).toEqual([]);
    await sendAll(mail);
    expect(await waiting()).toEqual([{ attempts: 1 }]);
    clock.advance(6_000);
    await sendAll(mail);
    expect(await waiting()).toEqual([{ attempts: 2 }]);
    clock.advance(16_000);
    await sendAll(mail);
    expect(smtp.received.map(({ to }) => to)).toEqual([['later@example.test']]);
    expect(smtp.received[0]!.text).toContain(LINK);
    expect(await waiting()).toEqual([]);
    await mail.close();
  });

  test('that could not be sent while it was useful is dropped', async () => {
    const mail = sender(smtp.url);
    const before = smtp.received.length;
    await queue('late@example.test', 900);
    smtp.answers.push('451 not now');
    await sendAll(mail);
    clock.advance(901_000);
    await sendAll(mail);
    expect(await waiting()).toEqual([]);
    expect(smtp.received.length).toBe(before);
    expect(logged.join('\n')).toContain('not sent in time');
    await mail.close();
  });

  test('is sent once by many senders at work, and again after one of them died with it', async () => {
    const mail = sender(smtp.url);
    const before = smtp.received.length;
    for (let i = 0; i < 25; i++) await queue(`many${i}@example.test`);
    await Promise.all([1, 2, 3].map(() => sendAll(mail)));
    const sent = smtp.received.slice(before).map(({ to }) => to[0]!);
    expect(sent.sort()).toEqual(Array.from({ length: 25 }, (_, i) => `many${i}@example.test`).sort());
    await queue('died@example.test');
    // taken by a process that then ended
    await box.db.owner.query(`update mail_message set attempts = 1, next_at = $1`, [new Date(clock.now() + 120_000)]);
    await sendAll(mail);
    expect(await waiting()).toHaveLength(1);
    clock.advance(121_000);
    await sendAll(mail);
    expect(await waiting()).toEqual([]);
    expect(smtp.received.at(-1)!.to).toEqual(['died@example.test']);
    await mail.close();
  });

  test('that a person waits for comes before any number of those that bring news', async () => {
    const mail = sender(smtp.url);
    const before = smtp.received.length;
    for (let i = 0; i < 25; i++) {
      await box.db.transaction('t', (em) =>
        queueOf(mail).queue(em, 't', letter(`news${i}@example.test`), new Date(clock.now() + 900_000), 'usr_1'),
      );
    }
    await queue('link@example.test');
    await queueOf(mail).sendDue();
    expect(smtp.received.slice(before).map(({ to }) => to[0])).toContain('link@example.test');
    await sendAll(mail);
    expect(smtp.received.length - before).toBe(26);
    await mail.close();
  });

  test('goes to one address, whatever its text', async () => {
    const mail = sender(smtp.url);
    const before = smtp.received.length;
    await mail.send({ ...letter('a@example.test'), subject: 'x\r\nBcc: evil@example.test' }, 'mail_1');
    expect(smtp.received[before]!.to).toEqual(['a@example.test']);
    expect(smtp.received[before]!.text).not.toMatch(/^bcc:/im);
    await mail.close();
  });
});
