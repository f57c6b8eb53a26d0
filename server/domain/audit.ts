import type { Principal } from './principal.ts';

/** Who did something, as identified in the audit chain. */
export interface Actor {
  type: 'user' | 'api_key' | 'agent_key' | 'workload_token' | 'operator' | 'system';
  id: string;
  email?: string | undefined;
  ip?: string | undefined;
}

/** Anyone with access to the database and the settings, as identified in the audit chain. */
export const OPERATOR: Actor = { type: 'operator', id: 'operator' };

/** Who did something and in which request. */
export interface Doer {
  actor: Actor;
  requestId?: string | undefined;
}

/** Where a sign-in request came from. */
export interface Origin {
  ip: string;
  requestId: string;
  userAgent?: string | undefined;
}

export function originOf(context: {
  ip: string;
  requestId: string;
  headers: Readonly<Record<string, string | string[] | undefined>>;
}): Origin {
  const userAgent = context.headers['user-agent'];
  return { ip: context.ip, requestId: context.requestId, userAgent: userAgent && String(userAgent) };
}

/**
 * Every action in the audit chain, with its stable code: the letters of the area, a number, and I for done or E for refused. A
 * code never changes meaning.
 */
export const AUDIT_ACTIONS = {
  'tenant.created': 'TEN001I',
  'settings.changed': 'TEN002I',
  'settings.change_refused': 'TEN002E',
  'settings.change_proposed': 'TEN003I',
  'settings.change_approved': 'TEN004I',
  'settings.approval_refused': 'TEN004E',
  'settings.change_rejected': 'TEN005I',
  'settings.change_withdrawn': 'TEN006I',
  'tenant.departed': 'TEN007I',
  'tenant.departure_undone': 'TEN008I',
  'tenant.arrived': 'TEN009I',
  'database.restored': 'SYS001I',
  'member.added': 'MEM001I',
  'member.removed': 'MEM002I',
  'member.removal_refused': 'MEM002E',
  'member.restored': 'MEM003I',
  'role.granted': 'ROL001I',
  'role.grant_refused': 'ROL001E',
  'role.revoked': 'ROL002I',
  'role.revocation_refused': 'ROL002E',
  'invitation.created': 'INV001I',
  'invitation.refused': 'INV001E',
  'invitation.resent': 'INV002I',
  'invitation.revoked': 'INV003I',
  'invitation.accepted': 'INV004I',
  'invitation.acceptance_refused': 'INV004E',
  'magic_link.sent': 'MLK001I',
  'magic_link.withheld': 'MLK001E',
  'magic_link.refused': 'MLK002E',
  'key.created': 'KEY001I',
  'key.revoked': 'KEY002I',
  'key.confirmed': 'KEY003I',
  'key.rotated': 'KEY004I',
  'agent_key.created': 'AGK001I',
  'agent_key.revoked': 'AGK002I',
  'agent_key.rotated': 'AGK003I',
  'workload_trust.created': 'WLT001I',
  'workload_trust.refused': 'WLT001E',
  'workload_trust.deleted': 'WLT002I',
  'workload_token.issued': 'WLT003I',
  'workload_token.refused': 'WLT003E',
  'proxy.removed': 'PRX001I',
  'signing_key.rotated': 'SGK001I',
  'mail_preferences.changed': 'MAI001I',
  'session.started': 'SES001I',
  'session.ended': 'SES002I',
  'session.link_created': 'SES003I',
  'sso.configured': 'SSO001I',
  'sso.configuration_refused': 'SSO001E',
  'sso.removed': 'SSO002I',
  'sso.proven': 'SSO003I',
  'sso.enforcement_refused': 'SSO004E',
  'sso.identity_bound': 'SSO005I',
  'sso.identity_unbound': 'SSO006I',
  'sso.domain_claimed': 'SSO010I',
  'sso.domain_claim_refused': 'SSO010E',
  'sso.domain_verified': 'SSO011I',
  'sso.domain_not_verified': 'SSO011E',
  'sso.domain_removed': 'SSO012I',
  'sso.domain_removal_refused': 'SSO012E',
  'sso.domain_record_found': 'SSO013I',
  'sso.domain_record_missing': 'SSO013E',
  'sso.domain_lost': 'SSO014E',
  'sso.discovery_unavailable': 'SSO100E',
  'sso.discovery_blocked': 'SSO101E',
  'sso.discovery_too_large': 'SSO102E',
  'sso.discovery_redirected': 'SSO103E',
  'sso.discovery_malformed': 'SSO104E',
  'sso.discovery_issuer_mismatch': 'SSO105E',
  'sso.discovery_endpoint_refused': 'SSO106E',
  'sso.discovery_unsupported': 'SSO107E',
  'sso.keys_unavailable': 'SSO110E',
  'sso.keys_blocked': 'SSO111E',
  'sso.keys_too_large': 'SSO112E',
  'sso.keys_redirected': 'SSO113E',
  'sso.keys_malformed': 'SSO114E',
  'sso.state_expired': 'SSO120E',
  'sso.state_of_other_browser': 'SSO121E',
  'sso.state_replayed': 'SSO122E',
  'sso.state_outdated': 'SSO123E',
  'sso.response_issuer_mismatch': 'SSO124E',
  'sso.provider_refused': 'SSO125E',
  'sso.code_missing': 'SSO126E',
  'sso.response_of_other_connection': 'SSO127E',
  'sso.token_unavailable': 'SSO130E',
  'sso.token_blocked': 'SSO131E',
  'sso.token_too_large': 'SSO132E',
  'sso.token_redirected': 'SSO133E',
  'sso.token_malformed': 'SSO134E',
  'sso.code_refused': 'SSO135E',
  'sso.client_refused': 'SSO136E',
  'sso.userinfo_unavailable': 'SSO140E',
  'sso.userinfo_blocked': 'SSO141E',
  'sso.userinfo_too_large': 'SSO142E',
  'sso.userinfo_redirected': 'SSO143E',
  'sso.userinfo_malformed': 'SSO144E',
  'sso.userinfo_subject_mismatch': 'SSO145E',
  'sso.id_token_malformed': 'SSO150E',
  'sso.id_token_unsigned': 'SSO151E',
  'sso.id_token_symmetric': 'SSO152E',
  'sso.id_token_algorithm': 'SSO153E',
  'sso.id_token_critical_header': 'SSO154E',
  'sso.id_token_key_unknown': 'SSO155E',
  'sso.id_token_key_unfit': 'SSO156E',
  'sso.id_token_signature': 'SSO157E',
  'sso.id_token_claims': 'SSO158E',
  'sso.id_token_issuer': 'SSO159E',
  'sso.id_token_audience': 'SSO160E',
  'sso.id_token_party': 'SSO161E',
  'sso.id_token_expired': 'SSO162E',
  'sso.id_token_stale': 'SSO163E',
  'sso.id_token_not_yet_valid': 'SSO164E',
  'sso.id_token_issued_ahead': 'SSO165E',
  'sso.id_token_nonce': 'SSO166E',
  'sso.email_missing': 'SSO170E',
  'sso.email_malformed': 'SSO171E',
  'sso.email_unverified': 'SSO172E',
  'sso.email_of_other_domain': 'SSO173E',
  'sso.email_of_other_member': 'SSO174E',
  'sso.account_unknown': 'SSO175E',
  'sso.account_removed': 'SSO176E',
  'sso.subject_changed': 'SSO177E',
  'sso.email_of_doubtful_domain': 'SSO178E',
  'token_issuers.changed': 'TKI001I',
  'token_issuers.refused': 'TKI001E',
  'policy.created': 'POL001I',
  'policy.updated': 'POL002I',
  'policy.submitted': 'POL003I',
  'policy.approved': 'POL004I',
  'policy.approval_refused': 'POL004E',
  'policy.rejected': 'POL005I',
  'policy.changes_requested': 'POL006I',
  'policy.revoked': 'POL007I',
  'policy.rolled_back': 'POL008I',
  'policy.break_glass': 'POL009I',
  'policy.commented': 'POL010I',
  'policy.review_closed': 'POL011I',
  'policy.thread_resolved': 'POL013I',
  'policy.thread_reopened': 'POL014I',
  'policy.evaluation_disputed': 'POL012E',
  'escrow.created': 'ESC001I',
  'escrow.cancelled': 'ESC002I',
  'escrow.vote_cast': 'ESC003I',
  'escrow.condition_reported': 'ESC004I',
  'escrow.recounted': 'ESC005I',
  'escrow.released': 'ESC006I',
  'escrow.rejected': 'ESC007I',
  'escrow.consumed': 'ESC008I',
  'escrow.consume_unrecorded': 'ESC008E',
  'escrow.expired': 'ESC009I',
  'escrow.notify_failed': 'ESC010E',
  'escrow.use_refused': 'ESC011E',
  'decision.input_read': 'DEC001I',
  'decision.exported': 'DEC002I',
  'forensics.exported': 'FOR001I',
  'forensics.verified': 'FOR002I',
  'forensics.verification_failed': 'FOR002E',
  'chain.loss_accepted': 'FOR003I',
  'subscription.created': 'SUB001I',
  'subscription.refused': 'SUB001E',
  'subscription.updated': 'SUB002I',
  'subscription.deleted': 'SUB003I',
  'subscription.secret_rotated': 'SUB004I',
  'subscription.disabled': 'SUB005I',
  'subscription.tested': 'SUB006I',
  'subscription.redelivered': 'SUB007I',
  'subscription.resent': 'SUB008I',
  'tool.observed': 'TOL001I',
  'tool.changed': 'TOL002I',
  'tool.approved': 'TOL003I',
  'tool.approval_refused': 'TOL003E',
  'tool.rejected': 'TOL004I',
  'tool.labeled': 'TOL005I',
  'tool.removed': 'TOL006I',
  'tool_server.changed': 'TOL010I',
  'agent.labeled': 'AGT001I',
  'simulation.started': 'SIM001I',
  'simulation.cancelled': 'SIM002I',
  'saved_question.created': 'QST001I',
  'saved_question.deleted': 'QST002I',
  'list.changed': 'LST001I',
  'list.approved': 'LST002I',
  'list.approval_refused': 'LST002E',
  'list.rejected': 'LST003I',
  'list.deleted': 'LST004I',
  'stop.created': 'STP001I',
  'stop.applied': 'STP002I',
  'stop.applied_in_part': 'STP002E',
  'stop.lifted': 'STP003I',
  'stop.lift_refused': 'STP003E',
  'stop.ended': 'STP004I',
} as const;
export type AuditAction = keyof typeof AUDIT_ACTIONS;

export type Severity = 'info' | 'warning' | 'critical';

export interface AuditEntry {
  actor: Actor;
  action: AuditAction;
  target: { type: string; id: string };
  severity?: Severity | undefined;
  reason?: string | undefined;
  /** Anything else a reader must know, in plain words; never a secret. */
  detail?: string | undefined;
  /** Hashes of the target's state before and after. */
  beforeHash?: string | undefined;
  afterHash?: string | undefined;
  requestId?: string | undefined;
  /** A signed note for the record to hold. */
  note?: string | undefined;
}

/** The caller of a request, as an actor. */
export function actorOf(principal: Principal, ip?: string): Actor {
  switch (principal.kind) {
    case 'session':
      return { type: 'user', id: principal.userId, email: principal.email, ip };
    case 'api_key':
    case 'agent_key':
    case 'workload_token':
      return { type: principal.kind, id: principal.id, ip };
  }
}

/** The caller of a request, together with the request. */
export function doerOf(context: { principal: Principal; ip: string; requestId: string }): Doer {
  return { actor: actorOf(context.principal, context.ip), requestId: context.requestId };
}
