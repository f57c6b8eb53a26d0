import { folded } from '../../lib/folded.ts';
import { isContainer, type Mask } from './masks.ts';
import { aliasesOf } from './request.ts';

/**
 * Whether a program could find what the mask names in a place that the mask leaves as it is: under a name in another
 * spelling, in the elements of a list around it, in a form name such as `card[number]`, or in a text that is JSON. Takes
 * time linear in the size of the value for each step, so the value must be one that `flatten` accepts.
 */
export function leavesUnmasked(value: unknown, mask: Mask): boolean {
  const folds = new Map<string, string>();
  const foldOf = (name: string): string => {
    const fold = folds.get(name) ?? folded(name);
    folds.set(name, fold);
    return fold;
  };
  const seen = new Map<unknown, Set<number>>();
  /** `exact`: whether the mask itself comes here by this step. */
  const finds = (node: unknown, n: number, exact: boolean): boolean => {
    const step = mask[n];
    if (!step) return !exact;
    const container = isContainer(node);
    if (!container && !(typeof node === 'string' && /^\s*[{[]/.test(node))) return false;
    const states = seen.get(node) ?? new Set();
    const state = 2 * n + Number(exact);
    if (states.has(state)) return false;
    seen.set(node, states.add(state));
    if (!container) {
      const inside = jsonIn(node);
      return inside !== undefined && finds(inside, n, false);
    }
    if (step.descend && Object.values(node).some((child) => finds(child, n, exact))) return true;
    const { select } = step;
    if (select === '*') return Object.values(node).some((child) => finds(child, n + 1, exact));
    if (Array.isArray(node)) {
      if ('element' in select) return finds(node[select.element], n + 1, exact);
      // a descending step has been to the elements
      return !step.descend && node.some((item) => finds(item, n, false));
    }
    const wanted = 'member' in select ? select.member : String(select.element);
    return Object.entries(node).some(([name, child]) => {
      if ('member' in select && name === wanted) return finds(child, n + 1, exact);
      if (foldOf(name) === foldOf(wanted)) return finds(child, n + 1, false);
      const aliases = aliasesOf(name);
      if (aliases.length === 0) return false;
      if (aliases.some((alias) => foldOf(alias) === foldOf(wanted)) && finds(child, n + 1, false)) return true;
      return [name, ...aliases].some((alias) => {
        const names = alias.split(/[.[\]]+/).filter(Boolean);
        if (
          names.length < 2 ||
          !(step.descend ? names : names.slice(0, 1)).some((one) => foldOf(one) === foldOf(wanted))
        ) {
          return false;
        }
        // as deep as the program that expands the name would find it
        return finds(
          names.reduceRight<unknown>((inner, outer) => Object.fromEntries([[outer, inner]]), child),
          n,
          false,
        );
      });
    });
  };
  return finds(value, 0, true);
}

function jsonIn(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return isContainer(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
