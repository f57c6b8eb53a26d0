import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  createPolicy,
  POLICY_MACHINE_VERSION,
  type PolicyContext,
  type PolicyEvent,
  type PolicySnapshot,
  policyMachine,
  policyRefusal,
  restorePolicy,
  stepPolicy,
} from '../../machines/policy.ts';

/**
 * The specification's table of policy states, written down once more and without the machine: what a policy is after
 * each operation, and the first reason against it.
 */
class Model {
  status = 'draft';
  version = 1;
  live: number | null = null;
  author: string;
  glass: { version: number; actor: string } | null = null;

  constructor(author: string) {
    this.author = author;
  }

  /** Does the operation, or says why not. */
  do(event: PolicyEvent): string | undefined {
    switch (event.type) {
      case 'update':
      case 'rollback': {
        const staysLive = this.status === 'deployed' && !event.approvalRequired;
        this.version += 1;
        this.author = event.actor;
        if (staysLive) this.live = this.version;
        else this.status = 'draft';
        return undefined;
      }
      case 'submit':
        if (this.status !== 'draft') return 'INVALID_STATUS';
        this.status = 'pending_approval';
        return undefined;
      case 'approve': {
        if (event.version !== this.version) return 'VERSION_CHANGED';
        if (this.status === 'deployed' && this.glass) {
          if (this.glass.actor === event.actor) return 'SELF_APPROVAL';
          this.glass = null;
          return undefined;
        }
        const reviewable = this.status === 'pending_approval' || (this.status === 'draft' && !event.approvalRequired);
        if (!reviewable) return 'INVALID_STATUS';
        if (event.approvalRequired && !event.selfApproval && event.actor === this.author) return 'SELF_APPROVAL';
        this.status = 'deployed';
        this.live = this.version;
        if (this.glass && this.glass.actor !== event.actor) this.glass = null;
        return undefined;
      }
      case 'reject':
      case 'request_changes':
        if (event.version !== this.version) return 'VERSION_CHANGED';
        if (this.status !== 'pending_approval') return 'INVALID_STATUS';
        this.status = 'draft';
        return undefined;
      case 'revoke':
        if (this.status === 'revoked') return 'INVALID_STATUS';
        this.status = 'revoked';
        this.live = null;
        this.glass = null;
        return undefined;
      case 'break_glass':
        if (this.status === 'deployed') return 'INVALID_STATUS';
        this.status = 'deployed';
        this.live = this.version;
        this.glass = { version: this.version, actor: event.actor };
        return undefined;
    }
  }
}

const people = ['ann', 'ben', 'cleo'];
const actor = fc.constantFrom(...people);
const rules = fc.record({ approvalRequired: fc.boolean(), selfApproval: fc.boolean() });
/** How far the version that was reviewed lies behind: mostly it is the current one. */
const behind = fc.constantFrom(0, 0, 0, 1, -1);
const command = fc.oneof(
  fc.record({ type: fc.constantFrom('update' as const, 'rollback' as const), actor, rules, behind }),
  fc.record({
    type: fc.constantFrom('submit' as const, 'revoke' as const, 'break_glass' as const),
    actor,
    rules,
    behind,
  }),
  fc.record({ type: fc.constant('approve' as const), actor, rules, behind }),
  fc.record({ type: fc.constantFrom('reject' as const, 'request_changes' as const), actor, rules, behind }),
);

function eventOf(
  { type, actor, rules, behind }: typeof command extends fc.Arbitrary<infer C> ? C : never,
  version: number,
): PolicyEvent {
  switch (type) {
    case 'update':
    case 'rollback':
      return { type, actor, ...rules };
    case 'approve':
      return { type, actor, version: version - behind, ...rules };
    case 'reject':
    case 'request_changes':
      return { type, actor, version: version - behind };
    default:
      return { type, actor };
  }
}

const AUDIT: Record<PolicyEvent['type'], string> = {
  update: 'policy.updated',
  rollback: 'policy.rolled_back',
  submit: 'policy.submitted',
  approve: 'policy.approved',
  reject: 'policy.rejected',
  request_changes: 'policy.changes_requested',
  revoke: 'policy.revoked',
  break_glass: 'policy.break_glass',
};

const stored = (snapshot: PolicySnapshot) =>
  JSON.parse(JSON.stringify({ value: snapshot.value, context: snapshot.context })) as {
    value: PolicySnapshot['value'];
    context: PolicyContext;
  };

describe('the policy machine', () => {
  test('does in every sequence of operations what the table of the specification says', () => {
    const refused = new Map<string, number>();
    const reached = new Set<string>();
    fc.assert(
      fc.property(actor, fc.array(command, { minLength: 1, maxLength: 25 }), (author, commands) => {
        const model = new Model(author);
        let [snapshot] = createPolicy(author);
        for (const one of commands) {
          const event = eventOf(one, model.version);
          const before = stored(snapshot);
          const from = model.status;
          const expected = model.do(event);
          const refusal = policyRefusal(before.value, before.context, event);
          expect(refusal?.code, JSON.stringify({ from, event })).toBe(expected);
          if (refusal) {
            expect(refusal.detail).not.toBe('');
            refused.set(`${event.type} ${refusal.code}`, (refused.get(`${event.type} ${refusal.code}`) ?? 0) + 1);
            continue;
          }
          const live = before.context.liveVersion;
          // as in the service: every step starts from what was stored
          const [next, effects] = stepPolicy(
            restorePolicy(before.value, before.context, POLICY_MACHINE_VERSION),
            event,
          );
          snapshot = next;
          reached.add(`${from} ${event.type} ${model.status}`);
          expect(next.value).toBe(model.status);
          expect(next.context).toEqual({
            version: model.version,
            liveVersion: model.live,
            author: model.author,
            openReview: model.glass,
          });
          expect(effects.filter(({ type }) => type === 'audit')).toEqual([
            {
              type: 'audit',
              params: { action: AUDIT[event.type], severity: event.type === 'break_glass' ? 'critical' : 'info' },
            },
          ]);
          // what proxies enforce never changes without new bundles
          if (model.live !== live) expect(effects.some(({ type }) => type === 'publish')).toBe(true);
        }
      }),
      { numRuns: 1500 },
    );
    expect([...refused.keys()].sort()).toEqual([
      'approve INVALID_STATUS',
      'approve SELF_APPROVAL',
      'approve VERSION_CHANGED',
      'break_glass INVALID_STATUS',
      'reject INVALID_STATUS',
      'reject VERSION_CHANGED',
      'request_changes INVALID_STATUS',
      'request_changes VERSION_CHANGED',
      'revoke INVALID_STATUS',
      'submit INVALID_STATUS',
    ]);
    // every arrow of the chart was walked
    expect([...reached].sort()).toEqual(
      [
        ...['draft', 'pending_approval', 'revoked'].flatMap((from) => [
          `${from} update draft`,
          `${from} rollback draft`,
          `${from} break_glass deployed`,
        ]),
        ...['update', 'rollback'].flatMap((type) => [`deployed ${type} draft`, `deployed ${type} deployed`]),
        ...['draft', 'pending_approval', 'deployed'].flatMap((from) => [
          `${from} revoke revoked`,
          `${from} approve deployed`,
        ]),
        'draft submit pending_approval',
        'pending_approval reject draft',
        'pending_approval request_changes draft',
      ].sort(),
    );
  });

  test('with required approval nothing becomes live by its author alone, except over broken glass', () => {
    fc.assert(
      fc.property(fc.array(command, { maxLength: 25 }), (commands) => {
        let [snapshot] = createPolicy('ann');
        for (const one of commands) {
          const asked = eventOf(
            { ...one, actor: 'ann', rules: { approvalRequired: true, selfApproval: false } },
            snapshot.context.version,
          );
          if (asked.type === 'break_glass' || policyRefusal(snapshot.value, snapshot.context, asked)) continue;
          [snapshot] = stepPolicy(snapshot, asked);
          expect(snapshot.context.liveVersion).toBeNull();
        }
      }),
      { numRuns: 500 },
    );
  });

  test('comes back from storage as it was, and refuses what another version stored', () => {
    const [made] = createPolicy('ann');
    const [live] = stepPolicy(made, { type: 'break_glass', actor: 'ben' });
    for (const snapshot of [made, live]) {
      const { value, context } = stored(snapshot);
      const restored = restorePolicy(value, context, POLICY_MACHINE_VERSION);
      expect([restored.value, restored.context]).toEqual([snapshot.value, snapshot.context]);
    }
    for (const version of [0, POLICY_MACHINE_VERSION + 1]) {
      expect(() => restorePolicy('draft', made.context, version)).toThrow(/version/);
    }
    expect(() => restorePolicy('melted' as never, made.context, POLICY_MACHINE_VERSION)).toThrow();
  });

  test('names no guard or action that it does not have, and describes its states', () => {
    const { actions, guards } = policyMachine.implementations;
    const names: { actions: string[]; guards: string[] } = { actions: [], guards: [] };
    const nameOf = (item: unknown) => (typeof item === 'string' ? item : (item as { type: string }).type);
    const states = [policyMachine.root, ...Object.values(policyMachine.root.states)];
    for (const state of states) {
      const { entry = [], exit = [] } = state.config as { entry?: unknown; exit?: unknown };
      for (const list of [entry, exit]) names.actions.push(...[list].flat().map(nameOf));
      for (const transition of [...state.transitions.values()].flat()) {
        names.actions.push(...transition.actions.map(nameOf));
        if (transition.guard) names.guards.push(nameOf(transition.guard));
      }
    }
    expect(names.actions.length).toBeGreaterThan(15);
    for (const name of names.actions) expect(Object.keys(actions)).toContain(name);
    for (const name of names.guards) expect(Object.keys(guards)).toContain(name);
    for (const { description } of Object.values(policyMachine.root.states)) expect(description).toBeTruthy();
  });
});
