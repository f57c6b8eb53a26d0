import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import dashboard from '../../deploy/grafana/dashboard.json' with { type: 'json' };

/** The alarms and the dashboard ask for metrics and labels that there are. */
const root = path.resolve(import.meta.dirname, '../..');
const read = (file: string) => readFileSync(path.join(root, file), 'utf8');

interface Alert {
  alert: string;
  expr: string;
  labels: { severity: string };
  annotations: { summary: string; runbook: string };
}
const { groups } = parse(read('deploy/prometheus/alerts.yaml')) as { groups: { name: string; rules: Alert[] }[] };
const alerts = groups.flatMap(({ rules }) => rules);
const asked = dashboard.panels.flatMap((panel) =>
  ('targets' in panel ? panel.targets : []).map(({ expr, legendFormat }) => ({ expr, legend: legendFormat })),
);

/** Every metric with its labels, as docs/operation.md lists them; another test holds that list against the code. */
async function known(): Promise<Map<string, readonly string[]>> {
  const listed = [...read('docs/operation.md').matchAll(/^\| `(svc_\w+)` \| ([^|]*)\|/gm)].map(
    ([, name, labels]) => [name!, [...labels!.matchAll(/`(\w+)`/g)].map(([, label]) => label!)] as const,
  );
  const usual = new Registry();
  collectDefaultMetrics({ register: usual, prefix: 'svc_' });
  const names = (await usual.getMetricsAsJSON()).map(({ name }) => [name, []] as const);
  return new Map<string, readonly string[]>([...listed, ...names]);
}

const FUNCTIONS = /\b(?:sum|max|min|rate|increase|absent|histogram_quantile|topk|count|vector|unless|or|by|le)\b/g;
/** What Prometheus adds, and the bound of a bucket. */
const ADDED = ['instance', 'job', 'le'];

test('every expression asks for metrics and labels that there are', async () => {
  const metrics = await known();
  expect(metrics.size).toBeGreaterThan(40);
  const expressions = [...alerts.map(({ expr }) => expr), ...asked.map(({ expr }) => expr)];
  expect(expressions.length).toBeGreaterThan(40);
  for (const expr of expressions) {
    const names = [...expr.matchAll(/\bsvc_\w+/g)].map(([name]) => name.replace(/_(bucket|count|sum)$/, ''));
    if (!expr.includes('up{')) expect(names.length, expr).toBeGreaterThan(0);
    for (const name of names) expect([...metrics.keys()], expr).toContain(name);
    const labels = [
      ...[...expr.matchAll(/\{([^}]*)\}/g)].flatMap(([, inner]) =>
        [...inner!.matchAll(/(\w+)=/g)].map(([, label]) => label!),
      ),
      ...[...expr.matchAll(/\bby \(([^)]*)\)/g)].flatMap(([, inner]) => inner!.split(/, ?/)),
    ];
    for (const label of labels) {
      const fits = ADDED.includes(label) || names.every((name) => metrics.get(name)!.includes(label));
      expect(fits, `${expr}: ${label}`).toBe(true);
    }
    // parentheses and braces are closed, and every other word is a function that there is
    for (const [open, close] of ['()', '{}', '[]'].map((pair) => pair.split(''))) {
      expect(expr.split(open!).length, expr).toBe(expr.split(close!).length);
    }
    const rest = expr
      .replace(/\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)|\boffset \d+m\b/g, '')
      .replace(/\b(?:svc_\w+|up)\b/g, '')
      .replace(FUNCTIONS, '');
    expect(rest.match(/[a-z_]+/gi) ?? [], expr).toEqual([]);
  }
});

test('every alarm says how soon, what it means and where to read on', () => {
  expect(new Set(alerts.map(({ alert }) => alert)).size).toBe(alerts.length);
  const slug = (title: string) =>
    title
      .toLowerCase()
      .replace(/[^\w -]/g, '')
      .replaceAll(' ', '-');
  for (const { alert, labels, annotations } of alerts) {
    expect(['page', 'ticket'], alert).toContain(labels.severity);
    expect(annotations.summary, alert).toMatch(/^[A-Z].{20,}\.$/);
    const [file, anchor] = annotations.runbook.split('#');
    expect(existsSync(path.join(root, file!)), alert).toBe(true);
    const titles = [...read(file!).matchAll(/^#+ (.+)$/gm)].map(([, title]) => slug(title!));
    if (anchor) expect(titles, alert).toContain(anchor);
  }
});

test('an alarm on counters with labels also sees those whose series begins with what it looks for', async () => {
  const metrics = await known();
  for (const { alert, expr } of alerts) {
    const labeled = [...expr.matchAll(/increase\((svc_\w+)/g)].filter(
      ([, name]) => metrics.get(name!.replace(/_count$/, ''))!.length > 0,
    );
    // each part of a sum has a value where its counter has no series yet
    if (/\)\s*\+\s*\(/.test(expr)) expect(expr.match(/or vector\(0\)/g), alert).toHaveLength(labeled.length);
    else if (/> 0\b/.test(expr) && labeled.length > 0) expect(expr, alert).toContain('unless');
  }
});

test('what docs/operation.md calls a page has an alarm that pages', () => {
  const paging = [...read('docs/operation.md').matchAll(/^\| `(svc_\w+)` .*\*\*page\*\*/gm)].map(([, name]) => name!);
  expect(paging.length).toBeGreaterThan(6);
  const pages = alerts.filter(({ labels }) => labels.severity === 'page').map(({ expr }) => expr);
  for (const name of paging)
    expect(
      pages.some((expr) => expr.includes(name)),
      name,
    ).toBe(true);
});

test('the panels of the dashboard lie beside each other, and legends name labels', () => {
  const places = dashboard.panels.map(({ gridPos }) => gridPos);
  for (const { x, w } of places) expect(x + w).toBeLessThanOrEqual(24);
  expect(new Set(places.map(({ x, y }) => `${x} ${y}`)).size).toBe(places.length);
  expect(new Set(dashboard.panels.map(({ id }) => id)).size).toBe(dashboard.panels.length);
  for (const { expr, legend } of asked) {
    for (const [, label] of legend.matchAll(/\{\{(\w+)\}\}/g)) {
      expect(label === 'instance' || expr.includes(label!), `${legend}: ${expr}`).toBe(true);
    }
  }
});
