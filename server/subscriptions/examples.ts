import { z } from 'zod';
import type { Database, WriteAudit } from '../../db/index.ts';
import { addExample } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { kindOf } from '../domain/destinations.ts';
import { EVENTS, type EventPayload, type EventType } from '../domain/events.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { deliveryId } from './delivery-id.ts';
import { adapterOf } from './destinations/index.ts';
import { EXAMPLE_SECRET, signedAt } from './sent.ts';
import { findSubscription, lockSubscription } from './subscription-row.ts';

export interface ExampleView {
  event_type: EventType;
  headers: Record<string, string>;
  body: string;
  /** The secret it is signed with; null for a destination that checks no signature. */
  secret: string | null;
}

/**
 * Example events, to look at or to send to one destination. Their fields are those of the event's schema, which real events are
 * checked against as well, and the code that writes all messages writes them too. Each is marked as a test; none refers to
 * anything that exists.
 */
export class Examples {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #appUrl: string;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit; appUrl: string }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#appUrl = parts.appUrl;
  }

  /** The request that the destination would get, signed with a secret that anyone may know. */
  async show(tenantId: string, id: string, type: EventType): Promise<ExampleView> {
    const { destinationType, destinationConfig } = await findSubscription(this.#db.reader(tenantId), id);
    const now = this.#clock.now();
    const eventId = 'oev_example';
    const secret = kindOf(destinationType).proof === 'signature' ? EXAMPLE_SECRET : null;
    const { headers, body } = adapterOf(destinationType).request({
      ...{ eventId, eventType: type, deliveryId: 'dlv_example', timestamp: signedAt(now) },
      payload: { event: type, event_id: eventId, tenant_id: tenantId, ...examplePayload(type, now) },
      secrets: secret === null ? [] : [secret],
      appUrl: destinationConfig.app_url ?? this.#appUrl,
    });
    return { event_type: type, headers, body, secret };
  }

  /**
   * Queues an example for this destination alone, whatever types it subscribes to. It is delivered like any event: in order, with
   * the signature, and with retries. INVALID_STATUS while the subscription is paused.
   */
  async send(tenantId: string, id: string, type: EventType, by: Doer): Promise<{ delivery_id: string }> {
    return this.#db.transaction(tenantId, async (em) => {
      const { active } = await lockSubscription(em, id);
      if (!active) throw new AppError('INVALID_STATUS', 'the subscription is paused; resume it first');
      const at = this.#clock.now();
      const eventId = await addExample(em, tenantId, { type, at, payload: examplePayload(type, at) }, id);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'subscription.tested',
        target: { type: 'subscription', id },
        detail: `an example of ${type}: ${eventId}`,
      });
      return { delivery_id: deliveryId(id, eventId) };
    });
  }
}

/** What the writer of this event would provide: every field of its schema. */
function examplePayload<T extends EventType>(type: T, at: number): EventPayload<T> {
  const { event: _, event_id: __, tenant_id: ___, test, ...members } = EVENTS[type].payload.shape;
  const values = Object.entries({ test, ...members }).map(([name, member]) => {
    return [name, exampleOf(name, z.toJSONSchema(member, { io: 'input' }) as Schema, at)];
  });
  return Object.fromEntries(values) as EventPayload<T>;
}

interface Schema {
  type?: string | string[];
  const?: unknown;
  enum?: unknown[];
  format?: string;
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
}

function exampleOf(name: string, schema: Schema, at: number): unknown {
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return exampleOf(name, schema.anyOf.find(({ type }) => type !== 'null')!, at);
  if (Object.hasOwn(TELLING, name)) return TELLING[name];
  // a nullable field lists `null` next to its type
  switch (Array.isArray(schema.type) ? schema.type[0] : schema.type) {
    case 'object':
      return Object.fromEntries(
        Object.entries(schema.properties ?? {}).map(([member, of]) => [member, exampleOf(member, of, at)]),
      );
    case 'array':
      return [exampleOf(name.replace(/s$/, ''), schema.items!, at)];
    case 'boolean':
      return true;
    case 'integer':
      return 1;
    case 'number':
      return 0.5;
    default:
      return textOf(name, schema, at);
  }
}

function textOf(name: string, { format }: Schema, at: number): string {
  if (format === 'date-time') {
    const shift = /^(expires_at|until)$/.test(name)
      ? 3600_000
      : /^(last_seen_at|failing_since)$/.test(name)
        ? -300_000
        : 0;
    return new Date(at + shift).toISOString();
  }
  if (/(hash|fingerprint|pin)$/.test(name)) return sha256Tag(`an example of ${name}`);
  return `example-${name.replace(/_id$/, '').replaceAll('_', '-')}`;
}

const NOTHING = 'This is an example: nothing has happened, and nothing is to be done.';

/** Values for fields whose type and name do not suggest one. The schemas check whether they fit. */
const TELLING: Readonly<Record<string, unknown>> = {
  reason: NOTHING,
  action_summary: NOTHING,
  message: NOTHING,
  arguments: '{"amount":900}',
  context: '{}',
  estimated_value: 900,
  value_currency: 'EUR',
  ttl: 3600,
  resource: 'https://api.example.com/refunds',
  issuer: 'https://issuer.example.com',
  // any target named here would be notified
  notify_targets: [],
};
