import type { ToolDefinitionRow, ToolRow } from '../../db/entities/index.ts';
import { changeOf, noticeable, shapeOf } from '../domain/tool-definition.ts';
import type { RegisteredTool, ToolChange, ToolDefinition } from '../domain/tools.ts';

/** Definitions of one tool that are kept; the oldest that nobody decided on go first. */
export const MOST_DEFINITIONS = 20;

type Stored = Pick<ToolDefinitionRow, 'pin' | 'definition' | 'firstSeen'>;

export const definitionOf = ({ definition }: Pick<Stored, 'definition'>): ToolDefinition => JSON.parse(definition);

/** The pins by which a tool is what was approved. */
export const approvedPins = ({ approvedPin, acceptedPins }: Pick<ToolRow, 'approvedPin' | 'acceptedPins'>): string[] =>
  approvedPin ? [approvedPin, ...acceptedPins] : [];

/** How the definition stands that was seen last. */
export function seenAs(
  tool: Pick<ToolRow, 'approvedPin' | 'acceptedPins' | 'rejectedPins' | 'pin'>,
): RegisteredTool['seen'] {
  if (approvedPins(tool).includes(tool.pin)) return 'approved';
  return tool.rejectedPins.includes(tool.pin) ? 'rejected' : 'changed';
}

/** The definitions on which nobody has decided, the newest first. */
export function undecided<Row extends Stored>(tool: ToolRow, definitions: readonly Row[]): Row[] {
  const decided = new Set([...approvedPins(tool), ...tool.rejectedPins]);
  return definitions
    .filter(({ pin }) => !decided.has(pin))
    .sort((a, b) => b.firstSeen.getTime() - a.firstSeen.getTime() || (a.pin < b.pin ? -1 : 1));
}

/** From what was approved to this definition. Where nothing was, all of it is new. */
export function changeTo(
  definition: ToolDefinition,
  approved: ToolDefinition | undefined,
  others: readonly string[],
): ToolChange {
  if (approved) return changeOf(approved, definition, others);
  return { kind: 'introduced', reasons: noticeable(definition, others) };
}

/**
 * Derives the columns that follow from the others: status, what waits and how it differs. To be called after every change
 * of a tool or of its definitions. `others` are the names of the server's tools.
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
