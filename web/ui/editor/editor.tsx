import { Skeleton } from '@mantine/core';
import { later } from '../../lib/later.tsx';

/** The policy editor. */
export const Editor = later(async () => (await import('./code-editor.tsx')).default, {
  meanwhile: <Skeleton height={320} aria-label="Loading" role="status" />,
  soon: true,
});
