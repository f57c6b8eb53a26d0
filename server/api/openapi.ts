import type { AnyProcedure } from '@trpc/server';
import { type GenerateOpenApiDocumentOptions, generateOpenApiDocument } from 'trpc-to-openapi';
import { z } from 'zod';
import { EvaluateIn } from '../decisions/router.ts';
import { ERRORS, type ErrorCode } from '../domain/errors.ts';
import { EVENTS } from '../domain/events.ts';
import type { Access } from '../domain/principal.ts';
import type { PlainDescription } from '../rpc/plain.ts';
import { Problem } from '../rpc/problem.ts';
import type { HeaderDescription, Limit, Meta, RouteHeaders } from '../rpc/procedure.ts';
import { EXAMPLES, type Example } from './examples.ts';
import { VERSION } from './meta.ts';
import type { AppRouter } from './root.ts';

const TAGS: Record<string, string> = {
  auth: 'Signing in and who the caller is',
  people: 'Members, roles, invitations and sessions',
  policies: 'Policies, their reviews, and the bundles that proxies enforce',
  decisions: 'The decision point, and the recorded decisions',
  escrow: 'Actions that wait for people’s approval',
  forensics: 'The chain of decisions, its verification, and signed evidence',
  audit: 'What people and the system did',
  keys: 'API keys, agent keys and the public signing keys',
  proxies: 'The enforcement proxies',
  stops: 'What is stopped: an agent, a role, a tool, a tool server, a session, a proxy, or everything',
  lists: 'Lists of known values that policies read',
  tools: 'Tools as their servers describe them, their approvals and labels',
  subscriptions: 'Where events are delivered, and the outcome of each delivery',
  settings: 'Settings of the tenant',
  machines: 'The state machines, for maintainers',
  meta: 'The server itself',
};

const SECURITY_SCHEMES = {
  apiKey: { type: 'http', scheme: 'bearer', description: 'API key (svc_key_…) with its scopes' },
  agentKey: { type: 'http', scheme: 'bearer', description: 'Agent key (svc_agent_…)' },
  workloadToken: {
    type: 'http',
    scheme: 'bearer',
    description: 'Token of a workload (svc_token_…) from POST /auth/token, with its scopes',
  },
  session: {
    type: 'apiKey',
    in: 'cookie',
    name: 'svc_session',
    description: 'Session of a signed-in person',
  },
} as const;

/** Headers shared by several operations, described once. */
const HEADERS: Record<string, HeaderDescription> = {
  'X-Request-Id': { description: 'Identifies this request in the server’s log and in the audit log' },
  'Retry-After': { description: 'Seconds to wait before the next try', schema: { type: 'integer', minimum: 0 } },
  RateLimit: {
    description: 'The remaining quota of the limit that applies, as in draft-ietf-httpapi-ratelimit-headers',
  },
  'RateLimit-Policy': { description: 'The limit that applies, as in draft-ietf-httpapi-ratelimit-headers' },
  'WWW-Authenticate': { description: 'How to authenticate (RFC 9110, section 11.6.1)' },
};

const ORIGIN = {
  name: 'Origin',
  in: 'header',
  required: false,
  description:
    'Required if the session cookie authenticates the request: one of the server’s own origins, or the response is 403. Browsers send it automatically.',
  schema: { type: 'string' },
} as const;

interface Answer {
  description: string;
  headers?: Record<string, unknown>;
  content?: Record<string, { schema?: unknown; example?: unknown }>;
}

interface Operation {
  operationId?: string;
  tags?: string[];
  requestBody?: { content?: Record<string, { schema?: unknown; example?: unknown }> };
  responses: Record<string, Answer>;
  security?: Record<string, string[]>[];
  parameters?: object[];
}

/** Facts about an operation that the generator does not know. */
interface About {
  method: string;
  access: Access;
  limit: Limit | undefined;
  /** The status of success; 0 if the route describes its own responses. */
  status: number;
  problems: readonly ErrorCode[];
  headers: RouteHeaders;
  standalone: boolean;
}

/**
 * The OpenAPI 3.1 document of every route, as committed in openapi.json. Deterministic: equal code gives an equal
 * document.
 */
export function openApiDocument(router: AppRouter, plain: readonly PlainDescription[]): object {
  const document = generateOpenApiDocument(router, {
    title: 'Agent Governance Control Plane',
    version: VERSION,
    openApiVersion: '3.1.1',
    baseUrl: '/',
    description:
      'Governs the actions of AI agents: policies, decisions, holds, evidence. Every error is an RFC 9457 problem whose code comes from one closed table. Request bodies are closed: an unknown member is refused. Responses are open: a client must ignore members that it does not know.',
    license: { name: 'Apache-2.0', identifier: 'Apache-2.0' } as never,
    securitySchemes: { ...SECURITY_SCHEMES },
    tags: Object.keys(TAGS),
    defs: {
      Problem,
      EvaluateRequest: EvaluateIn,
      ...Object.fromEntries(Object.values(EVENTS).map(({ payload }) => [nameOf(payload), payload])),
    } as never,
    paths: plainPaths(plain),
  });
  const abouts = new Map<string, About>();
  for (const procedure of Object.values(router._def.procedures) as unknown as AnyProcedure[]) {
    const { openapi, access, ...meta } = (procedure._def as unknown as { meta: Meta }).meta;
    if (!openapi || !access) continue;
    abouts.set(`${openapi.method} ${openapi.path}`, {
      method: openapi.method,
      access,
      limit: meta.limit,
      status: meta.status ?? 200,
      problems: meta.problems ?? [],
      headers: meta.headers ?? {},
      standalone: false,
    });
  }
  for (const { method, path, access, limit, problems = [], headers = {}, standalone = false } of plain) {
    abouts.set(`${method} ${path}`, { method, access, limit, status: 0, problems, headers, standalone });
  }
  const responses: Record<string, Answer> = {};
  for (const [path, operations] of Object.entries(document.paths ?? {})) {
    for (const [method, operation] of Object.entries(operations as Record<string, Operation>)) {
      const line = `${method.toUpperCase()} ${path}`;
      const about = abouts.get(line);
      if (!about) continue;
      complete(operation, about, responses);
      illustrate(operation, EXAMPLES[line]);
    }
  }
  for (const name of Object.keys(document.components?.schemas ?? {})) {
    if (name.startsWith('error.')) delete document.components?.schemas?.[name];
  }
  Object.assign(document.components ?? {}, {
    headers: Object.fromEntries(Object.entries(HEADERS).map(([name, header]) => [name, described(header)])),
    parameters: { Origin: ORIGIN },
    responses,
  });
  document.webhooks = webhooks() as never;
  document.tags = Object.entries(TAGS).map(([name, description]) => ({ name, description }));
  openAnswers(document as never);
  return document;
}

function described({ description, required, schema = { type: 'string' } }: HeaderDescription) {
  return { description, ...(required && { required }), schema };
}

/**
 * Adds the real statuses, problems, headers and credentials of an operation, which the generator does not know.
 * Problems that several operations return are described once, in `shared`.
 */
function complete(operation: Operation, about: About, shared: Record<string, Answer>): void {
  const { method, access, limit, status, problems, headers, standalone } = about;
  const answerHeaders = (code: number, ...common: string[]) => ({
    ...Object.fromEntries(['X-Request-Id', ...common].map((name) => [name, { $ref: `#/components/headers/${name}` }])),
    ...Object.fromEntries(Object.entries(headers.answer?.[code] ?? {}).map(([name, one]) => [name, described(one)])),
  });
  // without a credential, only the sign-in routes are rate-limited, by address
  const counted = !access.public || limit !== undefined;
  const limits = counted ? ['RateLimit', 'RateLimit-Policy'] : [];
  const success =
    status === 0
      ? Object.entries(operation.responses)
      : [[status, status === 204 ? { description: 'Done' } : operation.responses['200']!] as const];
  const codes = new Set<ErrorCode>([...(standalone ? [] : commonProblems(operation, method, access)), ...problems]);
  const failures = [...Map.groupBy([...codes].sort(), (code) => ERRORS[code].status)].map(([code, problems]) => {
    const waits = code === 429 || code === 503 ? ['Retry-After'] : [];
    const answer: Answer = {
      description: problems.map((problem) => `${problem}: ${ERRORS[problem].title}`).join('; '),
      headers: answerHeaders(code, ...(code === 401 ? ['WWW-Authenticate'] : waits)),
      content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } },
    };
    if (headers.answer?.[code]) return [code, answer];
    const name = problems.join('-');
    shared[name] = answer;
    return [code, { $ref: `#/components/responses/${name}` }];
  });
  operation.responses = {
    ...Object.fromEntries(
      success.map(([code, answer]) => [code, { ...answer, headers: answerHeaders(Number(code), ...limits) }]),
    ),
    ...Object.fromEntries(failures),
  };
  operation.security = access.public
    ? []
    : [
        ...(access.keys ? [{ apiKey: [...access.keys, 'admin'] }] : []),
        ...(access.agent ? [{ agentKey: [] }] : []),
        ...(access.workload ? [{ workloadToken: [access.workload] }] : []),
        ...(access.role ? [{ session: [access.role] }] : []),
      ];
  const parameters = [
    ...(operation.parameters ?? []),
    ...Object.entries(headers.request ?? {}).map(([name, { required = false as boolean, ...one }]) => ({
      name,
      in: 'header',
      required,
      ...described(one),
    })),
    ...(access.role && method !== 'GET' ? [{ $ref: '#/components/parameters/Origin' }] : []),
  ];
  if (parameters.length > 0) operation.parameters = parameters;
}

/** The problems that a route can return because of how it is called, whatever it does. */
function commonProblems(operation: Operation, method: string, access: Access): ErrorCode[] {
  return [
    'VALIDATION_FAILED',
    'RATE_LIMITED',
    'INTERNAL',
    'UNAVAILABLE',
    ...(access.public ? [] : (['UNAUTHENTICATED'] as const)),
    ...(access.keys || access.agent ? (['KEY_SCOPE'] as const) : []),
    // a session's request from another site is refused on every route that changes something
    ...(access.role || method !== 'GET' ? (['FORBIDDEN'] as const) : []),
    ...(operation.requestBody ? (['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE'] as const) : []),
  ];
}

function illustrate(operation: Operation, example: Example | undefined): void {
  const put = (content: Answer['content'], value: unknown) => {
    for (const [type, one] of Object.entries(content ?? {})) if (/[/+]json$/.test(type)) one.example = value;
  };
  if (example?.request !== undefined) put(operation.requestBody?.content, example.request);
  if (example?.answer === undefined) return;
  for (const [status, { content }] of Object.entries(operation.responses)) {
    if (status.startsWith('2')) put(content, example.answer);
  }
}

/** The requests that this server sends to the destinations of subscriptions. */
function webhooks(): object {
  const signed = {
    'X-Svc-Signature': {
      description:
        't=<unix seconds>,v1=<hex>: HMAC-SHA256 of "<t>.<raw body>", keyed with the UTF-8 bytes of the secret. While a secret is being rotated there are two v1. Compare in constant time, and refuse an old t.',
      required: true,
    },
    'X-Svc-Event': { description: 'The type of the event', required: true },
    'X-Svc-Delivery': { description: 'The id of the delivery, the same for all its attempts', required: true },
    'webhook-id': { description: 'Standard Webhooks: the id of the event, for recognizing repeats', required: true },
    'webhook-timestamp': { description: 'Standard Webhooks: when this attempt was signed', required: true },
    'webhook-signature': { description: 'Standard Webhooks: v1,<base64>', required: true },
  } satisfies Record<string, HeaderDescription>;
  return Object.fromEntries(
    Object.entries(EVENTS).map(([type, { description, payload }]) => [
      type,
      {
        post: {
          operationId: `webhook-${type.replace('.', '-')}`,
          summary: sentence(description),
          tags: ['subscriptions'],
          security: [],
          parameters: Object.entries(signed).map(([name, header]) => ({ name, in: 'header', ...described(header) })),
          requestBody: {
            required: true,
            content: {
              'application/json': { schema: { $ref: `#/components/schemas/${nameOf(payload)}` } },
            },
          },
          responses: {
            '2XX': { description: 'Received. Any other response, or none within 10 seconds, is a failed attempt.' },
          },
        },
      },
    ]),
  );
}

/** The name of a schema in the document. */
const nameOf = (schema: z.ZodType): string => schema.meta()!.id!;

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

type Node = { [key: string]: Node } & { $ref?: string };

/**
 * Opens every schema that no request uses: a client generated from the document must accept responses of a later
 * version, which may have more members. Requests stay closed, as they are on the server.
 */
function openAnswers(document: { paths: Record<string, Record<string, Operation>>; components: Node }): void {
  const schemas = document.components.schemas ?? {};
  const closed = new Set<string>();
  const follow = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return;
    const name = /^#\/components\/schemas\/(.+)$/.exec((node as Node).$ref ?? '')?.[1];
    if (name !== undefined && !closed.has(name)) {
      closed.add(name);
      follow(schemas[name]);
    }
    Object.values(node).forEach(follow);
  };
  const open = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return;
    const schema = node as { additionalProperties?: unknown; example?: unknown };
    if (schema.additionalProperties === false) delete schema.additionalProperties;
    for (const [key, value] of Object.entries(node)) if (key !== 'example') open(value);
  };
  const all = Object.values(document.paths).flatMap((operations) => Object.values(operations));
  for (const { requestBody, parameters } of all) follow([requestBody, parameters]);
  for (const [name, schema] of Object.entries(schemas)) if (!closed.has(name)) open(schema);
  for (const { responses } of all) open(responses);
}

function plainPaths(plain: readonly PlainDescription[]): NonNullable<GenerateOpenApiDocumentOptions['paths']> {
  const paths: Record<string, Record<string, unknown>> = {};
  for (const route of plain) {
    const names = [...route.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!);
    const requestParams = {
      ...(names.length > 0 && { path: z.object(Object.fromEntries(names.map((name) => [name, z.string()]))) }),
      ...(route.query && { query: z.object(route.query) }),
    };
    const slug = route.path.replace(/[{}]/g, '').split('/').filter(Boolean).join('-').replaceAll('.', '');
    const operations = paths[route.path] ?? {};
    paths[route.path] = operations;
    operations[route.method.toLowerCase()] = {
      operationId: `${route.method.toLowerCase()}-${slug}`,
      summary: route.summary,
      ...(route.description && { description: route.description }),
      tags: [route.tag],
      ...(Object.keys(requestParams).length > 0 && { requestParams }),
      ...(route.form && {
        requestBody: {
          required: true,
          content: Object.fromEntries(
            ['application/x-www-form-urlencoded', 'application/json'].map((type) => [
              type,
              { schema: z.strictObject(route.form ?? {}) },
            ]),
          ),
        },
      }),
      ...(route.body && { requestBody: { required: true, content: { 'application/json': { schema: route.body } } } }),
      responses: Object.fromEntries(
        Object.entries(route.answers).map(([status, answer]) => [
          status,
          {
            description: answer.description,
            ...(answer.type && {
              content: Object.fromEntries([
                [answer.type, { schema: answer.schema ?? { type: 'string', format: 'binary' } }],
                ...Object.entries(answer.others ?? {}).map(([type, schema]) => [type, { schema }]),
              ]),
            }),
          },
        ]),
      ),
    };
  }
  return paths as never;
}
