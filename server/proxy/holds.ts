import type { ActionView, HoldTerms } from '../domain/policy.ts';
import { DEFINITION_RULE } from '../domain/tools.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { type Trace, traceparentOf } from '../lib/trace.ts';
import type { ControlPlane, Hold } from './control-plane.ts';

/** Held actions whose count of ended holds is remembered. */
const MOST_PLACES = 10_000;
/** How many ended holds of the same action are passed over before a new one is opened in any case. */
const MOST_ENDED = 50;
/** How long an agent that repeats its call is reminded that an approval of it was used. */
const REMINDED_MS = 24 * 60 * 60_000;

/** A used-up approval of the exact same action: the agent has to find out whether the action was carried out. */
export interface UsedApproval {
  id: string;
  at: string;
}

/**
 * What is held, with what the approvers read. It contains nothing that differs between two attempts at the same action, such as
 * the session, because the second attempt would then open a hold of its own.
 */
export interface HeldAction {
  agent_id: string;
  agent_role: string;
  action_summary: string;
  action_hash: string;
  policy_id: string | null;
  /** Masked as it will be shown. */
  shown: ActionView;
}

/**
 * Holds at the control plane.
 *
 * The same agent's same action shares one hold while that is open, across retries, restarts and proxies with the same key: the
 * idempotency key is derived from the action and its terms, and the number of equal holds that have ended. Nothing needs to be
 * stored here for that; the number is remembered to avoid asking for ended ones again.
 */
export class Holds {
  readonly #control: ControlPlane;
  readonly #ended = new Map<string, { ended: number; used: UsedApproval | undefined }>();

  constructor(control: ControlPlane) {
    this.#control = control;
  }

  /**
   * The open hold of this action, held or released, or a new one (`opened`), and its newest approval if that was `used` recently.
   * Rejects with a ControlPlaneError.
   */
  async open(
    action: HeldAction,
    terms: HoldTerms,
    bundleHash: string,
    trace: Trace,
  ): Promise<{ hold: Hold; opened: boolean; used: UsedApproval | undefined }> {
    const { conditions, delay_seconds, reason: _reason, rules, ...rest } = terms;
    const { policy_id, shown, ...what } = action;
    const { arguments: arguments_preview, context: context_preview, cut, ...held } = shown;
    const request = {
      ...what,
      ...rest,
      // absent fields are left out, except that a tool without a definition is stated if the hold depends on the definition
      ...Object.fromEntries(Object.entries(held).filter(([, value]) => value !== null)),
      ...(rules.some(({ id }) => id === DEFINITION_RULE) && { tool_pin: held.tool_pin }),
      ...(arguments_preview !== null && { arguments_preview }),
      ...(context_preview !== null && { context_preview }),
      ...(cut.length > 0 && { cut }),
      ...(policy_id !== null && { policy_id }),
      ...(conditions && { conditions: conditions.map((condition_id) => ({ condition_id })) }),
      ...(delay_seconds !== undefined && { release_after_seconds: delay_seconds }),
      rule_ids: rules.map(({ id }) => id),
    };
    // the texts of the rules, not the bundle: a new bundle that changes nothing here asks for the same hold
    const same = sha256Tag(canonicalJson({ ...request, rules }));
    const { ended: began, used: known } = this.#ended.get(same) ?? { ended: 0, used: undefined };
    let used = known;
    for (let ended = began; ; ended++) {
      const last = ended - began >= MOST_ENDED;
      const answer = await this.#control.createHold(
        { ...request, bundle_hash: bundleHash },
        last ? `${same}:${crypto.randomUUID()}` : `${same}:${ended}`,
        traceparentOf(trace),
      );
      if (last || answer.hold.status === 'held' || answer.hold.status === 'released') {
        this.#remember(same, { ended, used });
        const lately = used && Date.now() - Date.parse(used.at) < REMINDED_MS;
        return { ...answer, used: lately ? used : undefined };
      }
      const { id, status, consumed_at } = answer.hold;
      if (status === 'consumed' && consumed_at !== undefined) used = { id, at: consumed_at };
    }
  }

  get(id: string): Promise<Hold> {
    return this.#control.hold(id);
  }

  consume(id: string, by: { action_hash: string; agent_id: string; agent_role: string }): Promise<Hold> {
    return this.#control.consumeHold(id, by);
  }

  cancel(id: string, reason: string): Promise<void> {
    return this.#control.cancelHold(id, reason);
  }

  #remember(same: string, ended: { ended: number; used: UsedApproval | undefined }): void {
    this.#ended.delete(same);
    this.#ended.set(same, ended);
    if (this.#ended.size > MOST_PLACES) this.#ended.delete(this.#ended.keys().next().value as string);
  }
}

/** Seconds until asking for the hold again may bring news. */
export function retryAfter(hold: Hold, now: number): number {
  const release = hold.release_at === undefined ? Number.POSITIVE_INFINITY : Date.parse(hold.release_at);
  const seconds = Math.ceil((Math.min(release, Date.parse(hold.expires_at)) - now) / 1000);
  return hold.status === 'held' ? Math.max(1, Math.min(seconds, 15)) : 1;
}

/** States that an approval is gone: an agent that got no response must not mistake the new hold for the old one. */
export function usedBefore({ id, at }: UsedApproval): string {
  return `An approval of this very action, ${id}, was used at ${at} and is gone: if its answer did not arrive, find out whether it was done before this is approved again.`;
}
