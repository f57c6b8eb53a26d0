/** What a browser may not do with a response, whatever it contains. */
export interface HeaderOptions {
  /** Whether the server is reached by https: browsers must then never use anything else. */
  https: boolean;
}

/** Builds a content security policy from its directives; an empty list of sources leaves the directive bare. */
export function contentSecurityPolicy(directives: Readonly<Record<string, readonly string[]>>): string {
  return Object.entries(directives)
    .map(([name, sources]) => [name, ...sources].join(' '))
    .join('; ');
}

/** Headers of every response: API, pages, and dashboard files. */
function commonHeaders({ https }: HeaderOptions): Record<string, string> {
  return {
    'x-content-type-options': 'nosniff',
    'x-frame-options': 'DENY',
    'cross-origin-opener-policy': 'same-origin',
    'cross-origin-resource-policy': 'same-origin',
    'permissions-policy': 'camera=(), geolocation=(), microphone=(), payment=(), usb=(), browsing-topics=()',
    ...(https && { 'strict-transport-security': 'max-age=63072000' }),
  };
}

/** Headers of a response that is data: a browser that displays it anyway neither runs nor loads anything in it. */
export function apiHeaders(options: HeaderOptions): Record<string, string> {
  return {
    ...commonHeaders(options),
    'cache-control': 'no-store',
    'content-security-policy': contentSecurityPolicy({ 'default-src': ["'none'"], 'frame-ancestors': ["'none'"] }),
    'referrer-policy': 'no-referrer',
  };
}
