import type { ActionRequest, ActionView, BundleStatement, HeldPart } from '../../domain/policy.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { visible } from '../../lib/visible.ts';
import { applyMasks, MASKED, type Mask, parseMask } from './masks.ts';

/** A hold keeps at most this many bytes of canonical JSON of the arguments, and as many of the context. */
const MAX_VIEW_BYTES = 32 * 1024;

type ViewedAction = Omit<
  Pick<ActionRequest, 'action_type' | Exclude<keyof ActionView, 'cut' | 'erased'>>,
  'tool_name'
> & {
  tool_name?: string | undefined;
};

/**
 * The action as approvers see it: arguments and context are masked by every matching statement, and characters that are
 * invisible or change the writing direction are made visible. Deterministic; it does not change what a proxy has
 * prepared.
 *
 * Throws a RangeError on values without a canonical JSON form.
 */
export function approverView(
  action: ViewedAction,
  hits: readonly BundleStatement[],
  /** Whether a proxy has already masked the action: what looks like a mask then is one. */
  from: 'agent' | 'proxy' = 'agent',
): ActionView {
  const masks = hits.flatMap(({ annotations }) => annotations.mask ?? []).map(parseMask);
  const cut: HeldPart[] = [];
  const prepared = (name: HeldPart): unknown => {
    const value = from === 'agent' ? withoutForgedMasks(action[name] ?? null) : (action[name] ?? null);
    const masked = maskedWith(value, masks);
    const seen = visibleWithin(masked, Number.POSITIVE_INFINITY);
    if ('fits' in seen) return seen.fits;
    cut.push(name);
    return shortened(masked, seen.growth);
  };
  const text = (value: string | undefined) => (value === undefined ? null : visible(value));
  return {
    action_type: visible(action.action_type),
    tool_server: text(action.tool_server),
    tool_name: text(action.tool_name),
    tool_pin: text(action.tool_pin ?? undefined),
    method: text(action.method),
    resource: text(maskedResource(action, masks)),
    arguments: prepared('arguments'),
    context: prepared('context'),
    estimated_value: action.estimated_value ?? null,
    value_currency: text(action.value_currency),
    cut,
  };
}

/**
 * A copy of an action's arguments or context with these masks applied. The arguments of an HTTP request contain its body,
 * and masks apply to paths in the body too. This masks both what approvers see and what is then done with the action.
 */
export function maskedWith(original: unknown, masks: readonly Mask[]): unknown {
  if (masks.length === 0) return original;
  const value = structuredClone(original);
  if (typeof value === 'object' && value !== null && 'body' in value) value.body = applyMasks(value.body, masks);
  return applyMasks(value, masks);
}

/** A request for people who may not see what these masks hide. */
export function maskedRequest<R extends Maskable>(request: R, masks: readonly Mask[]): R {
  return {
    ...request,
    ...(request.resource !== undefined && { resource: maskedResource(request, masks) }),
    ...(request.arguments !== undefined && { arguments: maskedWith(request.arguments, masks) }),
    ...(request.context !== undefined && { context: maskedWith(request.context, masks) }),
  };
}

type Maskable = Pick<ActionRequest, 'arguments' | 'context'> & { resource?: string | undefined };

/**
 * The resource without what the masks hide of the arguments: of a URL whose parameters are arguments, the query would show it.
 * Where anything is hidden, there is no query, and no part of the path with one of the hidden values.
 */
function maskedResource(action: Maskable, masks: readonly Mask[]): string | undefined {
  const { resource } = action;
  if (resource === undefined || masks.length === 0) return resource;
  const hidden = new Set(
    [action.arguments, action.context].flatMap((value) => [...hiddenIn(value, maskedWith(value, masks))]),
  );
  if (hidden.size === 0) return resource;
  const end = /[?#]|$/.exec(resource)!.index;
  const path = resource
    .slice(0, end)
    .split('/')
    .map((part) => (shows(part, hidden) ? MASKED : part));
  return `${path.join('/')}${end < resource.length ? `${resource[end]}${MASKED}` : ''}`;
}

/** The texts and numbers of a value that its masked copy does not have. */
function* hiddenIn(value: unknown, masked: unknown): Generator<string> {
  if (typeof value === 'object' && value !== null) {
    for (const [name, member] of Object.entries(value)) {
      yield* hiddenIn(member, masked === MASKED ? MASKED : (masked as Record<string, unknown>)[name]);
    }
  } else if (masked === MASKED && value !== null && value !== MASKED) yield String(value);
}

/** Short values are part of many names by chance. */
const MEANT = 4;

function shows(part: string, hidden: ReadonlySet<string>): boolean {
  let text = part;
  try {
    text = decodeURIComponent(part);
  } catch {
    // as it stands
  }
  return hidden.has(text) || [...hidden].some((one) => one.length >= MEANT && text.includes(one));
}

const size = (value: unknown) => Buffer.byteLength(canonicalJson(value));

/** The characters of all names and texts; of each, no more than `most`. Counts no further than it matters. */
function lengthOf(value: unknown, most: number): number {
  if (typeof value === 'string') return Math.min(value.length, most);
  if (typeof value !== 'object' || value === null) return 1;
  let length = 2;
  if (Array.isArray(value)) {
    for (const item of value) {
      length += 1 + lengthOf(item, most);
      if (length > MAX_VIEW_BYTES) break;
    }
    return length;
  }
  for (const name of Object.keys(value)) {
    length += Math.min(name.length, most) + lengthOf((value as Record<string, unknown>)[name], most);
    if (length > MAX_VIEW_BYTES) break;
  }
  return length;
}

/**
 * The value with texts of at most `most` characters, made visible, if a hold has room for it. Otherwise by how much it
 * grew: making a text visible takes long, and never makes it shorter, so what is too long already is not tried.
 */
function visibleWithin(value: unknown, most: number, growth = 1): { fits: unknown } | { growth: number } {
  const length = lengthOf(value, most);
  if (length * growth > MAX_VIEW_BYTES) return { growth };
  const seen = makeVisible(
    most === Number.POSITIVE_INFINITY ? value : mapTexts(value, (text) => beginning(text, most)),
  );
  const bytes = size(seen);
  return bytes <= MAX_VIEW_BYTES ? { fits: seen } : { growth: Math.max(growth, bytes / length) };
}

/** Shortens long texts first, so that one padded text cannot push the other arguments out of sight. */
function shortened(value: unknown, grown: number): unknown {
  let growth = grown;
  for (const most of [4096, 512, 64]) {
    const less = visibleWithin(value, most, growth);
    if ('fits' in less) return less.fits;
    growth = less.growth;
  }
  const text = canonicalJson(value);
  const seen = visible(text.slice(0, Math.ceil(MAX_VIEW_BYTES / growth)));
  for (let most = seen.length; ; most = Math.floor(most * 0.9)) {
    const beginning = `${seen.slice(0, most).toWellFormed()}⟦… ${text.length} characters⟧`;
    if (size(beginning) <= MAX_VIEW_BYTES) return beginning;
  }
}

/** A text of at most `most` characters, with its length if that is not all. */
function beginning(text: string, most: number): string {
  if (text.length <= most) return text;
  let characters = text.length;
  for (let n = 0; n < text.length - 1; n++) {
    // a surrogate pair is one character
    if ((text.charCodeAt(n) & 0xfc00) === 0xd800 && (text.charCodeAt(n + 1) & 0xfc00) === 0xdc00) characters--;
  }
  if (characters <= most) return text;
  return `${[...text.slice(0, 2 * most)].slice(0, most).join('')}⟦… ${characters} characters⟧`;
}

/** The action fields of a hold in the control plane's answer. */
export interface HeldAction extends Omit<ActionView, 'arguments' | 'context' | 'erased'> {
  arguments_preview?: unknown;
  context_preview?: unknown;
  erased: boolean;
}

/** The action as a hold presents it to its approvers. */
export function viewOf(hold: HeldAction): ActionView {
  const { action_type, tool_server, tool_name, tool_pin, method, resource } = hold;
  const { estimated_value, value_currency, cut } = hold;
  return {
    ...{ action_type, tool_server, tool_name, tool_pin, method, resource, estimated_value, value_currency, cut },
    arguments: hold.arguments_preview,
    context: hold.context_preview,
    ...(hold.erased && { erased: true }),
  };
}

/** Whether the two views show the same action. An erased view equals no other. */
export function isSameView(a: ActionView, b: ActionView): boolean {
  return a.erased === undefined && b.erased === undefined && canonicalJson(a) === canonicalJson(b);
}

/** Text from an agent that looks like a mask is marked: only a policy's mask is exactly `[masked]`. */
const withoutForgedMasks = (value: unknown) =>
  !hasText(value, (text) => text.includes(MASKED))
    ? value
    : mapTexts(value, (text) => (text.includes(MASKED) ? text.replaceAll(MASKED, `${MASKED}⟦as sent⟧`) : text));

/** A copy of a JSON value with all its texts made visible. */
const makeVisible = (value: unknown) => mapTexts(value, visible);

/** A copy of a JSON value with every text mapped, including member names. Members are never merged. */
function mapTexts(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === 'string') return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTexts(item, change));
  if (typeof value !== 'object' || value === null) return value;
  const copy: Record<string, unknown> = {};
  // the last suffix per name, so that thousands of names that shorten to the same text do not take quadratic time
  const seen = new Map<string, number>();
  for (const [name, member] of Object.entries(value)) {
    const plain = change(name);
    let key = plain;
    let n = seen.get(plain) ?? 1;
    while (Object.hasOwn(copy, key)) key = `${plain}⟦${++n}⟧`;
    seen.set(plain, n);
    const mapped = mapTexts(member, change);
    // treat `__proto__` like any other member
    if (key !== '__proto__') copy[key] = mapped;
    else Object.defineProperty(copy, key, { value: mapped, enumerable: true, configurable: true, writable: true });
  }
  return copy;
}

/** Whether a text or a name in the value is such. */
function hasText(value: unknown, isSuch: (text: string) => boolean): boolean {
  if (typeof value === 'string') return isSuch(value);
  if (typeof value !== 'object' || value === null) return false;
  if (Array.isArray(value)) return value.some((item) => hasText(item, isSuch));
  return Object.keys(value).some((name) => isSuch(name) || hasText((value as Record<string, unknown>)[name], isSuch));
}
