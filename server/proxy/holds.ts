import type { ActionView, HoldTerms } from '../domain/policy.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { ControlPlane, Hold } from './control-plane.ts';

/** Held actions whose place among equal ones is remembered. */
const MOST_PLACES = 10_000;
/** How many ended holds of one and the same action are passed over before a new one is opened in any case. */
const MOST_ENDED = 50;

/**
 * What is held, with what the approvers read. Nothing that differs between two attempts at the same action is in it, as
 * the session would: the second would open a hold of its own.
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
 * The same agent's same action shares one hold while that is open, over retries, restarts and proxies with one key: the
 * idempotency key is made from the action and its terms, with the count of the equal holds that have ended. Nothing
 * needs to be kept here for that; the count is remembered so as not to ask for ended ones again.
 */
export class Holds {
  readonly #control: ControlPlane;
  readonly #ended = new Map<string, number>();

  constructor(control: ControlPlane) {
    this.#control = control;
  }

  /** The open hold of this action, held or released, or a new one (`opened`). Rejects with a ControlPlaneError. */
  async open(action: HeldAction, terms: HoldTerms, bundleHash: string): Promise<{ hold: Hold; opened: boolean }> {
    const { conditions, delay_seconds, reason: _reason, rules, ...rest } = terms;
    const { policy_id, shown, ...what } = action;
    const { arguments: arguments_preview, context: context_preview, cut, ...held } = shown;
    const request = {
      ...what,
      ...rest,
      // what is absent is left out
      ...Object.fromEntries(Object.entries(held).filter(([, value]) => value !== null)),
      ...(arguments_preview !== null && { arguments_preview }),
      ...(context_preview !== null && { context_preview }),
      ...(cut.length > 0 && { cut }),
      ...(policy_id !== null && { policy_id }),
      ...(conditions && { conditions: conditions.map((condition_id) => ({ condition_id })) }),
      ...(delay_seconds !== undefined && { release_after_seconds: delay_seconds }),
      rule_ids: rules.map(({ id }) => id),
    };
    // the texts of the rules and not the bundle: one that changed nothing here asks for the same hold
    const same = sha256Tag(canonicalJson({ ...request, rules }));
    const began = this.#ended.get(same) ?? 0;
    for (let ended = began; ; ended++) {
      const last = ended - began >= MOST_ENDED;
      const answer = await this.#control.createHold(
        { ...request, bundle_hash: bundleHash },
        last ? `${same}:${crypto.randomUUID()}` : `${same}:${ended}`,
      );
      if (last || answer.hold.status === 'held' || answer.hold.status === 'released') {
        this.#remember(same, ended);
        return answer;
      }
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

  #remember(same: string, ended: number): void {
    this.#ended.delete(same);
    this.#ended.set(same, ended);
    if (this.#ended.size > MOST_PLACES) this.#ended.delete(this.#ended.keys().next().value as string);
  }
}

/** Seconds after which asking for the hold again may have something new to tell. */
export function retryAfter(hold: Hold, now: number): number {
  const release = hold.release_at === undefined ? Number.POSITIVE_INFINITY : Date.parse(hold.release_at);
  const seconds = Math.ceil((Math.min(release, Date.parse(hold.expires_at)) - now) / 1000);
  return hold.status === 'held' ? Math.max(1, Math.min(seconds, 15)) : 1;
}
