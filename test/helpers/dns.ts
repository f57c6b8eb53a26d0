import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import packet, { type Answer } from 'dns-packet';
import { afterAll, beforeAll } from 'vitest';

/**
 * What a name resolves to. A list of addresses, families mixed, answers both A and AAAA questions, each with its own family; a
 * function is called for each question, which is how a name rebinds.
 */
export type Script =
  | readonly string[]
  | { txt: readonly (string | readonly string[])[] }
  | 'NXDOMAIN'
  | 'SERVFAIL'
  | 'REFUSED'
  | 'silence'
  | ((type: 'A' | 'AAAA' | 'TXT', count: number) => Script);

const RCODES = { NOERROR: 0, SERVFAIL: 2, NXDOMAIN: 3, REFUSED: 5 } as const;
/** Above this size an answer over UDP is truncated, and the client must ask again over TCP. */
const UDP_LIMIT = 512;

/** A real DNS server on its own loopback port, over UDP and TCP. A name without a script is NXDOMAIN. */
export class TestDns {
  readonly names: Record<string, Script>;
  /** `TYPE name` of every question received. */
  readonly asked: string[] = [];
  readonly #udp: Socket;
  readonly #tcp: Server;

  private constructor(names: Record<string, Script>, udp: Socket, tcp: Server) {
    this.names = names;
    this.#udp = udp;
    this.#tcp = tcp;
  }

  static async start(names: Record<string, Script> = {}): Promise<TestDns> {
    const tcp = createServer();
    await once(tcp.listen(0, '127.0.0.1'), 'listening');
    const udp = createSocket('udp4');
    const dns = new TestDns(names, udp, tcp);
    udp.bind((tcp.address() as AddressInfo).port, '127.0.0.1');
    await once(udp, 'listening');
    udp.on('message', (bytes, from) => {
      const answer = dns.#answer(bytes, true);
      if (answer) udp.send(answer, from.port, from.address);
    });
    tcp.on('connection', (socket) => {
      let waiting = Buffer.alloc(0);
      socket.on('error', () => {});
      socket.on('data', (chunk) => {
        waiting = Buffer.concat([waiting, chunk]);
        while (waiting.length >= 2 && waiting.length >= 2 + waiting.readUInt16BE()) {
          const end = 2 + waiting.readUInt16BE();
          const answer = dns.#answer(waiting.subarray(2, end), false);
          waiting = waiting.subarray(end);
          if (!answer) continue;
          const length = Buffer.alloc(2);
          length.writeUInt16BE(answer.length);
          socket.write(Buffer.concat([length, answer]));
        }
      });
    });
    return dns;
  }

  /** `host:port`, in the format of SVC_DNS_SERVERS. */
  get server(): string {
    return `127.0.0.1:${(this.#tcp.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    this.#udp.close();
    this.#tcp.close();
    await once(this.#tcp, 'close');
  }

  #answer(bytes: Buffer, udp: boolean): Buffer | undefined {
    const query = packet.decode(bytes);
    const question = query.questions![0]!;
    const name = question.name.toLowerCase();
    const type = question.type as 'A' | 'AAAA' | 'TXT';
    this.asked.push(`${type} ${name}`);
    const count = this.asked.filter((line) => line === `${type} ${name}`).length;
    let script = this.names[name] ?? 'NXDOMAIN';
    while (typeof script === 'function') script = script(type, count);
    if (script === 'silence') return undefined;
    const rcode = typeof script === 'string' ? RCODES[script] : RCODES.NOERROR;
    const answers: Answer[] = [];
    if (typeof script === 'object') {
      if ('txt' in script) {
        if (type === 'TXT') for (const data of script.txt) answers.push({ type, name, ttl: 0, data: data as string });
      } else {
        const wanted = type === 'A' ? /^[\d.]+$/ : type === 'AAAA' ? /:/ : /$^/;
        for (const data of script as string[]) {
          if (wanted.test(data)) answers.push({ type: type as 'A', name, ttl: 0, data });
        }
      }
    }
    const message = {
      id: query.id!,
      type: 'response' as const,
      flags: packet.RECURSION_DESIRED | packet.RECURSION_AVAILABLE | rcode,
      questions: query.questions!,
      answers,
    };
    const whole = packet.encode(message);
    if (!udp || whole.length <= UDP_LIMIT) return whole;
    return packet.encode({ ...message, flags: message.flags | packet.TRUNCATED_RESPONSE, answers: [] });
  }
}

/** A DNS server for the test file. Call it before declaring the servers that use it. */
export function useDns(names: Record<string, Script> = {}) {
  let dns: TestDns | undefined;
  beforeAll(async () => {
    dns = await TestDns.start(names);
  });
  afterAll(() => dns?.stop());
  return {
    names,
    get asked(): readonly string[] {
      return dns!.asked;
    },
    /** The settings for a server that uses it. */
    settings: (more: Record<string, string> = {}): Record<string, string> => ({
      ...more,
      get SVC_DNS_SERVERS() {
        return dns!.server;
      },
    }),
  };
}
