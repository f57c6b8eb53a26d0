import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'vitest';
import type { TestServer } from './server.ts';

export interface Received {
  to: string;
  subject: string;
  text: string;
  /** The first URL in it. */
  link: string;
  token: string;
}

/** The mails that the server has written to an address, oldest first. */
export function mailsTo(server: TestServer, to: string): Received[] {
  const directory = path.join(server.dataDir, 'mail');
  let names: string[] = [];
  try {
    names = readdirSync(directory).filter((name) => name.endsWith('.eml'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
  return names
    .sort()
    .map((name) => readFileSync(path.join(directory, name), 'utf8'))
    .filter((text) => text.includes(`\r\nTo: ${to}\r\n`))
    .map((text) => {
      const link = /^(https?:\S+)\r$/m.exec(text)?.[1] ?? '';
      return {
        to,
        subject: /^Subject: (.*)\r$/m.exec(text)?.[1] ?? '',
        text,
        link,
        token: /token=([\w-]+)/.exec(link)?.[1] ?? '',
      };
    });
}

/** Waits until the mail queue and the requests for links are empty: everything requested has been written. */
export async function mailsSent(server: TestServer): Promise<void> {
  // as the job would do within the second
  while ((await server.core.links.serveRequests()) > 0);
  while ((await server.core.mailQueue.sendDue()) > 0);
  await expect
    .poll(
      async () => {
        const { rows } = await server.core.db.owner.query<{ waiting: number }>(
          'select ((select count(*) from mail_message) + (select count(*) from sign_in_request))::int as waiting',
        );
        return rows[0]!.waiting;
      },
      { interval: 20 },
    )
    .toBe(0);
}
