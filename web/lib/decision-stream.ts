import { useCallback, useEffect, useRef, useState } from 'react';
import { onHint } from './live.ts';
import { type Answers, api, type Inputs } from './trpc.ts';

export type DecisionRow = Answers['events']['list']['events'][number];
type Filters = Omit<Inputs['events']['list'], 'order' | 'after' | 'limit'>;

const PAGE = 60;
/** When new decisions arrive, only this many are kept. */
const MAX_ROWS = 2_000;

/**
 * The decisions that match, newest first: the existing ones and new ones as they arrive, in order and each once. A hint only says
 * that there is more; the log is then read on from where the last read ended.
 */
export function useStream(filters: Filters) {
  const [rows, setRows] = useState<DecisionRow[]>();
  const [waiting, setWaiting] = useState<DecisionRow[]>([]);
  const [paused, setPaused] = useState(false);
  const [error, setError] = useState<unknown>();
  const [olderFrom, setOlderFrom] = useState<string | null>(null);
  const [loadingOlder, setLoadingOlder] = useState(false);
  const [attempt, setAttempt] = useState(0);
  const isPaused = useRef(paused);
  isPaused.current = paused;
  const seen = useRef(new Set<string>());
  const arrived = useRef(new Set<string>());
  const key = JSON.stringify(filters);

  // biome-ignore lint/correctness/useExhaustiveDependencies: the key is the filters' content; an attempt asks again
  useEffect(() => {
    let gone = false;
    let cursor: string | undefined;
    let reading = false;
    let again = false;
    seen.current = new Set();
    arrived.current = new Set();
    setRows(undefined);
    setWaiting([]);
    setError(undefined);

    const add = (events: DecisionRow[]) => {
      const fresh = events.filter(({ id }) => !seen.current.has(id)).reverse();
      for (const { id } of fresh) {
        seen.current.add(id);
        arrived.current.add(id);
      }
      if (fresh.length === 0) return;
      if (isPaused.current) setWaiting((old) => [...fresh, ...old].slice(0, MAX_ROWS));
      else setRows((old = []) => [...fresh, ...old].slice(0, MAX_ROWS));
    };
    const readOn = async () => {
      if (reading || gone || cursor === undefined) {
        again = true;
        return;
      }
      reading = true;
      try {
        for (;;) {
          again = false;
          const page = await api.events.list.query({ ...filters, order: 'asc', after: cursor, limit: 200 });
          if (gone) return;
          add(page.events);
          cursor = page.next_cursor ?? cursor;
          if (!page.has_more && !again) break;
        }
      } catch {
        // the next hint, or a reconnect, reads on from the same place
      } finally {
        reading = false;
      }
    };
    const begin = async () => {
      try {
        const page = await api.events.list.query({ ...filters, limit: PAGE });
        if (gone) return;
        for (const { id } of page.events) seen.current.add(id);
        setRows(page.events);
        setOlderFrom(page.has_more ? page.next_cursor : null);
        cursor = page.end_cursor;
        if (again) await readOn();
      } catch (fault) {
        if (!gone) setError(fault);
      }
    };
    void begin();
    const stop = onHint(({ topic }) => (topic === 'events' || topic === '*') && void readOn());
    return () => {
      gone = true;
      stop();
    };
  }, [key, attempt]);

  const toggle = useCallback(() => {
    setPaused(!paused);
    if (!paused) return;
    setRows((old = []) => [...waiting, ...old].slice(0, MAX_ROWS));
    setWaiting([]);
  }, [paused, waiting]);

  const older = async () => {
    if (!olderFrom) return;
    setLoadingOlder(true);
    try {
      const page = await api.events.list.query({ ...filters, after: olderFrom, limit: PAGE });
      for (const { id } of page.events) seen.current.add(id);
      setRows((old = []) => [...old, ...page.events]);
      setOlderFrom(page.has_more ? page.next_cursor : null);
    } catch (fault) {
      setError(fault);
    } finally {
      setLoadingOlder(false);
    }
  };

  return {
    rows,
    error,
    paused,
    toggle,
    waiting: waiting.length,
    older: olderFrom ? () => void older() : undefined,
    loadingOlder,
    isNew: (id: string) => arrived.current.has(id),
    retry: () => setAttempt((n) => n + 1),
  };
}
