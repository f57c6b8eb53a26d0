import { folded } from '../../lib/folded.ts';
import { literal, type Token } from '../language/scan.ts';

/**
 * The names of tools, or of tool servers, that someone decided about, with the deciding rule. A name that differs from
 * one of them only in case, width or invisible characters is in doubt: a server that ignores these would do what the
 * rules forbid under the name that they know.
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

  /** The name that this one could be mistaken for; undefined for a known name, or one that resembles none. */
  meant(name: string | undefined): { name: string; rule: Rule } | undefined {
    if (name === undefined || this.#exact.has(name)) return undefined;
    return this.#folded.get(folded(name));
  }
}

/** All names that a statement gives to entities of this type, in its scope and in its conditions. */
export function entitiesNamed(tokens: readonly Token[], type: 'Tool' | 'ToolServer'): string[] {
  return tokens.flatMap(({ text }, n) => {
    const name = tokens[n + 2];
    if (text !== type || tokens[n + 1]?.text !== '::' || !name || tokens[n - 1]?.text === '::') return [];
    return literal(name.text) ?? [];
  });
}
