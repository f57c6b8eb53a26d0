import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from '@tanstack/react-router';
import { problemOf } from './lib/errors.tsx';
import { localPath, takeNext } from './lib/next.ts';
import { onSignedOut, queryClient } from './lib/query.ts';
import { meOptions } from './lib/session.ts';
import { readAuditFilter } from './pages/audit/filter.ts';
import { Broken, NotFound } from './ui/broken.tsx';
import { Shell } from './ui/shell.tsx';
import { Loading } from './ui/states.tsx';

const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound });

/** Where someone comes who is not signed in; `next` is where they wanted to go. */
const signIn = createRoute({
  getParentRoute: () => root,
  path: '/sign-in',
  validateSearch: (search: Record<string, unknown>): { next?: string; error?: string; request_id?: string } => ({
    next: localPath(search.next),
    // where a sign-in through the identity provider failed; the page shows only what it knows
    error: typeof search.error === 'string' ? search.error : undefined,
    request_id:
      typeof search.request_id === 'string' && /^req_\w{1,40}$/.test(search.request_id) ? search.request_id : undefined,
  }),
  component: lazyRouteComponent(() => import('./pages/sign-in.tsx'), 'SignIn'),
});

/** Every page of a signed-in person. */
const app = createRoute({
  getParentRoute: () => root,
  id: 'app',
  component: Shell,
  notFoundComponent: NotFound,
  beforeLoad: async ({ location }) => {
    try {
      await queryClient.ensureQueryData(meOptions());
    } catch (error) {
      if (problemOf(error).code !== 'UNAUTHENTICATED') throw error;
      throw redirect({ to: '/sign-in', search: { next: location.href === '/' ? undefined : location.href } });
    }
    const next = takeNext();
    if (next) throw redirect({ href: next });
  },
});

const page = <const Path extends string, const Name extends string>(
  path: Path,
  load: () => Promise<Record<Name, (props: never) => React.ReactNode>>,
  name: Name,
) => createRoute({ getParentRoute: () => app, path, component: lazyRouteComponent(load as never, name) });

const overview = page('/', () => import('./pages/overview/overview.tsx'), 'Overview');

const machines = createRoute({
  getParentRoute: () => app,
  path: '/machines',
  validateSearch: ({ machine }: Record<string, unknown>): { machine?: string } =>
    typeof machine === 'string' ? { machine } : {},
  component: lazyRouteComponent(() => import('./pages/machines/machines.tsx'), 'Machines'),
});

const forensics = page('/forensics', () => import('./pages/forensics/forensics.tsx'), 'Forensics');

const audit = createRoute({
  getParentRoute: () => app,
  path: '/audit',
  validateSearch: readAuditFilter,
  component: lazyRouteComponent(() => import('./pages/audit/audit.tsx'), 'Audit'),
});

const keys = createRoute({
  getParentRoute: () => app,
  path: '/keys',
  validateSearch: ({ kind }: Record<string, unknown>): { kind?: 'agents' } => (kind === 'agents' ? { kind } : {}),
  component: lazyRouteComponent(() => import('./pages/keys/keys.tsx'), 'Keys'),
});
const proxies = page('/proxies', () => import('./pages/proxies/proxies.tsx'), 'Proxies');
const settings = page('/settings', () => import('./pages/settings/settings.tsx'), 'SettingsPage');

const routeTree = root.addChildren([
  signIn,
  app.addChildren([overview, forensics, audit, machines, keys, proxies, settings]),
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

onSignedOut.go = () => {
  const { pathname, href } = router.state.location;
  if (pathname === '/sign-in') return;
  queryClient.clear();
  void router.navigate({ to: '/sign-in', search: { next: href === '/' ? undefined : href } });
};
