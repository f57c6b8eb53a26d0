import { performance } from 'node:perf_hooks';
import { openDatabase } from '../../db/index.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { Egress } from '../../server/lib/egress.ts';
import { createTenant } from '../../server/provision.ts';
import { happen, subscribe, withReceivers } from './deliver.ts';
import { ingested } from './ingest.ts';
import { alternate, type BenchContext, type Figure, growth, pick } from './lib.ts';
import { withProgram } from './program.ts';
import { fill, run } from './verify.ts';

/**
 * What a unit of the main work costs as its surroundings grow ten and a hundred times: a record verified and a page found among
 * more records, a delivery to more destinations, an event of more tenants. (Statements: `decide`.) The sizes alternate. A cost
 * that grows with the size shows in the last figure of each.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const egress = new Egress({ allow: ['127.0.0.1/32'], dnsServers: [] });
  const sizes = pick(ctx, [5_000, 25_000], [10_000, 100_000], [10_000, 100_000, 1_000_000]);
  const filled = new Map<number, string>();
  for (const size of sizes) filled.set(size, await fill(ctx.url, size));
  const verified = await swept(
    ctx,
    'verify',
    [sizes, 'records'],
    async (size) => 1e6 / (await run('verify', ctx.url, filled.get(size)!)).recordsPerSecond,
    'µs/record',
  );
  const served = await withReceivers((receivers) =>
    withProgram(
      ctx.url,
      async (program) => [...(await search(ctx, program, filled)), ...(await destinations(ctx, program, receivers))],
      { egress },
    ),
  );
  return [...verified, ...served, ...(await tenants(ctx))];
}

type Program = Parameters<Parameters<typeof withProgram>[1]>[0];
type Receivers = Parameters<Parameters<typeof withReceivers>[0]>[0];

const newTenant = ({ core, url }: Program, name: string) =>
  createTenant(core, url, { name, adminEmail: 'bench@example.test' });

const named = (size: number, unit: string) => `${size.toLocaleString('en')} ${unit}`;

/** The cost at each size, in turn. */
async function swept(
  ctx: BenchContext,
  name: string,
  [sizes, unit]: readonly [readonly number[], string],
  cost: (size: number, round: number) => Promise<number>,
  of: string,
): Promise<Figure[]> {
  const contenders = Object.fromEntries(
    sizes.map((size) => [named(size, unit), (round: number) => cost(size, round)] as const),
  );
  const found = await alternate(pick(ctx, 1, 3), contenders, (line) => ctx.print?.(`${name}, ${line}`));
  return growth(
    name,
    Object.entries(found).map(([of, cost]) => ({ of, cost })),
    of,
    2,
  );
}

/** Pages of a session, of an agent, and of all denials. */
async function search(ctx: BenchContext, { core, url }: Program, filled: ReadonlyMap<number, string>) {
  const keys = new Map<number, string>();
  for (const [size, tenantId] of filled) {
    const made = { label: 'bench', scopes: ['admin' as const], owner: null };
    keys.set(size, (await core.keys.createApiKey(tenantId, made, { actor: OPERATOR })).secret);
  }
  const cost = async (size: number, round: number) => {
    const pages = 60;
    const began = performance.now();
    for (let n = 0; n < pages; n++) {
      const i = ((n + round * pages) * 7919) % size;
      const filter = [
        `session_id=ses_01j9z8q4m2n7p3r5${Math.floor(i / 25)}`,
        `agent_id=agt_01j9z8q4m2n7x${(i * 13) % 500}`,
        'decision=deny',
      ][n % 3];
      const response = await fetch(`${url}/v1/events?limit=20&${filter}`, {
        headers: { authorization: `Bearer ${keys.get(size)!}` },
      });
      const text = await response.text();
      if (!response.ok || !text.includes('evt_')) throw new Error(`${filter}: ${response.status} ${text}`);
    }
    return (performance.now() - began) / pages;
  };
  // until the server has compiled the hot paths
  for (const size of filled.keys()) await cost(size, 7);
  return swept(ctx, 'search', [[...filled.keys()], 'records'], cost, 'ms/page');
}

async function destinations(ctx: BenchContext, program: Program, receivers: Receivers): Promise<Figure[]> {
  // 200 is the most that a tenant may have
  const sizes = pick(ctx, [2, 20], [2, 20, 200]);
  const count = pick(ctx, 500, 3_000);
  const made = new Map<number, string>();
  for (const size of sizes) {
    const { tenant_id } = await newTenant(program, named(size, 'destinations'));
    await subscribe(program.core, tenant_id, receivers.fast, size);
    made.set(size, tenant_id);
  }
  const cost = async (size: number) =>
    1e3 / (await receivers.rate(count, () => happen(program.core, made.get(size)!, count / size)));
  for (const size of sizes) await cost(size);
  return swept(ctx, 'deliveries', [sizes, 'destinations'], cost, 'ms/delivery');
}

async function tenants(ctx: BenchContext): Promise<Figure[]> {
  const db = await openDatabase(ctx.url, { poolSize: 5 });
  try {
    const sent = { connections: 100, eventsPerRequest: 10, seconds: pick(ctx, 1, 3), warmSeconds: pick(ctx, 0.5, 1) };
    const cost = async (size: number) => 1e6 / (await ingested(db, size, sent));
    return await swept(ctx, 'ingest', [[1, 10, 100], 'tenants'], cost, 'µs/event');
  } finally {
    await db.close();
  }
}
