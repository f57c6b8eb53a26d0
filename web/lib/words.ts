/** Numbers and terms as people read them. */
export function money(value: number, currency: string | undefined): string {
  try {
    return new Intl.NumberFormat(undefined, { style: 'currency', currency: currency ?? '' }).format(value);
  } catch {
    // an agent may name a currency that does not exist
    return `${value.toLocaleString()} ${currency ?? ''}`.trim();
  }
}

export const count = (n: number, one: string, many = `${one}s`): string =>
  `${n.toLocaleString()} ${n === 1 ? one : many}`;

export const HOLD_TYPE = {
  single: 'One approval',
  multi_party: 'Several approvals',
  conditional: 'Conditions',
  time_delayed: 'Released by time',
} as const;

/** A risk from 0 to 1 in words and as a tone. */
export function risk(score: number): { word: string; tone: 'ok' | 'wait' | 'bad' } {
  if (score >= 0.7) return { word: 'high', tone: 'bad' };
  return score >= 0.4 ? { word: 'medium', tone: 'wait' } : { word: 'low', tone: 'ok' };
}
