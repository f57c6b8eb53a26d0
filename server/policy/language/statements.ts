import type { Annotations } from '../../domain/annotations.ts';
import type { BundleStatement } from '../../domain/policy.ts';
import { type AnnotationFault, readAnnotations } from './annotations.ts';
import { type AnnotationToken, literal, preamble, scan, statementTokens, type Token } from './scan.ts';

/** One statement as read from its tokens alone; the engine decides whether it is valid Cedar. */
export interface ReadStatement {
  id: string;
  effect: 'permit' | 'forbid';
  annotations: Annotations;
  scopes: string[];
  /** The source text, from the first annotation to the semicolon. */
  cedar: string;
  tokens: Token[];
  written: AnnotationToken[];
  faults: AnnotationFault[];
  warnings: AnnotationFault[];
}

/** Splits the tokens of a parsed text into statements, in source order. */
export function readStatements(policyId: string, source: string, tokens: Token[]): ReadStatement[] {
  return statementTokens(tokens).map((words, n) => {
    const { annotations: written, effect } = preamble(words);
    const raw = new Map(
      written.map(({ name, value }) => [name, value === undefined ? null : (literal(value) ?? null)]),
    );
    const { annotations, faults, warnings } = readAnnotations(raw);
    return {
      id: `${policyId}#${annotations.id ?? n}`,
      effect: effect as 'permit' | 'forbid',
      annotations,
      scopes: [...(annotations.scope ?? [])].sort(),
      cedar: source.slice(words[0]?.start, words.at(-1)?.end),
      tokens: words,
      written,
      faults,
      warnings,
    };
  });
}

/**
 * The statements of a text that was compiled before it was stored, as in a bundle but without the version. They are
 * always derived from the text, because the text is what was approved, not the columns stored with it. Throws a
 * RangeError for a text that cannot have been compiled.
 */
export function storedStatements(policyId: string, text: string): Omit<BundleStatement, 'version'>[] {
  const { source, tokens, refusal } = scan(text);
  if (refusal) throw new RangeError(`the text of ${policyId} is not a valid policy: ${refusal.message}`);
  return readStatements(policyId, source, tokens).map(({ id, effect, annotations, scopes, cedar, faults }) => {
    if (faults.length > 0) throw new RangeError(`the text of ${policyId} is not a valid policy: ${faults[0]?.message}`);
    if (effect !== 'permit' && effect !== 'forbid')
      throw new RangeError(`the text of ${policyId} is not a valid policy`);
    return { id, policy_id: policyId, effect, annotations, scopes, cedar };
  });
}
