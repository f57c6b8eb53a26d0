import { z } from 'zod';
import { ERRORS, type ErrorCode } from '../domain/errors.ts';

/** The body of every error response, for the documents; `problemBody` creates it. */
export const Problem = z
  .object({
    type: z.string().describe('urn:svc:error:<code in lower case>'),
    title: z.string(),
    status: z.int(),
    code: z.enum(Object.keys(ERRORS) as [ErrorCode, ...ErrorCode[]]),
    detail: z.string().optional(),
    instance: z.string().optional(),
    request_id: z.string().optional(),
    errors: z
      .array(
        z.object({
          pointer: z.string().describe('RFC 6901 into the body, or ?name for a query parameter'),
          message: z.string(),
          line: z.int().optional(),
          column: z.int().optional(),
        }),
      )
      .optional(),
  })
  .meta({ id: 'Problem', description: 'RFC 9457 problem details' });
