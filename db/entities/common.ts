import { p } from '@mikro-orm/postgresql';

/**
 * For entities that belong to one tenant. The filter is the first wall between tenants (a scoped entity manager always sets it,
 * and a query without its parameter fails); row level security in the database is the second.
 */
export const tenantFilter = {
  tenant: { name: 'tenant', cond: (args: Record<string, unknown>) => ({ tenantId: args.tenantId }), default: true },
};
export const time = () => p.datetime().columnType('timestamptz(3)');
