import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { BaseSequencer, type Reporter, type TestModule, type TestSpecification } from 'vitest/node';

const ROOT = path.resolve(import.meta.dirname, '../..');
const FILE = path.join(ROOT, 'test/seconds.json');
/** Files below this are not listed: they make no difference to when a run ends. */
const LEAST_SECONDS = 1;
const SHOWN = 10;

const nameOf = (moduleId: string) => path.relative(ROOT, moduleId);

/** How long each test file took in the run that was recorded last, in seconds, the longest first. */
export function readSeconds(): Record<string, number> {
  return JSON.parse(readFileSync(FILE, 'utf8')) as Record<string, number>;
}

/** Starts with the files that take longest: one of them that starts last keeps one worker busy while the others have none. */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const seconds = readSeconds();
    const of = ({ moduleId }: TestSpecification) => seconds[nameOf(moduleId)] ?? 0;
    return (await super.sort(files)).sort((a, b) => of(b) - of(a));
  }
}

/**
 * Prints what took longest after each run. With SVC_WRITE_SECONDS=1 it also records in `test/seconds.json` how long each file
 * took, for the files that ran and passed; those that are gone are dropped.
 */
export class Seconds implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const files = modules.map((one) => ({ name: one.relativeModuleId, seconds: secondsOf(one), passed: one.ok() }));
    const tests = modules.flatMap((module) =>
      [...module.children.allTests()].map((test) => ({
        name: `${module.relativeModuleId} > ${test.fullName}`,
        seconds: (test.diagnostic()?.duration ?? 0) / 1000,
      })),
    );
    if (tests.length > SHOWN) {
      print('files', files);
      print('tests', tests);
    }
    if (process.env.SVC_WRITE_SECONDS === '1') record(files.filter(({ passed }) => passed));
  }
}

interface Timed {
  name: string;
  seconds: number;
}

function secondsOf(module: TestModule): number {
  const { collectDuration, setupDuration, duration } = module.diagnostic();
  return (collectDuration + setupDuration + duration) / 1000;
}

function print(what: string, all: readonly Timed[]): void {
  const sum = all.reduce((total, { seconds }) => total + seconds, 0);
  const longest = [...all].sort((a, b) => b.seconds - a.seconds).slice(0, SHOWN);
  const lines = longest.map(({ name, seconds }) => `  ${seconds.toFixed(1).padStart(6)} s  ${name}`);
  console.log([`\nThe ${what} that took longest, of ${all.length} and ${Math.round(sum)} s:`, ...lines].join('\n'));
}

function record(files: readonly Timed[]): void {
  const before = readSeconds();
  const kept = Object.entries(before).filter(
    ([name]) => existsSync(path.join(ROOT, name)) && !files.some((one) => one.name === name),
  );
  const listed = files
    .filter(({ seconds }) => seconds >= LEAST_SECONDS)
    .map(({ name, seconds }) => [name, Math.round(seconds)] as const);
  const all = [...kept, ...listed].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
  writeFileSync(FILE, `${JSON.stringify(Object.fromEntries(all), undefined, 2)}\n`);
}
