import type { OutgoingHttpHeaders } from 'node:http';
import type { FastifyReply } from 'fastify';
import { whenClosed } from '../lib/closed.ts';

/** A listener that leaves this many bytes unread is disconnected; it may connect again. */
const MAX_UNREAD = 64 * 1024;

export interface EventStream {
  /** Sends one event; does nothing once the stream has ended. */
  send(event: string, data: unknown): void;
  end(): void;
  /** Called once, when the connection is gone. */
  onClose(done: () => void): void;
}

/**
 * Responds with server-sent events (HTML Living Standard, section 9.2), each with JSON data. Undefined if the client is already
 * gone. The connection closes with the stream, so that a stopping server does not wait for it.
 */
export function openEventStream(reply: FastifyReply): EventStream | undefined {
  const { raw } = reply.hijack();
  if (raw.destroyed) return undefined;
  raw.writeHead(200, {
    ...(reply.getHeaders() as OutgoingHttpHeaders),
    connection: 'close',
    'content-type': 'text/event-stream',
    'cache-control': 'no-store',
    // nginx would buffer the events before forwarding them
    'x-accel-buffering': 'no',
  });
  return {
    send(event, data) {
      if (raw.writableEnded) return;
      if (raw.writableLength > MAX_UNREAD) raw.destroy();
      else raw.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
    },
    end: () => raw.end(),
    onClose: (done) => void whenClosed(raw, done),
  };
}
