import { useSyncExternalStore } from 'react';

/**
 * A choice that this browser remembers; the first option until the user chooses. Everything that shows it is notified of a
 * change.
 */
export function keptChoice<T extends string>(key: string, choices: readonly [T, ...T[]]) {
  const listeners = new Set<() => void>();
  const subscribe = (listener: () => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  };
  const read = () => choices.find((one) => one === localStorage.getItem(key)) ?? choices[0];
  const choose = (next: T) => {
    localStorage.setItem(key, next);
    for (const listener of listeners) listener();
  };
  return { read, use: (): [T, (next: T) => void] => [useSyncExternalStore(subscribe, read), choose] };
}
