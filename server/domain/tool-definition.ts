import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { type ChangeCode, type ChangeReason, TOOL_LIMITS, type ToolChange, type ToolDefinition } from './tools.ts';

/** A definition with its pin. */
export interface PinnedTool {
  pin: string;
  definition: ToolDefinition;
}

/**
 * The definition within a server's listing, with its pin: `sha256:<hex>` over `svc-tool/1`, a line feed, and the canonical JSON
 * (RFC 8785) of the definition and the name of its server. Other members of the listing are not part of it.
 *
 * Throws a RangeError for anything that has no pin: no name, a member of the wrong type, more than 64 KiB, nesting deeper than
 * 24, a member `__proto__`, or no canonical form.
 */
export function pinned(server: string, listed: unknown): PinnedTool {
  const definition = definitionWithin(listed);
  if (nestsDeeper(definition, TOOL_LIMITS.depth)) throw new RangeError(`nests deeper than ${TOOL_LIMITS.depth}`);
  if (poisons(definition)) throw new RangeError('a member has a name that no JSON of this system has');
  const text = canonicalJson({ ...definition, server });
  if (Buffer.byteLength(text) > TOOL_LIMITS.bytes) throw new RangeError('the definition is larger than 64 KiB');
  return { pin: sha256Tag(`svc-tool/1\n${text}`), definition };
}

function definitionWithin(listed: unknown): ToolDefinition {
  if (!isObject(listed)) throw new RangeError('a tool is an object');
  const own = (name: string): unknown => (Object.hasOwn(listed, name) ? listed[name] : undefined);
  const text = (name: string): string | undefined => {
    const value = own(name);
    if (value !== undefined && typeof value !== 'string') throw new RangeError(`${name} is not a text`);
    return value;
  };
  const object = (name: string): Record<string, unknown> | undefined => {
    const value = own(name);
    if (value !== undefined && !isObject(value)) throw new RangeError(`${name} is not an object`);
    return value;
  };
  const name = text('name');
  if (!name || name.length > TOOL_LIMITS.name) throw new RangeError('the name is missing or too long');
  if (!name.isWellFormed() || name.includes('\0')) throw new RangeError('the name is not well-formed text');
  const inputSchema = object('inputSchema');
  if (!inputSchema) throw new RangeError('inputSchema is missing');
  const [title, description] = [text('title'), text('description')];
  const [outputSchema, annotations] = [object('outputSchema'), object('annotations')];
  return {
    name,
    ...(title !== undefined && { title }),
    ...(description !== undefined && { description }),
    inputSchema,
    ...(outputSchema && { outputSchema }),
    ...(annotations && { annotations }),
  };
}

/** Without recursion, so that too deep nesting does not end the process. */
function nestsDeeper(value: unknown, most: number): boolean {
  let level: unknown[] = [value];
  for (let depth = 0; level.length > 0; depth++) {
    level = level
      .filter((one) => typeof one === 'object' && one !== null)
      .flatMap((one) => Object.values(one as object));
    if (depth > most) return true;
  }
  return false;
}

/** Members that JSON readers refuse, because some programs take them for prototypes. */
function poisons(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  if (Object.hasOwn(value, '__proto__')) return true;
  const maker = Object.hasOwn(value, 'constructor') && (value as Record<string, unknown>).constructor;
  if (isObject(maker) && Object.hasOwn(maker, 'prototype')) return true;
  return Object.values(value).some(poisons);
}

/** The differences after which the tool is still what was reviewed. */
const DESCRIPTIVE: ReadonlySet<ChangeCode> = new Set(['narrowed', 'output_changed', 'wording']);

/** Beyond this many, they add nothing for a reviewer. */
const MOST_OF_A_CODE = 8;

/**
 * What changed from one definition of a tool to the next. `others` are the names of other tools that its texts must not begin to
 * mention. When in doubt, a change is `introduced`: anything in a schema that is not understood counts as wider.
 */
export function changeOf(before: ToolDefinition, after: ToolDefinition, others: readonly string[] = []): ToolChange {
  if (canonicalJson(before) === canonicalJson(after)) return { kind: 'same', reasons: [] };
  const { reasons, add } = collector();
  const accepts = collector();
  compareSchemas(before.inputSchema, after.inputSchema, '/inputSchema', accepts.add);
  for (const { code, at, found } of accepts.reasons) add(code, at, found);
  // what is narrowed in one place becomes wider where a negation refers to it
  if (accepts.reasons.length > 0 && refersAndNegates(after.inputSchema)) add('schema_widened', '/inputSchema');
  compareHints(before.annotations ?? {}, after.annotations ?? {}, add);
  const plain = (schema: unknown) => canonicalJson(withoutWords(schema) ?? null);
  if (plain(before.outputSchema) !== plain(after.outputSchema)) add('output_changed', '/outputSchema');
  compareTexts(before, after, others, add);
  if (reasons.length === 0) add('wording', '');
  // what blocks comes first, so that a flood of harmless differences cannot hide it
  reasons.sort((a, b) => Number(DESCRIPTIVE.has(a.code)) - Number(DESCRIPTIVE.has(b.code)));
  const kind = reasons.every(({ code }) => DESCRIPTIVE.has(code)) ? 'descriptive' : 'introduced';
  return { kind, reasons };
}

/** What to look for in a definition that was never reviewed. */
export function noticeable(definition: ToolDefinition, others: readonly string[] = []): ChangeReason[] {
  const { reasons, add } = collector();
  compareTexts({ name: definition.name, inputSchema: {} }, definition, others, add);
  return reasons;
}

/** Keeps the first of each code, and no reason twice. */
function collector(): { reasons: ChangeReason[]; add: Add } {
  const reasons: ChangeReason[] = [];
  return {
    reasons,
    add: (code, at, found) => {
      const known = reasons.filter((one) => one.code === code);
      if (known.length >= MOST_OF_A_CODE || known.some((one) => one.at === at && one.found === found)) return;
      reasons.push({ code, at, ...(found !== undefined && { found }) });
    },
  };
}

/**
 * The same for two tools whose arguments have the same form, whatever their names and descriptions; undefined if there are no
 * arguments to compare. It identifies a tool that comes back under another name.
 */
export function shapeOf({ inputSchema }: ToolDefinition): string | undefined {
  const { properties } = inputSchema;
  if (!isObject(properties) || Object.keys(properties).length === 0) return undefined;
  return sha256Tag(canonicalJson(withoutWords(inputSchema)));
}

/**
 * The paths of arguments that may be left out or be null, in which case programs mean the same by both: `note`, `options.limit`.
 * What its schema says in another way than by `properties`, `required`, `type`, `enum` and alternatives is not among them.
 */
export function nullableArguments({ inputSchema }: ToolDefinition): string[] {
  const found: string[] = [];
  const look = (schema: Readonly<Record<string, unknown>>, before: string): void => {
    const { properties, required } = schema;
    if (!isObject(properties)) return;
    for (const [name, one] of Object.entries(properties)) {
      if (!isObject(one) || !/^[\w-]+$/.test(name)) continue;
      const path = `${before}${name}`;
      const optional = required === undefined || (Array.isArray(required) && !required.includes(name));
      if (optional && takesNull(one) && found.length < MOST_NULLABLE) found.push(path);
      look(one, `${path}.`);
    }
  };
  look(inputSchema, '');
  return found.sort();
}

const MOST_NULLABLE = 100;
/** Members of a schema by which it could refuse a null that `type` accepts. */
const LIMITING = ['allOf', 'not', 'if', 'then', 'else', '$ref', '$dynamicRef', 'const'];

function takesNull(schema: Readonly<Record<string, unknown>>): boolean {
  const { type, anyOf, oneOf } = schema;
  if (LIMITING.some((name) => Object.hasOwn(schema, name))) return false;
  if (schema.enum !== undefined && !(Array.isArray(schema.enum) && schema.enum.includes(null))) return false;
  if (type !== undefined) {
    return (
      (type === 'null' || (Array.isArray(type) && type.includes('null'))) && anyOf === undefined && oneOf === undefined
    );
  }
  const branches = [anyOf, oneOf].filter((list) => list !== undefined);
  if (branches.length !== 1) return branches.length === 0 && schema.enum !== undefined;
  const [list] = branches;
  return Array.isArray(list) && list.filter((one) => isObject(one) && takesNull(one)).length === 1;
}

type Add = (code: ChangeCode, at: string, found?: string) => void;

/** Members of a schema that only matter to readers (JSON Schema 2020-12, validation §9). */
const WORDS = new Set(['title', 'description', '$comment', 'examples', 'deprecated']);
/** Members that hold schemas by name, in a list, and directly. */
const SCHEMA_MAPS = new Set(['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas']);
const SCHEMA_LISTS = new Set(['allOf', 'anyOf', 'oneOf', 'prefixItems']);
const SCHEMAS = new Set([
  'items',
  'additionalProperties',
  'additionalItems',
  'unevaluatedProperties',
  'unevaluatedItems',
  'contains',
  'propertyNames',
  'not',
  'if',
  'then',
  'else',
]);
/** For these, a larger value accepts less; for the next ones, a smaller value does. */
const LEAST = new Set(['minimum', 'exclusiveMinimum', 'minLength', 'minItems', 'minProperties']);
const MOST = new Set(['maximum', 'exclusiveMaximum', 'maxLength', 'maxItems', 'maxProperties']);
/** Members that can only restrict what a schema accepts: adding one narrows it. */
const TAKING = new Set([...LEAST, ...MOST, 'pattern', 'multipleOf', 'const', 'enum', 'type', 'required']);

/** A schema without what only readers see. Property names are not members of a schema. */
function withoutWords(schema: unknown): unknown {
  if (!isObject(schema)) return schema;
  const copy = Object.entries(schema).flatMap(([name, value]): [string, unknown][] => {
    if (WORDS.has(name)) return [];
    if (SCHEMA_MAPS.has(name) && isObject(value)) {
      return [[name, fromEntries(Object.entries(value).map(([key, one]) => [key, withoutWords(one)]))]];
    }
    if ((SCHEMA_LISTS.has(name) || name === 'items') && Array.isArray(value)) return [[name, value.map(withoutWords)]];
    return [[name, SCHEMAS.has(name) ? withoutWords(value) : value]];
  });
  return fromEntries(copy);
}

/** `__proto__` is a member like any other. */
function fromEntries(entries: readonly (readonly [string, unknown])[]): Record<string, unknown> {
  const object: Record<string, unknown> = {};
  for (const [name, value] of entries) {
    Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
  }
  return object;
}

/** Whether `after` accepts nothing that `before` does not. Judged by syntax: anything not known to narrow counts as wider. */
function compareSchemas(before: unknown, after: unknown, at: string, add: Add): void {
  // absent is not the same as null
  const equal = (a: unknown, b: unknown) => canonicalJson({ a }) === canonicalJson({ a: b });
  if (equal(withoutWords(before), withoutWords(after))) return;
  if (before === true || after === false || !isObject(before) || !isObject(after)) {
    add(before === true || after === false ? 'narrowed' : 'schema_widened', at);
    return;
  }
  // a reference replaces or joins its siblings, and its target is elsewhere
  if (
    ['$ref', '$dynamicRef', '$id', '$anchor', '$schema', '$vocabulary'].some(
      (name) => !equal(own(before, name), own(after, name)),
    )
  ) {
    add('schema_widened', at);
    return;
  }
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (WORDS.has(name)) continue;
    const [old, now] = [own(before, name), own(after, name)];
    const here = `${at}/${token(name)}`;
    if (name === 'properties') compareProperties(before, after, at, add);
    else if (name === 'additionalProperties' || name === 'items') {
      if (Array.isArray(old) || Array.isArray(now)) {
        if (!equal(withoutItems(old), withoutItems(now))) add('schema_widened', here);
      } else compareSchemas(old === undefined ? true : old, now === undefined ? true : now, here, add);
    } else if (equal(withoutWords({ [name]: old }), withoutWords({ [name]: now }))) continue;
    else if (name === 'default') add('default_changed', here, shortened(JSON.stringify(now ?? null)));
    else if (name === 'required') {
      const kept = new Set(names(now));
      const dropped = names(old).filter((one) => !kept.has(one));
      for (const one of dropped) add('required_dropped', here, shortened(one));
      if (dropped.length === 0) add(Array.isArray(now) ? 'narrowed' : 'schema_widened', here);
    } else if (old === undefined && TAKING.has(name)) add('narrowed', here);
    else if (name === 'type')
      add(typesWithin(old, now) ? 'narrowed' : 'schema_widened', here, shortened(JSON.stringify(now ?? null)));
    else if (name === 'enum') {
      const allowed = new Set(Array.isArray(old) ? old.map(canonicalJson) : []);
      const wider = Array.isArray(now) ? now.filter((one) => !allowed.has(canonicalJson(one))) : [now];
      for (const one of wider) add('schema_widened', here, shortened(JSON.stringify(one ?? null)));
      if (wider.length === 0) add('narrowed', here);
    } else if (
      typeof old === 'number' &&
      typeof now === 'number' &&
      (LEAST.has(name) ? now > old : MOST.has(name) && now < old)
    ) {
      add('narrowed', here);
    } else add('schema_widened', here, now === undefined ? undefined : shortened(JSON.stringify(now)));
  }
}

function refersAndNegates(schema: unknown): boolean {
  const text = canonicalJson(schema);
  return /"\$(?:ref|dynamicRef)"/.test(text) && /"(?:not|oneOf|if|contains|dependentSchemas)"/.test(text);
}

function compareProperties(
  before: Record<string, unknown>,
  after: Record<string, unknown>,
  at: string,
  add: Add,
): void {
  const [old, now] = [own(before, 'properties') ?? {}, own(after, 'properties') ?? {}];
  if (!isObject(old) || !isObject(now)) {
    add('schema_widened', `${at}/properties`);
    return;
  }
  const closed = own(after, 'additionalProperties') === false && own(after, 'patternProperties') === undefined;
  for (const name of new Set([...Object.keys(old), ...Object.keys(now)])) {
    const here = `${at}/properties/${token(name)}`;
    if (!Object.hasOwn(old, name)) add('schema_widened', here, shortened(name));
    else if (Object.hasOwn(now, name)) compareSchemas(old[name], now[name], here, add);
    else add(closed ? 'narrowed' : 'schema_widened', here);
  }
}

const withoutItems = (value: unknown) => (Array.isArray(value) ? value.map(withoutWords) : withoutWords(value));
const own = (object: Record<string, unknown>, name: string) => (Object.hasOwn(object, name) ? object[name] : undefined);
const names = (value: unknown) => (Array.isArray(value) ? value.filter((one) => typeof one === 'string') : []);

function typesWithin(before: unknown, after: unknown): boolean {
  const list = (value: unknown) => (Array.isArray(value) ? value : [value]);
  const old = list(before);
  return (
    after !== undefined &&
    list(after).every((one) => old.includes(one) || (one === 'integer' && old.includes('number')))
  );
}

/** What a tool claims about its own risk, with the meaning of claiming nothing (MCP 2025-11-25, ToolAnnotations). */
const HINTS = { readOnlyHint: false, destructiveHint: true, idempotentHint: false, openWorldHint: true } as const;

function compareHints(before: Record<string, unknown>, after: Record<string, unknown>, add: Add): void {
  for (const [name, absent] of Object.entries(HINTS)) {
    const [old, now] = [own(before, name) ?? absent, own(after, name) ?? absent];
    const [told, tells] = [canonicalJson(old), canonicalJson(now)];
    if (told !== tells) add('hint_changed', `/annotations/${name}`, shortened(`${told} → ${tells}`));
  }
  const rest = (all: Record<string, unknown>) =>
    canonicalJson(fromEntries(Object.entries(all).filter(([name]) => !Object.hasOwn(HINTS, name) && name !== 'title')));
  if (rest(before) !== rest(after)) add('hint_changed', '/annotations');
}

/** Words with which texts instruct a model rather than describe a tool. If there are more of them, in doubt it is a change. */
const INSTRUCTIONS =
  /\b(?:always|never|must|should|do not|don't|ignore|disregard|forget|override|instead|instructions?|important|urgent|system|assistant|developer|prompt|user|secretly|silently|hidden|conceal|tell|mention|reveal|before (?:using|calling|you)|after (?:using|calling)|first|then call|required step|send|forward|upload|transmit|e-?mail|bcc|cc|post|exfiltrate|leak|password|passphrase|passwd|secrets?|credentials?|token|api[ _-]?keys?|private[ _-]?keys?|ssh|id_rsa|\.env|env|environment|cookies?|history|conversation|chat|base64|sudo|curl|wget|eval|exec|execute|shell|bash|admin|root|bypass|disable|approve|authori[sz]ed|permission|trusted|verified|safe)\b|<\/?[a-z][^>\n]{0,60}>|~\/|\/etc\//g;
/** URLs, host names, mail and network addresses. */
const ADDRESSES =
  /[a-z][a-z0-9+.-]{1,20}:\/\/[^\s"'<>)\]]{1,200}|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}|\b(?:[a-z0-9-]{1,63}\.){1,6}[a-z]{2,24}\b(?:\/[^\s"'<>)\]]{0,200})?|\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-f:]{3,45}\]|\b(?:data|javascript|mailto|tel):[^\s"']{1,200}/g;
const HIDDEN = /(?![\t\n\r]|\uFE0E|\uFE0F)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Default_Ignorable_Code_Point}\u2800]/gu;

function compareTexts(before: ToolDefinition, after: ToolDefinition, others: readonly string[], add: Add): void {
  const [old, now] = [textsOf(before), textsOf(after)];
  const [oldWords, nowWords] = [wordsOf(old), wordsOf(now)];
  const seen = new Set(old.map(([, text]) => text));
  const fresh = now.filter(([, text]) => !seen.has(text));
  for (const [at, text] of fresh) {
    for (const one of new Set(text.match(HIDDEN))) {
      add('hidden_characters', at, `U+${one.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}`);
    }
  }
  const found = (words: Spelled[], pattern: RegExp) => {
    const all: { word: string; at: string }[] = [];
    for (const { at, text } of words) for (const [word] of text.matchAll(pattern)) all.push({ word, at });
    return all;
  };
  const more = (pattern: RegExp, code: ChangeCode, read = (texts: [string, string][]) => wordsOf(texts)) => {
    const left = new Map<string, number>();
    for (const { word } of found(read(old), pattern)) left.set(word, (left.get(word) ?? 0) + 1);
    for (const { word, at } of found(read(now), pattern)) {
      const rest = left.get(word) ?? 0;
      if (rest > 0) left.set(word, rest - 1);
      else add(code, at, shortened(word));
    }
  };
  more(ADDRESSES, 'address_added');
  more(INSTRUCTIONS, 'instruction_added', withParts);

  const known = new Set(oldWords.flatMap(({ text }) => namesIn(text)));
  const [tools, own] = [spelledNames(others), spelled(after.name)];
  for (const { at, text } of nowWords) {
    for (const name of namesIn(text)) {
      if (name !== own && tools.has(name) && !known.has(name)) add('tool_mentioned', at, shortened(name));
    }
  }
  const words = new Set(old.flatMap(([, text]) => text.match(/\p{L}+/gu) ?? []));
  for (const [at, text] of fresh) {
    for (const word of new Set(text.match(/\p{L}+/gu))) {
      if (words.has(word)) continue;
      if (mixesAlphabets(word)) add('lookalike_characters', at, shortened(word));
      else if (!/^[\p{Script=Latin}\p{Script=Common}\p{Script=Inherited}]+$/u.test(word)) {
        add('other_script', at, shortened(word));
      }
    }
  }
  const length = (texts: [string, string][]) => texts.reduce((sum, [, text]) => sum + text.length, 0);
  const [was, is] = [length(old), length(now)];
  // even if no word is a known instruction, an instruction still takes up room
  if (was > 0 && is - was > Math.max(120, was / 4)) add('text_grown', '', `${was} → ${is} characters`);
}

/** Keyed by the list itself: all tools of a server are compared with the same one, and it may have thousands of names. */
const spelledLists = new WeakMap<readonly string[], ReadonlySet<string>>();

function spelledNames(names: readonly string[]): ReadonlySet<string> {
  let found = spelledLists.get(names);
  if (!found) {
    found = new Set(names.map(spelled).filter((name) => name.length > 2));
    spelledLists.set(names, found);
  }
  return found;
}

interface Spelled {
  at: string;
  text: string;
}

/** As read by a reader that ignores case, width and invisible characters. */
const spelled = (text: string) => text.normalize('NFKC').replace(HIDDEN, '').toLowerCase();
const wordsOf = (texts: [string, string][]): Spelled[] => texts.map(([at, text]) => ({ at, text: spelled(text) }));
/** And once more with names split up: `ignoreTheRest` and `ignore_the_rest` are words to a model. */
const withParts = (texts: [string, string][]): Spelled[] =>
  texts.map(([at, text]) => ({ at, text: `${spelled(text)}\n${spelled(apart(text))}` }));
const apart = (text: string) => text.replace(/[\p{Ll}\p{Nd}](?=\p{Lu})/gu, '$& ').replace(/[_-]+/g, ' ');
/** Possible tool names: in full, without the surrounding punctuation of prose. */
const namesIn = (text: string) =>
  text.match(/[\p{L}\p{N}_][\p{L}\p{N}_./:-]*/gu)?.map((name) => name.replace(/[./:-]+$/, '')) ?? [];
const mixesAlphabets = (word: string) =>
  /\p{Script=Latin}/u.test(word) && /[\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Cherokee}]/u.test(word);

/**
 * Every text of a definition with its position, including member names. The tool's own name is left out, as it reveals nothing.
 */
function textsOf({ name: _, ...rest }: ToolDefinition): [at: string, text: string][] {
  const texts: [string, string][] = [];
  const visit = (value: unknown, at: string): void => {
    if (typeof value === 'string') texts.push([at, value]);
    else if (Array.isArray(value)) for (const [n, one] of value.entries()) visit(one, `${at}/${n}`);
    else if (isObject(value)) {
      for (const [key, one] of Object.entries(value)) {
        const here = `${at}/${token(key)}`;
        if (!KEYWORDS.has(key)) texts.push([here, key]);
        visit(one, here);
      }
    }
  };
  visit(rest, '');
  return texts;
}
/** Members that the formats name are not the server's own words. */
const KEYWORDS = new Set([
  ...['name', 'title', 'description', 'inputSchema', 'outputSchema', 'annotations', 'default', 'format', 'pattern'],
  ...['readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint', 'patternProperties', 'properties'],
  ...['dependentRequired', 'dependencies', 'uniqueItems', 'minContains', 'maxContains', 'readOnly', 'writeOnly'],
  ...['contentEncoding', 'contentMediaType', 'contentSchema', '$schema', '$id', '$ref', '$anchor', '$vocabulary'],
  ...['$dynamicRef', '$dynamicAnchor', 'id', 'nullable', 'enumNames', 'x-mcp-header'],
  ...[...WORDS, ...SCHEMA_MAPS, ...SCHEMA_LISTS, ...SCHEMAS, ...TAKING],
]);

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A token of a JSON pointer (RFC 6901). */
const token = (name: string) => shortened(name).replaceAll('~', '~0').replaceAll('/', '~1');

function shortened(text: string): string {
  const characters = [...text.slice(0, 400)];
  return characters.length <= 80 && text.length <= 400 ? text : `${characters.slice(0, 79).join('')}…`;
}
