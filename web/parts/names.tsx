import { Hostile } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';

/** The name of an agent, which leads to its page. */
export const AgentLink = ({ id, plain = false }: { id: string; plain?: boolean }) => (
  <PageLink to="/agents/agent" search={{ id }} {...(plain && { c: 'inherit', inherit: true })}>
    <Hostile text={id} name />
  </PageLink>
);

/** The id of a session, which leads to what happened in it: of one agent, where it is known. */
export const SessionLink = ({ id, agent }: { id: string; agent?: string | undefined }) => (
  <PageLink to="/sessions/session" search={{ id, ...(agent !== undefined && { agent }) }}>
    <Hostile text={id} />
  </PageLink>
);

/** The name of a tool, which leads to its page: that of its definition on a server, or what is known of the name. */
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

/** A rule of a policy leads to the rules of its policy; those of the server itself have none. */
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
