import { distance } from 'fastest-levenshtein';

/**
 * The candidate that a mistyped word most likely stands for: at most a third of its letters differ, or two in a short one, as
 * when they are swapped. Undefined if none is that close.
 */
export function nearest(word: string, candidates: readonly string[]): string | undefined {
  const [best] = candidates
    .map((candidate) => ({ candidate, edits: distance(word, candidate) }))
    .sort((a, b) => a.edits - b.edits);
  if (!best) return undefined;
  const { candidate, edits } = best;
  return edits <= Math.max(Math.min(2, Math.floor(candidate.length / 2)), Math.floor(candidate.length / 3))
    ? candidate
    : undefined;
}
