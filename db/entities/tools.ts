import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { DRIFT_MODES, type DriftMode, TOOL_STATUSES, type ToolChange } from '../../server/domain/tools.ts';
import { tenantFilter, time } from './common.ts';

/* The tool registry, and what people say about agents. */

/** What one person asked for, to be done when a second one asks for the same. */
export interface Proposal<What> {
  what: What;
  by: string;
  at: string;
}

/** What people set of a tool server. */
export interface ToolServerSettings {
  /** Null: the default. */
  mode: DriftMode | null;
  trust: number | null;
  check_arguments: boolean;
}

export const ToolServer = defineEntity({
  name: 'ToolServer',
  tableName: 'tool_server',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    mode: p.enum(DRIFT_MODES).nullable(),
    trust: p.integer().nullable(),
    checkArguments: p.boolean(),
    /** The person who answers for it. Nothing reads it to decide. */
    ownerId: p.string().nullable(),
    proposal: p.json<Proposal<ToolServerSettings>>().columnType('jsonb').nullable(),
    firstSeen: time(),
    lastSeen: time(),
    /** When a tool of it was first approved. */
    reviewedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type ToolServerRow = InferEntity<typeof ToolServer>;

/** What two people must ask for, of one tool. */
export interface ToolProposals {
  approve?: Proposal<{ pin: string }>;
  labels?: Proposal<{ labels: string[] }>;
  /** To forget the tool, with these labels and rejections. */
  remove?: Proposal<{ labels: string[]; rejected_pins: string[] }>;
}

export const Tool = defineEntity({
  name: 'Tool',
  tableName: 'tool',
  properties: {
    tenantId: p.string().primary(),
    server: p.string().primary(),
    name: p.string().primary(),
    status: p.enum(TOOL_STATUSES),
    /** Of the definition that was seen last. */
    pin: p.string(),
    approvedPin: p.string().nullable(),
    approvedBy: p.string().nullable(),
    approvedAt: time().nullable(),
    /** Definitions that say the approved one in other words, and were accepted without a person. */
    acceptedPins: p.array(),
    rejectedPins: p.array(),
    /** The newest definition on which nobody has decided. */
    waitingPin: p.string().nullable(),
    /** From the approved definition to the one that waits. */
    change: p.json<ToolChange>().columnType('jsonb'),
    /** The form of the arguments, by which a tool is known again under another name. */
    shape: p.string().nullable(),
    labels: p.array(),
    proposals: p.json<ToolProposals>().columnType('jsonb'),
    /** Whether the newest complete list of the server had it. */
    listed: p.boolean(),
    /** When another definition gave way to an approved one. */
    returnedAt: time().nullable(),
    firstSeen: time(),
    lastSeen: time(),
  },
  filters: tenantFilter,
});
export type ToolRow = InferEntity<typeof Tool>;

export const ToolDefinitionEntity = defineEntity({
  name: 'ToolDefinitionEntity',
  tableName: 'tool_definition',
  properties: {
    tenantId: p.string().primary(),
    server: p.string().primary(),
    tool: p.string().primary(),
    pin: p.string().primary(),
    /** Canonical JSON. */
    definition: p.text(),
    /** The key that brought it. */
    reportedBy: p.string(),
    firstSeen: time(),
    lastSeen: time(),
  },
  filters: tenantFilter,
});
export type ToolDefinitionRow = InferEntity<typeof ToolDefinitionEntity>;

/** An agent by its id, whatever key or token it comes with. */
export const Agent = defineEntity({
  name: 'Agent',
  tableName: 'agent',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    labels: p.array(),
    proposal: p.json<Proposal<{ labels: string[] }>>().columnType('jsonb').nullable(),
    updatedAt: time(),
    updatedBy: p.string(),
  },
  filters: tenantFilter,
});
