/**
 * Which errors mean that the database cannot serve a statement now, so the caller should retry, rather than that the program or
 * the request is wrong. Pure.
 */

/** SQLSTATE classes of PostgreSQL: connection exceptions, insufficient resources. */
const CLASSES = /^(08|53)/;
const STATES = new Set([
  // a read-only transaction: after a failover this may be a standby that is not promoted yet
  '25006',
  // idle in a transaction for too long, a transaction that took too long
  '25P03',
  '25P04',
  // serialization failure, deadlock, a lock that was not granted in time
  '40001',
  '40P01',
  '55P03',
  // canceled, shut down, crashed, not accepting connections yet
  '57014',
  '57P01',
  '57P02',
  '57P03',
  '57P05',
  // an I/O error, such as a full or broken disk
  '58030',
]);
const SYSTEM = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
]);
/** Messages of `pg` without a code. */
const TEXTS =
  /^(Connection terminated|timeout exceeded when trying to connect|Client has encountered a connection error|Client was closed|Cannot use a pool after calling end)/;

/** Whether the error, or its cause, is a fault of the database. */
export function isDatabaseFault(error: unknown): boolean {
  for (let at = error, depth = 0; at instanceof Error && depth < 8; at = at.cause, depth++) {
    const { code, syscall, constraint } = at as { code?: unknown; syscall?: unknown; constraint?: unknown };
    if (typeof code === 'string' && (STATES.has(code) || (code.length === 5 && CLASSES.test(code)))) return true;
    // the tenant existed when the request was admitted: it is moving to another installation
    if (code === '23503' && typeof constraint === 'string' && constraint.endsWith('_tenant_id_fkey')) return true;
    if (typeof code === 'string' && SYSTEM.has(code) && (syscall === undefined || syscall !== 'listen')) return true;
    if (TEXTS.test(at.message)) return true;
    if (at instanceof AggregateError && at.errors.some((one) => isDatabaseFault(one))) return true;
  }
  return false;
}

/**
 * A read was abandoned: the statement took too long, too many like it are waiting already, or the caller has left. Nothing is
 * wrong with the database.
 */
export class ReadRefused extends Error {
  override readonly name = 'ReadRefused';
  readonly why: keyof typeof READ_REFUSALS;

  constructor(why: keyof typeof READ_REFUSALS, options?: ErrorOptions) {
    super(READ_REFUSALS[why], options);
    this.why = why;
  }
}

const READ_REFUSALS = {
  took_long: 'a statement took too long',
  too_many: 'too many reads wait',
  left: 'the caller has left',
};
