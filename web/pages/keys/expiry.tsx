import { NativeSelect } from '@mantine/core';
import { IconHourglassEmpty, IconMoonStars } from '@tabler/icons-react';
import { useNow } from '../../lib/time.ts';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

const DAY = 86_400_000;
const CHOICES = [
  { value: '', label: 'never' },
  { value: '7', label: 'in 7 days' },
  { value: '30', label: 'in 30 days' },
  { value: '90', label: 'in 90 days' },
  { value: '365', label: 'in a year' },
];

/** When a new key ends. The value is a number of days, or empty for never. */
export function ExpiryField({ value, onChange }: { value: string; onChange: (days: string) => void }) {
  return (
    <NativeSelect
      label="It expires"
      data={CHOICES}
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
}

export const expiryOf = (days: string): string | undefined =>
  days === '' ? undefined : new Date(Date.now() + Number(days) * DAY).toISOString();

/** When a key ends, and whether that is soon. */
export function Expiry({ at }: { at: string | undefined }) {
  const now = useNow(60_000);
  if (!at) return <span className="dim">never</span>;
  const left = new Date(at).getTime() - now;
  if (left > 14 * DAY) return <When at={at} />;
  return (
    <Tag tone={left < 0 ? 'bad' : 'wait'} icon={IconHourglassEmpty}>
      {left < 0 ? 'expired ' : ''}
      <When at={at} />
    </Tag>
  );
}

/** When a key was last used; one that nothing has used for 90 days is named, for it can probably go. */
export function LastUsed({ at, since }: { at: string | undefined; since: string }) {
  const now = useNow(60_000);
  const idle = now - new Date(at ?? since).getTime() > 90 * DAY;
  return (
    <span>
      {at ? <When at={at} /> : <span className="dim">never</span>}{' '}
      {idle ? (
        <Tag tone="wait" icon={IconMoonStars}>
          90 days unused
        </Tag>
      ) : null}
    </span>
  );
}
