import { folded } from '../../lib/folded.ts';
import { literal, type Token } from '../language/scan.ts';

/**
 * The names of tools, or of tool servers, that somebody decided about, with what decided. A name that is another one of
 * them in all but case, width and invisible characters is in doubt: a server that ignores these would do what the rules
 * forbid by the name that they know.
 */
export class DecidedNames<Rule> {
  readonly #exact = new Set<string>();
  readonly #folded = new Map<string, { name: string; rule: Rule }>();

  add(name: string, rule: Rule): void {
    this.#exact.add(name);
    const key = folded(name);
    if (!this.#folded.has(key)) this.#folded.set(key, { name, rule });
  }

  has(name: string): boolean {
    return this.#exact.has(name);
  }

  /** The name that this one could be taken for; undefined for a name that is known, or like none. */
  meant(name: string | undefined): { name: string; rule: Rule } | undefined {
    if (name === undefined || this.#exact.has(name)) return undefined;
    return this.#folded.get(folded(name));
  }
}

/** All names that a statement says of entities of this type, in its scope and in its conditions. */
export function entitiesNamed(tokens: readonly Token[], type: 'Tool' | 'ToolServer'): string[] {
  return tokens.flatMap(({ text }, n) => {
    const name = tokens[n + 2];
    if (text !== type || tokens[n + 1]?.text !== '::' || !name || tokens[n - 1]?.text === '::') return [];
    return literal(name.text) ?? [];
  });
}
