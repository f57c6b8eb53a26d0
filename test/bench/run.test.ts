import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { alternate, figure, growth, inParts, median, pick, quantile, ratios, shown } from './lib.ts';
import { BENCHES, benchOf } from './list.ts';
import { help, type Machine, markdown, statusOf, table } from './report.ts';

const run = path.join(import.meta.dirname, 'run.ts');
const env = { ...process.env, SVC_BENCH_CASES: '100' };

test('a median of an even count is the mean of the middle two, and quantiles lie between ranks', () => {
  expect(median([4, 1, 3, 2])).toBe(2.5);
  expect(median([3, 1, 2])).toBe(2);
  expect(median([7])).toBe(7);
  expect(median([])).toBeNaN();
  const values = [10, 20, 30, 40, 50];
  expect([0, 0.25, 0.5, 0.9, 1].map((q) => quantile(values, q))).toEqual([10, 20, 30, 46, 50]);
  expect(quantile([10, 20], 0.5)).toBe(15);
});

test('a figure of rounds is their median, with the least and the most, held against its aim', () => {
  expect(figure('a', [3, 1, 2, 10], 's', 3, true)).toEqual({
    ...{ name: 'a', value: 2.5, unit: 's', min: 1, max: 10, rounds: 4, target: 3, atMost: true, pass: true },
  });
  expect(figure('a', 2, 's', 3)).toEqual({ name: 'a', value: 2, unit: 's', target: 3, atMost: false, pass: false });
  expect(figure('a', 2, 's')).toEqual({ name: 'a', value: 2, unit: 's' });
  expect(figure('a', [], 's', 3, true).pass).toBe(false);
});

test('contenders take turns, and a ratio is that of one round', async () => {
  const order: string[] = [];
  const measure = (name: string, value: number) => (round: number) => {
    order.push(`${name}${round}`);
    return value + round;
  };
  const found = await alternate(2, { ours: measure('ours', 10), limit: measure('limit', 20) });
  expect(order).toEqual(['ours0', 'limit0', 'ours1', 'limit1']);
  expect(ratios(found.ours, found.limit)).toEqual([10 / 20, 11 / 21]);
  expect(() => ratios([1], [1, 2])).toThrow();
});

test('what was measured in a row is told apart into rounds, and nothing of it is left out', () => {
  expect(inParts([1, 2, 3, 4, 5, 6, 7], 3)).toEqual([
    [1, 2],
    [3, 4],
    [5, 6, 7],
  ]);
});

test('growth is the cost of a unit at each size, and where there is most beside the cheapest', () => {
  const steps = [
    { of: '100', cost: [2, 4] },
    { of: '1,000', cost: 2.5 },
    { of: '10,000', cost: 6 },
  ];
  expect(growth('decide', steps, 'µs', 1.5).map(({ name, value, pass }) => [name, value, pass])).toEqual([
    ['decide, 100', 3, undefined],
    ['decide, 1,000', 2.5, undefined],
    ['decide, 10,000', 6, undefined],
    ['decide: 10,000 / the cheapest', 2.4, false],
  ]);
});

test('--quick and --long choose sizes; --long takes the usual one where it has none of its own', () => {
  expect(pick({ url: '' }, 1, 2, 3)).toBe(2);
  expect(pick({ url: '', effort: 'quick' }, 1, 2, 3)).toBe(1);
  expect(pick({ url: '', effort: 'long' }, 1, 2, 3)).toBe(3);
  expect(pick({ url: '', effort: 'long' }, 1, 2)).toBe(2);
});

test('the reports say where, how often, what was aimed at, and what failed', () => {
  const machine: Machine = {
    ...{ cpu: 'Some CPU', cores: 2, memory_gb: 8, node: 'v24.0.0', postgres: '18.4', redis: 'not installed' },
    ...{ commit: 'abc1234', dirty: true, load: 0.5, effort: 'quick' },
  };
  const report = { decide: [figure('p50', [1, 2, 3], 'ms', 1.5, true), figure('rate', 12_345, '/s', 10_000)] };
  const text = table(machine, report, { stop: 'no' });
  expect(text).toContain(
    '2 × Some CPU, 8 GB, Node v24.0.0, PostgreSQL 18.4, Redis not installed, commit abc1234 (dirty)',
  );
  expect(text).toMatch(/p50 +2 ms +1 – 3 +MISSED \(at most 1\.50\)/);
  expect(text).toMatch(/rate +12,345 \/s +met \(at least 10,000\)/);
  expect(text).toContain('stop FAILED: no');
  expect(text).toContain('1 of 2 aims were met');
  const figures = markdown(machine, { decide: [...report.decide, figure('cold', 9, 'µs')] }, {});
  expect(figures).toContain('| decide | p50 | 2 ms | 1 – 3 | at most 1.50 | **no** |');
  // neither an aim nor a ratio
  expect(figures).not.toContain('cold');
  expect(shown(0.012345)).toBe('0.0123');
});

test('the status is 1 where a benchmark failed, and with --strict where a figure missed its aim', () => {
  const [met, missed] = [figure('rate', 12, '/s', 10), figure('p50', 2, 'ms', 1.5, true)];
  const unmeasured = figure('p99', [], 'ms', 3, true);
  const strict = { strict: true };
  for (const how of [strict, { strict: false }]) {
    expect(statusOf({ decide: [met, figure('cold', 9, 'µs')] }, {}, how)).toBe(0);
    expect(statusOf({ decide: [met] }, { stop: 'no' }, how)).toBe(1);
  }
  for (const one of [missed, unmeasured]) {
    expect(statusOf({ ingest: [met], decide: [met, one] }, {}, strict)).toBe(1);
    expect(statusOf({ ingest: [met], decide: [met, one] }, {}, { strict: false })).toBe(0);
  }
});

test('--strict is an option of the program', () => {
  // this one is exact: no case differs
  const { status } = spawnSync(process.execPath, [run, '--quick', '--strict', 'differential'], { env });
  expect(status).toBe(0);
});

test('--quick takes less than three minutes, as the list says', () => {
  const names = Object.keys(BENCHES).filter((name) => !benchOf(name)!.named);
  expect(names.reduce((sum, name) => sum + benchOf(name)!.seconds[0], 0)).toBeLessThan(180);
});

test('--help has a line for each benchmark, and each has its file', () => {
  const text = execFileSync(process.execPath, [run, '--help'], { encoding: 'utf8' });
  expect(text.trim()).toBe(help());
  for (const name of Object.keys(BENCHES)) {
    expect(text).toMatch(new RegExp(`^  ${name} .*(s|min)`, 'm'));
    expect(existsSync(path.resolve(import.meta.dirname, benchOf(name)!.file ?? `./${name}.ts`))).toBe(true);
  }
});

test('an unknown name or option is an error that lists the names', () => {
  for (const word of ['nope', '--nope']) {
    const { status, stderr, stdout } = spawnSync(process.execPath, [run, word], { encoding: 'utf8' });
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr).toContain('nope');
    expect(stderr).toContain('differential');
  }
});

test('--json is the machine and the figures, and nothing else', () => {
  const text = execFileSync(process.execPath, [run, '--quick', '--json', 'differential'], {
    ...{ encoding: 'utf8', env, stdio: ['ignore', 'pipe', 'ignore'] },
  });
  const { machine, report, failed } = JSON.parse(text);
  expect(machine).toMatchObject({
    cores: expect.any(Number),
    node: process.version,
    postgres: 'not used',
    effort: 'quick',
  });
  expect(machine).toHaveProperty('commit');
  expect(machine).toHaveProperty('load');
  expect(report.differential).toContainEqual({
    ...{ name: 'differences', value: 0, unit: 'cases', target: 0, atMost: true, pass: true },
  });
  expect(failed).toEqual({});
});
