import { expect, test } from 'vitest';
import { ERRORS, type ErrorCode } from '../../server/domain/errors.ts';
import { problemOf } from '../../web/lib/problem.ts';

const answer = (code: ErrorCode, more: object = {}) => ({
  data: { problem: { type: 'about:blank', code, ...ERRORS[code], request_id: 'req_1', ...more } },
});

test('a headline says what happened, not that something did', () => {
  const detail = 'the host name hooks.example.test does not resolve';
  for (const code of ['VALIDATION_FAILED', 'FORBIDDEN', 'NOT_FOUND', 'CONFLICT', 'INVALID_STATUS'] as const) {
    const { title, detail: left } = problemOf(answer(code, { detail }));
    expect([title, left]).toEqual(['The host name hooks.example.test does not resolve', undefined]);
  }
  const errors = [{ pointer: '/input_retention_days', message: 'must be at most 3650' }];
  expect(problemOf(answer('VALIDATION_FAILED', { errors }))).toMatchObject({
    title: 'A value is not accepted',
    detail: 'input retention days must be at most 3650',
  });
  // a title that says it stays, with what there is beside it
  expect(problemOf(answer('RATE_LIMITED', { detail: 'try again in 3 s' }))).toMatchObject({
    title: 'Too many requests',
    detail: 'try again in 3 s',
  });
});

test('no headline of the dashboard speaks of malformed requests', () => {
  for (const code of Object.keys(ERRORS) as ErrorCode[]) {
    for (const more of [{}, { detail: 'what happened' }]) {
      expect(problemOf(answer(code, more)).title, code).not.toMatch(/malformed/);
    }
  }
});
