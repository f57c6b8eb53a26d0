import { useSyncExternalStore } from 'react';
import { onSignedOut, queryClient } from './query.ts';
import { meOptions } from './session.ts';
import { trpc } from './trpc.ts';

/**
 * Refetches queries when the server hints that their data changed (GET /v1/stream).
 *
 * A browser opens few connections to one server, so one tab listens for all tabs of a person: the one that holds the
 * lock. It forwards hints and the connection state to the others. Where there are no locks (plain http on another
 * host) each tab listens for itself.
 */
type Hint = { topic: string; id: string };
type State = 'connecting' | 'live' | 'off';

/** Messages between tabs. */
type Message = { who: string } & (
  | { say: 'hint'; hint: Hint }
  /** The connection state of the listening tab; repeated with every heartbeat of the server. */
  | { say: 'state'; state: State }
  /** A tab now shows data to `who`. */
  | { say: 'begin' }
  /** The session is over. */
  | { say: 'end' }
);
/** A message, without the person: this tab adds its own. */
type Said = Message extends infer One ? (One extends unknown ? Omit<One, 'who'> : never) : never;

/** The queries that each hint invalidates. */
const STALE: Record<string, (ids: ReadonlySet<string>) => readonly { queryKey?: unknown }[]> = {
  events: () => [trpc.events.summary.pathFilter(), trpc.events.list.pathFilter()],
  holds: (ids) => {
    if (ids.has('') || ids.size > MOST_SINGLE) return [trpc.escrow.pathFilter(), trpc.machines.escrow.pathFilter()];
    return [
      ...[...ids].flatMap((id) => [trpc.escrow.get.queryFilter({ id }), trpc.machines.escrow.queryFilter({ id })]),
      trpc.escrow.groups.pathFilter(),
      trpc.escrow.similar.pathFilter(),
      // the long list updates these few holds in place
      {
        ...trpc.escrow.list.pathFilter(),
        predicate: ({ queryKey }: { queryKey: readonly unknown[] }) => !isPaged(queryKey),
      },
    ];
  },
  policies: () => [
    trpc.policies.pathFilter(),
    trpc.pendingComments.pathFilter(),
    trpc.lists.pathFilter(),
    trpc.simulations.pathFilter(),
    trpc.machines.policy.pathFilter(),
  ],
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
  tools: () => [trpc.tools.pathFilter()],
  stops: () => [trpc.stops.pathFilter(), trpc.escrow.pathFilter()],
  keys: () => [trpc.keys.pathFilter(), trpc.agentKeys.pathFilter(), trpc.people.pathFilter()],
};
/** Up to this many changes at once are fetched one by one; beyond that, the whole lists are refetched. */
export const MOST_SINGLE = 10;
/** Query keys end with this if a dashboard page keeps the list's pages up to date by itself. */
export const PAGES = 'pages';
const isPaged = (queryKey: readonly unknown[]) => queryKey.at(-1) === PAGES;

/** For the `meta` of a query that is recorded as a look by the person each time it is requested: it is fetched only once. */
export const RECORDED = { recorded: true };
const EVERYTHING = { predicate: ({ meta }: { meta?: Record<string, unknown> | undefined }) => !meta?.recorded };

const CHANNEL = 'svc-live';
/** Hints within this time are handled together. */
const GATHER_MS = 250;
/** The server sends a heartbeat every 15 s. Without one for this long, the connection is considered dead. */
const SILENCE_MS = 40_000;
const LOOK_MS = 5_000;
/** The first delay before reconnecting; doubled after each failure. */
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;

const listeners = new Set<(hint: Hint) => void>();
const watchers = new Set<() => void>();
const gathered = new Map<string, Set<string>>();
let state: State = 'off';
let running: { stop(): void } | undefined;
/** The person whose data this page shows. */
let shownTo: string | undefined;

/** Subscribes to hints; returns a function that unsubscribes. */
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
      const filters = topics.some(([topic]) => topic === '*')
        ? [EVERYTHING]
        : topics.flatMap(([topic, ids]) => STALE[topic]?.(ids) ?? []);
      for (const filter of filters) askAgain(filter as object);
    }, GATHER_MS);
  }
  const ids = gathered.get(hint.topic) ?? new Set();
  gathered.set(hint.topic, ids.add(hint.id));
}

function askAgain(filter: object): void {
  // A pending response may be older than the hint. Its request is not cancelled, because a person may be waiting for it, such as
  // for the next page; the query is refetched afterwards.
  for (const { promise, queryKey } of queryClient.getQueryCache().findAll({ ...filter, fetchStatus: 'fetching' })) {
    promise?.then(() => queryClient.invalidateQueries({ queryKey, exact: true })).catch(() => undefined);
  }
  void queryClient.invalidateQueries(filter, { cancelRefetch: false });
}

/** Starts listening for a person, until the returned function is called. May be called again while listening. */
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
  // a laptop that slept, or a network that vanished, does not close the connection; it only falls silent
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

/** Stops listening and drops pending hints. Returns a function that resumes. */
export function pauseLive(): () => void {
  running?.stop();
  return () => {
    if (shownTo !== undefined) startLive(shownTo);
  };
}

/** Ends the session in all tabs. */
export function endLive(): void {
  running?.stop();
  if (shownTo === undefined) return;
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage({ say: 'end', who: shownTo } satisfies Message);
  channel.close();
}

/** Another person signed in: this page shows data that is not theirs, and actions here would run as them. */
function leave(): void {
  window.location.assign('/');
}

/** Keeps the stream open by reconnecting. */
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
      // changes may have been missed since the last connection, of any tab, or since this page was loaded
      tell.hint({ topic: '*', id: '' });
    });
    opened.addEventListener('beat', () => tell.state('live'));
    opened.addEventListener('hint', ({ data }: MessageEvent<string>) => tell.hint(JSON.parse(data) as Hint));
    opened.onerror = () => {
      const refused = opened.readyState === EventSource.CLOSED;
      opened.close();
      tell.state('connecting');
      // with jitter, because many browsers may have lost the same server
      again = setTimeout(open, pause * (0.5 + Math.random()));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      // the reason is unknown; if the session ended, this leads to the sign-in page
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
