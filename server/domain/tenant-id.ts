/** The form of a tenant's id, as the source of a regular expression: it stands in secrets, in records and in addresses. */
export const TENANT_ID = '[A-Za-z0-9][A-Za-z0-9_-]{0,63}';
