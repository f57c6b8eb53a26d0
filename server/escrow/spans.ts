import type { Database } from '../../db/index.ts';
import type { HoldContext, HoldState } from '../../machines/escrow.ts';
import type { Log } from '../lib/log.ts';
import { SPAN_EVENTS, SPAN_NAMES, type Span, type SpanEventName } from '../lib/telemetry/names.ts';
import { traceOf } from '../lib/trace.ts';

const ENDS: Partial<Record<HoldState, SpanEventName>> = {
  consumed: SPAN_EVENTS.consumed,
  rejected: SPAN_EVENTS.rejected,
  expired: SPAN_EVENTS.expired,
  cancelled: SPAN_EVENTS.cancelled,
};

/**
 * Adds a span for each hold that this process has seen end, starting when it was opened, to the trace of the decision that opened
 * it. A hold that is still waiting is represented there by that decision's own span.
 */
export function holdSpans(db: Database, add: (span: Span) => void, log: Log): void {
  db.notices.on('holds', ({ tenantId, id, steps }, own) => {
    const last = own ? steps?.at(-1) : undefined;
    const end = last && ENDS[last.state as HoldState];
    if (!end) return;
    // no one waits for it
    spanOf(db, tenantId, id, end, last.context as HoldContext).then(
      (span) => span && add(span),
      (err) => log.debug({ err, hold: id }, 'a hold has no span'),
    );
  });
}

interface Row {
  agent_id: string;
  agent_role: string;
  hold_type: string;
  created_at: Date;
  traceparent: string | null;
}

async function spanOf(
  db: Database,
  tenantId: string,
  id: string,
  end: SpanEventName,
  { releasedAt, endedAt }: HoldContext,
): Promise<Span | undefined> {
  const [row] = await db.query<Row>(
    tenantId,
    `select agent_id, agent_role, hold_type, created_at, details->>'traceparent' as traceparent
     from escrow_hold where tenant_id = $1 and id = $2`,
    [tenantId, id],
  );
  if (!row?.traceparent) return undefined;
  const from = row.created_at.getTime();
  const to = endedAt ?? from;
  return {
    name: SPAN_NAMES.hold(),
    kind: 'internal',
    trace: traceOf(row.traceparent),
    from,
    to,
    attributes: { tenant: tenantId, agent: row.agent_id, role: row.agent_role, hold: id, holdType: row.hold_type },
    events: [
      { name: SPAN_EVENTS.opened, at: from },
      ...(releasedAt === null ? [] : [{ name: SPAN_EVENTS.released, at: releasedAt }]),
      { name: end, at: to },
    ],
  };
}
