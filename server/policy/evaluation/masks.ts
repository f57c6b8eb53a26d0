/**
 * Masking by the paths of `@mask`: the subset of JSONPath (RFC 9535) that the policy language accepts, which is `$`,
 * then members (`.name`, `['name']`), elements (`[0]`), wildcards (`.*`, `[*]`) and the descendant forms `..name` and
 * `..*`. It is small enough to be written out, and being exactly what a policy can say is what matters here: a library
 * of the whole standard would also accept filters that no other consumer of a bundle knows.
 */

/** What replaces a masked value, whatever its type was. */
export const MASKED = '[masked]';

interface Step {
  /** From every descendant of the node, and the node itself, rather than from the node alone (RFC 9535 §2.5.2). */
  descend: boolean;
  select: { member: string } | { element: number } | '*';
}
export type Mask = readonly Step[];

const STEP = /(\.{1,2})(?:([A-Za-z_\u0080-\uFFFF][\w\u0080-\uFFFF]*)|(\*))|\[(?:(\d{1,9})|(\*)|'([^'\\]+)')\]/y;

/** Throws a RangeError on a path that the policy language does not accept: to skip it would leave a field in the clear. */
export function parseMask(path: string): Mask {
  const steps: Step[] = [];
  if (!path.startsWith('$')) throw new RangeError(`${JSON.stringify(path)} is not a path to mask`);
  for (STEP.lastIndex = 1; STEP.lastIndex < path.length; ) {
    const found = STEP.exec(path);
    if (!found) throw new RangeError(`${JSON.stringify(path)} is not a path to mask`);
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
 * Replaces every value that a mask selects. Changes `value` in place and returns it, or `MASKED` where a mask selects
 * the root. Linear in the size of the value for each step of each mask, whatever the mask.
 */
export function applyMasks(value: unknown, masks: readonly Mask[]): unknown {
  if (masks.some((steps) => steps.length === 0)) return MASKED;
  for (const steps of masks) {
    // A tree has each container once: a set of them is a node list without doubles.
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

type Container = unknown[] | Record<string, unknown>;

function isContainer(value: unknown): value is Container {
  return typeof value === 'object' && value !== null && !exactJson.isRawJSON(value);
}

function withDescendants(nodes: Set<Container>): Set<Container> {
  const all = new Set(nodes);
  // a set's iteration goes on to what is added during it
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

/** `__proto__` is an ordinary member of a parsed text, and an assignment would not reach it. */
function replace(node: Container, key: string): void {
  Object.defineProperty(node, key, { value: MASKED, enumerable: true, configurable: true, writable: true });
}

/** ECMAScript's JSON.parse source text access; the compiler's library does not have it yet. */
const exactJson = JSON as unknown as {
  parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown;
  rawJSON(text: string): object;
  isRawJSON(value: unknown): boolean;
};

/**
 * Parses JSON so that `JSON.stringify` prints each number as it stood: an id beyond 2^53 or a `1.0` of an answer that is
 * masked must come out as it went in. Of doubled members the last counts, as everywhere in JavaScript.
 */
export function parseExact(text: string): unknown {
  return exactJson.parse(text, (_key, value, { source }) =>
    typeof value === 'number' && String(value) !== source ? exactJson.rawJSON(source as string) : value,
  );
}
