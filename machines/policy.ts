import { assign, initialTransition, type SnapshotFrom, setup, transition } from 'xstate';

/**
 * The lifecycle of a policy. Its state is that of the newest revision; `liveVersion` is the version that proxies enforce,
 * which may be older. Time, settings and the actor enter only through events, so the machine can be replayed. Side
 * effects are only named here: `audit` becomes an audit record, `review` is stored with the reviewed revision, and
 * `publish` invalidates the bundles, all in the transaction that stores the state.
 */
export const POLICY_MACHINE_VERSION = 1;

export type PolicyState = 'draft' | 'pending_approval' | 'deployed' | 'revoked';

export interface PolicyContext {
  version: number;
  liveVersion: number | null;
  /**
   * Everyone who wrote any of the newest revision since a version last went live, each once, earliest first: what one of them put
   * into a draft is still in later drafts by others.
   */
  authors: string[];
  /** Who submitted it; null until it is submitted. */
  submitter: string | null;
  /** Who made the credential with which a pipeline submitted it. */
  submittedFor?: string | undefined;
  /**
   * Break-glass deployments without a review by another person, oldest first. Each stays until another person closes it,
   * whatever else happens to the policy.
   */
  openReviews: { version: number; actor: string }[];
}

/** The actor, and the tenant's rules at that time. */
interface Circumstances {
  /** The person behind the key or session; for a key without an owner, its id. */
  actor: string;
  /** Who made the credential of a pipeline, which is the actor: what comes through it is theirs too. */
  maker?: string;
  /** A signed-in person, not a key. */
  signedIn: boolean;
  /** A pipeline that an admin trusts to ask for reviews, although no one is signed in. */
  asks?: boolean;
  admin: boolean;
  approvalRequired: boolean;
  /** Even if approval is required, the person who wrote or submitted a version may approve it. */
  selfApproval: boolean;
}

/** `version` is the version that the actor has seen. */
export type PolicyEvent = Circumstances &
  (
    | { type: 'submit' | 'revoke' | 'break_glass' }
    /** `writers`: others who wrote its content, and become authors of it too. */
    | { type: 'update' | 'rollback'; writers?: readonly string[] | undefined }
    /** Approves the newest version, or closes the open review of an older one. */
    | { type: 'approve'; version: number }
    | { type: 'reject' | 'request_changes' | 'comment'; version: number }
  );

export type ReviewStatus = 'approved' | 'rejected' | 'changes_requested' | 'break_glass' | 'dismissed' | 'commented';

export type PolicyAction =
  | 'created'
  | 'updated'
  | 'submitted'
  | 'approved'
  | 'rejected'
  | 'changes_requested'
  | 'revoked'
  | 'rolled_back'
  | 'break_glass'
  | 'commented'
  | 'review_closed';

export type PolicyEffect =
  | { type: 'audit'; params: { action: `policy.${PolicyAction}`; severity: 'info' | 'critical' } }
  | { type: 'review'; params: { status: ReviewStatus; version: number } }
  | { type: 'publish'; params?: undefined };

/** The most authors since a version last went live. None is ever forgotten: one more is refused. */
export const MOST_AUTHORS = 100;

/** The authors with those of the version that an event adds. */
export const authorsWith = ({ authors }: PolicyContext, event: PolicyEvent): string[] => [
  ...new Set([...authors, ...writersOf(event), ...('writers' in event && event.writers ? event.writers : [])]),
];
const writersOf = ({ actor, maker }: { actor: string; maker?: string | undefined }) =>
  maker === undefined ? [actor] : [actor, maker];

const audit = (action: PolicyAction, severity: 'info' | 'critical' = 'info') =>
  ({ type: 'audit', params: { action: `policy.${action}`, severity } }) as const;
/** A review of the version that the event names, or of the newest version before the event. */
const review = (status: ReviewStatus) =>
  ({
    type: 'review',
    params: ({ context, event }: { context: PolicyContext; event: PolicyEvent }) => ({
      status,
      version: 'version' in event ? event.version : context.version,
    }),
  }) as const;

const closing = {
  guard: 'closesReview',
  actions: ['closeReview', review('approved'), audit('review_closed')],
} as const;
const revoking = { guard: 'mayRevoke', target: 'revoked', actions: [audit('revoked'), 'publish'] } as const;
const breaking = {
  guard: 'mayBreakGlass',
  target: 'deployed',
  actions: ['goLive', 'openReview', review('break_glass'), audit('break_glass', 'critical'), 'publish'],
} as const;

/** Not refused for a reason that holds in every state. */
const permitted = ({ context, event }: { context: PolicyContext; event: PolicyEvent }) =>
  refusedAnywhere(context, event) === undefined;

export const policyMachine = setup({
  types: {
    context: {} as PolicyContext,
    events: {} as PolicyEvent,
    input: {} as { author: string; maker?: string | undefined },
  },
  actions: {
    audit: (_, _params: { action: `policy.${PolicyAction}`; severity: 'info' | 'critical' }) => undefined,
    review: (_, _params: { status: ReviewStatus; version: number }) => undefined,
    publish: () => undefined,
    addRevision: assign(({ context, event }) => ({
      version: context.version + 1,
      authors: authorsWith(context, event),
      submitter: null,
      submittedFor: undefined,
    })),
    noteSubmitter: assign(({ event }) => ({ submitter: event.actor, submittedFor: event.maker })),
    goLive: assign(({ context }) => ({ liveVersion: context.version, authors: [] })),
    withdraw: assign({ liveVersion: null }),
    openReview: assign(({ context, event: { actor } }) => ({
      openReviews: [
        ...context.openReviews.filter((open) => open.version !== context.version || open.actor !== actor),
        { version: context.version, actor },
      ],
    })),
    closeReview: assign(({ context, event }) => ({
      openReviews: context.openReviews.filter(({ version }) => 'version' in event && version !== event.version),
    })),
  },
  guards: {
    deploysAtOnce: ({ context, event }) =>
      !event.approvalRequired && authorsWith(context, event).length <= MOST_AUTHORS,
    closesReview: (it) => reviewsClosedBy(it.context, it.event).length > 0 && permitted(it),
    mayApprove: (it) => reviewsClosedBy(it.context, it.event).length === 0 && permitted(it),
    mayApproveDraft: (it) =>
      reviewsClosedBy(it.context, it.event).length === 0 && !it.event.approvalRequired && permitted(it),
    maySubmit: permitted,
    mayDecide: permitted,
    mayRevoke: permitted,
    mayBreakGlass: permitted,
    mayWrite: ({ context, event }) => authorsWith(context, event).length <= MOST_AUTHORS,
    sameVersion: permitted,
  },
}).createMachine({
  id: 'policy',
  context: ({ input }) => ({
    version: 1,
    liveVersion: null,
    authors: writersOf({ actor: input.author, maker: input.maker }),
    submitter: null,
    openReviews: [],
  }),
  initial: 'draft',
  on: { comment: { guard: 'sameVersion', actions: [review('commented'), audit('commented')] } },
  states: {
    draft: {
      description: 'being written; proxies keep enforcing the live version',
      on: {
        update: { guard: 'mayWrite', target: 'draft', actions: ['addRevision', audit('updated')] },
        rollback: { guard: 'mayWrite', target: 'draft', actions: ['addRevision', audit('rolled_back')] },
        revoke: revoking,
        break_glass: breaking,
        submit: { guard: 'maySubmit', target: 'pending_approval', actions: ['noteSubmitter', audit('submitted')] },
        approve: [
          closing,
          {
            guard: 'mayApproveDraft',
            target: 'deployed',
            actions: ['goLive', review('approved'), audit('approved'), 'publish'],
          },
        ],
      },
    },
    pending_approval: {
      description: 'waiting for an approver who neither wrote any of it nor submitted it',
      on: {
        update: { guard: 'mayWrite', target: 'draft', actions: [review('dismissed'), 'addRevision', audit('updated')] },
        rollback: {
          guard: 'mayWrite',
          target: 'draft',
          actions: [review('dismissed'), 'addRevision', audit('rolled_back')],
        },
        approve: [
          closing,
          {
            guard: 'mayApprove',
            target: 'deployed',
            actions: ['goLive', review('approved'), audit('approved'), 'publish'],
          },
        ],
        revoke: revoking,
        break_glass: breaking,
        reject: { guard: 'mayDecide', target: 'draft', actions: [review('rejected'), audit('rejected')] },
        request_changes: {
          guard: 'mayDecide',
          target: 'draft',
          actions: [review('changes_requested'), audit('changes_requested')],
        },
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
          { guard: 'mayWrite', target: 'draft', actions: ['addRevision', audit('updated')] },
        ],
        rollback: [
          {
            guard: 'deploysAtOnce',
            target: 'deployed',
            actions: ['addRevision', 'goLive', audit('rolled_back'), 'publish'],
          },
          { guard: 'mayWrite', target: 'draft', actions: ['addRevision', audit('rolled_back')] },
        ],
        approve: closing,
        revoke: revoking,
        break_glass: breaking,
      },
    },
    revoked: {
      description: 'no proxy enforces it; a new version starts a draft',
      entry: 'withdraw',
      on: {
        update: { guard: 'mayWrite', target: 'draft', actions: ['addRevision', audit('updated')] },
        rollback: { guard: 'mayWrite', target: 'draft', actions: ['addRevision', audit('rolled_back')] },
        approve: closing,
        break_glass: breaking,
      },
    },
  },
});

export type PolicySnapshot = SnapshotFrom<typeof policyMachine>;
export type PolicyRefusal = 'FORBIDDEN' | 'VERSION_CHANGED' | 'INVALID_STATUS' | 'SELF_APPROVAL';
interface Refused {
  code: PolicyRefusal;
  detail: string;
}

/** The open reviews that an event closes: approving a version closes its open review. */
function reviewsClosedBy(context: PolicyContext, event: PolicyEvent): PolicyContext['openReviews'] {
  return event.type === 'approve' ? context.openReviews.filter(({ version }) => version === event.version) : [];
}

/** Why an event is refused in any state: because of the actor, or of the version they have seen. */
function refusedAnywhere(context: PolicyContext, event: PolicyEvent): Refused | undefined {
  const governs = event.type !== 'update' && event.type !== 'rollback' && event.type !== 'comment';
  if (governs && event.approvalRequired && !event.signedIn && !(event.type === 'submit' && event.asks)) {
    return { code: 'FORBIDDEN', detail: 'this tenant requires approval: only a signed-in person can do this' };
  }
  if (event.type === 'revoke' && event.approvalRequired && !event.admin) {
    return { code: 'FORBIDDEN', detail: 'this tenant requires approval: only an admin can do this' };
  }
  const closes = reviewsClosedBy(context, event);
  if (closes.length > 0) {
    if (!event.signedIn) return { code: 'FORBIDDEN', detail: 'only a signed-in person can close a review' };
    if (closes.some(({ actor }) => actor === event.actor)) {
      return { code: 'SELF_APPROVAL', detail: 'the person who used break glass cannot close its review' };
    }
    return undefined;
  }
  if ('version' in event && event.version !== context.version) {
    const detail = `the current version is ${context.version}, not ${event.version}`;
    return { code: 'VERSION_CHANGED', detail };
  }
  const own = [...context.authors, context.submitter, context.submittedFor].includes(event.actor);
  if (event.type === 'approve' && event.approvalRequired && !event.selfApproval && own) {
    const detail =
      'the person who wrote any of a version since the last enforced one, or submitted it, cannot approve it';
    return { code: 'SELF_APPROVAL', detail };
  }
  return undefined;
}

/** Why an event is refused in this state. */
function refusedHere(state: PolicyState, context: PolicyContext, event: PolicyEvent): Refused | undefined {
  const refuse = (detail: string): Refused => ({ code: 'INVALID_STATUS', detail });
  switch (event.type) {
    case 'update':
    case 'rollback':
      if (authorsWith(context, event).length <= MOST_AUTHORS) return undefined;
      return refuse(`${MOST_AUTHORS} authors have written since a version was enforced: approve one first`);
    case 'submit':
      return state === 'draft' ? undefined : refuse(`only a draft can be submitted; the policy is ${state}`);
    case 'approve':
      if (reviewsClosedBy(context, event).length > 0 || state === 'pending_approval') return undefined;
      if (state !== 'draft') return refuse(`there is nothing to approve: the policy is ${state}`);
      return event.approvalRequired ? refuse('approval is required: the draft must be submitted first') : undefined;
    case 'reject':
    case 'request_changes':
      return state === 'pending_approval' ? undefined : refuse(`there is no review to decide: the policy is ${state}`);
    case 'revoke':
      return state === 'revoked' ? refuse('the policy is already revoked') : undefined;
    default:
      return undefined;
  }
}

const ORDER: readonly PolicyRefusal[] = ['FORBIDDEN', 'VERSION_CHANGED', 'INVALID_STATUS', 'SELF_APPROVAL'];

/**
 * Why the machine refuses an event: the first reason in the order FORBIDDEN, VERSION_CHANGED, INVALID_STATUS,
 * SELF_APPROVAL; undefined if it accepts the event. A refused event does not change the machine.
 */
export function policyRefusal(state: PolicyState, context: PolicyContext, event: PolicyEvent): Refused | undefined {
  const reasons = [refusedAnywhere(context, event), refusedHere(state, context, event)].filter(
    (it) => it !== undefined,
  );
  return reasons.sort((a, b) => ORDER.indexOf(a.code) - ORDER.indexOf(b.code))[0];
}

/** Restores the machine from a stored policy. Throws if another machine version stored it. */
export function restorePolicy(state: PolicyState, context: PolicyContext, machineVersion: number): PolicySnapshot {
  if (machineVersion !== POLICY_MACHINE_VERSION) {
    throw new Error(`policy machine version ${machineVersion} is unknown to this program`);
  }
  return policyMachine.resolveState({ value: state, context });
}

/** A new policy and its effects. */
export function createPolicy(author: string, maker?: string): [PolicySnapshot, PolicyEffect[]] {
  const [snapshot] = initialTransition(policyMachine, { author, maker });
  return [snapshot, [audit('created')]];
}

/** One step. Call `policyRefusal` first: an event that it refuses does not change the machine. */
export function stepPolicy(snapshot: PolicySnapshot, event: PolicyEvent): [PolicySnapshot, PolicyEffect[]] {
  const [next, actions] = transition(policyMachine, snapshot, event);
  // plain data, without the functions that XState attaches
  const effects = actions.flatMap(({ type, params }): PolicyEffect[] => {
    if (type === 'audit') return [{ type, params: params as Extract<PolicyEffect, { type: 'audit' }>['params'] }];
    if (type === 'review') return [{ type, params: params as Extract<PolicyEffect, { type: 'review' }>['params'] }];
    return type === 'publish' ? [{ type }] : [];
  });
  return [next, effects];
}
