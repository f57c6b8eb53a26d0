/** The name of a reference list, as policies write it. It has no space, colon or dot, so nothing else can be read from it. */
export const LIST_NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;

export const LIST_LIMITS = {
  /** Values of one list. */
  values: 50_000,
  /** Characters of one value, in UTF-16 units after normalization. */
  characters: 512,
  /** Bytes of one list, as its values stand in a bundle. */
  bytes: 4 * 1024 * 1024,
  /** Lists of a tenant. */
  lists: 50,
  /** Bytes of all lists of a tenant together, because every enforcement point holds them in memory. */
  tenantBytes: 32 * 1024 * 1024,
} as const;

/** A reference list as bundles carry it. */
export interface BundleList {
  name: string;
  version: number;
  /** In NFC, in ascending code units, none twice. */
  values: string[];
}

/** The form in which values and arguments are compared: NFC. Case, spaces and look-alike letters all count. */
export const comparable = (text: string): string => text.normalize('NFC');
