import { isUtf8 } from 'node:buffer';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { ACTION_PARTS } from '../domain/action-body.ts';
import { AppError } from '../errors.ts';
import { shapeFault } from '../lib/json-depth.ts';
import { repeatsMember } from '../lib/json-members.ts';

/** JSON that nests deeper than this is refused before it is parsed. */
const DEPTH_LIMIT = 32;

/** JSON with more values, names and brackets than this is refused before it is parsed. The longest lists have 50,000. */
const PARTS_LIMIT = 120_000;

const ofAgents = new WeakSet<FastifyRequest>();

/** From now on the body is held to what a description of an action may be. Call it before the body is read. */
export function expectAction(request: FastifyRequest): void {
  ofAgents.add(request);
}

export type ReadJson = (
  request: FastifyRequest,
  body: Buffer,
  done: (error: Error | null, value?: unknown) => void,
) => void;

/**
 * Reads JSON within the limits of its shape, without repeated members and without members that would become a prototype. An
 * empty body counts as none, whatever its content type says.
 */
export function jsonReader(app: FastifyInstance): ReadJson {
  const parse = app.getDefaultJsonParser('error', 'error');
  const refuse = (detail: string, cause?: unknown) => new AppError('VALIDATION_FAILED', detail, { cause });
  return (request, body, done) => {
    if (body.length === 0) return done(null, undefined);
    // a decoder would replace each wrong byte with U+FFFD, making two different bodies equal
    if (!isUtf8(body)) return done(refuse('the body is not valid UTF-8'));
    const parts = ofAgents.has(request) ? ACTION_PARTS : PARTS_LIMIT;
    const fault = shapeFault(body, { depth: DEPTH_LIMIT, parts });
    if (fault === 'depth') return done(refuse(`the JSON is nested deeper than ${DEPTH_LIMIT}`));
    if (fault === 'parts') {
      return done(new AppError('PAYLOAD_TOO_LARGE', `the JSON has more than ${parts} values, names and brackets`));
    }
    parse(request, body.toString(), (error, value) => {
      if (error) return done(refuse('the body is not valid JSON', error));
      // given two members of one name, some programs take the first, others the last
      if (repeatsMember(body, value)) return done(refuse('the JSON has two members of the same name'));
      done(null, value);
    });
  };
}
