/** What the export form starts with, in the address: evidence of a time, or of a session. */
export interface EvidenceSearch {
  from?: string;
  to?: string;
  session?: string;
  purpose?: string;
}

export function readEvidenceSearch(search: Record<string, unknown>): EvidenceSearch {
  const found: EvidenceSearch = {};
  for (const name of ['session', 'purpose'] as const) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
  }
  const [from, to] = [search.from, search.to].map((time) =>
    typeof time === 'string' && !Number.isNaN(Date.parse(time)) ? new Date(time).toISOString() : undefined,
  );
  if (from !== undefined && to !== undefined) Object.assign(found, { from, to });
  return found;
}
