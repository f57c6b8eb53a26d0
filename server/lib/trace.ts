import { randomFew } from './crypto.ts';

/**
 * An action's place in a trace (W3C Trace Context). It is what the agent claims, kept so that people can follow a run:
 * INVARIANT: no decision ever depends on it.
 */
export interface Trace {
  /** 32 hexadecimal digits. */
  trace_id: string;
  /** The span of what is decided or done here: 16 hexadecimal digits. */
  span_id: string;
  /** The caller's span; undefined if the trace begins here. */
  parent_id: string | undefined;
  /** The caller, or whoever begins the trace, wants tracing systems to record it. */
  sampled: boolean;
  /** What tracing systems carry along with an incoming trace; passed on unchanged. */
  state: string | undefined;
}

/** Version 00. Of a later version, the known parts are read; ff is not a version. */
const TRACEPARENT =
  /^(?:00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})|(?!00|ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.{0,200})?)$/;
const TRACESTATE = /^[\x20-\x7e]{1,512}$/;
const ZEROS = /^0+$/;

/**
 * The next span of the trace that `traceparent` names, or of a new one if that is absent or not strictly valid: `tracestate` then
 * belongs to nothing, and is dropped.
 */
export function traceOf(traceparent: unknown, tracestate?: unknown): Trace {
  const found = typeof traceparent === 'string' ? TRACEPARENT.exec(traceparent) : null;
  const [trace_id, parent_id, flags] = (found?.slice(1) ?? []).filter((part) => part !== undefined);
  if (!trace_id || !parent_id || !flags || ZEROS.test(trace_id) || ZEROS.test(parent_id)) {
    return { trace_id: hex(16), span_id: hex(8), parent_id: undefined, sampled: true, state: undefined };
  }
  const state = typeof tracestate === 'string' && TRACESTATE.test(tracestate) ? tracestate : undefined;
  return { trace_id, span_id: hex(8), parent_id, sampled: (Number.parseInt(flags, 16) & 1) === 1, state };
}

/** The span that `traceparent` names, in the form of `traceparentOf`; undefined if it is absent or not valid. */
export function cameWith(traceparent: unknown): string | undefined {
  const { trace_id, parent_id, sampled } = traceOf(traceparent);
  return parent_id && traceparentOf({ trace_id, span_id: parent_id, sampled });
}

/** Another span under the same parent. */
export function siblingOf(trace: Trace): Trace {
  return { ...trace, span_id: hex(8) };
}

/** The value to pass on to whoever performs the action: this span is its parent. */
export function traceparentOf({ trace_id, span_id, sampled }: Pick<Trace, 'trace_id' | 'span_id' | 'sampled'>): string {
  return `00-${trace_id}-${span_id}-${sampled ? '01' : '00'}`;
}

function hex(bytes: 8 | 16): string {
  for (;;) {
    const text = randomFew(bytes).toString('hex');
    if (!ZEROS.test(text)) return text;
  }
}
