import { Button, Group, Modal, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { type ReactNode, useState } from 'react';
import { rescueFocus } from './focus.ts';

/**
 * Asks before something that cannot be taken back. With `typed` the person must type that word; with `reason` they must
 * say why. The dialog stays open, with its button busy, until the work is done, and for another try when it failed.
 */
export function ConfirmDialog({
  opened,
  onClose,
  title,
  children,
  action,
  danger = true,
  typed,
  reason,
  size,
  onConfirm,
}: {
  opened: boolean;
  onClose: () => void;
  title: string;
  children?: ReactNode;
  /** What the button says: the deed, not "OK". */
  action: string;
  danger?: boolean;
  typed?: string;
  reason?: { label: string; required?: boolean; placeholder?: string };
  /** How wide it is. */
  size?: string;
  onConfirm: (reason: string) => Promise<unknown>;
}) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      size={size}
      title={<strong>{title}</strong>}
      closeButtonProps={{ 'aria-label': 'Close' }}
      // the button that opened it has the focus again by then, unless it is gone with what was done
      onExitTransitionEnd={() => setTimeout(rescueFocus, 50)}
    >
      <Body {...{ onClose, children, action, danger, typed, reason, onConfirm }} />
    </Modal>
  );
}

function Body({
  onClose,
  children,
  action,
  danger,
  typed,
  reason,
  onConfirm,
}: Omit<Parameters<typeof ConfirmDialog>[0], 'opened' | 'title' | 'size'>) {
  const [word, setWord] = useState('');
  const [why, setWhy] = useState('');
  const [busy, setBusy] = useState(false);
  const ready = (typed === undefined || word.trim() === typed) && (!reason?.required || why.trim() !== '');
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        if (!ready || busy) return;
        setBusy(true);
        onConfirm(why.trim())
          .then(onClose, () => undefined)
          .finally(() => setBusy(false));
      }}
    >
      <Stack gap="sm">
        <Text component="div">{children}</Text>
        {reason ? (
          <Textarea
            label={reason.label}
            placeholder={reason.placeholder}
            required={reason.required}
            value={why}
            onChange={(event) => setWhy(event.currentTarget.value)}
            minRows={2}
            autosize
            maxLength={2000}
            data-autofocus
          />
        ) : null}
        {typed === undefined ? null : (
          <TextInput
            label={
              <>
                Type <span className="mono">{typed}</span> to confirm
              </>
            }
            value={word}
            onChange={(event) => setWord(event.currentTarget.value)}
            autoComplete="off"
            spellCheck={false}
            data-autofocus={reason ? undefined : true}
          />
        )}
        <Group justify="flex-end" gap="xs">
          {/* what cannot be taken back is not under the key that opened the question */}
          <Button variant="default" onClick={onClose} data-autofocus={reason || typed ? undefined : true}>
            Cancel
          </Button>
          <Button type="submit" color={danger ? 'red.8' : undefined} disabled={!ready} loading={busy}>
            {action}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
