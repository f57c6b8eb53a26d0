import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { DRIFT_MODES, type DriftMode, TOOL_STATUSES, type ToolChange } from '../../server/domain/tools.ts';
import { tenantFilter, time } from './common.ts';

/* The tool registry, and what people configured about agents. */

/** What one person requested, carried out when a second person requests the same. */
export interface Proposal<What> {
  what: What;
  by: string;
  at: string;
}

/** What people configured for a tool server. */
export interface ToolServerSettings {
  /** Null: the default. */
  mode: DriftMode | null;
  trust: number | null;
  check_arguments: boolean;
  /** The lines of the keys whose proxies state facts of its answers; empty: any. */
  proxy_keys: string[];
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
    proxyKeys: p.array(),
    /** The person responsible for it. No decision depends on it. */
    ownerId: p.string().nullable(),
    proposal: p.json<Proposal<ToolServerSettings>>().columnType('jsonb').nullable(),
    firstSeen: time(),
    lastSeen: time(),
    /** When one of its tools was first approved. */
    reviewedAt: time().nullable(),
  },
  filters: tenantFilter,
});
export type ToolServerRow = InferEntity<typeof ToolServer>;

/** Actions on a tool that two people must request. */
export interface ToolProposals {
  approve?: Proposal<{ pin: string }>;
  labels?: Proposal<{ labels: string[] }>;
  /** To forget the tool, with these labels and rejections. */
  remove?: Proposal<{ labels: string[]; rejected_pins: string[]; approved_pin: string | null }>;
}

export const Tool = defineEntity({
  name: 'Tool',
  tableName: 'tool',
  properties: {
    tenantId: p.string().primary(),
    server: p.string().primary(),
    name: p.string().primary(),
    status: p.enum(TOOL_STATUSES),
    /** Pin of the definition seen last. */
    pin: p.string(),
    approvedPin: p.string().nullable(),
    approvedBy: p.string().nullable(),
    approvedAt: time().nullable(),
    /** Definitions that reword the approved one, and were accepted without a person. */
    acceptedPins: p.array(),
    rejectedPins: p.array(),
    /** The newest definition that no one has decided on. */
    waitingPin: p.string().nullable(),
    /** The change from the approved definition to the waiting one. */
    change: p.json<ToolChange>().columnType('jsonb'),
    /** The shape of the arguments, by which a tool is recognized under another name. */
    shape: p.string().nullable(),
    labels: p.array(),
    proposals: p.json<ToolProposals>().columnType('jsonb'),
    /** Whether the server's newest complete list contained it. */
    listed: p.boolean(),
    /** When it last returned from another definition to an approved one. */
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
    /** The key that reported it. */
    reportedBy: p.string(),
    firstSeen: time(),
    lastSeen: time(),
  },
  filters: tenantFilter,
});
export type ToolDefinitionRow = InferEntity<typeof ToolDefinitionEntity>;

/** An agent by its id, whatever key or token it uses. */
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
