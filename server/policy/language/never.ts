import { type Constraint, named, readHead } from './head.ts';
import { preamble, type Token } from './scan.ts';

/** What each part of a scope can be according to the schema: `==` compares with the first type, `in` also with the second. */
const PARTS = {
  principal: { self: 'Agent', group: 'AgentRole', text: 'the principal is an Agent, and an Agent is in an AgentRole' },
  resource: { self: 'Tool', group: 'ToolServer', text: 'the resource is a Tool, and a Tool is in a ToolServer' },
} as const;

const NEVER = 'this rule can never apply';

/**
 * Why a statement that the engine found impossible matches no request, and where to change it: the position of the faulty
 * part of the scope, or else of the first condition.
 */
export function neverApplies(statement: Token[]): { start: number; message: string } {
  const { rest } = preamble(statement);
  const head = readHead(statement);
  const at = (word: string) => statement.find(({ text }, n) => n >= rest && text === word) ?? statement[0]!;
  for (const part of ['principal', 'resource'] as const) {
    const message = misplaced(part, head[part]);
    if (message) return { start: at(part).start, message: `${NEVER}: ${message}` };
  }
  if (head.action.op === 'eq' && /^Action::(?:read|write)$/.test(head.action.entity)) {
    const group = head.action.entity.slice('Action::'.length);
    const message = `"${group}" is a group of actions and no action; write action in Action::"${group}"`;
    return { start: at('action').start, message: `${NEVER}: ${message}` };
  }
  const clause = statement.find(({ text }, n) => n > rest && (text === 'when' || text === 'unless'));
  return {
    start: (clause ?? at('principal')).start,
    message: `${NEVER}: no request fulfills its scope and conditions together; correct a name that nothing has, or conditions that contradict each other, or remove the rule`,
  };
}

function misplaced(part: keyof typeof PARTS, constraint: Constraint): string | undefined {
  const { self, group, text } = PARTS[part];
  const types = [...named(constraint), ...(constraint.op === 'is' ? [`${constraint.type}::`] : [])].map(
    (entity) => entity.split('::')[0],
  );
  const foreign = types.find((type) => type !== self && type !== group);
  if (foreign !== undefined) return `${text}, never ${/^[AEIO]/.test(foreign) ? 'an' : 'a'} ${foreign}`;
  if (constraint.op === 'eq' && types[0] === group) return `${text}; write ${part} in ${group}::"…"`;
  if (constraint.op === 'is' && constraint.type === group) return `${text}; write ${part} is ${self}`;
  return undefined;
}
