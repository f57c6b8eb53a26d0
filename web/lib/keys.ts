import { useEffect, useRef } from 'react';
import { keptChoice } from './kept-choice.ts';

/** Whether single-key shortcuts are enabled: people who dictate, or who press keys unintentionally, turn them off. */
const singleKeys = keptChoice('svc-keys', ['on', 'off']);
export const useSingleKeys = singleKeys.use;

/** What a key does, as text for the list of keys, and the function. Two keys separated by a space are pressed in sequence. */
export type Keys = Readonly<Record<string, readonly [does: string, press: () => unknown]>>;

/** The keys of what is currently on the page. */
const bound = new Set<{ keys: Keys; inDialog: boolean }>();

/** The keys that do something on this page, with what each does: the list always matches. */
export const keysHere = (): [key: string, does: string][] =>
  [...bound].flatMap(({ keys }) => Object.entries(keys).map(([key, [does]]): [string, string] => [key, does]));

/** Opens the list of keys; set by the frame of the pages. */
export const keysList: { open: () => void } = { open: () => undefined };

/** How soon after the first key of a sequence the second must follow. */
const TOGETHER_MS = 1_000;
let first: { key: string; at: number } | undefined;

/**
 * INVARIANT: a key that follows the first key of a sequence never acts by itself, even if the sequence means nothing: it was not
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
 * Single keys that do something on this page. They are ignored while the user types in a field, while any dialog other than their
 * own is open, and with a modifier, which belongs to the browser; a key that is held down counts once.
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
