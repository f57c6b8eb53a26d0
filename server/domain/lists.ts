/** The name of a reference list, as policies write it. It has no space, colon or dot, so nothing else can be read from it. */
export const LIST_NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;

export const LIST_LIMITS = {
  /** Values per list. */
  values: 50_000,
  /** Characters per value, in UTF-16 units after normalization. */
  characters: 512,
  /** Bytes per list, in the form its values have in a bundle. */
  bytes: 4 * 1024 * 1024,
  /** Lists per tenant. */
  lists: 50,
  /** Total bytes of a tenant's lists, because every enforcement point holds them in memory. */
  tenantBytes: 32 * 1024 * 1024,
} as const;

/** A reference list as it appears in bundles. */
export interface BundleList {
  name: string;
  version: number;
  /** In NFC, in ascending code unit order, without duplicates. */
  values: string[];
}

/** The form in which values and arguments are compared: NFC. Case, spaces and look-alike letters all count. */
export const comparable = (text: string): string => text.normalize('NFC');
