import { useIntersection } from '@mantine/hooks';
import { useRef } from 'react';

/** Whether the user has scrolled near an element: what is far down a page and expensive for the server is requested only then. */
export function useNear() {
  const { ref, entry } = useIntersection({ rootMargin: '200px' });
  const near = useRef(false);
  near.current ||= entry?.isIntersecting ?? false;
  return { ref, near: near.current };
}
