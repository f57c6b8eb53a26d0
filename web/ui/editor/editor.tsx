import { Skeleton } from '@mantine/core';
import { type ComponentProps, lazy, Suspense } from 'react';

const CodeEditor = lazy(() => import('./code-editor.tsx'));

/** The policy editor, loaded on first use. */
export function Editor(props: ComponentProps<typeof CodeEditor>) {
  return (
    <Suspense fallback={<Skeleton height={320} aria-label="Loading" role="status" />}>
      <CodeEditor {...props} />
    </Suspense>
  );
}
