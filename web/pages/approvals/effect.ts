import type { VoteEffect } from '../../../server/escrow/vote-effect.ts';
import { count } from '../../lib/words.ts';

/** What a vote will do, in sentences. `time` formats a time, `release` says how long a release is valid. */
export function effectWords(effect: VoteEffect, time: (at: string) => string, release: string): string {
  if (effect.outcome === 'ends') return 'This ends the hold: the action is not executed. One rejection is enough.';
  if (effect.outcome === 'releases') {
    return `This releases the action. The agent may execute exactly this action once, ${release}.`;
  }
  const { counts, approvals, seats, conditions, releasesAt } = effect;
  const missing = [
    ...(approvals > 0 ? [count(approvals, 'more approval')] : []),
    ...seats.map(({ group, count: n }) => `${count(n, 'approval')} from ${group}`),
    ...(conditions.length > 0
      ? [`a report on ${conditions.length === 1 ? 'the condition' : 'the conditions'} ${namesOf(conditions)}`]
      : []),
  ];
  const first = counts
    ? 'This counts, and does not release the action yet.'
    : 'This changes nothing yet, and is only recorded.';
  const rest = missing.length > 0 ? ` Still missing: ${missing.join('; ')}.` : '';
  const byTime =
    releasesAt === undefined
      ? ''
      : ` Without a rejection, time releases the action at ${time(releasesAt)}${conditions.length > 0 ? ' if the conditions are met by then' : ''}.`;
  return `${first}${rest}${byTime}`;
}

/** The names of conditions, in a sentence that stays short whatever they are called and however many there are. */
function namesOf(conditions: readonly string[]): string {
  const short = (id: string) => ([...id].length > MOST_LETTERS ? `${[...id].slice(0, MOST_LETTERS).join('')}…` : id);
  const names = conditions.slice(0, MOST_NAMED).map((id) => `“${short(id)}”`);
  const more = conditions.length - names.length;
  return `${names.join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
}
const MOST_LETTERS = 40;
const MOST_NAMED = 3;
