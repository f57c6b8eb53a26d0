import { Skeleton } from '@mantine/core';
import { type ComponentProps, lazy, Suspense } from 'react';

const PolicyEditor = lazy(() => import('../editor/editor.tsx'));

/** The editor of policy texts, whose code is loaded when one is first shown. */
export function Editor(props: ComponentProps<typeof PolicyEditor>) {
  return (
    <Suspense fallback={<Skeleton height={320} aria-label="Loading" role="status" />}>
      <PolicyEditor {...props} />
    </Suspense>
  );
}
