import { Skeleton } from '@mantine/core';
import { type ComponentProps, lazy, Suspense } from 'react';

const CodeEditor = lazy(() => import('./code-editor.tsx'));

/** The editor of policy texts, whose code is loaded when one is first shown. */
export function Editor(props: ComponentProps<typeof CodeEditor>) {
  return (
    <Suspense fallback={<Skeleton height={320} aria-label="Loading" role="status" />}>
      <CodeEditor {...props} />
    </Suspense>
  );
}
