import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import fastifyStatic from '@fastify/static';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { isPage } from '../domain/pages.ts';
import { AppError } from '../errors.ts';
import { contentSecurityPolicy } from '../lib/security-headers.ts';
import { type Docs, type DocsFile, loadDocs } from './docs.ts';

/** The placeholder in the built page for the nonce of each response: see web/vite.config.ts. */
const NONCE_PLACEHOLDER = 'NONCE-OF-THIS-ANSWER';
const API = /^\/(v1|auth|trpc|assets|\.well-known|openapi\.json|pubkey|healthz|readyz|metrics)(\/|$)/;

/** Whether a path belongs to the API: if unknown there, it gets a problem in JSON, never a page. */
export function isApiPath(path: string): boolean {
  return API.test(path);
}

/** Whether a path of the API is served without the API: files, and the state of the process. */
export function isServedSealed(path: string): boolean {
  return /^\/(assets|openapi\.json|healthz|readyz|metrics)(\/|$)/.test(path);
}

/** What the dashboard's page may load and do; style elements need this response's nonce. */
export function pagePolicy(nonce: string): Record<string, readonly string[]> {
  return {
    'default-src': ["'none'"],
    'script-src': ["'self'"],
    'style-src': ["'self'", `'nonce-${nonce}'`],
    'img-src': ["'self'"],
    'font-src': ["'self'"],
    'connect-src': ["'self'"],
    'form-action': ["'self'"],
    'base-uri': ["'none'"],
    'frame-ancestors': ["'none'"],
  };
}

/**
 * Serves the built dashboard (web/build.ts): its files, which are cached forever because their names change with their
 * content, and its single page for the paths that it has (domain/pages.ts). It is public and served even while the server is
 * sealed, since all its data comes from the API. Every other path is a 404: for a person, who asks for HTML, on the page, which
 * says so; for a program a problem, whatever it mistyped.
 */
export function mountDashboard(app: FastifyInstance): void {
  const dist = fileURLToPath(new URL('../../web/dist/', import.meta.url));
  const page = readPage(dist);
  if (page) {
    app.register(fastifyStatic, {
      root: `${dist}assets/`,
      prefix: '/assets/',
      index: false,
      preCompressed: true,
      cacheControl: false,
      setHeaders: (reply) => {
        reply.header('cache-control', 'public, max-age=31536000, immutable');
      },
    });
  }
  app.get('/*', async (request, reply) => {
    const [path] = request.url.split('?', 1) as [string];
    const known = isPage(path);
    if (isApiPath(path) || !asksForPage(request) || !(known || page)) return reply.callNotFound();
    if (!known) reply.code(404);
    if (!page) throw new AppError('UNAVAILABLE', 'the dashboard is not built: run `npm run build` and start again');
    const nonce = randomBytes(18).toString('base64url');
    reply.headers({
      'cache-control': 'no-cache',
      'content-security-policy': contentSecurityPolicy(pagePolicy(nonce)),
      'referrer-policy': 'same-origin',
    });
    return reply.type('text/html; charset=utf-8').send(page.join(nonce));
  });
}

/**
 * Serves the documentation below /docs: publicly, without scripts, and even while the server is sealed, since that is
 * when an operator needs it. Browsers revalidate their copy on each request.
 */
export function mountDocs(app: FastifyInstance, root = fileURLToPath(new URL('../../', import.meta.url))): void {
  let loaded: Docs | undefined;
  // loaded on first request, so that it does not delay startup
  const docs = () => {
    loaded ??= loadDocs(root);
    return loaded;
  };
  const policy = contentSecurityPolicy({
    'default-src': ["'none'"],
    'style-src': ["'self'"],
    'img-src': ["'self'"],
    'form-action': ["'none'"],
    'base-uri': ["'none'"],
    'frame-ancestors': ["'none'"],
  });
  // a picture may contain styles, and can be opened by itself
  const picturePolicy = contentSecurityPolicy({
    'default-src': ["'none'"],
    'style-src': ["'unsafe-inline'"],
    'frame-ancestors': ["'none'"],
    sandbox: [],
  });
  const send = (request: FastifyRequest, reply: FastifyReply, { type, body, etag }: DocsFile) => {
    // a 304 has the same headers: the browser replaces those of its copy with them
    reply.headers({
      'cache-control': 'no-cache',
      'content-security-policy': type.startsWith('image/') ? picturePolicy : policy,
      etag,
      'referrer-policy': 'same-origin',
    });
    const known = request.headers['if-none-match']?.split(',').map((tag) => tag.trim().replace(/^W\//, ''));
    if (reply.statusCode === 200 && known?.includes(etag)) return reply.code(304).send();
    return reply.type(type).send(body);
  };
  for (const url of ['/docs', '/docs/*']) {
    app.get(url, { exposeHeadRoute: false }, async (request, reply) => {
      const file = docs().get(request.url.split('?', 1)[0]!);
      return send(request, file ? reply : reply.code(404), file ?? docs().notFound);
    });
  }
}

/** Browsers name the type when a person navigates; programs that take anything mean the API. */
const asksForPage = ({ headers }: FastifyRequest) => /(?:^|,)\s*text\/html\s*(?:;|,|$)/i.test(headers.accept ?? '');

/** The page, split at its nonces; undefined if the dashboard was not built. */
function readPage(dist: string): string[] | undefined {
  try {
    return readFileSync(`${dist}index.html`, 'utf8').split(NONCE_PLACEHOLDER);
  } catch {
    return undefined;
  }
}
