import { once } from 'node:events';
import http, { type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import https from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { Identity } from './tls.ts';

export interface Received {
  path: string;
  headers: IncomingHttpHeaders;
  body: string;
  /** The body as JSON. */
  json: Record<string, unknown>;
  at: number;
}

/** What a receiver does with a request: return a status, or anything it likes with the response. */
export type Behavior = number | ((request: Received, response: ServerResponse) => unknown);

/** A real webhook receiver on loopback, with TLS if it has a certificate. */
export class Receiver {
  readonly received: Received[] = [];
  /** What it does next; 200 by default. */
  behavior: Behavior = 200;
  connections = 0;
  readonly #server: http.Server;
  readonly #secure: boolean;
  readonly #sockets = new Set<Socket>();

  private constructor(server: http.Server, secure: boolean) {
    this.#server = server;
    this.#secure = secure;
  }

  static async start(behavior: Behavior = 200, tls?: Identity): Promise<Receiver> {
    const handler = async (request: http.IncomingMessage, response: ServerResponse) => {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk);
      const body = Buffer.concat(chunks).toString();
      const json = JSON.parse(body || '{}') as Record<string, unknown>;
      const received = { path: request.url!, headers: request.headers, body, json, at: Date.now() };
      receiver.received.push(received);
      if (typeof receiver.behavior === 'number') response.writeHead(receiver.behavior).end();
      else await receiver.behavior(received, response);
    };
    const server = tls ? https.createServer(tls, handler) : http.createServer(handler);
    // a connection that is kept does not end because the test is slow
    server.keepAliveTimeout = 600_000;
    const receiver = new Receiver(server, tls !== undefined);
    receiver.behavior = behavior;
    server.on('connection', (socket: Socket) => {
      receiver.connections++;
      receiver.#sockets.add(socket);
      socket.on('close', () => receiver.#sockets.delete(socket));
      socket.on('error', () => undefined);
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return receiver;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  url(path = '/hook', host = '127.0.0.1'): string {
    return `${this.#secure ? 'https' : 'http'}://${host}:${this.port}${path}`;
  }

  /** Ends all connections, like a server that has waited long enough. */
  hangUp(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async stop(): Promise<void> {
    this.hangUp();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
