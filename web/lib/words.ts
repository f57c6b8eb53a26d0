/** Formats numbers and terms for people. */
export function money(value: number, currency: string | null | undefined): string {
  try {
    return new Intl.NumberFormat(undefined, { style: 'currency', currency: currency ?? '' }).format(value);
  } catch {
    // an agent may name a currency that does not exist
    return `${value.toLocaleString()} ${currency ?? ''}`.trim();
  }
}

export const count = (n: number, one: string, many = `${one}s`): string =>
  `${n.toLocaleString()} ${n === 1 ? one : many}`;

/** A risk from 0 to 1 as a word and a tone. */
export function risk(score: number): { word: string; tone: 'ok' | 'wait' | 'bad' } {
  if (score >= 0.7) return { word: 'high', tone: 'bad' };
  return score >= 0.4 ? { word: 'medium', tone: 'wait' } : { word: 'low', tone: 'ok' };
}

/** A held action on one line, described by its facts and not by the agent's summary. */
export function actionTitle(hold: {
  action_type: string;
  tool_name: string | null;
  tool_server: string | null;
}): string {
  if (hold.tool_name === null) return hold.action_type;
  return `${hold.tool_name}${hold.tool_server === null ? '' : ` on ${hold.tool_server}`} (${hold.action_type})`;
}
