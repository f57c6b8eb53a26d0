import '@mantine/core/styles/Checkbox.css';
import { Button, Checkbox, Group, Modal, Stack } from '@mantine/core';
import { type ReactNode, useState } from 'react';
import { CodeBlock } from './code.tsx';
import { Notice } from './notice.tsx';

/** A secret that is shown only once. The dialog closes only when the reader confirms that they stored it. */
export function SecretDialog({
  secret,
  title,
  label,
  children,
  onClose,
}: {
  /** The secret; the dialog is open while there is one. */
  secret: string | undefined;
  title: string;
  /** The name of the secret, for the copy button. */
  label: string;
  children?: ReactNode;
  onClose: () => void;
}) {
  return (
    <Modal
      opened={secret !== undefined}
      onClose={onClose}
      title={<strong>{title}</strong>}
      size="lg"
      withCloseButton={false}
      closeOnClickOutside={false}
      closeOnEscape={false}
    >
      {secret === undefined ? null : <Body {...{ secret, label, children, onClose }} />}
    </Modal>
  );
}

function Body({ secret, label, children, onClose }: Omit<Parameters<typeof SecretDialog>[0], 'title'>) {
  const [stored, setStored] = useState(false);
  return (
    <Stack gap="sm">
      <Notice tone="wait" title="This is the only time it is shown">
        Only its hash is kept here.
      </Notice>
      <CodeBlock text={secret ?? ''} label={label} wrap />
      {children}
      <Checkbox label="I stored it" checked={stored} onChange={(event) => setStored(event.currentTarget.checked)} />
      <Group justify="flex-end">
        <Button disabled={!stored} onClick={onClose}>
          Done
        </Button>
      </Group>
    </Stack>
  );
}
