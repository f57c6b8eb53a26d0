import { existsSync, globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { describe, expect, test } from 'vitest';
import packageJson from '../../package.json' with { type: 'json' };
import document from '../../server/api/openapi.json' with { type: 'json' };
import { COMMANDS } from '../../server/cli/main.ts';
import { POLICY_VARIABLES } from '../../server/cli/policy/remote.ts';
import { serverSettingsHelp } from '../../server/config.ts';
import { AUDIT_ACTIONS } from '../../server/domain/audit.ts';
import { ERRORS } from '../../server/domain/errors.ts';
import { EVENT_TYPES } from '../../server/domain/events.ts';
import { SPAN_ATTRIBUTES, SPAN_EVENTS } from '../../server/lib/telemetry/names.ts';
import { proxySettingsHelp } from '../../server/proxy/config.ts';
import { titleOf } from '../../server/proxy/problem.ts';
import { refresh, root } from './generate.ts';

const files = [...globSync('*.md', { cwd: root }), ...globSync('docs/**/*.md', { cwd: root })].sort();
const pages = new Map(files.map((file) => [file, readFileSync(path.join(root, file), 'utf8')]));
const page = (file: string) => pages.get(file)!;
const source = (pattern: string) =>
  globSync(pattern, { cwd: root }).map((file) => readFileSync(path.join(root, file), 'utf8'));

const FENCE = /^ *(`{3,})[^\n]*\n([\s\S]*?)^ *\1`*$/gm;
const withoutFences = (text: string) => text.replace(FENCE, '');
/** The lines of fenced blocks, and text in backticks. */
const codeIn = (text: string) => [
  ...[...text.matchAll(FENCE)].flatMap(([, , block]) => block!.replaceAll('\\\n', ' ').split('\n')),
  ...[...withoutFences(text).matchAll(/`([^`\n]+)`/g)].map(([, code]) => code!),
];
/** Every match of a pattern in the pages, with where it is. */
const found = (pattern: RegExp, of: (text: string) => string[] = codeIn) =>
  [...pages].flatMap(([file, text]) =>
    of(text).flatMap((code) => [...code.matchAll(pattern)].map((match) => ({ file, code, match }))),
  );
const rows = (text: string) =>
  [...text.matchAll(/^\| (.*) \|$/gm)].map(([, row]) => row!.split(/ (?<!\\)\| /).map((cell) => cell.trim()));

test('the README has at most 250 lines', () => {
  expect(page('README.md').split('\n').length).toBeLessThanOrEqual(250);
});

describe('what people make that acts later', () => {
  const [, section] = /^## What people make that acts later$([\s\S]*?)^## /m.exec(page('docs/security.md'))!;
  const table = rows(section!).slice(1);
  const ROUTE = /(?:POST|PUT|PATCH) \/[^`]+/g;
  /** Routes that make nothing, or nothing that acts: they read, answer their caller, or report what a proxy or an agent did. */
  const NOTHING = [
    ...['POST /auth/magic-link', 'POST /auth/magic-link/verify', 'POST /auth/logout'],
    ...['POST /v1/policies/plan', 'POST /v1/policies/validate', 'POST /v1/policies/try', 'POST /v1/policies/format'],
    ...['POST /v1/policies/{id}/test', 'POST /v1/policies/{id}/breaks', 'POST /v1/policies/{id}/mutations'],
    'POST /v1/policies/{id}/tests/from-decision',
    ...['POST /v1/proxies/heartbeat', 'POST /v1/tools/observed', 'POST /v1/outcomes'],
    ...['POST /v1/limits/take', 'POST /v1/limits/give-back'],
    ...['POST /v1/forensics/records', 'POST /v1/events/ingest', 'POST /v1/forensics/export'],
  ];

  test('has a row for each route that makes or changes something: author, end, confirmation and test', () => {
    const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.keys(methods)
        .map((method) => `${method.toUpperCase()} ${path}`)
        .filter((line) => /^(POST|PUT|PATCH) /.test(line)),
    );
    const named = table.flatMap((row) => row[1]!.match(ROUTE) ?? []);
    expect([...named, ...NOTHING].sort()).toEqual(routes.sort());
    for (const row of table) {
      expect(row, row[0]).toHaveLength(6);
      for (const cell of row) expect(cell, row[0]).not.toBe('');
    }
  });

  test('names a test in each row, which there is', () => {
    for (const row of table) {
      const [, file, title] = /^`([\w./-]+)`: (.+)$/.exec(row[5]!)!;
      const [found] = source(file!);
      expect(found?.match(/\btest(?:\.each\(.*\))?\(\s*['`].*/g)?.join('\n'), file).toContain(title);
    }
  });
});

test('the generated tables are those of the code (else: npm run docs)', () => {
  expect(refresh(false)).toEqual([]);
});

describe('links', () => {
  const slugs = (text: string) => {
    const seen = new Map<string, number>();
    return [...withoutFences(text).matchAll(/^#{1,6} (.+)$/gm)].map(([, title]) => {
      const plain = title!.replace(/\[([^\]]*)\]\([^)]*\)/g, '$1').replaceAll('`', '');
      const slug = plain
        .toLowerCase()
        .replace(/[^\p{L}\p{N}\p{M}_ -]/gu, '')
        .replaceAll(' ', '-');
      const count = seen.get(slug) ?? 0;
      seen.set(slug, count + 1);
      return count === 0 ? slug : `${slug}-${count}`;
    });
  };
  const links = [...pages].flatMap(([file, text]) =>
    [...withoutFences(text).matchAll(/\[[^\]]*\]\(([^)\s]+)\)/g)].map(([, target]) => ({ file, target: target! })),
  );

  test('each one leads to a file that is there, and to a heading in it', () => {
    const broken = links.filter(({ file, target }) => {
      if (/^https?:/.test(target)) return false;
      const [to = '', anchor] = target.split('#');
      const resolved = to === '' ? file : path.join(path.dirname(file), to);
      if (resolved.startsWith('..') || !existsSync(path.join(root, resolved))) return true;
      return anchor !== undefined && !slugs(page(resolved) ?? '').includes(anchor);
    });
    expect(links.length).toBeGreaterThan(50);
    expect(broken).toEqual([]);
  });

  test('each page of docs/ is reached from its index', () => {
    const reached = new Set<string>();
    const visit = (file: string) => {
      if (reached.has(file)) return;
      reached.add(file);
      for (const { target } of links.filter((link) => link.file === file)) {
        const to = path.join(path.dirname(file), target.split('#')[0]!);
        if (pages.has(to)) visit(to);
      }
    };
    visit('docs/README.md');
    expect(files.filter((file) => file.startsWith('docs/') && !reached.has(file))).toEqual([]);
  });
});

describe('commands', () => {
  test('every npm script that a page names is one of the package', () => {
    const scripts = Object.keys(packageJson.scripts);
    const named = found(/npm (?:run(?: --silent)?(?: --prefix \S+)? ([\w-]+)|(start|test)\b)/g);
    expect(named.length).toBeGreaterThan(20);
    expect(named.filter(({ match }) => !scripts.includes((match[1] ?? match[2])!)).map(({ code }) => code)).toEqual([]);
  });

  test('every svc command is one that there is, with flags that it has', () => {
    let seen = 0;
    const wrong = found(/(?:\bsvc --|^svc|[`"(]svc|\bsvc) ([a-z][a-z-]*(?: [a-z][a-z-]*)?)((?: +\S+)*)/g).flatMap(
      ({ file, code, match: [whole, words = '', rest = ''] }) => {
        if (!/^(?:npm run|svc |APPROVER|\S+=\$\(npm)/.test(code.trim())) return [];
        seen++;
        const command = COMMANDS.find(({ name }) => name === words || name === words.split(' ')[0]);
        if (!command) return [`${file}: ${whole}`];
        const flags = [...rest.matchAll(/ --([a-z-]+)/g)].map(([, flag]) => flag!);
        const unknown = flags.filter((flag) => flag !== 'help' && !Object.hasOwn(command.flags, flag));
        return unknown.map((flag) => `${file}: svc ${command.name} --${flag}`);
      },
    );
    expect(wrong).toEqual([]);
    expect(seen).toBeGreaterThan(30);
  });

  test('every flag of svc-verify and svc-proxy that a page names is in its help', () => {
    const help = {
      'svc-verify': source('server/forensics/svc-verify.ts'),
      'svc-proxy': [source('server/proxy/{options,clients/install,login/command}.ts').join()],
    };
    for (const [program, [text]] of Object.entries(help)) {
      for (const { code } of found(new RegExp(`\\b${program}\\b`, 'g'))) {
        for (const [, flag] of code.matchAll(/ (--[a-z]+)\b/g)) {
          if (!['--silent', '--prefix'].includes(flag!)) expect(text, code).toContain(flag);
        }
      }
    }
  });
});

test('every setting that a page names is one of the server, the proxy or the tests', () => {
  const settings = [...serverSettingsHelp(), ...proxySettingsHelp(), ...POLICY_VARIABLES].map(({ name }) => name);
  const ofTests = source('test/**/*.ts').join('');
  const named = found(/\bSVC_[A-Z_]+[A-Z]\b/g).map(({ match }) => match[0]);
  expect(named.length).toBeGreaterThan(60);
  expect(named.filter((name) => !settings.includes(name) && !ofTests.includes(`env.${name}`))).toEqual([]);
});

describe('metrics', () => {
  const metrics = (text: string) =>
    [
      ...text.matchAll(
        /new (?:Counter|Gauge|Histogram)(?:<[^>]*>)?\(\{\s*name: '(\w+)',[^}]*?(?:labelNames: \[([^\]]*)\]|\}|collect)/g,
      ),
    ].map(([, name, labels = '']) => ({
      name: name!,
      labels: [...labels.matchAll(/'(\w+)'/g)].map(([, label]) => label!),
    }));
  const listed = (title: string) => {
    const [, section = ''] = page('docs/operation.md').split(`\n## ${title}\n`);
    return rows(section.split('\n## ')[0]!)
      .filter(([name]) => name?.startsWith('`svc_'))
      .map(([name = '', labels = '']) => ({
        name: name.replaceAll('`', ''),
        labels: [...labels.matchAll(/`(\w+)`/g)].map(([, label]) => label!),
      }));
  };
  const byName = (a: { name: string }, b: { name: string }) => (a.name < b.name ? -1 : 1);

  test('the server registers those that are listed, and no others', () => {
    const registered = [...source('server/*.ts'), ...source('server/{api,rpc}/*.ts')].flatMap(metrics);
    expect(registered.length).toBeGreaterThan(5);
    expect(listed('Metrics of the server').sort(byName)).toEqual(registered.sort(byName));
  });

  test('the proxy registers those that are listed, and no others', () => {
    const registered = source('server/proxy/*.ts').flatMap((text) => [
      ...metrics(text),
      ...[...text.matchAll(/\bgauge\('(\w+)', '/g)].map(([, name]) => ({ name: `svc_proxy_${name}`, labels: [] })),
    ]);
    expect(registered.length).toBeGreaterThan(10);
    expect(listed('Metrics of the proxy').sort(byName)).toEqual(registered.sort(byName));
  });

  test('nothing outside these places makes a metric', () => {
    const others = globSync('{server,db}/**/*.ts', { cwd: root }).filter(
      (file) => !/^server\/(?:[^/]+|(?:api|rpc|proxy)\/[^/]+)$/.test(file),
    );
    const makers = others.filter((file) =>
      /new (?:Counter|Gauge|Histogram)\b/.test(readFileSync(path.join(root, file), 'utf8')),
    );
    expect(makers).toEqual([]);
  });

  test('every metric that a page names is one of them, or one of the usual ones of Node', async () => {
    const usual = new Registry();
    collectDefaultMetrics({ register: usual, prefix: 'svc_' });
    const names = [
      ...[...listed('Metrics of the server'), ...listed('Metrics of the proxy')].map(({ name }) => name),
      ...(await usual.getMetricsAsJSON()).map(({ name }) => name),
    ];
    const unknown = found(/^svc_[a-z0-9_]+$/g)
      .map(({ match }) => match[0])
      .filter(
        (name) => !names.includes(name) && !/^svc_(?:process|nodejs)_$|^svc_(?:app|web|owner|session)$/.test(name),
      );
    expect(unknown).toEqual([]);
  });
});

describe('errors', () => {
  test('the table is that of the code: code, status and title', () => {
    const listed = rows(page('docs/errors.md'))
      .filter(([code = '', status = '']) => /^`[A-Z_]+`$/.test(code) && /^\d{3}$/.test(status))
      .map(([code = '', status, title]) => [code.replaceAll('`', ''), Number(status), title]);
    expect(listed).toEqual(Object.entries(ERRORS).map(([code, { status, title }]) => [code, status, title]));
  });

  test('the codes of a verification are those of the code', () => {
    const [text = ''] = source('server/chain/verify.ts');
    const union = /type MismatchCode =([\s\S]*?);/.exec(text)![1]!;
    const listed = rows(page('docs/errors.md').split('## What a verification finds')[1]!.split('\n## ')[0]!);
    expect(listed.map(([code = '']) => code.replaceAll('`', '')).slice(1)).toEqual(
      [...union.matchAll(/'(\w+)'/g)].map(([, code]) => code),
    );
  });

  test('every code that a page names is in the table', () => {
    const settings = [...serverSettingsHelp(), ...proxySettingsHelp()].map(({ name }) => name);
    const named = found(/^[A-Z]+(?:_[A-Z]+)+$/g).map(({ match }) => match[0]);
    const others = named.filter(
      (name) =>
        !settings.includes(name) &&
        !name.startsWith('SVC_') &&
        !/^(?:NODE_|OPENSSL_|LD_|SIGN_IN_|NOTHING_PERMITS|OTEL_EXPORTER_OTLP_|O_DSYNC$)/.test(name),
    );
    expect(others.length).toBeGreaterThan(20);
    // of the server's, and the proxy's own
    expect(others.filter((name) => titleOf(name) === name)).toEqual([]);
  });
});

test('every action of the audit log and every event that a page names is one that there is', () => {
  const known = [...Object.keys(AUDIT_ACTIONS), ...EVENT_TYPES];
  const areas = new Set(known.map((name) => name.split('.')[0]));
  const inSpans: string[] = [...Object.values(SPAN_ATTRIBUTES), ...Object.values(SPAN_EVENTS)];
  const unknown = found(/^([a-z_]+)\.[a-z_]+$/g)
    .filter(({ match }) => areas.has(match[1]!))
    .map(({ match }) => match[0])
    .filter((name) => !inSpans.includes(name))
    // kinds of records, an attribute of Cedar, and a file
    .filter(
      (name) => !known.includes(name) && !['chain.genesis', 'chain.loss', 'session.id', 'svc.yaml'].includes(name),
    );
  expect(unknown).toEqual([]);
});

test('every file and folder of the project that a page names is there', () => {
  const named = found(/^((?:server|machines|db|web|test|docs|sdk|deploy)\/[\w./-]*\w)\/?$/g).map(({ file, match }) => ({
    file,
    name: match[1]!,
  }));
  expect(named.length).toBeGreaterThan(40);
  expect(named.filter(({ name }) => !existsSync(path.join(root, name)))).toEqual([]);
});

test('every route that a page names is in the OpenAPI document', () => {
  const known = Object.entries(document.paths).flatMap(([route, methods]) =>
    Object.keys(methods).map((method) => ({ method: method.toUpperCase(), route: route.replace(/\{[^}]+\}/g, '{}') })),
  );
  const wrong = found(/(?:^|[ "'`])(?:(GET|POST|PUT|PATCH|DELETE) )?(\/(?:v1|auth)\/[\w/{}.-]+)/g).flatMap(
    ({ file, code, match: [, method, route = ''] }) => {
      const plain = route.replace(/\{[^}]+\}/g, '{}').replace(/[.,]$/, '');
      const fits = known.some((one) => one.route === plain && (method === undefined || one.method === method));
      return fits ? [] : [`${file}: ${code}`];
    },
  );
  expect(wrong).toEqual([]);
});
