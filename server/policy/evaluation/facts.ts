import { comparable, LIST_LIMITS } from '../../domain/lists.ts';
import type { Fact } from '../language/facts.ts';
import { PATTERN_LIMITS, type Pattern } from '../language/patterns.ts';
import { type Ambiguity, displayPath } from './ambiguity.ts';
import type { Arguments } from './request.ts';

/** The lists of a bundle, by name. */
export type Lists = ReadonlyMap<string, ReadonlySet<string>>;

const NONE: ReadonlySet<string> = new Set();

/**
 * The names of the facts that are true for these arguments. A text is in a list if the list contains it, and a list of
 * texts if the list contains all of them, or any of them if the fact says so; likewise for patterns. An argument that is
 * absent, empty or of another type is in no list and matches nothing.
 */
export function factsOf(
  facts: readonly Fact[],
  args: Pick<Arguments, 'str' | 'list'>,
  lists: Lists,
  patterns: ReadonlyMap<string, Pattern>,
): ReadonlySet<string> {
  if (facts.length === 0) return NONE;
  const found = new Set<string>();
  for (const fact of facts) {
    const { key, path, any } = fact;
    const texts = textsAt(args, path);
    const has = 'list' in fact ? inList(lists.get(fact.list)) : patterns.get(fact.pattern)?.test;
    if (!has || texts.length === 0) continue;
    if (any ? texts.some(has) : texts.every(has)) found.add(key);
  }
  return found;
}

/** The first argument whose texts are too long for the patterns that test them: this bounds the time of a decision. */
export function longToMatch(
  facts: readonly Fact[],
  args: Pick<Arguments, 'str' | 'list'>,
  patterns: ReadonlyMap<string, Pattern>,
): Ambiguity<never> | undefined {
  if (patterns.size === 0) return undefined;
  let steps = 0;
  for (const fact of facts) {
    if (!('pattern' in fact)) continue;
    const characters = textsAt(args, fact.path).reduce((sum, text) => sum + text.length + 1, 0);
    steps += characters * patterns.get(fact.pattern)!.size;
    if (steps > PATTERN_LIMITS.steps) return { path: displayPath(fact.path) };
  }
  return undefined;
}

function textsAt({ str, list }: Pick<Arguments, 'str' | 'list'>, path: string): readonly string[] {
  const text = str.get(path);
  return text === undefined ? (list.get(path) ?? []) : [text];
}

function inList(known: ReadonlySet<string> | undefined): ((text: string) => boolean) | undefined {
  // normalization shortens a text to no less than a third
  return known && ((text) => text.length <= LIST_LIMITS.characters * 3 && known.has(comparable(text)));
}
