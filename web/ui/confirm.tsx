import { Button, Group, Modal, Stack, Text, Textarea, TextInput } from '@mantine/core';
import type { KeyboardEvent, ReactNode } from 'react';
import { asReason, useServerForm } from '../lib/form.ts';
import { rescueFocus } from './focus.ts';
import { Hostile } from './hostile.tsx';

/**
 * Asks for confirmation of something irreversible. With `typed` the person must type that word; with `reason` they must
 * give a reason. The dialog stays open, with its button busy, until the action is done, and for a retry if it failed.
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
  focusAction = false,
  onConfirm,
}: {
  opened: boolean;
  onClose: () => void;
  title: string;
  children?: ReactNode;
  /** The label of the button: the action, not "OK". */
  action: string;
  danger?: boolean;
  typed?: string;
  /** A reason is one line of up to 500 characters, or `most`. A `comment` may have several lines, up to 2,000. */
  reason?: {
    label: string;
    required?: boolean;
    comment?: true;
    most?: number;
    placeholder?: string;
    description?: string;
  };
  /** The width. */
  size?: string;
  /** Focus starts on the action button: only for a dialog opened by a different key. */
  focusAction?: boolean | undefined;
  onConfirm: (reason: string) => Promise<unknown>;
}) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      size={size}
      title={
        <strong>
          <Hostile text={title} />
        </strong>
      }
      closeButtonProps={{ 'aria-label': 'Close' }}
      // focus returns to the button that opened the dialog, unless the action removed it
      onExitTransitionEnd={() => setTimeout(rescueFocus, 50)}
    >
      <Body {...{ onClose, children, action, danger, typed, reason, focusAction, onConfirm }} />
    </Modal>
  );
}

/** Typing outside any field would open the dialog with the first letter of a word, and confirm it with the space that follows. */
const noSpace = (event: KeyboardEvent) => {
  if (event.key === ' ') event.preventDefault();
};

function Body({
  onClose,
  children,
  action,
  danger,
  typed,
  reason,
  focusAction,
  onConfirm,
}: Omit<Parameters<typeof ConfirmDialog>[0], 'opened' | 'title' | 'size'>) {
  const form = useServerForm({ initialValues: { word: '', why: '' } });
  const { word, why } = form.values;
  const ready = (typed === undefined || word.trim() === typed) && (!reason?.required || why.trim() !== '');
  return (
    <form
      onSubmit={form.onSubmit(async ({ why }) => {
        if (!ready || form.submitting) return;
        await onConfirm(reason?.comment ? why.trim() : asReason(why)).then(onClose, () => undefined);
      })}
    >
      <Stack gap="sm">
        <Text component="div" className="confirm-text">
          {children}
        </Text>
        <Stack gap="sm" className="confirm-foot">
          {reason ? (
            <Textarea
              label={reason.label}
              placeholder={reason.placeholder}
              description={reason.description}
              required={reason.required}
              {...form.getInputProps('why')}
              minRows={2}
              // what is being confirmed stays in view above a long reason
              maxRows={5}
              autosize
              maxLength={reason.most ?? (reason.comment ? 2000 : 500)}
              data-autofocus={focusAction ? undefined : true}
            />
          ) : null}
          {typed === undefined ? null : (
            <TextInput
              label={
                <>
                  Type <span className="mono">{typed}</span> to confirm
                </>
              }
              {...form.getInputProps('word')}
              autoComplete="off"
              spellCheck={false}
              data-autofocus={reason ? undefined : true}
            />
          )}
          <Group justify="flex-end" gap="xs">
            {/* the irreversible action must not get the key press that opened the dialog */}
            <Button
              variant="default"
              onClick={onClose}
              data-autofocus={reason || typed || focusAction ? undefined : true}
            >
              Cancel
            </Button>
            <Button
              type="submit"
              color={danger ? 'red.8' : undefined}
              disabled={!ready}
              loading={form.submitting}
              data-autofocus={focusAction || undefined}
              {...(focusAction && { onKeyDown: noSpace, onKeyUp: noSpace })}
            >
              {action}
            </Button>
          </Group>
        </Stack>
      </Stack>
    </form>
  );
}
