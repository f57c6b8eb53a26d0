import { createServer, type Socket } from 'node:net';

/** A mail server on loopback that accepts everything, or answers DATA as instructed. */
export interface MailServer {
  url: string;
  /** The mails received, header and body. */
  received: { to: string[]; text: string }[];
  /** The responses to the next mails; 250 when empty. */
  answers: string[];
  close(): Promise<void>;
}

export async function startMailServer(): Promise<MailServer> {
  const received: MailServer['received'] = [];
  const answers: string[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => undefined);
    let buffer = '';
    let data = false;
    let to: string[] = [];
    socket.write('220 test\r\n');
    socket.on('data', (chunk) => {
      buffer += chunk;
      for (;;) {
        if (data) {
          const end = buffer.indexOf('\r\n.\r\n');
          if (end < 0) return;
          const answer = answers.shift() ?? '250 taken';
          if (answer.startsWith('250')) received.push({ to, text: buffer.slice(0, end) });
          buffer = buffer.slice(end + 5);
          data = false;
          to = [];
          socket.write(`${answer}\r\n`);
          continue;
        }
        const end = buffer.indexOf('\r\n');
        if (end < 0) return;
        const line = buffer.slice(0, end);
        buffer = buffer.slice(end + 2);
        if (/^RCPT/i.test(line)) to.push(/<(.*)>/.exec(line)![1]!);
        if (/^DATA/i.test(line)) {
          data = true;
          socket.write('354 go\r\n');
        } else if (/^QUIT/i.test(line)) socket.end('221 bye\r\n');
        else socket.write('250 ok\r\n');
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  return {
    url: `smtp://127.0.0.1:${port}`,
    received,
    answers,
    close: () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy();
        server.close(() => resolve());
      }),
  };
}
