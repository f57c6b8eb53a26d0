import { Button } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import type { RefObject } from 'react';
import { trpc } from '../../lib/trpc.ts';
import type { EditorHandle } from '../../ui/editor/code-editor.tsx';

/** Formats the text of an editor in Cedar's standard style. */
export function FormatButton(props: {
  editor: RefObject<EditorHandle | null>;
  text: () => string;
  /** Text that does not parse cannot be formatted. */
  disabled: boolean;
}) {
  const format = useMutation(
    trpc.policies.format.mutationOptions({
      onSuccess: ({ formatted }) => formatted !== undefined && props.editor.current?.replace(formatted),
    }),
  );
  return (
    <Button
      variant="default"
      disabled={props.disabled}
      loading={format.isPending}
      onClick={() => format.mutate({ dsl_source: props.text() })}
    >
      Format
    </Button>
  );
}
