import type { CompletionContext, CompletionResult } from '@codemirror/autocomplete';
import { StreamLanguage } from '@codemirror/language';
import {
  ANNOTATION_NAMES,
  ANNOTATIONS,
  type AnnotationName,
  escrowNeededBy,
  isAnnotationName,
} from '../../../server/domain/annotations.ts';
import { ACTION_TYPES } from '../../../server/domain/policy.ts';

/** Cedar for the editor: highlighting, completion and help. The server does the validation. */

const OBLIGATIONS = ANNOTATION_NAMES.filter((name) => ANNOTATIONS[name].obligation)
  .map((name) => `@${name}`)
  .join(' or ');

function annotationWords(name: AnnotationName): string {
  const needed = escrowNeededBy(name);
  return ANNOTATIONS[name].meaning + (needed ? ` Needs ${needed}.` : '');
}

const WORDS: Record<string, string> = {
  permit: 'grants what it matches',
  forbid: `denies what it matches; with ${OBLIGATIONS} it is a guardrail`,
  when: 'the rule holds only where this is true',
  unless: 'the rule holds only where this is false',
  principal: 'the agent',
  action: 'what kind of action it is',
  resource: 'the tool',
  context: 'everything else about the request',
  in: 'is in a group, role or server',
  has: 'has the attribute',
  like: 'matches a pattern with *',
  is: 'is of a type',
  if: '',
  // biome-ignore lint/suspicious/noThenProperty: a word of the language
  then: '',
  else: '',
  true: '',
  false: '',
};

const CONTEXT: Record<string, string> = {
  method: 'HTTP method, upper case',
  host: 'host of the resource',
  path: 'path of the resource, without . and ..',
  source_ip: 'address of the caller',
  amount: 'estimated value, a decimal',
  currency: 'currency of the value, upper case',
  risk_score: 'decimal from 0 to 1; absent counts as 1',
  now: 'time of the decision',
  session: 'the session: id, call_count, started, lowest_trust, called, and its facts as str, num, bool, list and time',
  str: 'text arguments: hasTag and getTag',
  num: 'numbers among the arguments, as decimals',
  bool: 'true and false among the arguments',
  list: 'lists of texts among the arguments',
  facts: 'whether arguments are in reference lists',
};

const METHODS: Record<string, string> = {
  hasTag: '("key")',
  getTag: '("key")',
  lessThan: '(decimal("0.0"))',
  lessThanOrEqual: '(decimal("0.0"))',
  greaterThan: '(decimal("0.0"))',
  greaterThanOrEqual: '(decimal("0.0"))',
  contains: '("value")',
  containsAny: '(["value"])',
  containsAll: '(["value"])',
  isInRange: '(ip("10.0.0.0/8"))',
  toTime: '()',
};

const ENTITIES: Record<string, string> = {
  Agent: 'an agent by its id',
  AgentRole: 'a role of agents',
  Action: 'an action type, or a group of them: read, write',
  Tool: 'a tool by its name',
  ToolServer: 'a server of tools',
};
const ACTIONS = [...ACTION_TYPES.write, ...ACTION_TYPES.read, ...Object.keys(ACTION_TYPES)];

export const cedar = StreamLanguage.define<null>({
  name: 'cedar',
  startState: () => null,
  token(stream) {
    if (stream.eatSpace()) return null;
    if (stream.match(/^\/\/.*/)) return 'comment';
    if (stream.match(/^"(?:[^"\\]|\\.)*"?/)) return 'string';
    if (stream.match(/^@[A-Za-z_]\w*/)) return 'meta';
    if (stream.match(/^[A-Za-z_]\w*(?=\s*::)/)) return 'typeName';
    if (stream.match(/^(?:decimal|ip|datetime|duration)(?=\s*\()/)) return 'typeName';
    if (stream.match(/^(?:permit|forbid|when|unless|if|then|else|in|is|has|like)\b/)) return 'keyword';
    if (stream.match(/^(?:true|false)\b/)) return 'bool';
    if (stream.match(/^(?:principal|action|resource|context)\b/)) return 'variableName';
    if (stream.match(/^[A-Za-z_]\w*/)) return 'propertyName';
    if (stream.match(/^-?\d+/)) return 'number';
    if (stream.match(/^(?:&&|\|\||[=!<>]=|[<>!+\-*])/)) return 'operator';
    stream.next();
    return null;
  },
  languageData: {
    commentTokens: { line: '//' },
    closeBrackets: { brackets: ['(', '[', '{', '"'] },
  },
});

export function complete(context: CompletionContext): CompletionResult | null {
  const annotation = context.matchBefore(/@\w*/);
  if (annotation) {
    return {
      from: annotation.from,
      options: ANNOTATION_NAMES.map((name) => ({
        label: `@${name}`,
        detail: ANNOTATIONS[name].value,
        info: annotationWords(name),
        type: 'meta',
        apply: `@${name}("${ANNOTATIONS[name].example}")`,
      })),
      validFor: /^@\w*$/,
    };
  }
  const action = context.matchBefore(/\bAction::"\w*/);
  if (action) {
    const from = action.from + 'Action::"'.length;
    return { from, options: ACTIONS.map((label) => ({ label, type: 'enum' })) };
  }
  if (inText(context)) return null;
  const member = context.matchBefore(/\bcontext\.\w*/);
  if (member) return { from: member.from + 'context.'.length, options: optionsOf(CONTEXT, 'property') };
  const method = context.matchBefore(/\.\w*/);
  if (method) {
    return {
      from: method.from + 1,
      options: Object.entries(METHODS).map(([label, call]) => ({ label, type: 'method', apply: label + call })),
    };
  }
  const word = context.matchBefore(/[A-Za-z_]\w*/);
  if (!word && !context.explicit) return null;
  return {
    from: word?.from ?? context.pos,
    options: [
      ...optionsOf(WORDS, 'keyword'),
      ...Object.entries(ENTITIES).map(([name, info]) => ({
        label: `${name}::""`,
        info,
        type: 'type',
        apply: `${name}::"`,
      })),
      { label: 'decimal("0.0")', type: 'function' },
      { label: 'ip("10.0.0.0/8")', type: 'function' },
    ],
    validFor: /^\w*$/,
  };
}

/** Within a string or a comment: no word of the language is meant there. */
function inText({ state, pos }: CompletionContext): boolean {
  const line = state.doc.lineAt(pos);
  const rest = line.text.slice(0, pos - line.from).replace(/"(?:[^"\\]|\\.)*"/g, '');
  return /"|\/\//.test(rest);
}

const optionsOf = (words: Record<string, string>, type: string) =>
  Object.entries(words).map(([label, info]) => ({ label, type, ...(info && { info }) }));

/** The help text for a word under the pointer. */
export function helpFor(word: string): { title: string; text: string } | undefined {
  if (word.startsWith('@')) {
    const name = word.slice(1);
    if (!isAnnotationName(name)) {
      return { title: word, text: 'No annotation has this name: the text would be refused.' };
    }
    const { example, form } = ANNOTATIONS[name];
    return { title: `${word}("${example}")`, text: `${annotationWords(name)} Value: ${form}.` };
  }
  const text = WORDS[word] || CONTEXT[word] || ENTITIES[word];
  return text ? { title: word, text } : undefined;
}
