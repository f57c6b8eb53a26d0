import type { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import type { Log } from '../log.ts';
import { SCOPE_NAME, SPAN_ATTRIBUTES, type Span, type SpanAttribute } from './names.ts';

/** Takes spans and sends them when it can. */
export interface Telemetry {
  /** Never throws and never waits. */
  add(span: Span): void;
  /** Sends what is left, for at most two seconds. */
  stop(): Promise<void>;
}

type Exported = Parameters<OTLPTraceExporter['export']>[0][number];

const MOST_KEPT = 4096;
const BATCH = 512;
const EVERY_MS = 2000;
const LAST_MS = 2000;
const MOST_TEXT = 300;
/** How often a failure to send spans is logged. */
const SAID_MS = 60_000;

/**
 * Sends spans to the operator's collector, by OTLP over HTTP. What exceeds the collector's capacity is dropped, oldest first: no
 * decision ever waits for it, and memory is bounded. The exporter is loaded here, and nowhere else.
 */
export async function startTelemetry(options: {
  /** The value of OTEL_EXPORTER_OTLP_ENDPOINT. */
  endpoint: string;
  service: string;
  log: Log;
  everyMs?: number;
}): Promise<Telemetry> {
  const { OTLPTraceExporter } = await import('@opentelemetry/exporter-trace-otlp-http');
  // headers, timeout and certificates come from the environment (OTEL_EXPORTER_OTLP_…)
  const exporter = new OTLPTraceExporter({ url: `${options.endpoint.replace(/\/+$/, '')}/v1/traces` });
  const resource = { attributes: { 'service.name': options.service } } as unknown as Exported['resource'];
  return new Queue(exporter, resource, options.log, options.everyMs ?? EVERY_MS);
}

class Queue implements Telemetry {
  readonly #exporter: OTLPTraceExporter;
  readonly #resource: Exported['resource'];
  readonly #log: Log;
  readonly #timer: NodeJS.Timeout;
  #spans: Span[] = [];
  #dropped = 0;
  #saidAt = Number.NEGATIVE_INFINITY;
  #sending: Promise<void> | undefined;

  constructor(exporter: OTLPTraceExporter, resource: Exported['resource'], log: Log, everyMs: number) {
    this.#exporter = exporter;
    this.#resource = resource;
    this.#log = log;
    this.#timer = setInterval(() => void this.#send(), everyMs).unref();
  }

  add(span: Span): void {
    // as the trace's caller wants it
    if (!span.trace.sampled) return;
    this.#spans.push(span);
    if (this.#spans.length > MOST_KEPT) this.#dropped += this.#spans.splice(0, BATCH).length;
    if (this.#spans.length >= BATCH) void this.#send();
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    const rest = async () => {
      await this.#sending;
      while (this.#spans.length > 0) await this.#send();
      await this.#exporter.shutdown();
    };
    let late: NodeJS.Timeout | undefined;
    const over = new Promise<void>((resolve) => {
      late = setTimeout(resolve, LAST_MS);
    });
    await Promise.race([rest().catch(() => {}), over]);
    clearTimeout(late);
    this.#spans = [];
  }

  /** One batch at a time. */
  #send(): Promise<void> {
    if (this.#sending || this.#spans.length === 0) return this.#sending ?? Promise.resolve();
    const batch = this.#spans.splice(0, BATCH);
    this.#sending = new Promise<void>((resolve) => {
      try {
        this.#exporter.export(
          batch.map((span) => exported(span, this.#resource)),
          ({ error }) => {
            if (error) this.#failed(batch.length, error);
            resolve();
          },
        );
      } catch (error) {
        this.#failed(batch.length, error as Error);
        resolve();
      }
    }).finally(() => {
      this.#sending = undefined;
    });
    return this.#sending;
  }

  #failed(spans: number, error: Error): void {
    this.#dropped += spans;
    if (performance.now() - this.#saidAt < SAID_MS) return;
    this.#saidAt = performance.now();
    this.#log.warn({ detail: error.message.slice(0, MOST_TEXT), dropped: this.#dropped }, 'spans could not be sent');
    this.#dropped = 0;
  }
}

/** The span in the exporter's form: one that has ended. */
function exported(
  { name, kind, trace, from, to, attributes, events = [], failed }: Span,
  resource: Exported['resource'],
) {
  const context = (spanId: string) => ({ traceId: trace.trace_id, spanId, traceFlags: trace.sampled ? 1 : 0 });
  const known = Object.entries(attributes).flatMap(([key, value]) =>
    value === undefined || value === '' ? [] : [[SPAN_ATTRIBUTES[key as SpanAttribute], bounded(value)] as const],
  );
  return {
    name: bounded(name),
    // SpanKind.INTERNAL and SERVER, SpanStatusCode.UNSET and ERROR of the API, which then need not be loaded
    kind: kind === 'server' ? 1 : 0,
    status: { code: failed ? 2 : 0 },
    spanContext: () => context(trace.span_id),
    ...(trace.parent_id !== undefined && { parentSpanContext: { ...context(trace.parent_id), isRemote: true } }),
    startTime: time(from),
    endTime: time(Math.max(from, to)),
    duration: time(Math.max(0, to - from)),
    attributes: Object.fromEntries(known),
    events: events.map((event) => ({ name: event.name, time: time(event.at) })),
    links: [],
    ended: true,
    resource,
    instrumentationScope: { name: SCOPE_NAME },
    droppedAttributesCount: 0,
    droppedEventsCount: 0,
    droppedLinksCount: 0,
  } satisfies Exported;
}

function bounded(text: string): string {
  return text.slice(0, MOST_TEXT).toWellFormed();
}

/** Seconds and nanoseconds. */
function time(ms: number): [number, number] {
  const seconds = Math.floor(ms / 1000);
  return [seconds, Math.round((ms - seconds * 1000) * 1e6)];
}
