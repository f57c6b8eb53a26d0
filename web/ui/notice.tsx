import { IconAlertTriangle, IconCircleCheck, IconInfoCircle } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import type { Tone } from './status.tsx';

const ICONS: Partial<Record<Tone, typeof IconInfoCircle>> = {
  ok: IconCircleCheck,
  wait: IconAlertTriangle,
  bad: IconAlertTriangle,
};

/** A message that matters before continuing. `urgent` messages are announced to screen readers immediately. */
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
