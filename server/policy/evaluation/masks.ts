/**
 * Masking by the paths of `@mask`: the subset of JSONPath (RFC 9535) that the policy language accepts, which is `$`,
 * then members (`.name`, `['name']`), elements (`[0]`), wildcards (`.*`, `[*]`) and the descendant forms `..name` and
 * `..*`. No library is used, because one for the whole standard would also accept filters, which other consumers of a
 * bundle do not support.
 */

/** Replaces a masked value of any type. */
export const MASKED = '[masked]';

interface Step {
  /** Selects from the node and all its descendants, not from the node alone (RFC 9535 §2.5.2). */
  descend: boolean;
  select: { member: string } | { element: number } | '*';
}
export type Mask = readonly Step[];

const STEP = /(\.{1,2})(?:([A-Za-z_\u0080-\uFFFF][\w\u0080-\uFFFF]*)|(\*))|\[(?:(\d{1,9})|(\*)|'([^'\\]+)')\]/y;

/** Throws a RangeError on a path that the policy language does not accept: skipping it would leave a field unmasked. */
export function parseMask(path: string): Mask {
  const steps: Step[] = [];
  if (!path.startsWith('$')) throw new RangeError(`${JSON.stringify(path)} is not a valid @mask path`);
  for (STEP.lastIndex = 1; STEP.lastIndex < path.length; ) {
    const found = STEP.exec(path);
    if (!found) throw new RangeError(`${JSON.stringify(path)} is not a valid @mask path`);
    const [, dots, name, anyMember, index, anyElement, quoted] = found;
    const member = name ?? quoted;
    steps.push({
      descend: dots === '..',
      select:
        (anyMember ?? anyElement) ? '*' : member !== undefined ? { member } : { element: Number(index as string) },
    });
  }
  return steps;
}

/**
 * Replaces every value that a mask selects. Changes `value` in place and returns it, or `MASKED` if a mask selects the
 * root. Each step of each mask takes time linear in the size of the value.
 */
export function applyMasks(value: unknown, masks: readonly Mask[]): unknown {
  if (masks.some((steps) => steps.length === 0)) return MASKED;
  for (const steps of masks) {
    // A container occurs once in a tree, so the set is a node list without duplicates.
    let nodes = new Set<Container>(isContainer(value) ? [value] : []);
    for (const [n, { descend, select }] of steps.entries()) {
      const from = descend ? withDescendants(nodes) : nodes;
      const last = n === steps.length - 1;
      const next = new Set<Container>();
      for (const node of from) {
        for (const key of selected(node, select)) {
          if (last) replace(node, key);
          else {
            const child = (node as Record<string, unknown>)[key];
            if (isContainer(child)) next.add(child);
          }
        }
      }
      nodes = next;
    }
  }
  return value;
}

export type Container = unknown[] | Record<string, unknown>;

export function isContainer(value: unknown): value is Container {
  return typeof value === 'object' && value !== null && !exactJson.isRawJSON?.(value);
}

function withDescendants(nodes: Set<Container>): Set<Container> {
  const all = new Set(nodes);
  // iterating a Set also visits entries added during the iteration
  for (const node of all) {
    for (const child of Object.values(node)) if (isContainer(child)) all.add(child);
  }
  return all;
}

function selected(node: Container, select: Step['select']): string[] {
  if (select === '*') return Object.keys(node);
  const list = Array.isArray(node);
  if ('element' in select) return list && select.element < node.length ? [String(select.element)] : [];
  return !list && Object.hasOwn(node, select.member) ? [select.member] : [];
}

/** JSON.parse makes `__proto__` an ordinary member, which an assignment would not reach. */
function replace(node: Container, key: string): void {
  Object.defineProperty(node, key, { value: MASKED, enumerable: true, configurable: true, writable: true });
}

/** ECMAScript's JSON.parse source text access; TypeScript's library does not declare it yet, and some runtimes lack it. */
const exactJson = JSON as unknown as {
  parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown;
  rawJSON?(text: string): object;
  isRawJSON?(value: unknown): boolean;
};

/**
 * Parses JSON so that `JSON.stringify` prints each number unchanged: masking an answer must not alter an id beyond 2^53
 * or a `1.0`. If the runtime lacks JSON.rawJSON, numbers are JavaScript's. If a member is duplicated, the last one
 * counts, as in JSON.parse.
 */
export function parseExact(text: string): unknown {
  return exactJson.parse(text, (_key, value, { source }) =>
    typeof value === 'number' && String(value) !== source && source !== undefined && exactJson.rawJSON
      ? exactJson.rawJSON(source)
      : value,
  );
}
