import { useSyncExternalStore } from 'react';
import { queryClient } from './query.ts';
import { trpc } from './trpc.ts';

/**
 * Hints of the server that something changed (GET /v1/stream) make the queries that show it ask again.
 *
 * A browser opens few connections to one server, so one tab listens for all: the one that holds the lock tells the
 * others. Where there are no locks (plain http on another host) each tab listens for itself.
 */
type Hint = { topic: string; id: string };

/** What a hint makes stale. */
const STALE: Record<string, () => readonly { queryKey?: unknown }[]> = {
  events: () => [trpc.events.summary.pathFilter(), trpc.events.list.pathFilter()],
  holds: () => [trpc.escrow.pathFilter(), trpc.machines.escrow.pathFilter()],
  policies: () => [trpc.policies.pathFilter(), trpc.machines.policy.pathFilter()],
  settings: () => [
    trpc.sso.pathFilter(),
    trpc.tokenIssuers.pathFilter(),
    trpc.settings.pathFilter(),
    trpc.machines.pathFilter(),
  ],
  members: () => [
    trpc.users.pathFilter(),
    trpc.invites.pathFilter(),
    trpc.sessions.pathFilter(),
    trpc.auth.me.pathFilter(),
    trpc.people.pathFilter(),
    trpc.machines.pathFilter(),
  ],
  deliveries: () => [trpc.subscriptions.pathFilter()],
  keys: () => [trpc.keys.pathFilter(), trpc.agentKeys.pathFilter()],
};
/** Hints that come together are acted on together. */
const GATHER_MS = 250;

const listeners = new Set<(hint: Hint) => void>();
const watchers = new Set<() => void>();
let state: 'connecting' | 'live' | 'off' = 'off';
let stop: (() => void) | undefined;
const gathered = new Set<string>();

/** Hears every hint; returns how to stop hearing. */
export function onHint(listener: (hint: Hint) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useLive(): typeof state {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => state,
  );
}

function become(next: typeof state): void {
  state = next;
  for (const watcher of watchers) watcher();
}

function act(hint: Hint): void {
  for (const listener of listeners) listener(hint);
  if (gathered.size === 0) {
    setTimeout(() => {
      const topics = [...gathered];
      gathered.clear();
      if (topics.includes('*')) void queryClient.invalidateQueries();
      else {
        for (const topic of topics) {
          for (const filter of STALE[topic]?.() ?? []) void queryClient.invalidateQueries(filter as object);
        }
      }
    }, GATHER_MS);
  }
  gathered.add(hint.topic);
}

/** Begins to listen, until the returned function is called. Safe to call again while it listens. */
export function startLive(): () => void {
  stop?.();
  const gone = new AbortController();
  const channel = new BroadcastChannel('svc-live');
  channel.onmessage = ({ data }: MessageEvent<Hint | { alive: true }>) => {
    if ('alive' in data) become('live');
    else act(data);
  };
  become('connecting');
  const lead = () => listen(gone.signal, channel);
  if (navigator.locks) {
    // resolves never: the lock is held until the tab ends or stops listening
    navigator.locks.request('svc-live', { signal: gone.signal }, lead).catch(() => undefined);
    // another tab leads already, and its hints come by the channel
    navigator.locks
      .query()
      .then(({ held }) => held?.some(({ name }) => name === 'svc-live') && state === 'connecting' && become('live'))
      .catch(() => undefined);
  } else void lead();
  stop = () => {
    gone.abort();
    channel.close();
    gathered.clear();
    become('off');
    stop = undefined;
  };
  return stop;
}

/** Nothing more is heard, and what was heard and not acted on yet is forgotten. */
export function stopLive(): void {
  stop?.();
}

function listen(signal: AbortSignal, channel: BroadcastChannel): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  const source = new EventSource('/v1/stream');
  let greeted = false;
  source.addEventListener('hello', () => {
    become('live');
    channel.postMessage({ alive: true });
    // whatever happened while nobody listened
    if (greeted) {
      channel.postMessage({ topic: '*', id: '' });
      act({ topic: '*', id: '' });
    }
    greeted = true;
  });
  source.addEventListener('hint', ({ data }: MessageEvent<string>) => {
    const hint = JSON.parse(data) as Hint;
    channel.postMessage(hint);
    act(hint);
  });
  source.onerror = () => become('connecting');
  return new Promise((resolve) =>
    signal.addEventListener('abort', () => {
      source.close();
      resolve();
    }),
  );
}
