import { Fragment } from 'react';
import { Hostile } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';

/** The name of an agent, linked to its page. */
export const AgentLink = ({ id, plain = false }: { id: string; plain?: boolean }) => (
  <PageLink to="/agents/agent" search={{ id }} {...(plain && { c: 'inherit', inherit: true })}>
    <Hostile text={id} name />
  </PageLink>
);

/** The roles of an agent. */
export const RoleNames = ({ roles }: { roles: readonly string[] }) =>
  roles.length === 0 ? (
    <span className="dim">none known</span>
  ) : (
    roles.map((role, n) => (
      <Fragment key={role}>
        {n > 0 ? ', ' : null}
        <Hostile text={role} name />
      </Fragment>
    ))
  );

/** The id of a session, linked to what happened in it: for one agent, if known. */
export const SessionLink = ({ id, agent }: { id: string; agent?: string | undefined }) => (
  <PageLink to="/sessions/session" search={{ id, ...(agent !== undefined && { agent }) }}>
    <Hostile text={id} />
  </PageLink>
);

/** The name of a tool, linked to its page: that of its definition on a server, or of the name on any server. */
export const ToolLink = ({
  name,
  server,
  plain = false,
}: {
  name: string;
  server?: string | null;
  plain?: boolean;
}) => (
  <PageLink
    to="/tools/tool"
    search={{ name, ...(typeof server === 'string' && { server }) }}
    {...(plain && { c: 'inherit', inherit: true })}
  >
    <Hostile text={name} name />
  </PageLink>
);

/** A rule, linked to the rules of its policy; the server's own rules have no link. */
export const RuleLink = ({ id, plain = false }: { id: string; plain?: boolean }) => {
  const policy = id.slice(0, Math.max(0, id.indexOf('#')));
  if (policy === '') return <Hostile text={id} />;
  return (
    <PageLink
      to="/policies/$id"
      params={{ id: policy }}
      search={{ tab: 'rules' }}
      {...(plain && { c: 'inherit', inherit: true })}
    >
      <Hostile text={id} />
    </PageLink>
  );
};
