import { mkdir, open, rename } from 'node:fs/promises';
import path from 'node:path';
import type { EntityManager } from '@mikro-orm/postgresql';
import type { Transporter } from 'nodemailer';
import type { Log } from './log.ts';

/** A message to one person. The text may contain a link that signs in: it is never logged. */
export interface Letter {
  to: string;
  subject: string;
  text: string;
  html: string;
}

/**
 * Queues a letter within the caller's transaction: it is sent if and only if that commits, and retried until the mail server
 * accepts it, but not after `until`, when its content is no longer useful. With `userId`, letters queued for that person can be
 * withdrawn.
 */
export type QueueMail = (
  em: EntityManager,
  tenantId: string,
  letter: Letter,
  until: Date,
  userId?: string,
) => Promise<void>;

/** How long a mail server may take for each step of a conversation. */
const STEP_MS = 10_000;

/**
 * Sends letters through the operator's mail server (`SMTP_URL`), or writes each one to a file if there is none. The server's
 * address comes from the operator, not a tenant, so the egress guard does not apply.
 */
export class Mail {
  readonly #smtpUrl: string | undefined;
  #transport: Promise<Transporter> | undefined;
  readonly #from: string;
  readonly #directory: string | undefined;
  readonly #log: Log;

  constructor(options: { smtpUrl: string | undefined; from: string; directory: string; log: Log }) {
    this.#from = options.from;
    this.#log = options.log;
    this.#directory = options.smtpUrl ? undefined : options.directory;
    this.#smtpUrl = options.smtpUrl;
  }

  /**
   * Resolves when the mail server has accepted the letter, or when its file is complete and durable. An error never contains the
   * text. `id` names the letter in the log, in its file and to the mail server.
   */
  async send(letter: Letter, id: string): Promise<void> {
    const { to, subject, text, html } = letter;
    const transport = await this.#opened();
    const sent = await transport.sendMail({
      from: this.#from,
      // an object, not a string that would be parsed as a list of addresses
      to: { name: '', address: to },
      subject,
      text,
      html,
      headers: { 'Auto-Submitted': 'auto-generated' },
    });
    if (!this.#directory) {
      this.#log.info({ mailId: id }, 'a mail was sent');
      return;
    }
    const stamp = new Date().toISOString().replace(/[:.]/g, '-');
    const file = path.join(this.#directory, `${stamp}-${id}.eml`);
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    const handle = await open(`${file}.part`, 'w', 0o600);
    try {
      await handle.writeFile((sent as unknown as { message: Buffer }).message);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(`${file}.part`, file);
    this.#log.info({ mailId: id, file }, 'a mail was written to a file: set SMTP_URL to have mail sent');
  }

  /** Resolves when the mail server accepts this program's login; immediately if mails are written to files. */
  async verify(): Promise<void> {
    if (!this.#directory) await (await this.#opened()).verify();
  }

  async close(): Promise<void> {
    (await this.#transport?.catch(() => undefined))?.close();
  }

  /** Loaded for the first letter: most processes never send one. */
  #opened(): Promise<Transporter> {
    this.#transport ??= (async () => {
      const { createTransport } = await import('nodemailer');
      const common = { disableFileAccess: true, disableUrlAccess: true };
      const transport: Transporter = this.#smtpUrl
        ? createTransport({
            ...common,
            url: this.#smtpUrl,
            connectionTimeout: STEP_MS,
            greetingTimeout: STEP_MS,
            socketTimeout: STEP_MS,
          })
        : createTransport({ ...common, streamTransport: true, buffer: true, newline: 'windows' });
      transport.use('stream', readable);
      return transport;
    })();
    // the next letter tries again
    this.#transport.catch(() => {
      this.#transport = undefined;
    });
    return this.#transport;
  }
}

interface MimeNode {
  childNodes: MimeNode[];
  content?: unknown;
  getTransferEncoding(): string;
}

/**
 * ASCII text stays as it is, with lines as long as a link (RFC 5322 allows 998): nodemailer would break them after 76 characters,
 * and a link in a file could not be copied.
 */
function readable(mail: unknown, done: (error?: Error | null) => void): void {
  const visit = (node: MimeNode) => {
    const { content } = node;
    if (typeof content === 'string' && /^[\t\n\r\x20-\x7e]*$/.test(content) && !/[^\n]{998}/.test(content)) {
      node.getTransferEncoding = () => '7bit';
    }
    for (const child of node.childNodes) visit(child);
  };
  visit((mail as { message: MimeNode }).message);
  done();
}
