import type { AnyStateMachine } from 'xstate';
import { chartOf } from '../../machines/chart.ts';
import { deliveryMachine } from '../../machines/delivery.ts';
import { holdMachine } from '../../machines/escrow.ts';
import { type Drawing, EVENT_LINE, layOut } from '../../machines/layout.ts';
import { policyMachine } from '../../machines/policy.ts';

/** A machine, drawn: what the viewer puts on its page, with the current state lit. */
export interface DrawnMachine extends Drawing {
  /** The height of a line of a label. */
  line: number;
  /** States that nothing leads out of. */
  final: string[];
}

const MACHINES: readonly AnyStateMachine[] = [policyMachine, holdMachine, deliveryMachine];

/** The charts by the id of the machine, with which the names of its actors begin. */
export function drawnMachines(): Record<string, DrawnMachine> {
  return Object.fromEntries(
    MACHINES.map((machine) => {
      const chart = chartOf(machine);
      const final = chart.states.map(({ id }) => id).filter((id) => !chart.transitions.some(({ from }) => from === id));
      return [machine.id, { ...layOut(chart, 'right'), line: EVENT_LINE, final }];
    }),
  );
}
