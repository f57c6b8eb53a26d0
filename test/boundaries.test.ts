import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';

/**
 * The import ladder: a file imports only from lower steps and from its own folder, types included, and there is no
 * exception. server/app.ts joins the features by passing functions. docs/architecture.md describes the rooms.
 */
const STEPS: readonly (readonly string[])[] = [
  ['server/lib/', 'server/config.ts', 'machines/'],
  ['server/domain/'],
  ['db/', 'server/errors.ts'],
  ['server/rpc/'],
  ['server/keys/', 'server/auth/', 'server/tenants/', 'server/actors/', 'server/jobs/'],
  ['server/policy/', 'server/chain/'],
  [
    'server/escrow/',
    'server/subscriptions/',
    'server/forensics/',
    'server/proxies/',
    'server/stops/',
    'server/tools/',
    'server/simulation/',
  ],
  ['server/decisions/', 'server/letters/'],
  ['server/api/', 'server/cli/', 'server/'],
];

/** Files that reach no clock, network or database, and import only such files. */
const PURE = [
  'machines/',
  'server/domain/',
  'server/lib/bounded.ts',
  'server/lib/canonical-json.ts',
  'server/lib/closed.ts',
  'server/lib/crypto.ts',
  'server/lib/database-hosts.ts',
  'server/lib/faults.ts',
  'server/lib/listen.ts',
  'server/lib/fetched.ts',
  'server/lib/folded.ts',
  'server/lib/json-answer.ts',
  'server/lib/json-depth.ts',
  'server/lib/json-members.ts',
  'server/lib/nearest.ts',
  'server/lib/parts.ts',
  'server/lib/tar.ts',
  'server/lib/trace.ts',
  'server/lib/turns.ts',
  'server/lib/visible.ts',
  'server/lib/telemetry/names.ts',
  'server/keys/current.ts',
  'server/policy/language/',
  'server/policy/evaluation/',
  'server/policy/simulation/',
  'server/policy/bundle.ts',
  'server/policy/review-place.ts',
  'server/escrow/kinds.ts',
  'server/escrow/quorum.ts',
  'server/escrow/vote-effect.ts',
  'server/subscriptions/signature.ts',
  'server/stops/document.ts',
  'server/chain/blake3.ts',
  'server/chain/record.ts',
  'server/chain/note.ts',
  'server/chain/hash-lanes.ts',
  'server/chain/verify.ts',
  'server/forensics/approvals.ts',
  'server/forensics/archive.ts',
  'server/forensics/auditor-files.ts',
  'server/forensics/check-package.ts',
];
/** Programs beside the ladder: they import pure files only, and of what reaches out of a process just what is listed. */
const BESIDE: Record<string, readonly string[]> = {
  'server/forensics/svc-verify.ts': [],
  'server/inspect/': ['server/inspect/'],
  'server/proxy/': [
    'server/proxy/',
    'server/lib/clock.ts',
    'server/lib/collect.ts',
    'server/lib/egress.ts',
    'server/lib/ids.ts',
    'server/lib/log.ts',
    'server/lib/patience.ts',
    'server/lib/pause.ts',
    'server/lib/processor-time.ts',
    'server/lib/settings.ts',
    'server/lib/signals.ts',
    'server/lib/telemetry/',
  ],
};

const root = path.resolve(import.meta.dirname, '..');
const starts = (file: string, prefixes: readonly string[]) => prefixes.some((prefix) => file.startsWith(prefix));

/** Programs beside the ladder stand on no step: what they may import is tested on its own. */
const isBeside = (file: string) => starts(file, Object.keys(BESIDE));

function stepOf(file: string): number {
  return STEPS.findIndex((prefixes) => starts(file, prefixes));
}

function folderOf(file: string): string {
  const parts = file.split('/');
  return parts[0] === 'server' && parts.length > 2 ? parts.slice(0, 2).join('/') : parts[0]!;
}

/** Every import of a file, as paths from the root; packages as they are named. */
function imports(file: string): string[] {
  const text = readFileSync(path.join(root, file), 'utf8');
  const found = [
    ...text.matchAll(/^(?:import|export)\s[^;]*?from\s+'([^']+)'|import\('([^']+)'\)|^import\s+'([^']+)'/gm),
  ];
  return found
    .map(([, a, b, c]) => (a ?? b ?? c)!)
    .map((name) => (name.startsWith('.') ? path.normalize(path.join(path.dirname(file), name)) : name));
}

const files = globSync('{server,machines,db}/**/*.ts', { cwd: root });

test('there is something to check', () => {
  expect(files.length).toBeGreaterThan(40);
});

test('a file imports only from lower steps, and never from a neighbor', () => {
  const wrong: string[] = [];
  for (const file of files.filter((name) => !isBeside(name))) {
    for (const target of imports(file)) {
      if (!/^(server|machines|db)\//.test(target)) continue;
      const [from, to] = [stepOf(file), stepOf(target)];
      // the lowest step and the roof are one place each
      const neighbors = to === from && from > 0 && from < STEPS.length - 1 && folderOf(file) !== folderOf(target);
      if (to > from || neighbors) {
        wrong.push(`${file} (step ${from}) imports ${target} (step ${to})`);
      }
    }
  }
  expect(wrong).toEqual([]);
});

test('pure files import pure files only, and nothing that reaches a clock, the network or a database', () => {
  const allowed =
    /^(node:(crypto|zlib|util|path|net|buffer|module|fs|worker_threads|url|vm)|xstate|blake3|diff$|fastest-levenshtein$|re2js$|@cedar-policy\/|zod)/;
  const wrong: string[] = [];
  for (const file of files.filter((name) => starts(name, PURE))) {
    for (const target of imports(file)) {
      const ours = /^(server|machines|db)\//.test(target);
      if (ours ? !starts(target, PURE) : !allowed.test(target)) wrong.push(`${file} imports ${target}`);
      // only the language's engine and worker read files: the engine itself
      if (/^node:(fs|worker_threads|module|vm)/.test(target) && !file.startsWith('server/policy/language/')) {
        wrong.push(`${file} imports ${target}`);
      }
    }
  }
  expect(wrong).toEqual([]);
});

const dashboard = globSync('web/**/*.{ts,tsx}', { cwd: root, exclude: ['web/dist/**', 'web/dist-*/**'] });

test('the dashboard takes types from the server, and code from pure files only', () => {
  const wrong: string[] = [];
  for (const file of dashboard) {
    const text = readFileSync(path.join(root, file), 'utf8');
    for (const [, type, name] of text.matchAll(/^(?:import|export)\s(type\s)?[^;]*?from\s+'(\.[^']+)'/gm)) {
      const target = path.normalize(path.join(path.dirname(file), name!));
      if (!type && !target.startsWith('web/') && !starts(target, PURE)) wrong.push(`${file} imports ${target}`);
    }
  }
  expect(wrong).toEqual([]);
});

test('a page imports parts, ui and lib, never another page; no arrow in the dashboard runs back up', () => {
  const steps = ['web/lib/', 'web/ui/', 'web/parts/', 'web/pages/', 'web/'];
  const step = (file: string) => steps.findIndex((prefix) => file.startsWith(prefix));
  const wrong: string[] = [];
  for (const file of dashboard) {
    for (const target of imports(file).filter((name) => name.startsWith('web/'))) {
      const anotherPage = step(file) === 3 && step(target) === 3 && path.dirname(file) !== path.dirname(target);
      if (step(target) > step(file) || anotherPage) wrong.push(`${file} imports ${target}`);
    }
  }
  expect(dashboard.length).toBeGreaterThan(80);
  expect(wrong).toEqual([]);
});

test('no folders of the dashboard import each other in a circle', () => {
  const arrows = new Map<string, Set<string>>();
  for (const file of dashboard) {
    const from = path.dirname(file);
    for (const target of imports(file).filter((name) => name.startsWith('web/'))) {
      const to = path.dirname(target);
      if (to !== from) arrows.set(from, (arrows.get(from) ?? new Set()).add(to));
    }
  }
  const reaches = (from: string, seen = new Set<string>()): Set<string> => {
    for (const to of arrows.get(from) ?? []) if (!seen.has(to)) reaches(to, seen.add(to));
    return seen;
  };
  expect([...arrows.keys()].filter((folder) => reaches(folder).has(folder))).toEqual([]);
});

test('programs beside the ladder import pure files only, and nothing imports them', () => {
  const wrong: string[] = [];
  for (const [program, allowed] of Object.entries(BESIDE)) {
    const own = files.filter((name) => name.startsWith(program));
    expect(own.length).toBeGreaterThan(0);
    for (const file of own) {
      for (const target of imports(file)) {
        const ours = /^(server|machines|db)\//.test(target);
        if (ours && !starts(target, [...PURE, ...allowed])) wrong.push(`${file} imports ${target}`);
      }
    }
    for (const file of files.filter((name) => !name.startsWith(program))) {
      if (imports(file).some((target) => target.startsWith(program))) wrong.push(`${file} imports ${program}`);
    }
  }
  expect(wrong).toEqual([]);
});

test('the development server and Vite are imported by no part of the program', () => {
  const importers = (target: RegExp) => files.filter((file) => imports(file).some((name) => target.test(name)));
  expect(importers(/^server\/dev\.ts$/)).toEqual([]);
  expect(importers(/^(vite|@vitejs\/.*|web\/.*)$/)).toEqual(['server/dev.ts']);
});

test("sessions are added and deleted by lucia's adapter alone; a restore deletes them all", () => {
  const writes = /(?:insert into|delete from|truncate|merge into) session\b|\bSessionEntity\b/;
  const writers = files.filter((file) => writes.test(readFileSync(path.join(root, file), 'utf8')));
  expect(writers.sort()).toEqual([
    'db/entities/index.ts',
    'db/entities/people.ts',
    'server/auth/sessions.ts',
    'server/cli/restore.ts',
  ]);

  const text = readFileSync(path.join(root, 'server/auth/sessions.ts'), 'utf8');
  const [callers, adapter, ...more] = text.split(/^function adapter\(/m);
  expect(more).toEqual([]);
  // the adapter is the last thing in its file
  expect(adapter).not.toMatch(/^(?:export|async|function|class|const)\b/m);
  const changes = /insert into|delete from|\bem\.(?:create|insert|upsert|persist|remove|native\w+|execute|assign)\w*\(/;
  expect(adapter).toMatch(changes);
  expect(callers).not.toMatch(changes);
  for (const call of ['createSession', 'validateSession', 'invalidateSession', 'invalidateUserSessions']) {
    expect(callers).toMatch(new RegExp(`lucia\\.${call}\\(`));
  }
});
