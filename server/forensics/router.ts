import { Readable } from 'node:stream';
import { z } from 'zod';
import { askerOf } from '../../db/index.ts';
import { actorOf } from '../domain/audit.ts';
import { personOf } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { text, timestamp, wholePage } from '../rpc/fields.ts';
import { type PlainRoute, principalOf } from '../rpc/plain.ts';
import { route, trpc } from '../rpc/procedure.ts';
import type { Evidence } from './export.ts';

const tag = 'forensics';

const chainName = z.enum(['forensics', 'audit']).describe('decisions (default), or the audit log');

const PackageOut = z
  .object({
    package_id: z.string(),
    purpose: z.string(),
    chain: z.enum(['forensics', 'audit']),
    from: z.iso.datetime(),
    to: z.iso.datetime(),
    sequence_id: z.string().nullable().describe('the session, where the package is of one'),
    first_seq: z.int(),
    last_seq: z.int(),
    record_count: z.int(),
    chain_intact: z.boolean(),
    package_hash: z.string(),
    public_key_fingerprint: z.string(),
    size: z.int().describe('bytes'),
    created_by: z.string(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'EvidencePackage' });

export function forensicsRouter(evidence: Evidence) {
  return trpc.router({
    export: route(
      'POST /v1/forensics/export',
      { role: 'any' },
      {
        summary: 'Make a signed package of decision records, or of the audit log',
        description:
          'The records received from `from` (inclusive) to `to` (exclusive; default: the last month), or, with `sequence_id` in place of both, every record from the first to the last of a session. At most 10,000 records. `chain_intact` is true if they are complete and unchanged up to a signed checkpoint at or after the last of them. A package of decisions also has the parts of the audit log that tell who approved the holds and policies that they name. `chain: audit` makes one of the audit log itself. One export at a time per tenant.',
        tag,
        limit: 'export',
        status: 201,
        problems: ['TOO_MANY_RECORDS', 'NOT_FOUND', 'RATE_LIMITED', 'TOO_BROAD'],
      },
    )
      .input(
        z.strictObject({
          purpose: text(500),
          chain: chainName.optional(),
          from: timestamp.optional(),
          to: timestamp.optional(),
          sequence_id: text(200).optional(),
        }),
      )
      .output(PackageOut)
      .mutation(({ ctx, input }) =>
        evidence.export(ctx.tenantId, input, {
          person: personOf(ctx.principal),
          actor: actorOf(ctx.principal, ctx.ip),
          requestId: ctx.requestId,
        }),
      ),

    plan: route(
      'GET /v1/forensics/export/plan',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'How many records an export would contain, and how to split it',
        description: '`parts` is empty when one package is enough.',
        tag,
        problems: ['NOT_FOUND', 'TOO_BROAD'],
      },
    )
      .input(
        z.strictObject({
          chain: chainName.optional(),
          from: timestamp.optional(),
          to: timestamp.optional(),
          sequence_id: text(200).optional(),
        }),
      )
      .output(
        z.object({
          record_count: z.int(),
          first_seq: z.int(),
          last_seq: z.int(),
          limit: z.int().describe('the most that one package holds'),
          parts: z.array(z.object({ from: z.iso.datetime(), to: z.iso.datetime(), record_count: z.int() })),
        }),
      )
      .query(({ ctx, input }) => evidence.plan(ctx.tenantId, input, askerOf(ctx))),

    list: route(
      'GET /v1/forensics/packages',
      { keys: ['pipeline'], role: 'viewer' },
      { summary: 'List packages, the newest first', tag },
    )
      .input(z.strictObject(wholePage))
      .output(z.object({ packages: z.array(PackageOut), total: z.int(), limit: z.int(), offset: z.int() }))
      .query(async ({ ctx, input }) => ({ ...(await evidence.list(ctx.tenantId, input)), ...input })),

    package: route(
      'GET /v1/forensics/packages/{id}',
      { keys: ['pipeline'], role: 'viewer' },
      { summary: 'Read a package: what it is of, and which files are in it', tag, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(100) }))
      .output(
        PackageOut.extend({
          files: z
            .array(z.object({ name: z.string(), size: z.int().describe('bytes'), sha256: z.string() }))
            .describe('as the manifest lists them'),
        }),
      )
      .query(({ ctx, input }) => evidence.get(ctx.tenantId, input.id)),
  });
}

/** The package file: identical bytes every time. */
export function downloadRoute(evidence: Evidence): PlainRoute {
  return {
    method: 'GET',
    path: '/v1/forensics/packages/{id}/download',
    access: { role: 'any' },
    summary: 'Download a package as it was signed',
    tag,
    answers: { 200: { description: 'A POSIX tar', type: 'application/x-tar' } },
    headers: {
      answer: {
        200: {
          ETag: { description: 'The hash of the package, in quotes' },
          'X-Svc-Package-Hash': { description: 'sha256:<hex> of the file' },
        },
      },
    },
    problems: ['NOT_FOUND'],
    async handler(call) {
      const id = call.params.id ?? '';
      if (!/^pkg_\w{1,64}$/.test(id)) throw new AppError('NOT_FOUND', 'there is no such package');
      const { bytes, package_hash, size } = await evidence.open(principalOf(call).tenantId, id);
      call.reply.headers({
        'content-length': size,
        'content-disposition': `attachment; filename="${id}.tar"`,
        etag: `"${package_hash}"`,
        'x-svc-package-hash': package_hash,
      });
      return call.reply.type('application/x-tar').send(Readable.from(bytes(), { objectMode: false }));
    },
  };
}
