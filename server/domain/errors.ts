/**
 * The closed table of errors: code -> HTTP status and meaning. A code never changes meaning, and no response uses a code that is
 * not listed here; the proxy adds a few of its own, see proxy/problem.ts.
 */
export const ERRORS = {
  VALIDATION_FAILED: { status: 400, title: 'The request is malformed' },
  UNAUTHENTICATED: { status: 401, title: 'No valid credential' },
  FORBIDDEN: { status: 403, title: 'The caller may not do this' },
  KEY_SCOPE: { status: 403, title: 'The key has no scope for this route' },
  SELF_APPROVAL: { status: 403, title: 'The author cannot approve their own version' },
  AGENT_MISMATCH: { status: 403, title: 'The hold belongs to another agent' },
  NOT_FOUND: { status: 404, title: 'There is no such resource' },
  METHOD_NOT_ALLOWED: { status: 405, title: 'The route has no such method' },
  CONFLICT: { status: 409, title: 'The resource already exists or is in use' },
  STOPPED: { status: 423, title: 'The action is stopped' },
  VERSION_CHANGED: { status: 409, title: 'The policy, tool, list or hold changed since this version was read' },
  INVALID_STATUS: { status: 409, title: 'The resource is in a status that does not allow this' },
  ALREADY_VOTED: { status: 409, title: 'This person has already voted' },
  ALREADY_CONSUMED: { status: 409, title: 'The hold was already consumed' },
  POLICY_CHANGED: { status: 409, title: 'The action is now held for more than was approved' },
  DUPLICATE_EVENT: { status: 409, title: 'The event id was used for other content' },
  ESCROW_EXPIRED: { status: 410, title: 'The hold has expired' },
  INPUT_GONE: { status: 410, title: 'Too little of the input of this decision is still kept' },
  PAYLOAD_TOO_LARGE: { status: 413, title: 'The body is too large' },
  UNSUPPORTED_MEDIA_TYPE: { status: 415, title: 'The body has an unsupported type or encoding' },
  POLICY_INVALID: { status: 422, title: 'The policy text has errors' },
  SIMULATION_REQUIRED: { status: 422, title: 'The policy version has not been simulated on past decisions' },
  TESTS_FAILED: { status: 422, title: 'The tests of the policy do not pass' },
  HASH_MISMATCH: { status: 422, title: 'The hold was approved for another request' },
  TERMS_REFUSED: { status: 422, title: 'The hold asks for less than the rules that it names' },
  DOMAIN_NOT_VERIFIED: { status: 422, title: 'The domain is not verified' },
  TOO_BROAD: { status: 422, title: 'Reading this takes too long' },
  TOO_MANY_RECORDS: { status: 422, title: 'The range holds too many records for one package' },
  RATE_LIMITED: { status: 429, title: 'Too many requests' },
  INTERNAL: { status: 500, title: 'The server failed' },
  UNAVAILABLE: { status: 503, title: 'The server cannot do this now' },
} as const satisfies Record<string, { status: number; title: string }>;

export type ErrorCode = keyof typeof ERRORS;
