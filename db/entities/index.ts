import { EvidencePackage } from './evidence.ts';
import { ProxyInstance, StopEntity } from './fleet.ts';
import { Hold, Vote } from './holds.ts';
import {
  AgentKey,
  ApiKey,
  Invitation,
  Member,
  SessionEntity,
  SettingsChange,
  Tenant,
  WorkloadTrust,
} from './people.ts';
import { Policy, PolicyRevision, PolicySimulation, ReferenceList, ReferenceListVersion } from './policies.ts';
import { rawEntities } from './raw.ts';
import { Delivery, Subscription } from './subscriptions.ts';
import { Agent, Tool, ToolDefinitionEntity, ToolServer } from './tools.ts';

export * from './evidence.ts';
export * from './fleet.ts';
export * from './holds.ts';
export * from './people.ts';
export * from './policies.ts';
export * from './subscriptions.ts';
export * from './tools.ts';

/** The entities of every table. Those of raw.ts are read and written only by SQL. */
export const entities = [
  Tenant,
  SettingsChange,
  Member,
  SessionEntity,
  Invitation,
  ApiKey,
  AgentKey,
  WorkloadTrust,
  Policy,
  PolicyRevision,
  PolicySimulation,
  Hold,
  Vote,
  EvidencePackage,
  ProxyInstance,
  Subscription,
  Delivery,
  ToolServer,
  Tool,
  ToolDefinitionEntity,
  Agent,
  ReferenceList,
  ReferenceListVersion,
  StopEntity,
  ...rawEntities,
];
