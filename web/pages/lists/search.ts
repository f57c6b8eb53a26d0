/** The search parameters of a list's page. */
export interface ListSearch {
  /** The version whose values are shown; the newest one if absent. */
  version?: number;
  /** The version that this one is compared with. */
  from?: number;
  q?: string;
}

const version = (value: unknown) => (Number.isInteger(value) && Number(value) > 0 ? Number(value) : undefined);

export function readListSearch({ version: shown, from, q }: Record<string, unknown>): ListSearch {
  return {
    ...(version(shown) && { version: version(shown) }),
    ...(version(from) && { from: version(from) }),
    ...(typeof q === 'string' && q !== '' && { q }),
    ...(typeof q === 'number' && { q: String(q) }),
  };
}
