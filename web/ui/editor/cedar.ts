import type { CompletionContext, CompletionResult } from '@codemirror/autocomplete';
import { StreamLanguage } from '@codemirror/language';
import type { Annotations } from '../../../server/domain/policy.ts';

/** Cedar as the editor knows it: enough for colors, completion and help. What is right is the server's to say. */

interface AnnotationHelp {
  /** What is put between the quotes. */
  example: string;
  form: string;
  meaning: string;
}

const ANNOTATIONS: Record<keyof Required<Annotations>, AnnotationHelp> = {
  id: { example: 'name', form: 'a name', meaning: 'Names the rule: it is recorded as policy#name.' },
  reason: { example: '', form: 'a text', meaning: 'What a denied agent is told, and what an approver reads.' },
  escrow: {
    example: 'single',
    form: 'single, multi_party, conditional or time_delayed',
    meaning:
      'Holds the action. On a permit it grants once approved; on a forbid it is a guardrail that holds what something else grants.',
  },
  approvals: { example: '2', form: 'a number', meaning: 'How many people must approve a hold. Needs @escrow.' },
  quorum: {
    example: 'finance:1,security:1',
    form: 'group:count, …',
    meaning: 'From which groups of approvers the approvals must come. One person counts once. Needs @escrow.',
  },
  condition: {
    example: 'kyc-check',
    form: 'condition ids',
    meaning: 'What must be reported before a conditional hold is released. Needs @escrow("conditional").',
  },
  delay: {
    example: '15m',
    form: 'a duration: 30s, 15m, 4h, 7d',
    meaning: 'After this a time-delayed hold releases itself unless rejected. Needs @escrow("time_delayed").',
  },
  ttl: { example: '4h', form: 'a duration', meaning: 'How long a hold waits before it expires; 24h when absent.' },
  execute_within: {
    example: '15m',
    form: 'a duration',
    meaning: 'How long a release is good. The action must be repeated before.',
  },
  notify: { example: 'https://', form: 'https addresses', meaning: 'Who is told of a hold. Needs @escrow.' },
  mask: {
    example: '$.card.number',
    form: 'JSONPaths',
    meaning: 'Fields that are masked before the action goes on, and in what approvers see.',
  },
  rate: {
    example: '10/m',
    form: 'a count per s, m, h or d',
    meaning: 'How often one agent may do this. Over it the decision is rate_limited.',
  },
  scope: { example: 'payments', form: 'tags, or *', meaning: 'Which bundles the policy is in; * is in every bundle.' },
  description: { example: '', form: 'a text', meaning: 'For readers. Has no effect.' },
  severity: { example: 'high', form: 'low, medium, high or critical', meaning: 'For readers. Has no effect.' },
};

const WORDS: Record<string, string> = {
  permit: 'grants what it matches',
  forbid: 'denies what it matches; with @escrow, @mask or @rate it is a guardrail',
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
  session: 'id, call_count and started of the session',
  str: 'text arguments: hasTag and getTag',
  num: 'numbers among the arguments, as decimals',
  bool: 'true and false among the arguments',
  list: 'lists of texts among the arguments',
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
const ACTION_TYPES = ['api_call', 'tool_call', 'message_send', 'payment', 'db_query', 'file_read', 'read', 'write'];

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
      options: Object.entries(ANNOTATIONS).map(([name, { example, form, meaning }]) => ({
        label: `@${name}`,
        detail: form,
        info: meaning,
        type: 'meta',
        apply: `@${name}("${example}")`,
      })),
      validFor: /^@\w*$/,
    };
  }
  const member = context.matchBefore(/\bcontext\.\w*/);
  if (member) return { from: member.from + 'context.'.length, options: optionsOf(CONTEXT, 'property') };
  const method = context.matchBefore(/\.\w*/);
  if (method) {
    return {
      from: method.from + 1,
      options: Object.entries(METHODS).map(([label, call]) => ({ label, type: 'method', apply: label + call })),
    };
  }
  const action = context.matchBefore(/\bAction::"\w*/);
  if (action) {
    const from = action.from + 'Action::"'.length;
    return { from, options: ACTION_TYPES.map((label) => ({ label, type: 'enum' })) };
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

const optionsOf = (words: Record<string, string>, type: string) =>
  Object.entries(words).map(([label, info]) => ({ label, type, ...(info && { info }) }));

/** What a word means, for the pointer that rests on it. */
export function helpFor(word: string): { title: string; text: string } | undefined {
  if (word.startsWith('@')) {
    const help = ANNOTATIONS[word.slice(1) as keyof typeof ANNOTATIONS] as AnnotationHelp | undefined;
    if (!help) return { title: word, text: 'No annotation has this name: the text would be refused.' };
    return { title: `${word}("${help.example}")`, text: `${help.meaning} Value: ${help.form}.` };
  }
  const text = WORDS[word] || CONTEXT[word] || ENTITIES[word];
  return text ? { title: word, text } : undefined;
}
