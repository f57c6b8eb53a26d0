import { z } from 'zod';
import { LIST_LIMITS, LIST_NAME } from '../domain/lists.ts';
import { askedReason, reason, text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import type { ListQueries } from './list-queries.ts';
import type { Lists } from './lists.ts';
import { by } from './reach.ts';

const tag = 'lists';

const Name = z
  .string()
  .regex(LIST_NAME, 'must be at most 64 lower-case letters, digits, "_" and "-", and begin with a letter or digit');
const Version = z.int().min(1).max(2_147_483_647);

const ListVersionOut = z
  .object({
    version: z.int(),
    status: z.enum(['pending', 'approved', 'rejected']),
    count: z.int().describe('how many values it has'),
    hash: z.string().describe('the hash of the canonical JSON of its values'),
    added: z.int().describe('values that the version in use did not have when this one was made'),
    removed: z.int(),
    author_id: z.string(),
    created_at: z.iso.datetime(),
    decided_by: z.string().nullable(),
    decided_at: z.iso.datetime().nullable(),
    comment: z.string().nullable(),
    kept: z.boolean().describe('its values can still be read: those of the newest 20 versions and of the live one'),
  })
  .meta({ id: 'ListVersion' });

const listOut = {
  name: z.string(),
  version: z.int().describe('the newest version'),
  live_version: z.int().nullable().describe('the version that decisions use; null before the first approval'),
  newest: ListVersionOut,
  used_by: z.array(z.string()).describe('the live policies that name it'),
};
const ListOut = z.object(listOut).meta({ id: 'List' });
const ListDetailOut = z.object({ ...listOut, versions: z.array(ListVersionOut) }).meta({ id: 'ListDetail' });

const DifferenceOut = z.object({
  values: z.array(z.string()).describe('the first 1,000'),
  total: z.int(),
});

/** Pipeline keys and authors may write lists. */
const write = { keys: ['pipeline'], role: 'author' } as const;
const read = { keys: ['pipeline'], role: 'viewer' } as const;
const decides = { keys: [], role: 'approver' } as const;

export function listsRouter(lists: Lists, queries: ListQueries) {
  return trpc.router({
    list: route('GET /v1/lists', read, { summary: 'List the reference lists', tag })
      .input(z.strictObject({}))
      .output(z.object({ lists: z.array(ListOut) }))
      .query(async ({ ctx }) => ({ lists: await queries.list(ctx.tenantId) })),

    get: route('GET /v1/lists/{name}', read, {
      summary: 'Read a reference list: its versions, and one page of the values of a version',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(
        z.strictObject({
          name: Name,
          version: Version.optional().describe(
            'if absent, the newest one, or the one in use if the newest was rejected',
          ),
          q: text(200).optional().describe('only values with this part, whatever its case'),
          after: text(30_000).optional(),
          limit: z.int().min(1).max(1_000).default(100),
        }),
      )
      .output(ListDetailOut.extend({ values: z.array(z.string()), next: z.string().nullable() }))
      .query(async ({ ctx, input: { name, version, ...page } }) => {
        const list = await queries.get(ctx.tenantId, name);
        // edits start from these values: rejected ones do not come back with them
        const { newest, live_version } = list;
        const usual = newest.status === 'rejected' ? (live_version ?? newest.version) : newest.version;
        return { ...list, ...(await queries.values(ctx.tenantId, name, version ?? usual, page)) };
      }),

    put: route('PUT /v1/lists/{name}', write, {
      summary: 'Create a reference list, or a new version with other values',
      description:
        'The values replace those of the version before. They are normalized to NFC and sorted, and duplicates are removed. If the tenant requires approval, the version waits for an approver; otherwise decisions use it as soon as the answer is there.',
      tag,
      bodyBytes: LIST_LIMITS.bytes + 64 * 1024,
      problems: ['VERSION_CHANGED', 'CONFLICT'],
    })
      .input(
        z.strictObject({
          name: Name,
          values: z.array(z.string().max(LIST_LIMITS.characters * 3)).max(LIST_LIMITS.values),
          version: z.int().min(0).max(2_147_483_647).describe('the version that you have read; 0 for a new list'),
          comment: text(2000).optional(),
        }),
      )
      .output(ListDetailOut)
      .mutation(async ({ ctx, input: { name, values, version: seen, comment } }) => {
        await lists.put(ctx.tenantId, name, { values, seen, comment }, by(ctx));
        return queries.get(ctx.tenantId, name);
      }),

    approve: route('POST /v1/lists/{name}/approve', decides, {
      summary: 'Approve the newest version of a reference list, which decisions then use',
      description:
        'If the tenant requires approval, this needs a signed-in person who wrote neither it nor another version since the one in use.',
      tag,
      problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'SELF_APPROVAL'],
    })
      .input(z.strictObject({ name: Name, version: Version, comment: text(2000).optional() }))
      .output(ListDetailOut)
      .mutation(async ({ ctx, input: { name, version, comment } }) => {
        await lists.approve(ctx.tenantId, name, version, comment, by(ctx));
        return queries.get(ctx.tenantId, name);
      }),

    reject: route('POST /v1/lists/{name}/reject', decides, {
      summary: 'Reject the newest version of a reference list; the live one stays in force',
      tag,
      problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ name: Name, version: Version, reason }))
      .output(ListDetailOut)
      .mutation(async ({ ctx, input: { name, version, reason } }) => {
        await lists.reject(ctx.tenantId, name, version, reason, by(ctx));
        return queries.get(ctx.tenantId, name);
      }),

    diff: route('GET /v1/lists/{name}/diff', read, {
      summary: 'What changed between two versions of a reference list',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ name: Name, from: Version, to: Version }))
      .output(z.object({ name: z.string(), from: z.int(), to: z.int(), added: DifferenceOut, removed: DifferenceOut }))
      .query(({ ctx, input: { name, from, to } }) => queries.diff(ctx.tenantId, name, from, to)),

    remove: route('DELETE /v1/lists/{name}', write, {
      summary: 'Delete a reference list that no live policy names, with the values of all its versions',
      tag,
      status: 204,
      problems: ['NOT_FOUND', 'CONFLICT'],
    })
      .input(z.strictObject({ name: Name, reason: askedReason }))
      .output(z.void())
      .mutation(async ({ ctx, input: { name, reason } }) =>
        lists.remove(ctx.tenantId, name, by(ctx), await reasonFor(ctx, reason)),
      ),
  });
}
