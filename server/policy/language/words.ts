import type { Diagnostic, Fix } from '../../domain/policy.ts';
import { nearest } from '../../lib/nearest.ts';
import { type Positions, type Token, tokens } from './scan.ts';

/** A finding of the engine, at an offset of the text in UTF-16 units. */
export interface Found {
  message: string;
  help?: string | null | undefined;
  label?: string | null | undefined;
}

/** The context path of each schema type that policies read with `hasTag`. */
const TAGGED: Record<string, string> = {
  StrArgs: 'context.str',
  NumArgs: 'context.num',
  BoolArgs: 'context.bool',
  ListArgs: 'context.list',
  StrFacts: 'context.session.str',
  NumFacts: 'context.session.num',
  BoolFacts: 'context.session.bool',
  ListFacts: 'context.session.list',
  TimeFacts: 'context.session.time',
};
const OWNERS: Record<string, string> = { Agent: 'principal', Tool: 'resource', ToolServer: 'resource.server' };
const TYPES: Record<string, string> = {
  Long: 'a whole number',
  decimal: 'a decimal such as decimal("50.0")',
  String: 'a text in quotes',
  Bool: 'true or false',
  Boolean: 'true or false',
  ipaddr: 'an address such as ip("10.0.0.1")',
  datetime: 'a time such as datetime("2026-01-31")',
  duration: 'a duration such as duration("2h")',
};
/** What people who know another language write, and its Cedar equivalent. */
const SAME: Record<string, string> = { and: '&&', or: '||', not: '!', '&': '&&', '|': '||' };
/** The types of entities that policies name, and what other schemas call them. */
const NAMED = ['Agent', 'AgentRole', 'Tool', 'ToolServer', 'Action'];
const FOREIGN: Record<string, string> = {
  ...{ User: 'Agent', Principal: 'Agent', Role: 'AgentRole', Group: 'AgentRole', UserGroup: 'AgentRole' },
  ...{ Resource: 'Tool', Server: 'ToolServer' },
};
/** What a head compares with, by the word before the comparison. */
const HEADS: Record<string, string> = { principal: 'Agent', action: 'Action', resource: 'Tool' };

/** The problems of one text, described for people who do not know the engine, each with its obvious fix if there is one. */
export class ProblemWords {
  readonly #source: string;
  readonly #positions: Positions;
  readonly #actions: readonly string[];
  #tokens: Token[] | undefined;

  constructor(source: string, positions: Positions, schema: string) {
    this.#source = source;
    this.#positions = positions;
    this.#actions = [...schema.matchAll(/^action (.+?)(?: in | appliesTo|;)/gm)].flatMap(([, names]) =>
      [...names!.matchAll(/"([^"]+)"|(\w+)/g)].map(([, quoted, bare]) => quoted ?? bare!),
    );
  }

  /** The engine's finding, in its own words if there is no better wording. */
  of(found: Found, at: number): Diagnostic {
    const { message, fix } = this.#known(found, at) ?? {
      message: [found.message, found.label, helpful(found)].filter(Boolean).join(' — '),
    };
    const mends = fix ?? this.#meant(message, at);
    return { ...this.#positions.at(at), message, ...(mends && { fix: mends }) };
  }

  /** A problem found by our own checks, with a fix if it asks "did you mean". */
  own(message: string, at: number): Diagnostic {
    const fix = this.#meant(message, at);
    return { ...this.#positions.at(at), message, ...(fix && { fix }) };
  }

  #known({ message, help, label }: Found, at: number): { message: string; fix?: Fix | undefined } | undefined {
    const is = (pattern: RegExp) => pattern.exec(message)?.slice(1);
    let part = is(
      /^unable to guarantee safety of access to optional attribute `(\w+)`(?: in context| on entity type `(\w+)`)/,
    );
    if (part) {
      const of = part[1] === undefined ? 'context' : (OWNERS[part[1]] ?? 'it');
      const test = `${of} has ${part[0]}`;
      return {
        message: `\`${of}.${part[0]}\` may be absent: ask first whether it is there, with \`${test} && …\``,
        fix: of === 'it' ? undefined : this.#insert(at, `${test} && `),
      };
    }
    part = is(/^unable to guarantee safety of access to tag `("(?:[^"\\]|\\.)*")` on entity type `(\w+)`/);
    if (part) {
      const [tag, type] = part as [string, string];
      const bag = TAGGED[type];
      const test = `${bag ?? '…'}.hasTag(${tag})`;
      return {
        message: `${tag} may be absent, or of another type: ask first, with \`${test} && …\``,
        fix: bag === undefined ? undefined : this.#insert(at, `${test} && `),
      };
    }
    part = is(/^unexpected type: expected (.+) but saw (.+)$/);
    if (part) return this.#type(part[0]!, part[1]!, help, at);
    part = is(/^expected an entity uid.*, found literal `("(?:[^"\\]|\\.)*")`$/);
    if (part) {
      const before = this.#before(at);
      const type = before.some(({ text }) => text === 'in')
        ? { principal: 'AgentRole', action: 'Action', resource: 'ToolServer' }[before[0]?.text ?? '']
        : HEADS[before[0]?.text ?? ''];
      const right = `${type ?? 'Agent'}::${part[0]}`;
      return {
        message: `${part[0]} alone says not what it is the name of: write \`${right}\``,
        fix: type === undefined ? undefined : this.#replace(at, part[0]!.length, right),
      };
    }
    part = is(/^expected an entity uid.*, found name `((?:\w+::)+)(\w+)`$/);
    if (part) {
      const right = `${part[0]}"${part[1]}"`;
      return {
        message: `names stand in quotes: write \`${right}\``,
        fix: this.#replace(at, part[0]!.length + part[1]!.length, right),
      };
    }
    if (/^attribute `(?:arguments|args|parameters)` in context not found/.test(message)) {
      return {
        message:
          'arguments are read by their type: `context.str`, `context.num`, `context.bool` or `context.list`, each with `hasTag("name")` and `getTag("name")`',
      };
    }
    part = is(/^unrecognized entity type `([\w:]+)`$/);
    if (part) {
      const [type] = part as [string];
      const meant = Object.hasOwn(FOREIGN, type) ? FOREIGN[type]! : nearest(type, NAMED);
      const of = meant === undefined ? `: there are ${NAMED.join(', ')}` : `: did you mean \`${meant}\`?`;
      const place = this.#source.slice(at).search(new RegExp(`\\b${type}\\b`));
      const near = meant !== undefined && place >= 0;
      return {
        message: `unrecognized entity type \`${type}\`${of}`,
        fix: near ? this.#replace(at + place, type.length, meant) : undefined,
      };
    }
    part = is(/^unrecognized action `Action::"([^"]*)"`$/);
    if (part) {
      const near = nearest(part[0]!, this.#actions);
      return {
        message: `there is no action type "${part[0]}"${near === undefined ? ': custom ones are added in the settings' : `: did you mean \`Action::"${near}"\`?`}`,
      };
    }
    if (/^'=' is not a valid operator/.test(message)) {
      const sign = this.#from(at).find(({ text }) => text === '=');
      return { message: '`=` means nothing in Cedar: write `==`', fix: sign && this.#replace(sign.start, 1, '==') };
    }
    if (message === 'invalid token' && help?.includes('single quotes')) {
      const text = /^'([^'"\\\n]*)'/.exec(this.#source.slice(at));
      return {
        message: 'texts stand in double quotes, as in "GET"',
        fix: text ? this.#replace(at, text[0].length, `"${text[1]}"`) : undefined,
      };
    }
    part = is(/^unexpected token `(\w+|[&|])`$/);
    if (part && /`,`/.test(label ?? '') && /^(?:action|resource)$/.test(part[0]!)) {
      return { message: `a comma is missing before \`${part[0]}\``, fix: this.#insert(this.#end(at), ',') };
    }
    const same = part && Object.hasOwn(SAME, part[0]!) ? SAME[part[0]!] : undefined;
    if (part && same) {
      return { message: `Cedar writes \`${same}\` for \`${part[0]}\``, fix: this.#replace(at, part[0]!.length, same) };
    }
    part = is(/^unexpected token `([^`]+)`$/);
    if (part) return this.#missing(part[0]!, label ?? '', at);
    if (message === 'unexpected end of input') {
      const last = this.#all().at(-1);
      const closed = last?.text === ')' || last?.text === '}';
      return {
        message: 'the text ends in the middle of a statement: each ends with `;`',
        fix: closed && last && this.#depth() === 0 ? this.#insert(last.end, ';') : undefined,
      };
    }
    part = is(/^invalid policy effect: (\w+)$/);
    if (part) {
      const effects: Record<string, string> = { permit: 'permit', forbid: 'forbid', allow: 'permit', deny: 'forbid' };
      const near = effects[nearest(part[0]!.toLowerCase(), Object.keys(effects)) ?? ''];
      return {
        message: `a statement begins with \`permit\` or \`forbid\`, not with \`${part[0]}\``,
        fix: near === undefined ? undefined : this.#replace(at, part[0]!.length, near),
      };
    }
    part = is(/^invalid policy condition: (\w+)$/);
    if (part) {
      return {
        message: `conditions begin with \`when\` or \`unless\`, not with \`${part[0]}\``,
        fix: part[0] === 'if' ? this.#replace(at, 2, 'when') : undefined,
      };
    }
    part = is(/^this policy is missing the `(\w+)` variable in the scope$/);
    if (part)
      return {
        message: `\`${part[0]}\` is missing: the brackets hold \`principal\`, \`action\` and \`resource\`, in this order`,
      };
    part = is(/failed to parse as a decimal value: `"(-?\d{1,15})"`$/);
    if (part) {
      const literal = this.#from(at).find(({ text }) => text === `"${part![0]}"`);
      return {
        message: `a decimal has a digit on both sides of the point: write "${part[0]}.0"`,
        fix: literal && this.#replace(literal.start, part[0]!.length + 2, `"${part[0]}.0"`),
      };
    }
    return undefined;
  }

  /** What is missing before a token that is out of place. `label`: what the engine would accept there. */
  #missing(token: string, label: string, at: number): { message: string; fix?: Fix | undefined } | undefined {
    const end = this.#end(at);
    const before = this.#all().filter((one) => one.end <= at);
    const last = before.at(-1)?.text ?? '';
    const open = opened(before);
    const closing = OPENS[open.at(-1) ?? ''];
    if (Object.hasOwn(CLOSES, token) && !open.includes(CLOSES[token]!)) {
      const call = token === ')' && before.at(-2)?.text === '.' && /^(?:to|is)[A-Z]/.test(last);
      const fix = call ? this.#insert(end, '(') : this.#replace(at, 1, closing === ']' ? closing : '');
      return { message: `there is nothing that this \`${token}\` closes`, fix };
    }
    if (closing && label.includes(`\`${closing}\``) && ENDS.has(token)) {
      const text = closing === '}' ? ' }' : closing;
      // the list could end anywhere before it
      const fix = closing === ']' ? undefined : this.#insert(end, text);
      return { message: `a \`${closing}\` is missing before \`${token}\``, fix };
    }
    if (token === '(' && (last === 'permit' || last === 'forbid')) {
      const start = before.at(-2)?.end;
      return {
        message: `a \`;\` is missing before \`${last}\``,
        fix: start === undefined ? undefined : this.#insert(start, ';'),
      };
    }
    if (last === 'when' || last === 'unless') return { message: `braces are missing: write \`${last} { … }\`` };
    if (label.includes('`&&`')) return { message: `something is missing before \`${token}\`, such as \`&&\`` };
    if (label.includes('string literal')) return { message: `a value is missing before \`${token}\`` };
    return undefined;
  }

  #type(expected: string, saw: string, help: string | null | undefined, at: number) {
    const name = (type: string) =>
      TYPES[type] ?? (/^Set</.test(type) ? 'a list' : /AnyEntity/.test(type) ? 'an entity such as Agent::"…"' : type);
    if (expected === 'Long' && saw === 'decimal') {
      return {
        message:
          'decimals are compared by `.lessThan(…)`, `.lessThanOrEqual(…)`, `.greaterThan(…)` and `.greaterThanOrEqual(…)`, not by signs',
      };
    }
    const number = /^\d{1,15}\b(?!\.)/.exec(this.#source.slice(at))?.[0];
    const fix =
      expected === 'decimal' && saw === 'Long' && number !== undefined
        ? this.#replace(at, number.length, `decimal("${number}.0")`)
        : undefined;
    return { message: `${name(expected)} is needed here, and this is ${name(saw)}${help ? ` — ${help}` : ''}`, fix };
  }

  /** The fix that a message suggests with "did you mean", in place of the word, the quoted text or the annotation there. */
  #meant(message: string, at: number): Fix | undefined {
    const [, code, quoted, annotation] = /did you mean (?:`([^`]+)`|("(?:[^"\\]|\\.)*")|@(\w+))\?/.exec(message) ?? [];
    const wrong =
      /^(?:unrecognized \w+(?: type)?|attribute|there is no (?:action type|list)) [`"]?((?:\w|[:\-"])+?)[`"]?(?:[ :;,]|$)|^`(\w+)` is not/.exec(
        message,
      );
    const wanted = code ?? annotation ?? quoted;
    if (wanted === undefined) return undefined;
    if (annotation !== undefined) {
      const word = /^@\s*\w+/.exec(this.#source.slice(at))?.[0];
      return word === undefined ? undefined : this.#replace(at, word.length, `@${annotation}`);
    }
    if (quoted !== undefined) {
      const literal = this.#from(at)[0];
      const asked = /.*"((?:[^"\\]|\\.)*)"[^"]*did you mean/.exec(message)?.[1];
      // a name may be a part of the quoted text, such as the name of a list in that of a fact
      const place = asked && literal?.text.startsWith('"') ? literal.text.search(wordOf(asked)) : -1;
      return place < 0 ? undefined : this.#replace(literal!.start + place, asked!.length, quoted.slice(1, -1));
    }
    const word = wrong?.[1] ?? wrong?.[2];
    // the engine always has a suggestion; one that is far from the text there is not about a typo
    if (word === undefined || nearest(word.replace(/^.*::|"/g, ''), [wanted.replace(/^.*::|"/g, '')]) === undefined)
      return undefined;
    const action = /^Action::"/.test(wanted);
    const line = this.#source.slice(at);
    const place = action ? line.search(/Action::"/) : line.search(new RegExp(`\\b${word.replace(/[^\w]/g, '')}\\b`));
    if (place < 0) return undefined;
    const length = action ? (/^Action::"[^"\n]*"/.exec(line.slice(place))?.[0].length ?? 0) : word.length;
    return length === 0 ? undefined : this.#replace(at + place, length, wanted);
  }

  #replace(at: number, length: number, text: string): Fix {
    return { title: text === '' ? 'Remove it' : `Replace with ${text}`, ...this.#positions.at(at), length, text };
  }

  #insert(at: number, text: string): Fix {
    return { title: `Insert ${text.trim()}`, ...this.#positions.at(at), length: 0, text };
  }

  #all(): Token[] {
    this.#tokens ??= tokens(this.#source);
    return this.#tokens;
  }

  #from(at: number): Token[] {
    const all = this.#all();
    const first = all.findIndex(({ end }) => end > at);
    return first < 0 ? [] : all.slice(first, first + 40);
  }

  /** The part of a head that ends before an offset, starting at `principal`, `action` or `resource`. */
  #before(at: number): Token[] {
    const before = this.#all().filter(({ end }) => end <= at);
    const start = before.findLastIndex(({ text }) => Object.hasOwn(HEADS, text));
    return start < 0 ? [] : before.slice(start);
  }

  /** Where the token before an offset ends. */
  #end(at: number): number {
    return this.#all().findLast(({ end }) => end <= at)?.end ?? at;
  }

  #depth(): number {
    return this.#all().reduce(
      (depth, { text }) => depth + Number('([{'.includes(text)) - Number(')]}'.includes(text)),
      0,
    );
  }
}

/**
 * The engine's advice, without a name that is not near: it looks those up in a hash map, whose order changes, and always
 * finds one.
 */
function helpful({ message, help }: Found): string | null | undefined {
  const [, meant] = /^did you mean `([^`]+)`\?$/.exec(help ?? '') ?? [];
  if (meant === undefined) return help;
  const [, wrong] = /`([^`]+)`/.exec(message) ?? [];
  const last = (name: string) => name.replace(/^.*::|"/g, '');
  return wrong !== undefined && nearest(last(wrong), [last(meant)]) !== undefined ? help : undefined;
}

/** Tokens that end whatever was opened before them. */
const ENDS: ReadonlySet<string> = new Set([';', '}', ')', 'when', 'unless', 'permit', 'forbid']);
const OPENS: Record<string, string> = { '(': ')', '[': ']', '{': '}' };
const CLOSES: Record<string, string> = { ')': '(', ']': '[', '}': '{' };

/** The brackets that were opened and not closed. */
function opened(before: readonly Token[]): string[] {
  const open: string[] = [];
  for (const { text } of before) {
    if (Object.hasOwn(OPENS, text)) open.push(text);
    else if (open.at(-1) === CLOSES[text]) open.pop();
  }
  return open;
}

/** A whole name in a text: `a` is not in `ab`, nor in `"a in b"` where another `a` comes after ` in `. */
const wordOf = (name: string) => new RegExp(`(?<![\\w.-])${RegExp.escape(name)}(?![\\w.-])(?!.* in )`);
