import { comparable, LIST_LIMITS } from '../../domain/lists.ts';
import type { ListFact } from '../language/facts.ts';
import type { Arguments } from './request.ts';

/** The lists of a bundle, by name. */
export type Lists = ReadonlyMap<string, ReadonlySet<string>>;

/**
 * The names of the facts that are true of these arguments. A text is in a list if the list has it, and a list of texts if
 * the list has all of them, or any of them where the fact says so. An argument that is absent, empty or of another type
 * is in no list.
 */
export function factsOf(
  facts: readonly ListFact[],
  { str, list }: Pick<Arguments, 'str' | 'list'>,
  lists: Lists,
): ReadonlySet<string> {
  const found = new Set<string>();
  for (const { key, path, any, list: name } of facts) {
    const known = lists.get(name);
    const text = str.get(path);
    const texts = text === undefined ? (list.get(path) ?? []) : [text];
    if (!known || texts.length === 0) continue;
    // normalization shortens a text at most to a third
    const has = (one: string) => one.length <= LIST_LIMITS.characters * 3 && known.has(comparable(one));
    if (any ? texts.some(has) : texts.every(has)) found.add(key);
  }
  return found;
}
