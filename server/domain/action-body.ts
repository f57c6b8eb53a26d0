/**
 * The most parts (values, names and brackets) of a body that describes an action: a sheet of 50 columns and 130 rows fits.
 * Every step of a decision visits each of them, for all tenants on one thread.
 */
export const ACTION_PARTS = 7_000;
