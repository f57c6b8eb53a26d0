import { IconAlertTriangle, IconCircleCheck, IconInfoCircle } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import type { Tone } from './status.tsx';

const ICONS: Partial<Record<Tone, typeof IconInfoCircle>> = {
  ok: IconCircleCheck,
  wait: IconAlertTriangle,
  bad: IconAlertTriangle,
};

/** Something to know before one goes on. `urgent` is said at once to who cannot see it. */
export function Notice({
  tone,
  title,
  urgent = false,
  children,
}: {
  tone: Tone;
  title: string;
  urgent?: boolean;
  children?: ReactNode;
}) {
  const Shape = ICONS[tone] ?? IconInfoCircle;
  return (
    <div className="notice" data-tone={tone} role={urgent ? 'alert' : 'status'}>
      <Shape size={18} aria-hidden />
      <div>
        <strong>{title}</strong>
        <div className="notice-text">{children}</div>
      </div>
    </div>
  );
}
