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

export const REASON_MISSING = 'is required: say why; it goes into the audit log';

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
 * Why someone takes a right away, weakens a safeguard or ends something, in lines: the audit log keeps and shows it. Where the
 * specification lists no reason it is `askedReason`: optional, unless the tenant requires one (see reasonFor). Creating or
 * rotating a key and inviting a person need none: the record itself shows what they grant.
 */
export const reason = z
  .string({ error: ({ input }) => (input === undefined ? REASON_MISSING : undefined) })
  .trim()
  .min(1, REASON_MISSING)
  .max(2000)
  .refine((s) => s === '' || showsSomething(s), REASON_MISSING)
  .refine(
    (s) => s.isWellFormed() && !/(?![\t\n\r])[\p{Cc}\p{Zl}\p{Zp}]/u.test(s),
    'must be text without control characters',
  )
  .describe('why; it goes into the audit log');

export const askedReason = reason.optional();

/** The same in one line, for what is shown in one. */
export const shortReason = reason
  .max(300)
  .refine((s) => !/[\t\n\r]/.test(s), 'must be one line')
  .describe('why, in one line; it goes into the audit log');

/** The page of a list that the specification shows without paging: unless asked for less, everything up to 1,000 rows. */
export const wholePage = {
  limit: z.int().min(1).max(1000).default(1000),
  offset: z.int().min(0).max(1_000_000).default(0),
};
