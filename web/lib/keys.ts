import { useEffect, useRef } from 'react';
import { keptChoice } from './kept-choice.ts';

/** Whether single keys do something at all: who dictates, or presses keys without meaning to, turns them off. */
const singleKeys = keptChoice('svc-keys', ['on', 'off']);
export const useSingleKeys = singleKeys.use;

/** What a key does, in words for the list of keys, and how. Two keys with a space between are pressed one after the other. */
export type Keys = Readonly<Record<string, readonly [does: string, press: () => unknown]>>;

/** The keys of what is on the page now. */
const bound = new Set<{ keys: Keys; inDialog: boolean }>();

/** The keys that do something on this page, with what each does: the list cannot say more or less. */
export const keysHere = (): [key: string, does: string][] =>
  [...bound].flatMap(({ keys }) => Object.entries(keys).map(([key, [does]]): [string, string] => [key, does]));

/** Opens the list of keys; set by the frame of the pages. */
export const keysList: { open: () => void } = { open: () => undefined };

/** How long after the first of two keys the second one belongs to it. */
const TOGETHER_MS = 1_000;
let first: { key: string; at: number } | undefined;

/**
 * INVARIANT: a key that follows the first of two does nothing by itself, also where the two together mean nothing: it was not
 * pressed for what it does alone.
 */
function press(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (singleKeys.read() === 'off') return;
  const target = event.target as Element | null;
  if (target?.closest('input, textarea, select, [contenteditable="true"]')) return;
  const dialogs = document.querySelectorAll('[role="dialog"]').length;
  const open = [...bound].filter(({ inDialog }) => dialogs <= (inDialog ? 1 : 0)).map(({ keys }) => keys);
  const before = first && event.timeStamp - first.at < TOGETHER_MS ? `${first.key} ` : '';
  first = undefined;
  const key = before + event.key;
  const does = open.find((keys) => Object.hasOwn(keys, key))?.[key];
  if (does) {
    event.preventDefault();
    does[1]();
  } else if (before === '' && open.some((keys) => Object.keys(keys).some((one) => one.startsWith(`${key} `)))) {
    first = { key, at: event.timeStamp };
  }
}

/**
 * Single keys that do something on this page. They are off while somebody types in a field, while a dialog is open other than
 * the one that they are for, and with a modifier, which belongs to the browser; a key that is kept down counts once.
 */
export function useKeys(keys: Keys, { inDialog = false }: { inDialog?: boolean } = {}): void {
  const own = useRef({ keys, inDialog });
  useEffect(() => {
    own.current.keys = keys;
  });
  useEffect(() => {
    const entry = own.current;
    entry.inDialog = inDialog;
    bound.add(entry);
    if (bound.size === 1) document.addEventListener('keydown', press);
    return () => {
      bound.delete(entry);
      if (bound.size === 0) document.removeEventListener('keydown', press);
    };
  }, [inDialog]);
}
