import { useIntersection } from '@mantine/hooks';
import { useRef } from 'react';

/** Whether somebody has come near an element: what is far down a page, and costs the server much, is asked for then. */
export function useNear() {
  const { ref, entry } = useIntersection({ rootMargin: '200px' });
  const near = useRef(false);
  near.current ||= entry?.isIntersecting ?? false;
  return { ref, near: near.current };
}
