import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { drawnMachines } from './charts.ts';
import { Messages } from './messages.ts';

/** Steps kept for viewers that connect later; the oldest is dropped first. */
const MAX_KEPT = 3000;
/** A viewer with this much unsent data is disconnected; it reconnects and gets the kept steps. */
const MAX_BUFFERED = 16 * 1024 * 1024;

const FILES: Record<string, { type: string; name: string }> = {
  '/': { type: 'text/html; charset=utf-8', name: 'viewer.html' },
  '/viewer.css': { type: 'text/css; charset=utf-8', name: 'viewer.css' },
  '/viewer.js': { type: 'text/javascript; charset=utf-8', name: 'viewer.js' },
};
const HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
};

/**
 * Receives the steps that servers stream over WebSocket (`SVC_INSPECT`) and forwards them to its page as server-sent
 * events. It listens on the loopback address only. Pages of other sites can neither read nor send anything: it accepts
 * only its own host name, and refuses WebSockets with an `Origin`, which browsers always send.
 */
export class Relay {
  readonly #server: Server;
  readonly #sources = new Set<Duplex>();
  readonly #viewers = new Set<ServerResponse>();
  readonly #kept: { number: number; text: string }[] = [];
  #count = 0;
  readonly #onMessage: (text: string) => void;

  /** `onMessage` gets the same messages as the viewers. */
  constructor(onMessage: (text: string) => void = () => undefined) {
    this.#onMessage = onMessage;
    this.#server = createServer((request, response) => this.#answer(request, response));
    this.#server.on('upgrade', (request, socket: Duplex) => this.#accept(request, socket));
  }

  /** Resolves to the port. */
  async listen(port: number): Promise<number> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(port, '127.0.0.1', resolve);
    });
    return (this.#server.address() as AddressInfo).port;
  }

  /** Disconnects the servers. */
  disconnectSources(): void {
    for (const socket of this.#sources) socket.destroy();
  }

  async close(): Promise<void> {
    this.disconnectSources();
    for (const viewer of this.#viewers) viewer.end();
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  #isOwnName({ headers }: IncomingMessage): boolean {
    const { port } = this.#server.address() as AddressInfo;
    return headers.host === `127.0.0.1:${port}` || headers.host === `localhost:${port}`;
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const file = FILES[request.url ?? ''];
    const refuse = (status: number) => response.writeHead(status, HEADERS).end();
    if (!this.#isOwnName(request)) return void refuse(421);
    if (request.method !== 'GET') return void refuse(405);
    if (request.url === '/steps') return void this.#stream(request, response);
    if (request.url === '/charts.json') {
      const charts = JSON.stringify(drawnMachines());
      return void response.writeHead(200, { ...HEADERS, 'content-type': 'application/json' }).end(charts);
    }
    if (!file) return void refuse(404);
    const body = readFileSync(new URL(file.name, import.meta.url));
    response.writeHead(200, { ...HEADERS, 'content-type': file.type }).end(body);
  }

  #stream(request: IncomingMessage, response: ServerResponse): void {
    response.writeHead(200, { ...HEADERS, 'content-type': 'text/event-stream' }).flushHeaders();
    this.#viewers.add(response);
    response.on('close', () => this.#viewers.delete(response));
    const last = Number(request.headers['last-event-id'] ?? 0);
    for (const { number, text } of this.#kept) if (number > last) response.write(eventOf(number, text));
  }

  #accept(request: IncomingMessage, socket: Duplex): void {
    socket.on('error', () => undefined);
    const key = request.headers['sec-websocket-key'];
    if (!key || request.headers.origin !== undefined || !this.#isOwnName(request)) {
      socket.end('HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n');
      return;
    }
    const accept = createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: ${accept}\r\n\r\n`,
    );
    this.#sources.add(socket);
    socket.on('close', () => this.#sources.delete(socket));
    const messages = new Messages((text) => this.#take(text));
    socket.on('data', (chunk: Buffer) => {
      if (!messages.push(chunk)) socket.destroy();
    });
    socket.on('end', () => socket.destroy());
  }

  #take(text: string): void {
    try {
      JSON.parse(text);
    } catch {
      return;
    }
    const number = ++this.#count;
    this.#kept.push({ number, text });
    if (this.#kept.length > MAX_KEPT) this.#kept.shift();
    for (const viewer of this.#viewers) {
      if (viewer.writableLength > MAX_BUFFERED) viewer.destroy();
      else viewer.write(eventOf(number, text));
    }
    this.#onMessage(text);
  }
}

/** A server-sent event. Line breaks in JSON occur only between tokens, where they are insignificant. */
function eventOf(number: number, text: string): string {
  return `id: ${number}\ndata: ${text.replace(/[\r\n]+/g, ' ')}\n\n`;
}
