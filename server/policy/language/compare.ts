import { formatPatch, type StructuredPatch, structuredPatch } from 'diff';
import { scan } from './scan.ts';
import { readStatements } from './statements.ts';

/** The longest edit script that is searched for; the time grows with its square. */
const MAX_EDITS = 2_000;

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
 * What changed between two versions of a policy, as a text diff and rule by rule. Texts with little in common are
 * reported as a full replacement, because a line-by-line diff of them would be unreadable.
 */
export function compareTexts(policyId: string, from: Version, to: Version): TextDiff {
  const patch =
    structuredPatch(from.name, to.name, from.text, to.text, undefined, undefined, { maxEditLength: MAX_EDITS }) ??
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
  // stored under different limits
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
