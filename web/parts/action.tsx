import { Fragment } from 'react';
import { nameRead } from '../../server/lib/visible.ts';
import { Clamped, Hostile, Line, Name } from '../ui/hostile.tsx';

interface Action {
  action_type: string;
  tool_name: string | null;
  tool_server: string | null;
}

/**
 * What an action is, on one line that we write: the tool, its server and the type of the action. All three are names that others
 * chose; none can pass for our words between them, or take another's room.
 */
export function ActionTitle({ action: { action_type, tool_name, tool_server } }: { action: Action }) {
  if (tool_name === null) {
    return (
      <span className="action-title">
        <Name text={action_type} />
      </span>
    );
  }
  return (
    <span className="action-title">
      <Name text={tool_name} />
      {tool_server === null ? null : (
        <>
          {' '}
          <span className="ours">on</span> <Name text={tool_server} />
        </>
      )}{' '}
      <span className="type">
        (<Hostile text={action_type} name />)
      </span>
    </span>
  );
}

/** The same for tab titles and names that are read aloud: what could be mistaken for the words between is in quotes. */
export function actionText({ action_type, tool_name, tool_server }: Action): string {
  if (tool_name === null) return named(action_type);
  return `${named(tool_name)}${tool_server === null ? '' : ` on ${named(tool_server)}`} (${named(action_type)})`;
}

/** A name in plain text of ours. Quotation marks within it are replaced by their codes. */
export const named = (text: string): string => (/^[\w.:/@-]+$/.test(text) ? text : `“${nameRead(text)}”`);

interface Target {
  agent_id: string;
  agent_role: string;
  method: string | null;
  resource: string | null;
}

/**
 * Who wants to act, and on what: on one line, for lists. Each has a box of its own and its share of the line; none can pass for
 * another, or take its room.
 */
export function ActionTarget({ action: { agent_id, agent_role, method, resource } }: { action: Target }) {
  return (
    <Line className="dim action-target">
      <span className="ours">by</span> <Name text={agent_id} /> <span className="ours">as</span>{' '}
      <Name text={agent_role} />
      {method === null ? null : (
        <>
          {' '}
          <span className="method">
            <Name text={method} />
          </span>
        </>
      )}
      {resource === null ? null : (
        <>
          {' '}
          <span className="resource">
            <Name text={resource} />
          </span>
        </>
      )}
    </Line>
  );
}

/** The same for places where people decide: each value on a line of its own that we label, with its full text on request. */
export function ActionTargetLines({ action: { agent_id, agent_role, method, resource } }: { action: Target }) {
  const lines = [
    ['Agent', agent_id],
    ['Role', agent_role],
    ['Method', method],
    ['Resource', resource],
  ] as const;
  return (
    <dl className="facts">
      {lines.map(([name, value]) =>
        value === null ? null : (
          <Fragment key={name}>
            <dt>{name}</dt>
            <dd className="mono">
              <Clamped text={value} what={`the ${name.toLowerCase()}`} name />
            </dd>
          </Fragment>
        ),
      )}
    </dl>
  );
}

/** What the agent says about it, marked as the agent's words. */
export function AgentSays({ text }: { text: string }) {
  return (
    <Line className="dim">
      <span className="says">The agent says</span> “<Hostile text={text} />”
    </Line>
  );
}
