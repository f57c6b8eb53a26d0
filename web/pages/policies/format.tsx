import { Button } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import type { RefObject } from 'react';
import { trpc } from '../../lib/trpc.ts';
import type { EditorHandle } from '../../ui/editor/code-editor.tsx';

/** Puts the text of an editor into the language's own form. */
export function FormatButton(props: {
  editor: RefObject<EditorHandle | null>;
  text: () => string;
  /** What does not parse has no form. */
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
