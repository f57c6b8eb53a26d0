import type { AnyProcedure } from '@trpc/server';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { buildRouter, type Services } from '../../server/api/root.ts';
import type { Principal } from '../../server/domain/principal.ts';
import { AppError, problemBody } from '../../server/errors.ts';
import { type Context, directly, publicRoute, route, toAppError, trpc } from '../../server/rpc/procedure.ts';

const spec = { summary: 'Test', tag: 'test' };
const answers = z.object({ said: z.string().max(5).default('none') });
const throwing: Record<string, () => unknown> = {
  app: () => new AppError('CONFLICT', 'as said', { headers: { 'x-why': '1' } }),
  wrapped: () => new Error('outer', { cause: new AppError('NOT_FOUND') }),
  database: () => Object.assign(new Error('gone'), { code: 'ECONNREFUSED' }),
  schema: () => z.string().safeParse(1).error,
  library: () => Object.assign(new Error('their 404'), { statusCode: 404 }),
  plain: () => new TypeError('a defect'),
  text: () => 'not even an error',
};
const Input = z.strictObject({
  say: z.string().optional(),
  fail: z.enum(Object.keys(throwing) as [string, ...string[]]).optional(),
  count: z.int().min(1).max(3).default(1),
});
const handler = ({ ctx, input }: { ctx: Context; input?: z.output<typeof Input> | undefined }) => {
  if (input?.fail) throw throwing[input.fail]!();
  return { said: input?.say, more: [ctx.principal?.id, input?.count] } as { said?: string };
};
const router = trpc.router({
  open: publicRoute('POST /open', spec).input(Input).output(answers).mutation(handler),
  members: route('POST /members', { keys: [], role: 'author' }, spec).input(Input).output(answers).mutation(handler),
  agents: route('POST /agents', { agent: true }, spec).input(Input).output(answers).mutation(handler),
  unchecked: route('GET /unchecked', { keys: ['proxy'], role: 'viewer' }, spec).query(handler),
  bare: trpc.procedure.input(Input).mutation(handler),
});
type Name = keyof typeof router._def.procedures;

const PRINCIPALS: (Principal | null)[] = [
  null,
  { kind: 'agent_key', tenantId: 't', id: 'agk_1', ownerId: null, agentId: 'bot', agentRole: 'support' },
  { kind: 'api_key', tenantId: 't', id: 'key_1', ownerId: null, scopes: ['proxy'] },
  { kind: 'api_key', tenantId: 't', id: 'key_2', ownerId: null, scopes: ['admin'] },
];
const INPUTS: unknown[] = [
  {},
  { say: 'hello' },
  { say: 'too long' },
  { say: 7 },
  { count: 4 },
  { count: 2, other: 1 },
  JSON.parse('{"__proto__": {"say": "x"}}'),
  [],
  null,
  undefined,
  'text',
  ...Object.keys(throwing).map((fail) => ({ fail })),
];

function contextOf(principal: Principal | null): Context {
  return {
    principal,
    requestId: 'req_1',
    ip: '127.0.0.1',
    method: 'POST',
    headers: {},
    stillValid: async () => true,
    count: async () => {},
    reasonsRequired: async () => false,
    gone: () => new AbortController().signal,
    answer: {},
  };
}

async function outcome(run: () => Promise<unknown>): Promise<unknown> {
  try {
    return { answer: await run() };
  } catch (error) {
    const problem = toAppError(error);
    return { problem: problemBody(problem), headers: problem.headers };
  }
}

describe('a procedure that is run directly', () => {
  const { bare: _, ...mounted } = router._def.procedures;

  test('answers and refuses what it does through tRPC, for every caller and input', async () => {
    const seen = new Set<string>();
    for (const [name, procedure] of Object.entries(mounted)) {
      const run = directly(procedure as AnyProcedure);
      for (const principal of PRINCIPALS) {
        const caller = router.createCaller(contextOf(principal));
        for (const input of INPUTS) {
          const through = await outcome(() => (caller[name as Name] as (input: unknown) => Promise<unknown>)(input));
          const direct = await outcome(() => run(contextOf(principal), input));
          expect(direct, `${name} ${principal?.id} ${JSON.stringify(input)}`).toEqual(through);
          seen.add('problem' in (direct as object) ? (direct as { problem: { code: string } }).problem.code : 'answer');
        }
      }
    }
    const all = ['CONFLICT', 'INTERNAL', 'KEY_SCOPE', 'UNAUTHENTICATED', 'UNAVAILABLE', 'VALIDATION_FAILED'];
    expect([...seen].sort()).toEqual([...all, 'answer'].sort());
  });

  test('has no access rule left out, and no step that is not known', () => {
    expect(() => directly(router._def.procedures.bare as AnyProcedure)).toThrow('steps that only tRPC can run');
    const more = route('POST /more', { agent: true }, spec).use(({ next }) => next());
    expect(() => directly(more.input(Input).mutation(handler) as AnyProcedure)).toThrow('only tRPC');
    const twice = route('POST /more', { agent: true }, spec).input(Input).input(z.object({}));
    expect(() => directly(twice.mutation(handler) as AnyProcedure)).toThrow('only tRPC');
  });

  test('is how all of the API can be run', () => {
    const { procedures } = buildRouter({} as Services)._def;
    for (const procedure of Object.values(procedures as unknown as Record<string, AnyProcedure>)) directly(procedure);
  });
});
