import type { Completion, CompletionContext, CompletionResult } from '@codemirror/autocomplete';
import { HOLD_KIND_NAMES, HOLD_KINDS } from '../../../server/domain/hold-kinds.ts';
import { isPlain, nameRead } from '../../../server/lib/visible.ts';
import { argumentsOf } from '../../../server/policy/language/argument-kinds.ts';
import type { TagKind } from '../../../server/policy/language/head.ts';
import { KIND_WORDS, type KnownNames } from '../../lib/name-kinds.ts';

/** `text` is inserted within the quotes if it is not just the label; an offer that `goesOn` does not close them. */
type Offer = Completion & { text?: string; goesOn?: true };

/** A name within quotes: tools chose some, and nothing in a name may end the string that it is in. */
const escaped = (name: string) => JSON.stringify(name).slice(1, -1);

/** The quoted text before the cursor. */
const OPEN = '((?:[^"\\\\\\n]|\\\\.)*)$';
const at = (before: string) => new RegExp(`${before}"${OPEN}`);

const TOOL = at('\\bTool::');
const SERVER = at('\\bToolServer::');
const ROLE = at('\\bAgentRole::');
const AGENT = at('\\bAgent::');
const LABEL = at('\\b(?:principal|resource)\\.labels\\.contains(?:Any|All)?\\(\\s*(?:\\[[^\\]]*)?');
const ARGUMENT = at('\\bcontext\\.(?:str|num|bool|list)\\.(?:has|get)Tag\\(');
const FACT = at('\\bcontext\\.facts\\.hasTag\\(');
const CALLED = at('\\bcontext\\.session\\.called\\.hasTag\\(');
const ESCROW = at('@escrow\\(');
const SEVERITY = at('@severity\\(');
const QUORUM = at('@quorum\\(');

const STATUS: Record<string, string> = {
  approved: 'its definition is approved',
  changed: 'its definition changed since it was approved',
  pending: 'nobody has reviewed its definition yet',
  rejected: 'its definition was rejected',
  gone: 'its server lists it no more',
};

/**
 * Completes the tenant's names within quotes. Tools and agents chose some of them: a name that could be mistaken for another is
 * not offered.
 */
export async function completeNames(context: CompletionContext, names: KnownNames): Promise<CompletionResult | null> {
  const result = async (pattern: RegExp, offered: (typed: string, match: string) => Promise<Offer[]>) => {
    const match = context.matchBefore(pattern);
    if (!match) return undefined;
    const typed = pattern.exec(match.text)![1]!;
    const options = await offered(typed, match.text);
    const closed = context.state.sliceDoc(context.pos, context.pos + 1) === '"';
    const seen = new Set<string>();
    return {
      from: context.pos - typed.length,
      options: options
        .filter(({ label, displayLabel }) => isPlain(displayLabel ?? label) && !seen.has(label) && seen.add(label))
        .map(({ text, goesOn, ...one }) => ({
          ...one,
          apply: (text ?? escaped(one.label)) + (closed || goesOn ? '' : '"'),
        })),
      // another letter may match other names
      ...(options.length < MANY && { validFor: /^[^"\\]*$/ }),
    };
  };
  const tools = async (part: string) =>
    (await names.tools(part))
      .map(({ name, server, status, labels }) => ({
        label: name,
        detail: `on ${nameRead(server)}${status === 'approved' ? '' : ', not approved'}`,
        info: `A tool: ${STATUS[status] ?? status}${labels.length > 0 ? `; labels: ${labels.map(nameRead).join(', ')}` : ''}.`,
        type: 'function',
        // an approved tool comes first, also when several servers have the name
        boost: status === 'approved' ? 50 : 0,
      }))
      .sort((a, b) => b.boost - a.boost);
  const inOrder = [
    () => result(TOOL, tools),
    () => result(CALLED, tools),
    () =>
      result(SERVER, async () =>
        (await names.servers()).map(({ id, tools: count, trust }) => ({
          label: id,
          info: `A server of ${count} ${count === 1 ? 'tool' : 'tools'}; ${trust === null ? 'no trust was set' : `its trust is ${trust}`}.`,
          type: 'namespace',
        })),
      ),
    () =>
      result(ROLE, async (part) => {
        const roles = Map.groupBy(
          (await names.agents(part)).flatMap(({ id, roles: all }) => all.map((role) => ({ id, role }))),
          ({ role }) => role,
        );
        return [...roles].map(([label, agents]) => ({
          label,
          info: `The role of ${some(agents.map(({ id }) => id))}.`,
          type: 'class',
        }));
      }),
    () =>
      result(AGENT, async (part) =>
        (await names.agents(part)).map(({ id, roles, labels }) => ({
          label: id,
          detail: roles.map(nameRead).join(', '),
          info:
            labels.length > 0 ? `An agent; labels: ${labels.map(nameRead).join(', ')}.` : 'An agent without labels.',
          type: 'variable',
        })),
      ),
    () =>
      result(LABEL, async (_, match) => {
        const ofAgents = match.startsWith('principal');
        const all = ofAgents
          ? (await names.agents('')).map(({ id: name, labels }) => ({ name, labels }))
          : await names.tools('');
        const labels = Map.groupBy(
          all.flatMap(({ name, labels: own }) => own.map((label) => ({ name, label }))),
          ({ label }) => label,
        );
        return [...labels].map(([label, owners]) => ({
          label,
          info: `A label of ${some(owners.map(({ name }) => name))}.`,
          type: 'constant',
        }));
      }),
    () =>
      result(ARGUMENT, async (_, match) => {
        const kind = /context\.(\w+)/.exec(match)![1] as TagKind;
        return ofArguments(await readable(context, names), (kinds) => kinds.includes(kind));
      }),
    () =>
      result(FACT, async (typed) => {
        const place = typed.lastIndexOf(' in ');
        if (place < 0) {
          const texts = ofArguments(await readable(context, names), (kinds) =>
            kinds.some((kind) => kind === 'str' || kind === 'list'),
          );
          return texts.map((one) => ({ ...one, text: `${escaped(one.label)} in `, goesOn: true }));
        }
        const before = typed.slice(0, place + ' in '.length);
        return (await names.lists()).map((name) => ({
          label: before + name,
          displayLabel: name,
          text: before + escaped(name),
          info: `Whether it is in the list ${name}.`,
          type: 'constant',
        }));
      }),
    () =>
      result(ESCROW, async () =>
        HOLD_KIND_NAMES.map((label) => ({ label, info: HOLD_KINDS[label].description, type: 'enum' })),
      ),
    () => result(SEVERITY, async () => ['low', 'medium', 'high', 'critical'].map((label) => ({ label, type: 'enum' }))),
    () =>
      result(QUORUM, async (typed) => {
        const before = typed.slice(0, typed.lastIndexOf(',') + 1);
        return (await names.groups()).map((group) => ({
          label: `${before}${group}:1`,
          displayLabel: group,
          text: `${before}${escaped(group)}:1`,
          info: `One approval of the group ${group}.`,
          type: 'enum',
        }));
      }),
  ];
  for (const attempt of inOrder) {
    const found = await attempt();
    if (found) return found.options.length > 0 ? found : null;
  }
  return null;
}

/** With this many results, the server is asked again for each letter: it may have more. */
const MANY = 50;

interface Argument {
  tool: string;
  key: string;
  kinds: readonly TagKind[];
}

/** The arguments of the tools that the statement around the cursor is about. */
async function readable({ state, pos }: CompletionContext, names: KnownNames): Promise<Argument[]> {
  const text = state.doc.toString();
  const start = text.lastIndexOf(';', pos - 1) + 1;
  const end = text.indexOf(';', pos);
  const statement = text.slice(start, end < 0 ? undefined : end);
  const tools = [...statement.matchAll(/\bTool::"((?:[^"\\]|\\.)*)"/g)].map(([, name]) => name!);
  const found: Argument[] = [];
  for (const tool of new Set(tools.slice(0, 5))) {
    for (const schema of await names.schemas(tool)) {
      for (const [key, kinds] of argumentsOf(schema) ?? []) found.push({ tool, key, kinds: kinds ?? [] });
    }
  }
  return found;
}

function ofArguments(all: readonly Argument[], fits: (kinds: readonly TagKind[]) => boolean): Completion[] {
  return all
    .filter(({ kinds }) => fits(kinds))
    .map(({ tool, key, kinds }) => ({
      label: key,
      detail: kinds.map((kind) => KIND_WORDS[kind]).join(' or '),
      info: `An argument of the tool ${nameRead(tool)}, as its schema says.`,
      type: 'property',
    }));
}

/** A few of many names. */
function some(all: readonly string[]): string {
  const names = [...new Set(all)].map(nameRead);
  return names.length <= 3 ? names.join(', ') : `${names.slice(0, 3).join(', ')} and ${names.length - 3} more`;
}
