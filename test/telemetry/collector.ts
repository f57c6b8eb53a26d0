import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { atEnd } from '../helpers/cleanups.ts';
import { until } from '../helpers/until.ts';

interface Value {
  stringValue?: string;
}
interface Wire {
  resourceSpans: {
    resource: { attributes: { key: string; value: Value }[] };
    scopeSpans: {
      scope: { name: string };
      spans: {
        traceId: string;
        spanId: string;
        parentSpanId?: string;
        name: string;
        kind: number;
        startTimeUnixNano: string;
        endTimeUnixNano: string;
        attributes: { key: string; value: Value }[];
        events: { name: string; timeUnixNano: string }[];
        status?: { code?: number };
      }[];
    }[];
  }[];
}

/** A span as the collector got it. */
export interface Collected {
  service: string | undefined;
  scope: string;
  trace: string;
  id: string;
  parent: string | undefined;
  name: string;
  kind: number;
  ms: number;
  attributes: Record<string, string | undefined>;
  events: string[];
  failed: boolean;
}

/** A collector of OpenTelemetry: takes what an exporter sends by OTLP over HTTP. */
export class Collector {
  readonly spans: Collected[] = [];
  readonly bodies: string[] = [];
  /** The status of its answers; 0: it answers nothing. */
  status = 200;
  readonly paths = new Set<string>();
  readonly #server = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    this.paths.add(`${request.method} ${request.url} ${request.headers['content-type']}`);
    const body = Buffer.concat(parts).toString();
    this.bodies.push(body);
    if (this.status === 200) this.#take(JSON.parse(body) as Wire);
    if (this.status > 0) response.writeHead(this.status, { 'content-type': 'application/json' }).end('{}');
  });

  static async start(): Promise<Collector> {
    const collector = new Collector();
    collector.#server.listen(0, '127.0.0.1');
    await once(collector.#server, 'listening');
    atEnd(() => {
      collector.#server.close();
      collector.#server.closeAllConnections();
    });
    return collector;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The span that fits, when it is there. */
  find(fits: (span: Collected) => boolean, what: string): Promise<Collected> {
    return until(() => this.spans.find(fits), what);
  }

  #take({ resourceSpans }: Wire): void {
    for (const { resource, scopeSpans } of resourceSpans) {
      for (const { scope, spans } of scopeSpans) {
        for (const span of spans) {
          const texts = (list: { key: string; value: Value }[]) =>
            Object.fromEntries(list.map(({ key, value }) => [key, value.stringValue]));
          this.spans.push({
            service: texts(resource.attributes)['service.name'],
            scope: scope.name,
            trace: span.traceId,
            id: span.spanId,
            parent: span.parentSpanId || undefined,
            name: span.name,
            kind: span.kind,
            ms: Number(BigInt(span.endTimeUnixNano) - BigInt(span.startTimeUnixNano)) / 1e6,
            attributes: texts(span.attributes),
            events: span.events.map(({ name }) => name),
            failed: span.status?.code === 2,
          });
        }
      }
    }
  }
}
