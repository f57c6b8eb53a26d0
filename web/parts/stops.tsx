import { Button } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { IconHandStop } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import type { StopKind } from '../../server/domain/stops.ts';
import { later } from '../lib/later.tsx';
import { useMe } from '../lib/session.ts';
import { type Answers, trpc } from '../lib/trpc.ts';
import { Hostile } from '../ui/hostile.tsx';
import { Notice } from '../ui/notice.tsx';

/** Every page has only the button; the form is loaded when it is pressed. */
const StopDialog = later(async () => (await import('./stop-dialog.tsx')).default);

export type Stop = Answers['stops']['list']['stops'][number];

export const KIND_WORDS: Record<StopKind, string> = {
  agent: 'Agent',
  role: 'Agent role',
  tool: 'Tool',
  tool_server: 'Tool server',
  session: 'Session',
  proxy: 'Proxy',
  tenant: 'Everything',
};

/** What is stopped, in words. */
export function TargetOf({ stop }: { stop: Pick<Stop, 'target_kind' | 'target_id'> }) {
  if (stop.target_kind === 'tenant') return <>everything</>;
  return (
    <>
      {KIND_WORDS[stop.target_kind].toLowerCase()}{' '}
      <span className="mono">
        <Hostile text={stop.target_id} />
      </span>
    </>
  );
}

/** Shows everyone, on every page, what is stopped. */
export function StopBanner() {
  const { data } = useQuery(trpc.stops.list.queryOptions({ in_force: 'true', limit: 4 }, { refetchInterval: 30_000 }));
  const stops = data?.stops ?? [];
  if (stops.length === 0) return null;
  const [first] = stops;
  return (
    <div style={{ marginBottom: 'var(--mantine-spacing-md)' }}>
      <Notice
        tone="bad"
        urgent
        title={
          stops.length === 1
            ? 'A stop is in force'
            : `${data?.has_more ? 'More than 4' : stops.length} stops are in force`
        }
      >
        <span style={{ overflowWrap: 'anywhere' }}>
          {first!.mode === 'deny' ? 'Denied: ' : 'Held for a person: '}
          <TargetOf stop={first!} />
          {'. '}
          <Hostile text={first!.reason} /> <Link to="/stops">{stops.length === 1 ? 'See it' : 'See all of them'}</Link>
        </span>
      </Notice>
    </div>
  );
}

/** The form that stops something, with its target filled in. */
export function PreparedStop({ target, onClose }: { target: { kind: StopKind; id: string }; onClose: () => void }) {
  return <StopDialog target={target} onClose={onClose} />;
}

/** The button that stops something, for those who may. */
export function StopButton({ fullWidth = false }: { fullWidth?: boolean }) {
  const me = useMe();
  const [opened, dialog] = useDisclosure();
  if (!me.has('approver')) return null;
  return (
    <>
      <Button
        {...(fullWidth ? { variant: 'default' } : { color: 'red.8' })}
        size={fullWidth ? 'compact-sm' : 'sm'}
        fullWidth={fullWidth}
        leftSection={
          <IconHandStop size={16} color={fullWidth ? 'var(--mantine-color-error)' : undefined} aria-hidden />
        }
        onClick={dialog.open}
      >
        Stop…
      </Button>
      {opened ? <StopDialog onClose={dialog.close} /> : null}
    </>
  );
}
