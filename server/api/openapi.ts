import type { AnyProcedure } from '@trpc/server';
import { type GenerateOpenApiDocumentOptions, generateOpenApiDocument } from 'trpc-to-openapi';
import { z } from 'zod';
import type { Access } from '../auth/scopes.ts';
import { ERRORS, type ErrorCode } from '../errors.ts';
import type { PlainDescription } from './plain.ts';
import type { AppRouter } from './root.ts';
import type { Meta } from './trpc.ts';

const Problem = z
  .object({
    type: z.string().describe('urn:svc:error:<code in lower case>'),
    title: z.string(),
    status: z.int(),
    code: z.enum(Object.keys(ERRORS) as [ErrorCode, ...ErrorCode[]]),
    detail: z.string().optional(),
    instance: z.string().optional(),
    request_id: z.string().optional(),
    errors: z
      .array(
        z.object({
          pointer: z.string().describe('RFC 6901 into the body, or ?name for a query parameter'),
          message: z.string(),
          line: z.int().optional(),
          column: z.int().optional(),
        }),
      )
      .optional(),
  })
  .meta({ id: 'Problem', description: 'RFC 9457 problem details' });

const TAGS: Record<string, string> = {
  auth: 'Signing in and who the caller is',
  policies: 'Policies, their reviews, and the bundles that proxies enforce',
  decisions: 'The decision point, and the decisions that were recorded',
  escrow: 'Actions that wait for people',
  forensics: 'The chain of decisions, its verification, and signed evidence',
  audit: 'What people and the system did',
  keys: 'API keys, agent keys and the public signing keys',
  proxies: 'The enforcement proxies',
  settings: 'Settings of the tenant',
  machines: 'The state machines, for maintainers',
  meta: 'The server itself',
};

const SECURITY_SCHEMES = {
  apiKey: { type: 'http', scheme: 'bearer', description: 'API key (svc_key_…) with its scopes' },
  agentKey: { type: 'http', scheme: 'bearer', description: 'Agent key (svc_agent_…)' },
  session: { type: 'apiKey', in: 'cookie', name: 'svc_session', description: 'Session of a signed-in person' },
} as const;

interface Operation {
  operationId?: string;
  responses: Record<string, unknown>;
  security?: Record<string, string[]>[];
  parameters?: { name: string; in: string }[];
}

/** The OpenAPI 3.1 document of every route, as committed in openapi.json. Equal code gives an equal document. */
export function openApiDocument(router: AppRouter, plain: readonly PlainDescription[]): object {
  const document = generateOpenApiDocument(router, {
    title: 'Agent Governance Control Plane',
    version: '1.0.0',
    openApiVersion: '3.1.1',
    baseUrl: '/',
    description:
      'Governs the actions of AI agents: policies, decisions, holds, evidence. Every error is an RFC 9457 problem with a code of one closed table.',
    license: { name: 'Apache-2.0', identifier: 'Apache-2.0' } as never,
    securitySchemes: { ...SECURITY_SCHEMES },
    tags: Object.keys(TAGS),
    defs: { Problem } as never,
    paths: plainPaths(plain),
  });
  const metas = new Map<string, { access: Access; status: number; problems: readonly ErrorCode[] }>();
  for (const procedure of Object.values(router._def.procedures) as unknown as AnyProcedure[]) {
    const meta = (procedure._def as unknown as { meta: Meta }).meta;
    if (!meta.openapi || !meta.access) continue;
    metas.set(`${meta.openapi.method} ${meta.openapi.path}`, {
      access: meta.access,
      status: meta.status ?? 200,
      problems: meta.problems ?? [],
    });
  }
  for (const route of plain) {
    metas.set(`${route.method} ${route.path}`, { access: route.access, status: 0, problems: route.problems ?? [] });
  }
  for (const [path, operations] of Object.entries(document.paths ?? {})) {
    for (const [method, operation] of Object.entries(operations as Record<string, Operation>)) {
      const meta = metas.get(`${method.toUpperCase()} ${path}`);
      if (meta) complete(operation, meta);
    }
  }
  for (const name of Object.keys(document.components?.schemas ?? {})) {
    if (name.startsWith('error.')) delete document.components?.schemas?.[name];
  }
  document.tags = Object.entries(TAGS).map(([name, description]) => ({ name, description }));
  return document;
}

/** The real statuses, problems and credentials of an operation, which the generator does not know. */
function complete(
  operation: Operation,
  { access, status, problems }: { access: Access; status: number; problems: readonly ErrorCode[] },
): void {
  const common: ErrorCode[] = ['VALIDATION_FAILED', 'RATE_LIMITED', 'INTERNAL', 'UNAVAILABLE'];
  if (!access.public) {
    common.push('UNAUTHENTICATED');
    if (access.keys || access.agent) common.push('KEY_SCOPE');
    if (access.role) common.push('FORBIDDEN');
  }
  const byStatus = new Map<number, Set<ErrorCode>>();
  for (const code of [...common, ...problems]) {
    const codes = byStatus.get(ERRORS[code].status) ?? new Set();
    byStatus.set(ERRORS[code].status, codes.add(code));
  }
  const success =
    status === 0
      ? Object.fromEntries(Object.entries(operation.responses).filter(([code]) => Number(code) < 400))
      : { [status]: status === 204 ? { description: 'Done' } : operation.responses['200'] };
  const failures = [...byStatus].map(([code, codes]) => [
    code,
    {
      description: [...codes].sort().join(', '),
      content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } },
    },
  ]);
  operation.responses = { ...success, ...Object.fromEntries(failures) };
  operation.security = access.public
    ? []
    : [
        ...(access.keys ? [{ apiKey: [...access.keys, 'admin'] }] : []),
        ...(access.agent ? [{ agentKey: [] }] : []),
        ...(access.role ? [{ session: [access.role] }] : []),
      ];
  if (access.agent && operation.operationId === 'evaluate') {
    operation.parameters = [
      { name: 'X-Svc-Tenant', in: 'header', required: true, schema: { type: 'string' } },
      {
        name: 'X-Svc-Escrow-Id',
        in: 'header',
        required: false,
        description: 'the released hold on which a retry stands',
        schema: { type: 'string' },
      },
    ] as Operation['parameters'] & object;
  }
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
              content: { [answer.type]: { schema: answer.schema ?? { type: 'string', format: 'binary' } } },
            }),
          },
        ]),
      ),
    };
  }
  return paths as never;
}
