export {
  AgentClient,
  type EvaluateRequest,
  type Evaluation,
  type Hold,
  type HoldStatus,
  permitted,
  type Result,
} from './agent.ts';
export {
  type ErrorCode,
  MaskError,
  type Problem,
  ProblemError,
  SvcError,
  UnavailableError,
  WebhookError,
} from './errors.ts';
export { type ClientOptions, createClient } from './http.ts';
export { mask } from './mask.ts';
export type { components, operations, paths } from './schema.ts';
export { verifyWebhook, type Webhook } from './webhooks.ts';
