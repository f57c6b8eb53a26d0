import type { Hold, Verdict } from './governor.ts';

/** What models and people are told, in the same words as the proxy's. */

/** Untrusted text on one line: without control characters and direction marks, which could make it look like something else. */
export function plain(text: string, most = 500): string {
  const shown = text.replace(/[\s\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+/gu, ' ').trim();
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
}

/** Why a call was not made. */
export function refusal(verdict: Exclude<Verdict, { decision: 'allow' }>): string {
  switch (verdict.decision) {
    case 'deny':
      return `Denied: ${verdict.reason}.`;
    case 'limited':
      return `A limit is exceeded. Call the tool again in ${verdict.retryAfter} s.`;
    case 'hold':
      return `${waiting(verdict)} Nothing was done yet. When it is released, call the same tool again with exactly the same arguments; it will then run, once. Ask again in ${verdict.retryAfter} s at the earliest.`;
  }
}

/** What people are told about a hold. */
export function waiting({ id, reason, url }: Hold): string {
  return `Held for approval as ${id}${reason ? `: ${reason}` : ''}. It is decided at ${url} and nowhere else.`;
}

export const WITHHELD = 'It was done, but the answer is withheld: a policy masks it, and it is not JSON.';
export const LOST = 'It was done, but the answer is withheld: a policy may mask it, and it is not known how.';
export const FAILED = 'The tool failed; a policy masks what it said.';
