import type { HttpRoute } from './config.ts';

/** An answered request: its route, its address at the upstream, and what comes before that in the path that the agent sent. */
interface Answered {
  route: Pick<HttpRoute, 'to' | 'redirects_to'>;
  url: URL;
  prefix: string;
}

/**
 * What an agent gets as the address in a `Location`: the upstream's own addresses as paths of the proxy, those at an origin that
 * the route names as they are. Undefined for all others: a client that follows sends its credential there, and the action goes
 * past the proxy.
 */
export function redirectTarget(location: string, { route, url, prefix }: Answered): string | undefined {
  if (!URL.canParse(location, url.href)) return undefined;
  const to = new URL(location, url.href);
  const base = new URL(route.to);
  const within = base.pathname.replace(/\/$/, '');
  if (to.origin === base.origin && (to.pathname === within || to.pathname.startsWith(`${within}/`))) {
    const path = `${prefix}${to.pathname.slice(within.length)}` || '/';
    // to a client, what follows two slashes is a host
    if (!path.startsWith('//')) return path + to.search + to.hash;
  }
  if (!route.redirects_to.includes(to.origin) || to.username || to.password) return undefined;
  return to.href;
}

/** The same for a whole `Refresh` header, which browsers follow: undefined if it leads elsewhere or cannot be read. */
export function refreshTarget(refresh: string, answered: Answered): string | undefined {
  const [, seconds, location] = /^\s*(\d{1,9})\s*(?:[;,]\s*url\s*=\s*([^\s"']+)\s*)?$/i.exec(refresh) ?? [];
  if (seconds === undefined || location === undefined) return seconds;
  const target = redirectTarget(location, answered);
  return target && `${seconds}; url=${target}`;
}
