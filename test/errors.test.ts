import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { ERRORS, type ErrorCode } from '../server/domain/errors.ts';
import { AppError, problemBody } from '../server/errors.ts';
import { document } from './helpers/api.ts';

const codes = Object.keys(ERRORS) as ErrorCode[];

/** Every code with its status, written by hand from the specification and the contract. A new code needs its row here. */
const TABLE: Record<string, number> = {
  VALIDATION_FAILED: 400,
  UNAUTHENTICATED: 401,
  FORBIDDEN: 403,
  KEY_SCOPE: 403,
  SELF_APPROVAL: 403,
  AGENT_MISMATCH: 403,
  NOT_FOUND: 404,
  METHOD_NOT_ALLOWED: 405,
  CONFLICT: 409,
  VERSION_CHANGED: 409,
  INVALID_STATUS: 409,
  ALREADY_VOTED: 409,
  ALREADY_CONSUMED: 409,
  POLICY_CHANGED: 409,
  DUPLICATE_EVENT: 409,
  ESCROW_EXPIRED: 410,
  INPUT_GONE: 410,
  PAYLOAD_TOO_LARGE: 413,
  UNSUPPORTED_MEDIA_TYPE: 415,
  STOPPED: 423,
  POLICY_INVALID: 422,
  SIMULATION_REQUIRED: 422,
  TESTS_FAILED: 422,
  HASH_MISMATCH: 422,
  DOMAIN_NOT_VERIFIED: 422,
  TERMS_REFUSED: 422,
  TOO_BROAD: 422,
  TOO_MANY_RECORDS: 422,
  RATE_LIMITED: 429,
  INTERNAL: 500,
  UNAVAILABLE: 503,
};

test('the table is closed: each code has the status that is written down, and no other code is there', () => {
  expect(Object.fromEntries(codes.map((code) => [code, ERRORS[code].status]))).toEqual(TABLE);
  expect(codes).toHaveLength(31);
  expect(new Set(codes.map((code) => ERRORS[code].title)).size).toBe(codes.length);
});

test('every code becomes a problem of its own type, with its status', () => {
  for (const code of codes) {
    const problem = problemBody(new AppError(code), 'req_1', '/v1/x');
    expect(problem).toEqual({
      type: `urn:svc:error:${code.toLowerCase()}`,
      title: ERRORS[code].title,
      status: ERRORS[code].status,
      code,
      instance: '/v1/x',
      request_id: 'req_1',
    });
    expect(problemBody(new AppError(code, 'why', { faults: [{ pointer: '/a', message: 'm' }] }))).toMatchObject({
      detail: 'why',
      errors: [{ pointer: '/a', message: 'm' }],
    });
  }
});

test('a cause is kept for the log and is no part of the problem', () => {
  const problem = problemBody(new AppError('INTERNAL', undefined, { cause: new Error('select secret from t') }));
  expect(JSON.stringify(problem)).not.toMatch(/secret|stack|cause/);
});

test('the OpenAPI document knows the same codes', () => {
  const { Problem } = document.components.schemas as { Problem: { properties: { code: { enum: string[] } } } };
  expect(Problem.properties.code.enum).toEqual(codes);
  const committed = readFileSync(new URL('../server/api/openapi.json', import.meta.url), 'utf8');
  for (const code of codes) expect(committed).toContain(`"${code}"`);
});
