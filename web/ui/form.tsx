import { Button, Group, Text, Textarea, type TextareaProps } from '@mantine/core';
import type { ReactNode } from 'react';

/** The end of a form: errors that belong to no field, and the buttons. */
export function FormFoot({
  fault,
  action,
  busy,
  disabled,
  danger = false,
  onCancel,
}: {
  fault?: ReactNode;
  /** The label of the submit button. */
  action: string;
  busy: boolean;
  disabled?: boolean;
  danger?: boolean;
  onCancel?: () => void;
}) {
  return (
    <>
      {fault ? (
        <Text c="var(--mantine-color-error)" role="alert">
          {fault}
        </Text>
      ) : null}
      <Group justify="flex-end" gap="xs">
        {onCancel ? (
          <Button variant="default" onClick={onCancel}>
            Cancel
          </Button>
        ) : null}
        <Button type="submit" color={danger ? 'red.8' : undefined} loading={busy} disabled={disabled}>
          {action}
        </Button>
      </Group>
    </>
  );
}

/** Why the user changes what protects others: required by the server, and in the audit log. */
export const ReasonField = (props: TextareaProps) => (
  <Textarea
    label="Reason"
    description="It goes into the audit log"
    required
    autosize
    minRows={2}
    maxLength={500}
    {...props}
  />
);
