import { Button, Group, Text } from '@mantine/core';
import { IconDeviceDesktop } from '@tabler/icons-react';
import type { Answers } from '../lib/trpc.ts';
import { Hostile } from '../ui/hostile.tsx';
import { Tag } from '../ui/status.tsx';
import { When } from '../ui/time.tsx';

export type Session = Answers['sessions']['list']['sessions'][number];

/** A browser's name, from its user agent. */
function browserOf(agent: string | null): string {
  if (!agent) return 'unknown browser';
  // a browser's user agent also includes the names that follow its own in this list
  const name = ['Edg', 'OPR', 'Firefox', 'Chrome', 'Safari'].find((one) => agent.includes(`${one}/`));
  const on = /(Windows|Android|iPhone|iPad|Mac OS X|Linux)/.exec(agent)?.[1];
  const names: Record<string, string> = { Edg: 'Edge', OPR: 'Opera' };
  return name ? `${names[name] ?? name}${on ? ` on ${on.replace(' OS X', '')}` : ''}` : agent.slice(0, 60);
}

/** A person's sessions, each with a button that ends it. */
export function SessionList({ sessions, onEnd }: { sessions: readonly Session[]; onEnd: (session: Session) => void }) {
  if (sessions.length === 0) return <Text c="dimmed">Not signed in anywhere.</Text>;
  return (
    <ul className="lines">
      {sessions.map((session) => (
        <li key={session.id} style={{ paddingInline: 0 }}>
          <div className="lines-main">
            <Group gap={8}>
              <IconDeviceDesktop size={16} stroke={1.7} aria-hidden />
              <strong>
                <Hostile text={browserOf(session.user_agent)} />
              </strong>
              {session.current ? <Tag tone="ok">this one</Tag> : null}
            </Group>
            <Text size="sm" c="dimmed">
              {session.auth_method === 'oidc' ? 'single sign-on' : 'email link'}
              {session.ip ? ` · ${session.ip}` : ''} · last seen <When at={session.last_seen_at} /> · ends{' '}
              <When at={session.expires_at} />
            </Text>
          </div>
          <Button size="compact-sm" variant="default" onClick={() => onEnd(session)}>
            End
          </Button>
        </li>
      ))}
    </ul>
  );
}
