import { nameRead } from '../../server/lib/visible.ts';
import { Hostile, Line, Name } from '../ui/hostile.tsx';

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
        (<Hostile text={action_type} />)
      </span>
    </span>
  );
}

/** The same for the title of a tab, and for names that are read aloud: what could be taken for the words between stands in quotes. */
export function actionText({ action_type, tool_name, tool_server }: Action): string {
  if (tool_name === null) return named(action_type);
  return `${named(tool_name)}${tool_server === null ? '' : ` on ${named(tool_server)}`} (${named(action_type)})`;
}

/** A name in a plain text of ours. */
export const named = (text: string): string =>
  /^[\w.:/@-]+$/.test(text) ? text : `“${nameRead(text).replaceAll(/[“”]/g, '"')}”`;

/** Who wants to act, and on what: on one line. */
export function ActionTarget({
  action: { agent_id, agent_role, method, resource },
}: {
  action: { agent_id: string; agent_role: string; method: string | null; resource: string | null };
}) {
  return (
    <Line className="dim">
      by <Name text={agent_id} /> as <Hostile text={agent_role} />
      {method === null ? null : (
        <>
          {' · '}
          <Hostile text={method} />
        </>
      )}
      {resource === null ? null : (
        <>
          {' · '}
          <Hostile text={resource} />
        </>
      )}
    </Line>
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
