import { Button, Group, Modal, NativeSelect, Stack, Text } from '@mantine/core';
import { IconHourglassEmpty, IconMoonStars } from '@tabler/icons-react';
import { type ComponentProps, Fragment, type ReactNode } from 'react';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { fullTime, useNow, useZone } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import type { Column } from '../../ui/data-table.tsx';
import { FormFoot } from '../../ui/form.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
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

/** Refetches the keys of both kinds, and their names. */
export const again = () =>
  Promise.all([trpc.keys, trpc.agentKeys, trpc.people].map((of) => queryClient.invalidateQueries(of.pathFilter())));

/** When a new key expires. The value is a number of days, or empty for never. */
export const ExpiryField = (props: Omit<ComponentProps<typeof NativeSelect>, 'label' | 'data'>) => (
  <NativeSelect label="Expires" data={CHOICES} {...props} />
);

export const expiryOf = (days: string): string | undefined =>
  days === '' ? undefined : new Date(Date.now() + Number(days) * DAY).toISOString();

/** When a key expires, highlighted if soon. */
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
function LastUsed({ at, since, by }: { at: string | undefined; since: string; by: readonly UsedBy[] }) {
  const now = useNow(60_000);
  const idle = now - new Date(at ?? since).getTime() > 90 * DAY;
  // the use of a key is recorded once a minute, a proxy's report immediately
  const last = [at, by[0]?.last_seen_at].filter((time) => time !== undefined).sort();
  return (
    <span>
      {last.length > 0 ? <When at={last.at(-1)!} /> : <span className="dim">never</span>} <ProxyNames by={by} />
      {idle ? (
        <Tag tone="wait" icon={IconMoonStars}>
          unused for 90 days
        </Tag>
      ) : null}
    </span>
  );
}

/** A proxy that reports with a key. */
export interface UsedBy {
  proxy_id: string;
  last_seen_at: string;
}

/** The proxies that report with a key, the most recent first. They chose their own names. */
export function ProxyNames({ by }: { by: readonly UsedBy[] }) {
  if (by.length === 0) return null;
  const shown = by.slice(0, 3);
  return (
    <span className="dim">
      by{' '}
      {shown.map(({ proxy_id }, n) => (
        <Fragment key={proxy_id}>
          {n > 0 ? ', ' : ''}
          <PageLink to="/proxies/proxy" search={{ id: proxy_id }}>
            <Hostile text={proxy_id} />
          </PageLink>
        </Fragment>
      ))}
      {by.length > shown.length ? ` and ${by.length - shown.length} more` : ''}
    </span>
  );
}

interface Key {
  id: string;
  created_at: string;
  last_used_at?: string;
  expires_at?: string;
}

/** The last columns of the lists of both kinds of keys. */
export const endColumns = <K extends Key>(
  rotate: (key: K) => void,
  revoke: (key: K) => void,
  usedBy: (key: K) => readonly UsedBy[] = () => [],
): Column<K>[] => [
  {
    header: 'Last used',
    cell: (key) => <LastUsed at={key.last_used_at} since={key.created_at} by={usedBy(key)} />,
  },
  { header: 'Expires', cell: ({ expires_at }) => <Expiry at={expires_at} /> },
  {
    header: 'Actions',
    align: 'right',
    cell: (key) => (
      <Group gap={6} justify="flex-end" wrap="nowrap">
        <Button size="compact-sm" variant="default" onClick={() => rotate(key)}>
          Rotate
        </Button>
        <Button size="compact-sm" variant="default" onClick={() => revoke(key)}>
          Revoke
        </Button>
      </Group>
    ),
  },
];

/** Asks for confirmation before a key is revoked. It stays open if the server refuses. */
export function RevokeDialog(props: {
  /** The name of the key to revoke, for the title; undefined while the dialog is closed. */
  what: string | undefined;
  onClose: () => void;
  revoke: (reason: string) => Promise<unknown>;
  children: ReactNode;
}) {
  const { what, onClose, revoke, children } = props;
  return (
    <ConfirmDialog
      opened={what !== undefined}
      onClose={onClose}
      title={`Revoke ${what ?? ''}`}
      action="Revoke the key"
      reason={{ label: 'Reason', required: true }}
      onConfirm={async (reason) => {
        await confirmed(() => revoke(reason));
        toastDone('Key revoked');
      }}
    >
      {children}
    </ConfirmDialog>
  );
}

const OVERLAPS = [
  { value: '0', label: 'none: the old key stops working now' },
  { value: '3600', label: '1 hour' },
  { value: '86400', label: '1 day' },
  { value: '604800', label: '7 days' },
  { value: '2592000', label: '30 days' },
];

/** Replaces a key with one that has the same rights, and asks how long the old one keeps working. */
export function RotateDialog(props: {
  /** The name of the key to rotate, for the title; undefined while the dialog is closed. */
  what: string | undefined;
  onClose: () => void;
  rotate: (overlap_seconds: number) => Promise<unknown>;
}) {
  const { what, onClose } = props;
  return (
    <Modal
      opened={what !== undefined}
      onClose={onClose}
      title={<strong>Rotate {what}</strong>}
      closeButtonProps={{ 'aria-label': 'Close' }}
    >
      {what === undefined ? null : <RotateForm {...props} />}
    </Modal>
  );
}

function RotateForm({ onClose, rotate }: Parameters<typeof RotateDialog>[0]) {
  const [zone] = useZone();
  const form = useServerForm({ initialValues: { overlap: '86400' }, pointers: { overlap: '/overlap_seconds' } });
  const seconds = Number(form.values.overlap);
  return (
    <form
      onSubmit={form.onSubmit(async () => {
        try {
          await rotate(seconds);
          onClose();
        } catch (error) {
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        <Text>
          You get a new key with the same rights, which is shown once. Whatever uses the old key must get the new one
          before the old one ends.
        </Text>
        <NativeSelect
          label="The old key works on for"
          description={
            seconds === 0
              ? 'What still uses it is refused at once'
              : `At most until ${fullTime(new Date(Date.now() + seconds * 1000), zone)}`
          }
          data={OVERLAPS}
          {...form.getInputProps('overlap')}
        />
        <FormFoot action="Rotate" fault={form.fault} busy={form.submitting} onCancel={onClose} />
      </Stack>
    </form>
  );
}
