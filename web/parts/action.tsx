import { Fragment } from 'react';
import { nameRead } from '../../server/lib/visible.ts';
import { Clamped, Hostile, Line, Name } from '../ui/hostile.tsx';

interface Action {
  action_type: string;
  tool_name: string | null;
  tool_server: string | null;
}

/**
 * What an action is, on one line that we write: the tool, its server and the type of the action. Each of the three is a name
 * that others chose; none can look like the words between them, or take the room of another one.
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

/** The same for the title of a tab, and for names that are read aloud: what could be taken for the words between stands in quotes. */
export function actionText({ action_type, tool_name, tool_server }: Action): string {
  if (tool_name === null) return named(action_type);
  return `${named(tool_name)}${tool_server === null ? '' : ` on ${named(tool_server)}`} (${named(action_type)})`;
}

/** A name in a plain text of ours. Quotation marks of its own stand there by their code. */
export const named = (text: string): string => (/^[\w.:/@-]+$/.test(text) ? text : `“${nameRead(text)}”`);

interface Target {
  agent_id: string;
  agent_role: string;
  method: string | null;
  resource: string | null;
}

/**
 * Who wants to act, and on what: on one line, for lists. Each has a box of its own and its share of the line; none can look
 * like another one, or take its room.
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

/** The same where somebody decides: each on a line of its own that we name, with all of it on request. */
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

/** What the agent says of it, marked as its words. */
export function AgentSays({ text }: { text: string }) {
  return (
    <Line className="dim">
      <span className="says">The agent says</span> “<Hostile text={text} />”
    </Line>
  );
}
