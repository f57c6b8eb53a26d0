import { useCallback, useMemo, useSyncExternalStore } from 'react';
import { type Aside, asideUntil, isAside, type Span, standing, type Waiting } from './aside.ts';
import { useMe } from './session.ts';
import { useNow } from './time.ts';

type Kept = Readonly<Record<string, Aside>>;

const MOST = 500;
const listeners = new Set<() => void>();
const subscribe = (listener: () => void) => {
  listeners.add(listener);
  window.addEventListener('storage', listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener('storage', listener);
  };
};

function read(text: string | null): Kept {
  try {
    const found: unknown = JSON.parse(text ?? '{}');
    if (typeof found !== 'object' || found === null) return {};
    return Object.fromEntries(
      Object.entries(found).filter(
        ([, one]) => Array.isArray(one) && typeof one[0] === 'number' && typeof one[1] === 'string',
      ),
    );
  } catch {
    return {};
  }
}

/** The holds that the signed-in person set aside for later, in this browser. For everybody else they wait as before. */
export function useAside() {
  const { id, tenant } = useMe();
  const key = `svc-holds-aside-${tenant}-${id}`;
  const text = useSyncExternalStore(subscribe, () => localStorage.getItem(key));
  const now = useNow(15_000);
  const kept = useMemo(() => read(text), [text]);
  const put = useCallback(
    (change: Record<string, Aside | undefined>) => {
      const entries = Object.entries({ ...read(localStorage.getItem(key)), ...change });
      const left = entries.filter(
        (entry): entry is [string, Aside] => entry[1] !== undefined && entry[1][0] > Date.now(),
      );
      localStorage.setItem(key, JSON.stringify(Object.fromEntries(left.slice(-MOST))));
      for (const listener of listeners) listener();
    },
    [key],
  );
  return {
    /** Until when it is aside; undefined where it is not. */
    of: (hold: Waiting): number | undefined => (isAside(kept[hold.id], hold, now) ? kept[hold.id]?.[0] : undefined),
    /** Whether it can be set aside now. */
    possible: (hold: Waiting) => asideUntil(hold, '15 min', now) !== undefined,
    put: (hold: Waiting, span: Span) => {
      const until = asideUntil(hold, span, Date.now());
      if (until !== undefined) put({ [hold.id]: [until, standing(hold)] });
    },
    back: (hold: Waiting) => put({ [hold.id]: undefined }),
  };
}
