import { ActionIcon, Button } from '@mantine/core';
import { useClipboard } from '@mantine/hooks';
import { IconCheck, IconCopy, IconLink } from '@tabler/icons-react';
import { visible } from '../../server/lib/visible.ts';
import { Hostile } from './hostile.tsx';

/** A copy button whose icon and name confirm the copy. */
export function CopyButton({ text, label = 'Copy' }: { text: string; label?: string }) {
  const clipboard = useClipboard({ timeout: 1500 });
  const name = clipboard.copied ? 'Copied' : label;
  return (
    <ActionIcon
      variant="subtle"
      color="gray"
      size="sm"
      className="copy"
      aria-label={name}
      title={name}
      onClick={(event) => {
        event.stopPropagation();
        clipboard.copy(text);
      }}
    >
      {clipboard.copied ? <IconCheck size={15} /> : <IconCopy size={15} />}
    </ActionIcon>
  );
}

/** An id or hash, shown shortened and copied in full. */
export function Id({ value, length = 18 }: { value: string; length?: number }) {
  return (
    <span style={{ display: 'inline-flex', alignItems: 'center', gap: 4, minWidth: 0, maxWidth: '100%' }}>
      <span className="mono cut" title={visible(value)}>
        <Hostile text={value.length > length ? `${value.slice(0, length - 1)}…` : value} />
      </span>
      <CopyButton text={value} label={`Copy ${visible(value)}`} />
    </span>
  );
}

/** Copies the address of this page, without parameters meant only for this visit, such as the vote of a mailed link. */
export function CopyLink() {
  const clipboard = useClipboard({ timeout: 1500 });
  const Shape = clipboard.copied ? IconCheck : IconLink;
  return (
    <Button
      variant="default"
      leftSection={<Shape size={16} aria-hidden />}
      onClick={() => clipboard.copy(window.location.origin + window.location.pathname)}
    >
      {clipboard.copied ? 'Copied' : 'Copy link'}
    </Button>
  );
}
