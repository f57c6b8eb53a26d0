/** The form of a tenant's id, as the source of a regular expression: it appears in secrets, records and addresses. */
export const TENANT_ID = '[A-Za-z0-9][A-Za-z0-9_-]{0,63}';
