import type { QueryKey } from '@tanstack/react-query';
import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from '@tanstack/react-router';
import type { PAGES } from '../server/domain/pages.ts';
import { countsOptions, listCountsOptions } from './lib/counts.ts';
import { askedBy } from './lib/decision-filter.ts';
import { endLive } from './lib/live.ts';
import { localPath } from './lib/local-path.ts';
import { takeNext, tenantIn, withoutTenant } from './lib/next.ts';
import { problemOf } from './lib/problem.ts';
import { onSignedOut, queryClient } from './lib/query.ts';
import { meOptions } from './lib/session.ts';
import { zoneNow } from './lib/time.ts';
import { trpc } from './lib/trpc.ts';
import { readAgent, readAgentFilter } from './pages/agents/search.ts';
import { readHoldFilter } from './pages/approvals/filter.ts';
import { readAuditSearch } from './pages/audit/filter.ts';
import { filterOf, readSearch } from './pages/decisions/search.ts';
import { readEvidenceSearch } from './pages/forensics/search.ts';
import { readListSearch } from './pages/lists/search.ts';
import { readOverviewSearch } from './pages/overview/search.ts';
import { readPolicyFilter, readPolicyTab } from './pages/policies/search.ts';
import { readProxy } from './pages/proxies/search.ts';
import { readSession } from './pages/sessions/search.ts';
import { readStopSearch } from './pages/stops/search.ts';
import { readSubscription } from './pages/subscriptions/search.ts';
import { readTeamSearch } from './pages/team/search.ts';
import { readTool, readToolFilter } from './pages/tools/search.ts';
import { Shell } from './parts/shell.tsx';
import { Broken, NotFound } from './ui/broken.tsx';
import { Loading } from './ui/states.tsx';

const lazy = lazyRouteComponent;

const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound });

/** Where visitors who are not signed in land; `next` is where they wanted to go. */
const signIn = createRoute({
  getParentRoute: () => root,
  path: '/sign-in',
  validateSearch: (search: Record<string, unknown>): { next?: string; error?: string; request_id?: string } => ({
    next: localPath(search.next),
    // why a sign-in through the identity provider failed; the page shows only the codes that it knows
    error: typeof search.error === 'string' ? search.error : undefined,
    request_id:
      typeof search.request_id === 'string' && /^req_\w{1,40}$/.test(search.request_id) ? search.request_id : undefined,
  }),
  component: lazy(() => import('./pages/sign-in.tsx'), 'SignIn'),
});

/** The mailed link that opened this tab. The router drops parameters that no page of its own reads, such as the tenant. */
let entered =
  tenantIn(window.location.href) === undefined
    ? undefined
    : window.location.pathname + window.location.search + window.location.hash;

/** Where a link leads that is for a different tenant than the person is signed in to. */
const otherOrganization = createRoute({
  getParentRoute: () => root,
  path: '/other-organization',
  validateSearch: (search: Record<string, unknown>): { next?: string } => ({ next: localPath(search.next) }),
  beforeLoad: async ({ search: { next } }) => {
    entered = undefined;
    const meant = next && tenantIn(next);
    if (!meant) throw redirect({ to: '/', replace: true });
    // without a session the page itself leads to the sign-in
    const me = await queryClient.ensureQueryData(meOptions()).catch(() => undefined);
    // if the person has signed in to that tenant since, they continue there
    if (me?.tenant_id === meant) throw redirect({ href: withoutTenant(next), replace: true });
  },
  component: lazy(() => import('./pages/other-organization.tsx'), 'OtherOrganization'),
});

/** Every page of a signed-in person. */
const app = createRoute({
  getParentRoute: () => root,
  id: 'app',
  component: Shell,
  notFoundComponent: NotFound,
  beforeLoad: async ({ location }) => {
    let tenant: string;
    try {
      tenant = (await queryClient.ensureQueryData(meOptions())).tenant_id;
    } catch (error) {
      if (problemOf(error).code !== 'UNAUTHENTICATED') throw error;
      const next = entered ?? (location.href === '/' ? undefined : location.href);
      throw redirect({ to: '/sign-in', search: { next } });
    }
    if (entered !== undefined && tenantIn(entered) === tenant) {
      entered = undefined;
      return;
    }
    const next = entered ?? takeNext();
    if (!next) return;
    // the target of a mailed link is in the tenant that it names, and nowhere else
    const meant = tenantIn(next);
    if (meant !== undefined && meant !== tenant) {
      throw redirect({ to: '/other-organization', search: { next }, replace: true });
    }
    throw redirect({ href: withoutTenant(next), replace: true });
  },
});

const below = { getParentRoute: () => app } as const;

/**
 * What a page reads from its address, and nothing else: any other parameters are treated as absent. The router would pass them
 * on, and the server refuses what it does not know.
 */
function only<T extends object>(read: (search: Record<string, unknown>) => T) {
  return (search: Record<string, unknown>): T => {
    const found = read(search);
    const others = Object.keys(search).filter((name) => !Object.hasOwn(found, name));
    // in the page's order, so that the same state has the same address and adds no step to the browser's history
    return { ...found, ...Object.fromEntries(others.map((name) => [name, undefined])) };
  };
}

/**
 * Prefetches a page's data while its code loads: when it is opened, or when the pointer nears its link. The page makes the same
 * query, finds its result, and shows any error. Never prefetch a query that is recorded as a look by the person.
 */
function ask(...all: readonly { queryKey: QueryKey }[]): void {
  for (const options of all) void queryClient.prefetchQuery(options);
}

/* The pages below the shell. What a page imports is loaded when it is opened, or when the pointer nears its link. */

const overview = createRoute({
  ...below,
  path: '/',
  validateSearch: only(readOverviewSearch),
  // the slowest query there
  loader: ({ location }) => {
    const { last = '24h' } = readOverviewSearch(location.search as Record<string, unknown>);
    ask(countsOptions({}, last, { now: Date.now(), zone: zoneNow(), facets: 'none' }));
  },
  component: lazy(() => import('./pages/overview/overview.tsx'), 'Overview'),
});
const start = createRoute({
  ...below,
  path: '/start',
  component: lazy(() => import('./pages/start/start.tsx'), 'Start'),
});
const decisions = createRoute({
  ...below,
  path: '/decisions',
  validateSearch: only(readSearch),
  loader: ({ location }) => {
    const filter = filterOf(readSearch(location.search as Record<string, unknown>));
    // a range up to now begins when the page is loaded
    if (!filter.last) ask(listCountsOptions(askedBy(filter, filter.since), zoneNow()));
  },
  component: lazy(() => import('./pages/decisions/decisions.tsx'), 'Decisions'),
});
const decision = createRoute({
  ...below,
  path: '/decisions/$id',
  component: lazy(() => import('./pages/decisions/decision.tsx'), 'DecisionPage'),
});
const stops = createRoute({
  ...below,
  path: '/stops',
  validateSearch: only(readStopSearch),
  component: lazy(() => import('./pages/stops/stops.tsx'), 'Stops'),
});
const policies = createRoute({
  ...below,
  path: '/policies',
  validateSearch: only(readPolicyFilter),
  component: lazy(() => import('./pages/policies/list.tsx'), 'PolicyList'),
});
const newPolicy = createRoute({
  ...below,
  path: '/policies/new',
  validateSearch: only((search: Record<string, unknown>): { template?: string; server?: string; tool?: string } =>
    typeof search.server === 'string' && typeof search.tool === 'string'
      ? { server: search.server, tool: search.tool }
      : typeof search.template === 'string'
        ? { template: search.template }
        : {},
  ),
  component: lazy(() => import('./pages/policies/new.tsx'), 'NewPolicy'),
});
const askForPolicy = ({ params: { id } }: { params: { id: string } }) =>
  ask(
    trpc.policies.get.queryOptions({ id }),
    trpc.machines.policy.queryOptions({ id }),
    trpc.settings.get.queryOptions({}),
  );
const policy = createRoute({
  ...below,
  path: '/policies/$id',
  validateSearch: only(readPolicyTab),
  loader: askForPolicy,
  component: lazy(() => import('./pages/policies/policy.tsx'), 'PolicyPage'),
});
const reviewQueue = createRoute({
  ...below,
  path: '/review',
  validateSearch: only(({ page }: Record<string, unknown>): { page?: number } =>
    Number.isInteger(page) && Number(page) > 1 ? { page: Number(page) } : {},
  ),
  component: lazy(() => import('./pages/review/queue.tsx'), 'ReviewQueue'),
});
const review = createRoute({
  ...below,
  path: '/review/$id',
  loader: askForPolicy,
  component: lazy(() => import('./pages/review/review.tsx'), 'ReviewPage'),
});
const inbox = createRoute({
  ...below,
  path: '/approvals',
  validateSearch: only(readHoldFilter),
  component: lazy(() => import('./pages/approvals/inbox.tsx'), 'Inbox'),
});
const hold = createRoute({
  ...below,
  path: '/approvals/$id',
  validateSearch: only((search: Record<string, unknown>): { vote?: 'approve' | 'deny' } =>
    search.vote === 'approve' || search.vote === 'deny' ? { vote: search.vote } : {},
  ),
  loader: ({ params: { id } }) =>
    ask(
      trpc.escrow.get.queryOptions({ id }),
      trpc.machines.escrow.queryOptions({ id }),
      trpc.settings.get.queryOptions({}),
    ),
  component: lazy(() => import('./pages/approvals/hold.tsx'), 'HoldPage'),
});

const machines = createRoute({
  ...below,
  path: '/machines',
  validateSearch: only(({ machine }: Record<string, unknown>): { machine?: string } =>
    typeof machine === 'string' ? { machine } : {},
  ),
  component: lazy(() => import('./pages/machines/machines.tsx'), 'Machines'),
});

const forensics = createRoute({
  ...below,
  path: '/forensics',
  validateSearch: only(readEvidenceSearch),
  component: lazy(() => import('./pages/forensics/forensics.tsx'), 'Forensics'),
});
const evidencePackage = createRoute({
  ...below,
  path: '/forensics/packages/$id',
  loader: ({ params: { id } }) => ask(trpc.forensics.package.queryOptions({ id })),
  component: lazy(() => import('./pages/forensics/package.tsx'), 'PackagePage'),
});

const audit = createRoute({
  ...below,
  path: '/audit',
  validateSearch: only(readAuditSearch),
  component: lazy(() => import('./pages/audit/audit.tsx'), 'Audit'),
});

const keys = createRoute({
  ...below,
  path: '/keys',
  validateSearch: only(({ kind }: Record<string, unknown>): { kind?: 'agents' | 'pipelines' } =>
    kind === 'agents' || kind === 'pipelines' ? { kind } : {},
  ),
  component: lazy(() => import('./pages/keys/keys.tsx'), 'Keys'),
});
const tools = createRoute({
  ...below,
  path: '/tools',
  validateSearch: only(readToolFilter),
  component: lazy(() => import('./pages/tools/list.tsx'), 'Tools'),
});
const tool = createRoute({
  ...below,
  path: '/tools/tool',
  validateSearch: only(readTool),
  component: lazy(() => import('./pages/tools/tool.tsx'), 'ToolPage'),
});
const agents = createRoute({
  ...below,
  path: '/agents',
  validateSearch: only(readAgentFilter),
  component: lazy(() => import('./pages/agents/agents.tsx'), 'Agents'),
});
const agent = createRoute({
  ...below,
  path: '/agents/agent',
  validateSearch: only(readAgent),
  component: lazy(() => import('./pages/agents/agent.tsx'), 'AgentPage'),
});
const lists = createRoute({
  ...below,
  path: '/lists',
  component: lazy(() => import('./pages/lists/lists.tsx'), 'ReferenceLists'),
});
const list = createRoute({
  ...below,
  path: '/lists/$name',
  validateSearch: only(readListSearch),
  component: lazy(() => import('./pages/lists/list.tsx'), 'ReferenceList'),
});
const proxies = createRoute({
  ...below,
  path: '/proxies',
  component: lazy(() => import('./pages/proxies/proxies.tsx'), 'Proxies'),
});
const proxy = createRoute({
  ...below,
  path: '/proxies/proxy',
  validateSearch: only(readProxy),
  component: lazy(() => import('./pages/proxies/proxy.tsx'), 'ProxyPage'),
});
const settings = createRoute({
  ...below,
  path: '/settings',
  component: lazy(() => import('./pages/settings/settings.tsx'), 'SettingsPage'),
});

const session = createRoute({
  ...below,
  path: '/sessions/session',
  validateSearch: only(readSession),
  component: lazy(() => import('./pages/sessions/session.tsx'), 'SessionPage'),
});
const subscriptions = createRoute({
  ...below,
  path: '/subscriptions',
  component: lazy(() => import('./pages/subscriptions/list.tsx'), 'SubscriptionList'),
});
const subscription = createRoute({
  ...below,
  path: '/subscriptions/$id',
  validateSearch: only(readSubscription),
  loader: ({ params: { id } }) => ask(trpc.subscriptions.get.queryOptions({ id })),
  component: lazy(() => import('./pages/subscriptions/subscription.tsx'), 'SubscriptionPage'),
});
const delivery = createRoute({
  ...below,
  path: '/subscriptions/$id/deliveries/$delivery',
  component: lazy(() => import('./pages/subscriptions/delivery.tsx'), 'DeliveryPage'),
});
const team = createRoute({
  ...below,
  path: '/team',
  validateSearch: only(readTeamSearch),
  component: lazy(() => import('./pages/team/team.tsx'), 'Team'),
});
const signOn = createRoute({
  ...below,
  path: '/sign-on',
  component: lazy(() => import('./pages/sign-on/sign-on.tsx'), 'SignOn'),
});
const account = createRoute({
  ...below,
  path: '/account',
  component: lazy(() => import('./pages/account/account.tsx'), 'Account'),
});

const routeTree = root.addChildren([
  signIn,
  otherOrganization,
  app.addChildren([
    overview,
    start,
    decisions,
    decision,
    policies,
    newPolicy,
    policy,
    stops,
    reviewQueue,
    review,
    inbox,
    hold,
    forensics,
    evidencePackage,
    audit,
    machines,
    keys,
    agents,
    agent,
    lists,
    list,
    proxies,
    proxy,
    tools,
    tool,
    session,
    subscriptions,
    subscription,
    delivery,
    team,
    signOn,
    settings,
    account,
  ]),
]);

export const router = createRouter({
  routeTree,
  defaultPreload: 'intent',
  defaultPendingComponent: Loading,
  defaultErrorComponent: Broken,
  defaultNotFoundComponent: NotFound,
  scrollRestoration: true,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}

// the server answers these paths with the page and no others: neither list has one that the other lacks
type Same<A, B> = [A, B] extends [B, A] ? true : [missing: Exclude<A, B>, unknown: Exclude<B, A>];
true satisfies Same<keyof (typeof router)['routesByPath'], (typeof PAGES)[number]>;

onSignedOut.go = () => {
  const { pathname, href } = router.state.location;
  if (pathname === '/sign-in') return;
  endLive();
  queryClient.clear();
  void router.navigate({ to: '/sign-in', search: { next: entered ?? (href === '/' ? undefined : href) } });
};
