import { useEffect, useRef } from 'react';
import { keptChoice } from './kept-choice.ts';

/** Whether single keys do something at all: who dictates, or presses keys without meaning to, turns them off. */
const singleKeys = keptChoice('svc-keys', ['on', 'off']);
export const useSingleKeys = singleKeys.use;

/**
 * Single keys that do something on this page. They are off while somebody types in a field, while a dialog is open other than
 * the one that they are for, and with a modifier, which belongs to the browser; a key that is kept down counts once.
 */
export function useKeys(
  keys: Readonly<Record<string, () => unknown>>,
  { inDialog = false }: { inDialog?: boolean } = {},
): void {
  const latest = useRef(keys);
  useEffect(() => {
    latest.current = keys;
  });
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
      if (singleKeys.read() === 'off') return;
      const target = event.target as Element | null;
      if (target?.closest('input, textarea, select, [contenteditable="true"]')) return;
      const dialogs = document.querySelectorAll('[role="dialog"]').length;
      if (dialogs > (inDialog ? 1 : 0)) return;
      const does = latest.current[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    };
    document.addEventListener('keydown', press);
    return () => document.removeEventListener('keydown', press);
  }, [inDialog]);
}
