import { useSyncExternalStore } from 'react';
import { onSignedOut, queryClient } from './query.ts';
import { meOptions } from './session.ts';
import { trpc } from './trpc.ts';

/**
 * Hints of the server that something changed (GET /v1/stream) make the queries that show it ask again.
 *
 * A browser opens few connections to one server, so one tab listens for all tabs of a person: the one that holds the
 * lock. It tells the others what it hears and how its connection stands. Where there are no locks (plain http on another
 * host) each tab listens for itself.
 */
type Hint = { topic: string; id: string };
type State = 'connecting' | 'live' | 'off';

/** What tabs tell each other. */
type Message = { who: string } & (
  | { say: 'hint'; hint: Hint }
  /** How the connection of the tab that listens stands; again with every sign of life from the server. */
  | { say: 'state'; state: State }
  /** A tab begins to show things to `who`. */
  | { say: 'begin' }
  /** The session is over. */
  | { say: 'end' }
);
/** A message of this tab's own person. */
type Said = Message extends infer One ? (One extends unknown ? Omit<One, 'who'> : never) : never;

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
  deliveries: () => [trpc.subscriptions.pathFilter(), trpc.machines.delivery.pathFilter()],
  keys: () => [trpc.keys.pathFilter(), trpc.agentKeys.pathFilter()],
};
const CHANNEL = 'svc-live';
/** Hints that come together are acted on together. */
const GATHER_MS = 250;
/** The server gives a sign of life every 15 s. After this long without one the connection is taken for dead. */
const SILENCE_MS = 40_000;
const LOOK_MS = 5_000;
/** From a break to the next try: this at first, twice as long after each that fails. */
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;

const listeners = new Set<(hint: Hint) => void>();
const watchers = new Set<() => void>();
const gathered = new Set<string>();
let state: State = 'off';
let running: { stop(): void } | undefined;
/** Whom this page shows things to. */
let shownTo: string | undefined;

/** Hears every hint; returns how to stop hearing. */
export function onHint(listener: (hint: Hint) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useLive(): State {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => state,
  );
}

function become(next: State): void {
  state = next;
  for (const watcher of watchers) watcher();
}

function act(hint: Hint): void {
  for (const listener of listeners) listener(hint);
  if (gathered.size === 0) {
    setTimeout(() => {
      const topics = [...gathered];
      gathered.clear();
      const filters = topics.includes('*') ? [{}] : topics.flatMap((topic) => STALE[topic]?.() ?? []);
      for (const filter of filters) askAgain(filter as object);
    }, GATHER_MS);
  }
  gathered.add(hint.topic);
}

function askAgain(filter: object): void {
  // An answer that is on its way may be older than the hint. What asked for it is not cut off, since it may be somebody
  // who wants the next page: it is asked again afterwards.
  for (const { promise, queryKey } of queryClient.getQueryCache().findAll({ ...filter, fetchStatus: 'fetching' })) {
    promise?.then(() => queryClient.invalidateQueries({ queryKey, exact: true })).catch(() => undefined);
  }
  void queryClient.invalidateQueries(filter, { cancelRefetch: false });
}

/** Begins to listen for a person, until the returned function is called. Safe to call again while it listens. */
export function startLive(who: string): () => void {
  running?.stop();
  shownTo ??= who;
  if (shownTo !== who) leave();
  const gone = new AbortController();
  const channel = new BroadcastChannel(CHANNEL);
  const say = (what: Said) => channel.postMessage({ ...what, who } as Message);
  const share = navigator.locks ? say : () => undefined;
  let connection: { reopen(): void } | undefined;
  let heardAt = 0;
  const hear = (next: State) => {
    heardAt = Date.now();
    if (state !== next) become(next);
  };

  channel.onmessage = ({ data }: MessageEvent<Message>) => {
    if (data.who !== who) {
      if (data.say === 'begin') leave();
    } else if (data.say === 'hint') act(data.hint);
    else if (data.say === 'state') hear(data.state);
    else if (data.say === 'end') onSignedOut.go();
    else if (connection) share({ say: 'state', state });
  };
  become('connecting');
  say({ say: 'begin' });

  const listen = () =>
    new Promise<void>((resolve) => {
      if (gone.signal.aborted) return resolve();
      const opened = connect({
        state: (next) => {
          hear(next);
          share({ say: 'state', state: next });
        },
        hint: (hint) => {
          act(hint);
          share({ say: 'hint', hint });
        },
      });
      connection = opened;
      gone.signal.addEventListener('abort', () => {
        opened.close();
        resolve();
      });
    });
  // the lock is held until the tab ends or stops listening; then the next tab gets it
  if (navigator.locks) {
    navigator.locks.request(`${CHANNEL} ${who}`, { signal: gone.signal }, listen).catch(() => undefined);
  } else void listen();
  // a laptop that slept, or a network that vanished, breaks no connection; it only falls silent
  const look = setInterval(() => {
    if (state !== 'live' || Date.now() - heardAt < SILENCE_MS) return;
    become('connecting');
    connection?.reopen();
  }, LOOK_MS);

  const stop = () => {
    if (gone.signal.aborted) return;
    gone.abort();
    clearInterval(look);
    channel.close();
    gathered.clear();
    become('off');
    running = undefined;
  };
  running = { stop };
  return stop;
}

/** Nothing more is heard, and what was heard and not acted on yet is forgotten. Returns how to go on. */
export function pauseLive(): () => void {
  running?.stop();
  return () => {
    if (shownTo !== undefined) startLive(shownTo);
  };
}

/** The session is over, for all tabs. */
export function endLive(): void {
  running?.stop();
  if (shownTo === undefined) return;
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage({ say: 'end', who: shownTo } satisfies Message);
  channel.close();
}

/** Somebody else has signed in: nothing that this page shows is theirs, and what is done here would be done as them. */
function leave(): void {
  window.location.assign('/');
}

/** The stream, again and again. */
function connect(tell: { state(next: State): void; hint(hint: Hint): void }) {
  let source: EventSource;
  let again: ReturnType<typeof setTimeout> | undefined;
  let pause = FIRST_PAUSE_MS;
  const open = () => {
    const opened = new EventSource('/v1/stream');
    source = opened;
    opened.addEventListener('hello', () => {
      pause = FIRST_PAUSE_MS;
      tell.state('live');
      // nobody knows what happened since the last connection, another tab's too, or since this page was loaded
      tell.hint({ topic: '*', id: '' });
    });
    opened.addEventListener('beat', () => tell.state('live'));
    opened.addEventListener('hint', ({ data }: MessageEvent<string>) => tell.hint(JSON.parse(data) as Hint));
    opened.onerror = () => {
      const refused = opened.readyState === EventSource.CLOSED;
      opened.close();
      tell.state('connecting');
      // not all at once, where many browsers lost the same server
      again = setTimeout(open, pause * (0.5 + Math.random()));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      // why is not told: when the session is over, this leads to the sign-in page
      if (refused) queryClient.fetchQuery({ ...meOptions(), staleTime: 0 }).catch(() => undefined);
    };
  };
  const close = () => {
    clearTimeout(again);
    source.close();
  };
  open();
  return {
    close,
    reopen() {
      close();
      open();
    },
  };
}
