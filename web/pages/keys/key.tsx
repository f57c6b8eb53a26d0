import { Button, NativeSelect } from '@mantine/core';
import { IconHourglassEmpty, IconMoonStars } from '@tabler/icons-react';
import type { ComponentProps, ReactNode } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { useNow } from '../../lib/time.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import type { Column } from '../../ui/data-table.tsx';
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

/** Controls the dialog for a new key, which a button of the page opens. */
export interface Dialog {
  creating: boolean;
  close: () => void;
  create: () => void;
}

/** When a new key expires. The value is a number of days, or empty for never. */
export const ExpiryField = (props: Omit<ComponentProps<typeof NativeSelect>, 'label' | 'data'>) => (
  <NativeSelect label="Expires" data={CHOICES} {...props} />
);

export const expiryOf = (days: string): string | undefined =>
  days === '' ? undefined : new Date(Date.now() + Number(days) * DAY).toISOString();

/** When a key expires, highlighted when that is soon. */
function Expiry({ at }: { at: string | undefined }) {
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

/** When a key was last used. A key unused for 90 days is marked: it can probably be revoked. */
function LastUsed({ at, since }: { at: string | undefined; since: string }) {
  const now = useNow(60_000);
  const idle = now - new Date(at ?? since).getTime() > 90 * DAY;
  return (
    <span>
      {at ? <When at={at} /> : <span className="dim">never</span>}{' '}
      {idle ? (
        <Tag tone="wait" icon={IconMoonStars}>
          unused for 90 days
        </Tag>
      ) : null}
    </span>
  );
}

interface Key {
  created_at: string;
  last_used_at?: string;
  expires_at?: string;
}

/** The columns that the lists of both kinds of keys end with. */
export const endColumns = <K extends Key>(revoke: (key: K) => void): Column<K>[] => [
  { header: 'Last used', cell: (key) => <LastUsed at={key.last_used_at} since={key.created_at} /> },
  { header: 'Expires', cell: ({ expires_at }) => <Expiry at={expires_at} /> },
  {
    header: 'Actions',
    align: 'right',
    cell: (key) => (
      <Button size="compact-sm" variant="default" onClick={() => revoke(key)}>
        Revoke
      </Button>
    ),
  },
];

/** Asks for confirmation before a key is revoked. It stays open if the server refuses. */
export function RevokeDialog(props: {
  /** The name of what is revoked, for the title; undefined while the dialog is closed. */
  what: string | undefined;
  onClose: () => void;
  revoke: () => Promise<unknown>;
  children: ReactNode;
}) {
  const { what, onClose, revoke, children } = props;
  return (
    <ConfirmDialog
      opened={what !== undefined}
      onClose={onClose}
      title={`Revoke ${what ?? ''}`}
      action="Revoke the key"
      onConfirm={async () => {
        await confirmed(revoke);
        toastDone('Key revoked');
      }}
    >
      {children}
    </ConfirmDialog>
  );
}
