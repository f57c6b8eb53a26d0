import type { ActionRequest, BundleStatement, HeldPart, ShownAction } from '../../domain/policy.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { applyMasks, type Mask, parseMask } from './masks.ts';

/** Of arguments, and of context, a hold keeps so many bytes of canonical JSON. */
const MOST_SHOWN_BYTES = 32 * 1024;

type Acted = Omit<Pick<ActionRequest, 'action_type' | Exclude<keyof ShownAction, 'cut' | 'erased'>>, 'tool_name'> & {
  tool_name?: string | undefined;
};

/**
 * The action as approvers see it: masked by every mask of the statements that it hit, arguments and context alike, and
 * with nothing in it that cannot be seen or that turns the direction of writing. The same action is always shown the
 * same, and what was shown once is not changed by being shown again.
 *
 * Throws a RangeError on what has no canonical JSON form.
 */
export function shownAction(action: Acted, hits: readonly BundleStatement[]): ShownAction {
  const masks = hits.flatMap(({ annotations }) => annotations.mask ?? []).map(parseMask);
  const cut: HeldPart[] = [];
  const shown = (name: HeldPart): unknown => {
    const value = action[name] ?? null;
    const seen = visibleIn(masks.length === 0 ? value : masked(structuredClone(value), masks));
    if (size(seen) <= MOST_SHOWN_BYTES) return seen;
    cut.push(name);
    return shortened(seen);
  };
  const text = (value: string | undefined) => (value === undefined ? null : visible(value));
  return {
    action_type: visible(action.action_type),
    tool_server: text(action.tool_server),
    tool_name: text(action.tool_name),
    method: text(action.method),
    resource: text(action.resource),
    arguments: shown('arguments'),
    context: shown('context'),
    estimated_value: action.estimated_value ?? null,
    value_currency: text(action.value_currency),
    cut,
  };
}

/** The arguments of an HTTP request hold its body as a member, and there masks are paths into the body. */
function masked(value: unknown, masks: readonly Mask[]): unknown {
  if (typeof value === 'object' && value !== null && 'body' in value) value.body = applyMasks(value.body, masks);
  return applyMasks(value, masks);
}

const size = (value: unknown) => Buffer.byteLength(canonicalJson(value));

/** Long texts go first: one that is padded must not push the other arguments out of sight. */
function shortened(value: unknown): unknown {
  for (const most of [4096, 512, 64]) {
    const less = mapTexts(value, (text) => {
      const characters = [...text];
      return characters.length <= most
        ? text
        : `${characters.slice(0, most).join('')}⟦… ${characters.length} characters⟧`;
    });
    if (size(less) <= MOST_SHOWN_BYTES) return less;
  }
  const text = canonicalJson(value);
  for (let most = MOST_SHOWN_BYTES; ; most = Math.floor(most * 0.9)) {
    const beginning = `${text.slice(0, most).toWellFormed()}⟦… ${text.length} characters⟧`;
    if (size(beginning) <= MOST_SHOWN_BYTES) return beginning;
  }
}

/** A hold as the control plane answers it, of which this much is read here. */
export interface ShownHold extends Omit<ShownAction, 'arguments' | 'context' | 'erased'> {
  arguments_preview?: unknown;
  context_preview?: unknown;
  erased: boolean;
}

/** The action that a hold shows. */
export function shownOf(hold: ShownHold): ShownAction {
  const { action_type, tool_server, tool_name, method, resource, estimated_value, value_currency, cut } = hold;
  return {
    ...{ action_type, tool_server, tool_name, method, resource, estimated_value, value_currency, cut },
    arguments: hold.arguments_preview,
    context: hold.context_preview,
    ...(hold.erased && { erased: true }),
  };
}

/** Do these show the same action? An erased one is the same as no other. */
export function sameShown(a: ShownAction, b: ShownAction): boolean {
  return a.erased === undefined && b.erased === undefined && canonicalJson(a) === canonicalJson(b);
}

/**
 * Text with every character that cannot be seen, or that turns the direction of writing, in a form that can: controls
 * as their pictures (`␊`), the others as `⟦U+202E⟧`. Lone surrogates become U+FFFD. Applied twice it changes nothing.
 */
export function visible(text: string): string {
  return text.toWellFormed().replace(HIDDEN, (one) => {
    const code = one.codePointAt(0)!;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? '␡' : `⟦U+${code.toString(16).toUpperCase().padStart(4, '0')}⟧`;
  });
}

/** The first such character of a text of several lines, where line breaks and tabs may be. */
export function firstHidden(text: string): { at: number; hex: string } | undefined {
  for (const { 0: one, index: at } of text.matchAll(HIDDEN)) {
    if (!'\t\n\r'.includes(one)) return { at, hex: one.codePointAt(0)!.toString(16) };
  }
  return undefined;
}

/** Selectors of how an emoji is drawn stay: they hide nothing and turn nothing. */
const HIDDEN = /(?![\uFE00-\uFE0F])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/** A copy of a JSON value with all its texts visible. */
const visibleIn = (value: unknown) => mapTexts(value, visible);

/** A copy of a JSON value with every text in it changed, names of members too. Two members never become one. */
function mapTexts(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === 'string') return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTexts(item, change));
  if (typeof value !== 'object' || value === null) return value;
  const copy: Record<string, unknown> = {};
  // where the numbers of each are, so that thousands of names that shorten to one take no longer than others
  const seen = new Map<string, number>();
  for (const [name, member] of Object.entries(value)) {
    const plain = change(name);
    let key = plain;
    let n = seen.get(plain) ?? 1;
    while (Object.hasOwn(copy, key)) key = `${plain}⟦${++n}⟧`;
    seen.set(plain, n);
    // `__proto__` is a member like any other
    Object.defineProperty(copy, key, {
      value: mapTexts(member, change),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  return copy;
}
