/**
 * The paths of the dashboard, as its router writes them (web/routes.tsx, where the compiler compares the two). The server answers
 * these with its page, and nothing else: a client that mistypes the address of the API gets a 404.
 */
export const PAGES = [
  '/',
  '/account',
  '/agents',
  '/agents/agent',
  '/approvals',
  '/approvals/$id',
  '/audit',
  '/decisions',
  '/decisions/$id',
  '/forensics',
  '/forensics/packages/$id',
  '/keys',
  '/lists',
  '/lists/$name',
  '/machines',
  '/other-organization',
  '/policies',
  '/policies/$id',
  '/policies/new',
  '/proxies',
  '/proxies/proxy',
  '/review',
  '/review/$id',
  '/sessions/session',
  '/settings',
  '/sign-in',
  '/sign-on',
  '/start',
  '/stops',
  '/subscriptions',
  '/subscriptions/$id',
  '/subscriptions/$id/deliveries/$delivery',
  '/team',
  '/tools',
  '/tools/tool',
] as const;

const PATTERNS = PAGES.map((path) => new RegExp(`^${path.replace(/\$\w+/g, '[^/]+').replace(/\/$/, '')}/?$`));

/** Whether the path of a request, as it was sent, is that of a page. */
export const isPage = (path: string): boolean => PATTERNS.some((pattern) => pattern.test(path));
