import { formatPatch, type StructuredPatch, structuredPatch } from 'diff';
import { scan } from './scan.ts';
import { readStatements } from './statements.ts';

/** Edits of a shortest script that are looked for; the time grows with the square of it. */
const MOST_EDITS = 2_000;

/** What changed between two texts. */
export interface TextDiff {
  unified: string;
  lines_added: number;
  lines_removed: number;
  rules_added: string[];
  rules_removed: string[];
  rules_changed: string[];
}

interface Version {
  name: string;
  text: string;
}

/**
 * What changed between two versions of a policy: as text, and rule by rule. Texts that have little in common are told
 * as one taken away and the other put in its place, which is as much as anybody could read.
 */
export function compareTexts(policyId: string, from: Version, to: Version): TextDiff {
  const patch =
    structuredPatch(from.name, to.name, from.text, to.text, undefined, undefined, { maxEditLength: MOST_EDITS }) ??
    replaced(from, to);
  const lines = patch.hunks.flatMap((hunk) => hunk.lines);
  const [before, after] = [rulesOf(policyId, from.text), rulesOf(policyId, to.text)];
  return {
    unified: formatPatch(patch),
    lines_added: lines.filter((line) => line.startsWith('+')).length,
    lines_removed: lines.filter((line) => line.startsWith('-')).length,
    rules_added: [...after.keys()].filter((rule) => !before.has(rule)),
    rules_removed: [...before.keys()].filter((rule) => !after.has(rule)),
    rules_changed: [...after].filter(([rule, text]) => before.has(rule) && before.get(rule) !== text).map(([r]) => r),
  };
}

function rulesOf(policyId: string, text: string): Map<string, string> {
  const { source, tokens, refusal } = scan(text);
  // kept from a time when the limits were other ones
  if (refusal) return new Map();
  return new Map(readStatements(policyId, source, tokens).map(({ id, cedar }) => [id, cedar]));
}

function replaced(from: Version, to: Version): StructuredPatch {
  const [old, recent] = [from.text, to.text].map((text) => text.replace(/\n$/, '').split('\n')) as [string[], string[]];
  return {
    oldFileName: from.name,
    newFileName: to.name,
    oldHeader: undefined,
    newHeader: undefined,
    hunks: [
      {
        oldStart: 1,
        oldLines: old.length,
        newStart: 1,
        newLines: recent.length,
        lines: [...old.map((line) => `-${line}`), ...recent.map((line) => `+${line}`)],
      },
    ],
  };
}
