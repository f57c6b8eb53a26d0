import { CedarHost } from '../../server/policy/language/host.ts';
import { newTally, round } from '../policy/differential.ts';
import { type BenchContext, type Figure, figure, pick } from './lib.ts';

const SEED = Number(process.env.SVC_BENCH_SEED ?? 1);
const SIZE = { statements: 50, requests: 60 };

/**
 * Random conditions on random requests, evaluated by the compiled conditions and by Cedar: SVC_BENCH_CASES of them starting from
 * SVC_BENCH_SEED. Each round uses the next seed, and a difference is reported with its own.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const { print = () => {} } = ctx;
  const most = Number(process.env.SVC_BENCH_CASES ?? pick(ctx, 20_000, 250_000));
  const host = new CedarHost();
  const tally = newTally();
  let seed = SEED;
  for (; tally.cases < most && tally.differences.length === 0; seed++) {
    round(host, seed, tally, SIZE);
    if (seed % 500 === 0) print(`${tally.cases} cases, ${tally.differences.length} differences, seed ${seed}`);
  }
  for (const difference of tally.differences) print(JSON.stringify(difference));
  const share = (count: number) => (100 * count) / tally.cases;
  return [
    figure(`cases, seeds ${SEED} to ${seed - 1}`, tally.cases, 'cases'),
    figure('true', share(tally.true), '%'),
    figure('false', share(tally.false), '%'),
    figure('asked of Cedar because of their values', share(tally.asked), '%'),
    figure('of that: errors', share(tally.errors), '%'),
    figure('statements outside the compiled subset', (100 * tally.outside) / tally.statements, '%'),
    figure('differences', tally.differences.length, 'cases', 0, true),
  ];
}
