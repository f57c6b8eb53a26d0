import type { AuditAction, Severity } from '../../domain/audit.ts';

/** What can be fetched from a provider. */
export type FetchedResource = 'discovery' | 'keys' | 'token' | 'userinfo';
type Fault = 'unavailable' | 'blocked' | 'too_large' | 'redirected' | 'malformed';

/** Why a provider, or a sign-in through it, was refused: an action of the audit table, each with its own code. */
export type SsoReason = Extract<
  AuditAction,
  | `sso.${FetchedResource}_${Fault}`
  | `sso.${'discovery' | 'state' | 'response' | 'provider' | 'code' | 'client' | 'userinfo'}_${string}`
  | `sso.${'id_token' | 'email' | 'account' | 'subject'}_${string}`
>;

/** `detail` is for the tenant's admins (audit chain, settings page): plain words, no secrets, no addresses. */
export class SsoRefusal extends Error {
  readonly reason: SsoReason;
  readonly detail: string;

  constructor(reason: SsoReason, detail: string) {
    super(`${reason}: ${detail}`);
    this.name = 'SsoRefusal';
    this.reason = reason;
    this.detail = detail;
  }
}

/**
 * A state that this server did not issue. It names no tenant whose chain could record it, so it is logged and counted.
 */
export class ForgedState extends Error {}

export function refusalOfFetch(what: FetchedResource, fault: Fault, detail: string): SsoRefusal {
  return new SsoRefusal(`sso.${what}_${fault}`, detail);
}

/** What the person at the browser, who may be an attacker, learns: what to do next, not what went wrong. */
export type BrowserError = 'sso_unknown' | 'sso_unavailable' | 'sso_expired' | 'sso_no_access' | 'sso_failed';

/** Undefined for an error that is not a refusal. */
export function browserError(error: unknown): BrowserError | undefined {
  if (error instanceof ForgedState) return 'sso_expired';
  if (!(error instanceof SsoRefusal)) return undefined;
  const { reason } = error;
  if (/^sso\.(discovery|keys|token|userinfo|client)_/.test(reason)) return 'sso_unavailable';
  if (/^sso\.(state|code)_/.test(reason)) return 'sso_expired';
  if (/^sso\.(email|account|subject)_/.test(reason)) return 'sso_no_access';
  return 'sso_failed';
}

/** Reasons that point to an attack rather than a mistake or an outage. */
const CRITICAL: ReadonlySet<SsoReason> = new Set<SsoReason>([
  'sso.response_of_other_connection',
  'sso.id_token_unsigned',
  'sso.id_token_symmetric',
  'sso.id_token_signature',
  'sso.email_of_other_domain',
  'sso.email_of_other_member',
  'sso.subject_changed',
]);

export function severityOf({ reason }: SsoRefusal): Severity {
  return CRITICAL.has(reason) ? 'critical' : 'warning';
}
