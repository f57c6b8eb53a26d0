import { isUtf8 } from 'node:buffer';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { AppError } from '../errors.ts';
import { nestsDeeper } from '../lib/json-depth.ts';
import { repeatsMember } from '../lib/json-members.ts';

/** JSON that nests deeper than this is refused before it is parsed. */
const DEPTH_LIMIT = 32;

export type ReadJson = (
  request: FastifyRequest,
  body: Buffer,
  done: (error: Error | null, value?: unknown) => void,
) => void;

/**
 * Reads JSON within the depth limit, without repeated members and without members that would become a prototype. An
 * empty body counts as none, whatever its content type says.
 */
export function jsonReader(app: FastifyInstance): ReadJson {
  const parse = app.getDefaultJsonParser('error', 'error');
  const refuse = (detail: string, cause?: unknown) => new AppError('VALIDATION_FAILED', detail, { cause });
  return (request, body, done) => {
    if (body.length === 0) return done(null, undefined);
    // a decoder would replace each wrong byte with U+FFFD, making two different bodies equal
    if (!isUtf8(body)) return done(refuse('the body is not valid UTF-8'));
    if (nestsDeeper(body, DEPTH_LIMIT)) return done(refuse(`the JSON is nested deeper than ${DEPTH_LIMIT}`));
    parse(request, body.toString(), (error, value) => {
      if (error) return done(refuse('the body is not valid JSON', error));
      // given two members of one name, some programs take the first, others the last
      if (repeatsMember(body, value)) return done(refuse('the JSON has two members of the same name'));
      done(null, value);
    });
  };
}
