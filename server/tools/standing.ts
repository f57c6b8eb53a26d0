import type { ToolDefinitionRow, ToolRow } from '../../db/entities/index.ts';
import { changeOf, noticeable, shapeOf } from '../domain/tool-definition.ts';
import type { RegisteredTool, ToolChange, ToolDefinition } from '../domain/tools.ts';

/** How many definitions of one tool are kept; the oldest undecided ones are dropped first. */
export const MOST_DEFINITIONS = 20;

type Stored = Pick<ToolDefinitionRow, 'pin' | 'definition' | 'firstSeen'>;

export const definitionOf = ({ definition }: Pick<Stored, 'definition'>): ToolDefinition => JSON.parse(definition);

/** The pins that count as approved for a tool. */
export const approvedPins = ({ approvedPin, acceptedPins }: Pick<ToolRow, 'approvedPin' | 'acceptedPins'>): string[] =>
  approvedPin ? [approvedPin, ...acceptedPins] : [];

/** The standing of the definition seen last. */
export function seenAs(
  tool: Pick<ToolRow, 'approvedPin' | 'acceptedPins' | 'rejectedPins' | 'pin'>,
): RegisteredTool['seen'] {
  if (approvedPins(tool).includes(tool.pin)) return 'approved';
  return tool.rejectedPins.includes(tool.pin) ? 'rejected' : 'changed';
}

/** The undecided definitions, newest first. */
export function undecided<Row extends Stored>(tool: ToolRow, definitions: readonly Row[]): Row[] {
  const decided = new Set([...approvedPins(tool), ...tool.rejectedPins]);
  return definitions
    .filter(({ pin }) => !decided.has(pin))
    .sort((a, b) => b.firstSeen.getTime() - a.firstSeen.getTime() || (a.pin < b.pin ? -1 : 1));
}

/** The change from the approved definition to this one. If none was approved, all of it is new. */
export function changeTo(
  definition: ToolDefinition,
  approved: ToolDefinition | undefined,
  others: readonly string[],
): ToolChange {
  if (approved) return changeOf(approved, definition, others);
  return { kind: 'introduced', reasons: noticeable(definition, others) };
}

/**
 * Recomputes the derived columns: status, what waits and how it differs. Call this after every change to a tool or its
 * definitions. `others` are the names of the server's tools.
 */
export function refresh(tool: ToolRow, definitions: readonly Stored[], others: readonly string[]): void {
  const [waiting] = undecided(tool, definitions);
  const approved = definitions.find(({ pin }) => pin === tool.approvedPin);
  const seen = definitions.find(({ pin }) => pin === tool.pin);
  tool.waitingPin = waiting?.pin ?? null;
  tool.change = waiting
    ? changeTo(definitionOf(waiting), approved && definitionOf(approved), others)
    : { kind: 'same', reasons: [] };
  if (seen) tool.shape = shapeOf(definitionOf(seen)) ?? null;
  if (!tool.listed) tool.status = 'gone';
  else if (tool.approvedPin) tool.status = waiting ? 'changed' : 'approved';
  else tool.status = waiting ? 'pending' : 'rejected';
}
