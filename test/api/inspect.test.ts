import { createHash } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { BODIES } from '../helpers/api.ts';
import { Receiver } from '../helpers/receiver.ts';
import { useServer } from '../helpers/server.ts';

interface Message {
  type: string;
  sessionId: string;
  name?: string;
  definition?: string;
  event?: { type: string };
  snapshot?: { value: string; context: object };
}

/** A viewer: the receiving half of RFC 6455, for text messages in one frame each. */
class Viewer {
  readonly messages: Message[] = [];
  readonly #server: Server;
  readonly #sockets = new Set<Duplex>();
  #changed: () => void = () => undefined;

  constructor() {
    this.#server = createServer();
    this.#server.on('upgrade', (request, socket: Duplex) => {
      const accept = createHash('sha1')
        .update(`${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
        .digest('base64');
      socket.write(
        `HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: ${accept}\r\n\r\n`,
      );
      this.#sockets.add(socket);
      socket.on('error', () => undefined);
      let rest = Buffer.alloc(0);
      socket.on('data', (chunk: Buffer) => {
        rest = Buffer.concat([rest, chunk]);
        for (let frame = readFrame(rest); frame; frame = readFrame(rest)) {
          rest = rest.subarray(frame.length);
          if (frame.opcode === 1) this.messages.push(JSON.parse(frame.payload.toString()) as Message);
        }
        this.#changed();
      });
    });
  }
  async listen(port = 0): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(port, '127.0.0.1', resolve));
    return (this.#server.address() as AddressInfo).port;
  }
  async until(found: (messages: Message[]) => boolean): Promise<void> {
    while (!found(this.messages)) await new Promise<void>((resolve) => (this.#changed = resolve));
  }
  hangUp(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
  }
  async close(): Promise<void> {
    this.hangUp();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

function readFrame(data: Buffer): { opcode: number; payload: Buffer; length: number } | undefined {
  if (data.length < 2) return undefined;
  const short = data[1]! & 127;
  const header = short === 126 ? 4 : short === 127 ? 10 : 2;
  if (data.length < header + 4) return undefined;
  const size = short === 126 ? data.readUInt16BE(2) : short === 127 ? Number(data.readBigUInt64BE(2)) : short;
  const length = header + 4 + size;
  if (data.length < length) return undefined;
  const mask = data.subarray(header, header + 4);
  const payload = Buffer.from(data.subarray(header + 4, length).map((byte, i) => byte ^ mask[i % 4]!));
  return { opcode: data[0]! & 15, payload, length };
}

const viewer = new Viewer();
const env: Record<string, string> = { SVC_EGRESS_ALLOW: '127.0.0.1/32' };
beforeAll(async () => {
  env.SVC_INSPECT = `ws://127.0.0.1:${await viewer.listen()}`;
});
afterAll(() => viewer.close());
const server = useServer(env);

const steps = (sessionId: string) =>
  viewer.messages
    .filter((message) => message.sessionId === sessionId && message.type === '@xstate.snapshot')
    .map(({ event, snapshot }) => `${event?.type} ${snapshot?.value}`);

test('an inspector is shown each machine once, then what happened to it and how it stands', async () => {
  const { id, admin } = await server.tenant();
  await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
  const session = `policy:${id}/desk`;
  await viewer.until(() => steps(session).length === 1);
  await server.call(200, 'POST /v1/policies/desk/submit', admin, {});
  await viewer.until(() => steps(session).length === 2);
  expect(steps(session)).toEqual(['policy.created draft', 'policy.submitted pending_approval']);
  const actors = viewer.messages.filter((it) => it.sessionId === session && it.type === '@xstate.actor');
  expect(actors).toHaveLength(1);
  expect(JSON.parse(actors[0]!.definition!)).toMatchObject({ id: 'policy', initial: 'draft' });
});

test('a delivery is shown from its queue to its end', async () => {
  const { id: tenantId, admin } = await server.tenant();
  const receiver = await Receiver.start();
  try {
    receiver.behavior = 403;
    const { id } = (
      await server.call<{ id: string }>(201, 'POST /v1/subscriptions', admin, {
        url: receiver.url(),
        secret: 'a signing secret',
        event_types: ['policy.created'],
      })
    ).body;
    await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
    const shown = () =>
      viewer.messages.filter(({ type, sessionId, event }) => {
        return type === '@xstate.snapshot' && event && sessionId.startsWith(`delivery:${tenantId}/`);
      });
    const step = (type: string) => shown().find(({ event }) => event?.type === type)?.snapshot;
    await viewer.until(() => step('attempted REJECTED_BY_DESTINATION') !== undefined);
    expect(step('attempted REJECTED_BY_DESTINATION')).toMatchObject({ value: 'retrying', context: { attempts: 1 } });
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false });
    await viewer.until(() => step('stop') !== undefined);
    expect(step('stop')).toMatchObject({ value: 'failed', context: { attempts: 1, nextAt: null } });
    receiver.behavior = 200;
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
    const deliveryId = shown()[0]!.sessionId.split('/').at(-1);
    await server.call(200, `POST /v1/subscriptions/${id}/deliveries/${deliveryId}/redeliver`, admin, {});
    await viewer.until(() => step('attempted DELIVERED') !== undefined);
    expect(step('attempted DELIVERED')).toMatchObject({ value: 'delivered', context: { attempts: 2 } });
    expect(new Set(shown().map(({ sessionId }) => sessionId)).size).toBe(1);
  } finally {
    await receiver.stop();
  }
});

test('a viewer that comes again is shown the machine again, and what it missed', async () => {
  const { id, admin } = await server.tenant();
  await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
  const session = `policy:${id}/desk`;
  await viewer.until(() => steps(session).length === 1);
  viewer.hangUp();
  await server.call(200, 'POST /v1/policies/desk/submit', admin, {});
  await viewer.until(() => steps(session).length === 2);
});
