import type { AnyStateMachine, AnyStateNode } from 'xstate';

/** A state machine as a graph to draw, derived from the definition so that the two cannot disagree. */
export interface Chart {
  initial: string;
  states: { id: string; description?: string; final: boolean }[];
  transitions: ChartTransition[];
}

export interface ChartTransition {
  event: string;
  from: string;
  to: string;
  /** The name of the guard. Of several transitions on one event, the first whose guard passes is taken. */
  guard?: string;
  /** The names of the actions; for `audit` and `emit` with the name of the record or event. */
  effects: string[];
}

/** The chart of a flat machine. Root transitions are repeated at each non-final state that does not override them. */
export function chartOf(machine: AnyStateMachine): Chart {
  const states = Object.values(machine.root.states) as AnyStateNode[];
  const everywhere = transitionsOf(machine.root);
  return {
    initial: (machine.root.initial.target as AnyStateNode[])[0]!.key,
    states: states.map((state) => ({
      id: state.key,
      ...(state.description !== undefined && { description: state.description }),
      final: state.type === 'final',
    })),
    transitions: states.flatMap((state) => {
      const own = transitionsOf(state);
      const inherited =
        state.type === 'final' ? [] : everywhere.filter(({ event }) => !own.some((it) => it.event === event));
      return [...own, ...inherited].map((transition) => {
        const to = transition.target ?? state;
        const entered = transition.target ? [...state.exit, ...transition.actions, ...to.entry] : transition.actions;
        return {
          event: transition.event,
          from: state.key,
          to: to.key,
          ...(transition.guard !== undefined && { guard: transition.guard }),
          effects: entered.map(nameOf).filter((name) => name !== undefined),
        };
      });
    }),
  };
}

interface Transition {
  event: string;
  target: AnyStateNode | undefined;
  guard: string | undefined;
  actions: readonly unknown[];
}

function transitionsOf(state: AnyStateNode): Transition[] {
  return [...state.transitions].flatMap(([event, list]) =>
    list.map(({ target, guard, actions }) => ({
      event,
      target: target?.[0] as AnyStateNode | undefined,
      guard: guard === undefined ? undefined : nameOf(guard),
      actions,
    })),
  );
}

/** `goLive`, or `audit policy.approved` for an action with a fixed parameter. Undefined for inline functions. */
function nameOf(item: unknown): string | undefined {
  if (typeof item === 'string') return item;
  const { type, params } = item as { type?: string; params?: unknown };
  if (type === undefined || typeof item === 'function') return undefined;
  const named = typeof params === 'object' && params !== null ? Object.values(params)[0] : undefined;
  return typeof named === 'string' ? `${type} ${named}` : type;
}
