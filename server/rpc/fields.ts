import { z } from 'zod';
import { showsSomething } from '../lib/visible.ts';

/** A string that PostgreSQL and canonical JSON can both hold: well formed, without NUL, within bounds. */
export const text = (max: number, min = 1) =>
  z
    .string()
    .min(min)
    .max(max)
    .refine((s) => s.isWellFormed() && !s.includes('\0'), 'must be well-formed text without NUL');

/** The method of an HTTP request: a token, so that it can neither imitate nor hide the text around it. */
export const httpMethod = (max: number) =>
  z
    .string()
    .max(max)
    .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'must be the method of an HTTP request, such as POST');

export const REASON_MISSING = 'is required: say why, in one line; it goes into the audit log';

/** The hash of a tool's definition. */
export const toolPin = z.string().regex(/^sha256:[0-9a-f]{64}$/, 'must be sha256: and 64 hexadecimal digits');

/** An address in the form that browsers accept, in lower case. */
export const emailAddress = z
  .string()
  .trim()
  .toLowerCase()
  .max(254)
  .regex(z.regexes.html5Email, 'must be the address of a mailbox');

/** A time given by a caller, in ISO 8601: a date, which means its start in UTC, or date and time with Z or an offset. */
export const timestamp = z.union([z.iso.datetime({ offset: true }), z.iso.date()], {
  error: 'must be an ISO 8601 date, or date and time with Z or an offset',
});

/** The same for a time that is stored and returned: an offset can push it beyond the years that a response can express. */
export const keptTime = timestamp.refine((s) => {
  const year = new Date(s).getUTCFullYear();
  return year >= 0 && year <= 9999;
}, 'must be within the years 0000 to 9999 in UTC');

/**
 * Why someone changes a role, takes a right away or weakens a safeguard: one line, which the audit log keeps and shows. Every
 * route that does so requires it, from every caller. Creating or rotating a key and inviting a person need none: the record
 * itself shows what they grant.
 */
export const reason = z
  .string({ error: ({ input }) => (input === undefined ? REASON_MISSING : undefined) })
  .trim()
  .min(1, REASON_MISSING)
  .max(500)
  .refine((s) => s === '' || showsSomething(s), REASON_MISSING)
  .refine((s) => s.isWellFormed() && !/[\p{Cc}\p{Zl}\p{Zp}]/u.test(s), 'must be one line without control characters')
  .describe('why, in one line; it goes into the audit log');
