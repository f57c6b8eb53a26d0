import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

const ROOT = path.resolve(import.meta.dirname, '../..');
const CODE = /\.(?:ts|tsx|js|mjs)$/;
const TEST = /\.test\.ts$/;

/** What every test depends on: when one of these changes, all tests are affected. */
const EVERYTHING = [
  'package.json',
  'package-lock.json',
  'tsconfig.json',
  'test/vitest.config.ts',
  'test/helpers/setup.ts',
  'test/helpers/global-setup.ts',
  'test/helpers/cleanups.ts',
];

/** What a file depends on without naming it: the run's global setup builds it, or a page of the documentation has its commands. */
const UNNAMED: Readonly<Record<string, readonly string[]>> = {
  'test/helpers/provisions.ts': ['db/embedded.ts', 'db/index.ts'],
  'test/helpers/browser.ts': ['web/build.ts', 'web/index.html', 'web/main.tsx'],
  'test/readme.slow.test.ts': scripts(),
  'test/api/docs.test.ts': ['docs/**'],
  'test/e2e/docs.test.ts': ['docs/**'],
};

/** It serves the documentation as it is: what a page says makes no difference to the rest of a server. */
const SERVES_DOCS = 'server/api/docs.ts';

/**
 * Reads the repository once. The result tells which test files a change of some files can affect. A file depends on each file or
 * folder of the repository that it names in a string: by import, or as a program to start or a text to read. Imports of types do
 * not count. Paths are from the root.
 */
export function readReach(): (changed: readonly string[]) => string[] {
  const files = tracked();
  const tests = files.filter((file) => TEST.test(file)).sort();
  const users = new Map<string, string[]>();
  for (const [file, used] of usesOf(files)) for (const one of used) users.set(one, [...(users.get(one) ?? []), file]);
  return (changed) => {
    if (changed.some((file) => EVERYTHING.includes(file))) return tests;
    const reached = new Set(changed);
    // a set visits what is added to it while it is read
    for (const file of reached) for (const user of users.get(file) ?? []) reached.add(user);
    return tests.filter((file) => reached.has(file));
  };
}

/** The files of the repository, with those that are not committed yet. */
function tracked(): string[] {
  const listed = git('ls-files', '--cached', '--others', '--exclude-standard').filter((file) =>
    existsSync(path.join(ROOT, file)),
  );
  return [...new Set(listed)];
}

/** The files that differ from a commit, deleted and uncommitted ones included. Throws if there is no such commit. */
export function changedSince(commit: string): string[] {
  git('rev-parse', '--verify', '--quiet', `${commit}^{commit}`);
  return [...git('diff', '--name-only', '--no-renames', commit), ...git('ls-files', '--others', '--exclude-standard')];
}

/** The programs that `npm run` starts. */
function scripts(): string[] {
  const { scripts } = JSON.parse(readFileSync(path.join(ROOT, 'package.json'), 'utf8')) as { scripts: object };
  return [...JSON.stringify(scripts).matchAll(/[\w./-]+\.ts\b/g)].map(([name]) => name);
}

export function git(...args: string[]): string[] {
  const text = execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 });
  return text.split('\n').filter(Boolean);
}

function usesOf(files: readonly string[]): Map<string, Set<string>> {
  const known = new Set(files);
  const folders = new Map<string, string[]>();
  for (const file of files) {
    // who names a folder does not mean the tests in it
    for (let folder = path.dirname(file); folder !== '.' && !TEST.test(file); folder = path.dirname(folder)) {
      folders.set(folder, [...(folders.get(folder) ?? []), file]);
    }
  }
  const uses = new Map<string, Set<string>>();
  for (const file of files) {
    if (!CODE.test(file)) continue;
    const used = new Set<string>();
    for (const name of [...(UNNAMED[file] ?? []), ...namesIn(file)]) {
      for (const base of [path.dirname(file), '.']) {
        const target = path.normalize(path.join(base, name)).replace(/\/$/, '');
        if (known.has(target)) used.add(target);
        else if (/[*{]/.test(name))
          for (const one of files) if (!TEST.test(one) && path.matchesGlob(one, target)) used.add(one);
        for (const one of folders.get(target) ?? []) used.add(one);
      }
    }
    used.delete(file);
    if (file === SERVES_DOCS) for (const one of used) if (!CODE.test(one)) used.delete(one);
    uses.set(file, used);
  }
  return uses;
}

/** Every text in a file that could be a path. */
function namesIn(file: string): string[] {
  const text = readFileSync(path.join(ROOT, file), 'utf8');
  const code = text
    .replace(/^\s*(?:\/\/|\/?\*).*$/gm, '')
    .replace(/^(?:import|export) type\s[^;]*?from\s+'[^']*'/gm, '');
  const quoted = [...code.matchAll(/(['"`])([\w./@*{},+-]{2,200})\1/g)].map(([, , name]) => name!);
  // the name of a folder alone is a path only where paths are joined
  const joined = [...code.matchAll(/(?:join|resolve|cpSync|readdirSync)\([^)\n]*?'(\w+)'/g)].map(([, name]) => name!);
  // a path from the root of a disk or of a server is none of the repository's
  return [...quoted.filter((name) => /[./]/.test(name) && !/^(?:[/*]|\.+\/?$)/.test(name)), ...joined];
}
