import { assign, initialTransition, type SnapshotFrom, setup, transition } from 'xstate';

/**
 * The life of a policy. Its state is that of the newest revision; `liveVersion` is what proxies enforce, which may be
 * an older one. Time, settings and the identity of the actor enter only through events, so the machine can be replayed.
 * Side effects are only named here: `audit` becomes a record of the audit chain and `publish` makes new bundles due,
 * both in the transaction that stores the state.
 */
export const POLICY_MACHINE_VERSION = 1;

export type PolicyState = 'draft' | 'pending_approval' | 'deployed' | 'revoked';

export interface PolicyContext {
  version: number;
  liveVersion: number | null;
  /** Who wrote the newest revision. */
  author: string;
  /** A break-glass deployment that nobody but its actor has looked at yet. */
  openReview: { version: number; actor: string } | null;
}

/** What the tenant demands at the time of the event. */
interface Rules {
  approvalRequired: boolean;
  /** The author may approve their own version although approval is required. */
  selfApproval: boolean;
}

export type PolicyEvent =
  | ({ type: 'update'; actor: string } & Rules)
  | ({ type: 'rollback'; actor: string } & Rules)
  | { type: 'submit'; actor: string }
  | ({ type: 'approve'; actor: string; version: number } & Rules)
  | { type: 'reject'; actor: string; version: number }
  | { type: 'request_changes'; actor: string; version: number }
  | { type: 'revoke'; actor: string }
  | { type: 'break_glass'; actor: string };

export type PolicyEffect =
  | { type: 'audit'; params: { action: string; severity: 'info' | 'critical' } }
  | { type: 'publish'; params?: undefined };

const audit = (action: string, severity: 'info' | 'critical' = 'info') =>
  ({ type: 'audit', params: { action: `policy.${action}`, severity } }) as const;

export const policyMachine = setup({
  types: {
    context: {} as PolicyContext,
    events: {} as PolicyEvent,
    input: {} as { author: string },
  },
  actions: {
    audit: (_, _params: { action: string; severity: 'info' | 'critical' }) => undefined,
    publish: () => undefined,
    addRevision: assign(({ context, event }) => ({ version: context.version + 1, author: event.actor })),
    goLive: assign(({ context }) => ({ liveVersion: context.version })),
    withdraw: assign({ liveVersion: null, openReview: null }),
    openReview: assign(({ context, event }) => ({ openReview: { version: context.version, actor: event.actor } })),
    closeReview: assign(({ context, event }) => ({
      openReview: context.openReview?.actor === event.actor ? context.openReview : null,
    })),
  },
  guards: {
    deploysAtOnce: ({ event }) => 'approvalRequired' in event && !event.approvalRequired,
  },
}).createMachine({
  id: 'policy',
  context: ({ input }) => ({ version: 1, liveVersion: null, author: input.author, openReview: null }),
  initial: 'draft',
  on: {
    revoke: { target: '.revoked', actions: [audit('revoked'), 'publish'] },
    break_glass: {
      target: '.deployed',
      actions: ['goLive', 'openReview', audit('break_glass', 'critical'), 'publish'],
    },
  },
  states: {
    draft: {
      description: 'being written; proxies keep enforcing the live version',
      on: {
        update: { target: 'draft', actions: ['addRevision', audit('updated')] },
        rollback: { target: 'draft', actions: ['addRevision', audit('rolled_back')] },
        submit: { target: 'pending_approval', actions: [audit('submitted')] },
        approve: { target: 'deployed', actions: ['goLive', 'closeReview', audit('approved'), 'publish'] },
      },
    },
    pending_approval: {
      description: 'waits for an approver other than its author',
      on: {
        update: { target: 'draft', actions: ['addRevision', audit('updated')] },
        rollback: { target: 'draft', actions: ['addRevision', audit('rolled_back')] },
        approve: { target: 'deployed', actions: ['goLive', 'closeReview', audit('approved'), 'publish'] },
        reject: { target: 'draft', actions: [audit('rejected')] },
        request_changes: { target: 'draft', actions: [audit('changes_requested')] },
      },
    },
    deployed: {
      description: 'the newest version is the live one',
      on: {
        update: [
          {
            guard: 'deploysAtOnce',
            target: 'deployed',
            actions: ['addRevision', 'goLive', audit('updated'), 'publish'],
          },
          { target: 'draft', actions: ['addRevision', audit('updated')] },
        ],
        rollback: [
          {
            guard: 'deploysAtOnce',
            target: 'deployed',
            actions: ['addRevision', 'goLive', audit('rolled_back'), 'publish'],
          },
          { target: 'draft', actions: ['addRevision', audit('rolled_back')] },
        ],
        approve: { target: 'deployed', actions: ['closeReview', audit('approved')] },
      },
    },
    revoked: {
      description: 'no proxy enforces it; a new version starts a draft',
      entry: 'withdraw',
      on: {
        update: { target: 'draft', actions: ['addRevision', audit('updated')] },
        rollback: { target: 'draft', actions: ['addRevision', audit('rolled_back')] },
      },
    },
  },
});

export type PolicySnapshot = SnapshotFrom<typeof policyMachine>;
export type PolicyRefusal = 'VERSION_CHANGED' | 'INVALID_STATUS' | 'SELF_APPROVAL';

/**
 * Why the machine does not take an event, in the order in which the reasons are told; undefined when it does. The
 * machine alone would only stay where it is, without a reason.
 */
export function policyRefusal(
  state: PolicyState,
  context: PolicyContext,
  event: PolicyEvent,
): { code: PolicyRefusal; detail: string } | undefined {
  const refuse = (code: PolicyRefusal, detail: string) => ({ code, detail });
  if ('version' in event && event.version !== context.version) {
    return refuse('VERSION_CHANGED', `the current version is ${context.version}, not ${event.version}`);
  }
  switch (event.type) {
    case 'update':
    case 'rollback':
      return undefined;
    case 'submit':
      return state === 'draft' ? undefined : refuse('INVALID_STATUS', `only a draft is submitted; this is ${state}`);
    case 'approve': {
      const closesReview = state === 'deployed' && context.openReview !== null;
      if (state === 'draft' && event.approvalRequired) {
        return refuse('INVALID_STATUS', 'approval is required: the draft must be submitted first');
      }
      if (state !== 'draft' && state !== 'pending_approval' && !closesReview) {
        return refuse('INVALID_STATUS', `there is nothing to approve: the policy is ${state}`);
      }
      if (closesReview && context.openReview?.actor === event.actor) {
        return refuse('SELF_APPROVAL', 'who broke the glass cannot close its review');
      }
      if (!closesReview && event.approvalRequired && !event.selfApproval && event.actor === context.author) {
        return refuse('SELF_APPROVAL', 'the author of a version cannot approve it');
      }
      return undefined;
    }
    case 'reject':
    case 'request_changes':
      return state === 'pending_approval'
        ? undefined
        : refuse('INVALID_STATUS', `there is no review to decide: the policy is ${state}`);
    case 'revoke':
      return state === 'revoked' ? refuse('INVALID_STATUS', 'the policy is revoked already') : undefined;
    case 'break_glass':
      return state === 'deployed' && context.liveVersion === context.version
        ? refuse('INVALID_STATUS', 'the newest version is live already')
        : undefined;
  }
}

/** A stored policy as a snapshot of the machine. Older machine versions are lifted here when there are any. */
export function restorePolicy(state: PolicyState, context: PolicyContext, machineVersion: number): PolicySnapshot {
  if (machineVersion !== POLICY_MACHINE_VERSION) {
    throw new Error(`policy machine version ${machineVersion} is unknown to this program`);
  }
  return policyMachine.resolveState({ value: state, context });
}

/** A new policy and what must happen with it. */
export function createPolicy(author: string): [PolicySnapshot, PolicyEffect[]] {
  const [snapshot] = initialTransition(policyMachine, { author });
  return [snapshot, [audit('created')]];
}

/** One step. Ask `policyRefusal` first: an event that is refused there must not come here. */
export function stepPolicy(snapshot: PolicySnapshot, event: PolicyEvent): [PolicySnapshot, PolicyEffect[]] {
  const [next, actions] = transition(policyMachine, snapshot, event);
  // plain data: the library's actions also carry what would run them
  const effects = actions.flatMap(({ type, params }): PolicyEffect[] => {
    if (type === 'audit') return [{ type, params: params as Extract<PolicyEffect, { type: 'audit' }>['params'] }];
    return type === 'publish' ? [{ type }] : [];
  });
  return [next, effects];
}
