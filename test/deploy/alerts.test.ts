import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { describe, expect, test } from 'vitest';
import { parse, stringify } from 'yaml';
import dashboard from '../../deploy/grafana/dashboard.json' with { type: 'json' };

/** The alarms and the dashboard ask for metrics and labels that there are. */
const root = path.resolve(import.meta.dirname, '../..');
const read = (file: string) => readFileSync(path.join(root, file), 'utf8');

const noPromtool = spawnSync('promtool', ['--version']).error && 'there is no promtool';
if (noPromtool) console.warn(`SKIPPED: what Prometheus says of its rules, because ${noPromtool}`);

interface Alert {
  alert: string;
  expr: string;
  labels: { severity: string };
  annotations: { summary: string; runbook_url: string };
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

const FUNCTIONS = /\b(?:sum|max|min|rate|increase|absent|histogram_quantile|topk|count|vector|time|unless|or|by|le)\b/g;
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
    // a page that the server itself serves
    const { protocol, pathname, hash } = new URL(annotations.runbook_url);
    expect(protocol, alert).toBe('https:');
    const file = `${pathname.slice(1)}.md`;
    const anchor = hash.slice(1);
    expect(file, alert).toMatch(/^docs\/[a-z-]+\.md$/);
    expect(existsSync(path.join(root, file)), alert).toBe(true);
    const titles = [...read(file).matchAll(/^#+ (.+)$/gm)].map(([, title]) => slug(title!));
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

/**
 * Series of an hour, a sample each minute, in the notation of promtool: `0+1x60` grows by one each time, and `_` is no sample. At its end
 * an alarm fires by its fault alone, and none by all that is calm together.
 */
const CASES: Record<
  string,
  { fault: Record<string, string>; calm: Record<string, string>; labels?: Record<string, string> }
> = {
  ChainClosed: { fault: { svc_chains_closed: '1x60' }, calm: { svc_chains_closed: '0x60' } },
  DatabaseDoesNotAcknowledge: {
    fault: { svc_chain_unacknowledged_seconds: '0+1x60' },
    // a commit that waits once, as in a failover
    calm: { svc_chain_unacknowledged_seconds: '0x50 9 0x9' },
  },
  NoSynchronousStandby: {
    fault: {
      'svc_database_synchronous_standby{instance="a"}': '0x60',
      'svc_database_synchronous_standby{instance="b"}': '1x60',
    },
    calm: { svc_database_synchronous_standby: '1x60' },
  },
  NodeAway: {
    fault: { 'svc_citus_server_answers{server="node"}': '0x60' },
    calm: { 'svc_citus_server_answers{server="node"}': '1x60' },
  },
  CoordinatorAway: {
    fault: { 'svc_citus_server_answers{server="coordinator"}': '0x60' },
    calm: { 'svc_citus_server_answers{server="coordinator"}': '1x60' },
  },
  ServerGone: {
    fault: { 'up{job="agent-governance", instance="a"}': '0x60' },
    // one of two restarts for long
    calm: { 'up{job="agent-governance", instance="a"}': '0x60', 'up{job="agent-governance", instance="b"}': '1x60' },
  },
  WorkerGone: { fault: { svc_stops_in_force: '0 _x59' }, calm: { svc_stops_in_force: '0x60' } },
  RequestsFail: {
    fault: {
      'svc_http_request_seconds_count{status="503"}': '0+2x60',
      'svc_http_request_seconds_count{status="202"}': '0+98x60',
    },
    calm: {
      'svc_http_request_seconds_count{status="503"}': '0+1x60',
      'svc_http_request_seconds_count{status="202"}': '0+499x60',
    },
  },
  RequestsBreak: {
    // the very first of a route
    fault: { 'svc_http_request_seconds_count{status="500"}': '_x50 1x10' },
    // long ago
    calm: { 'svc_http_request_seconds_count{status="500"}': '3x60' },
  },
  EvaluationDisputed: {
    fault: { svc_proxy_evaluation_disputes_total: '0x50 1x10' },
    calm: { svc_evaluation_disputes_total: '7x60', svc_proxy_evaluation_disputes_total: '0x60' },
  },
  EventsWait: { fault: { svc_chain_waiting_events: '5001x60' }, calm: { svc_chain_waiting_events: '4999x60' } },
  DecisionsSlow: {
    fault: {
      'svc_evaluate_seconds_bucket{le="0.1"}': '0+98x60',
      'svc_evaluate_seconds_bucket{le="+Inf"}': '0+100x60',
      'svc_evaluate_seconds_bucket{le="1"}': '0+100x60',
    },
    calm: {
      'svc_evaluate_seconds_bucket{le="0.1"}': '0+998x60',
      'svc_evaluate_seconds_bucket{le="1"}': '0+1000x60',
      'svc_evaluate_seconds_bucket{le="+Inf"}': '0+1000x60',
    },
  },
  HoldsEndUnseen: { fault: { svc_holds_unseen: '1x60' }, calm: { svc_holds_unseen: '0x60' } },
  StopInForce: { fault: { svc_stops_in_force: '1x60' }, calm: { svc_stops_in_force: '0x60' } },
  DestinationsFail: {
    fault: { svc_subscriptions_disabled: '1x60' },
    calm: { svc_destinations_failing: '0x60', svc_subscriptions_disabled: '0x60' },
  },
  JobsFail: {
    fault: { 'svc_job_failures_total{job_name="mail"}': '0+1x60' },
    calm: { 'svc_job_failures_total{job_name="mail"}': '5x60' },
    labels: { job_name: 'mail' },
  },
  MailsWait: { fault: { svc_mail_waits_seconds: '901x60' }, calm: { svc_mail_waits_seconds: '899x60' } },
  ConnectionsShort: {
    fault: { 'svc_database_connections{state="waiting", instance="s"}': '1x60' },
    calm: {
      'svc_database_connections{state="waiting", instance="s"}': '9x50 0x9',
      'svc_database_connections{state="busy", instance="s"}': '9x60',
    },
    labels: { instance: 's', state: 'waiting' },
  },
  // the clock of these tests begins in 1970, and ends an hour later: what is old is from before then
  BackupOld: {
    fault: { svc_backup_timestamp_seconds: '-129600x60' },
    // never by svc
    calm: { svc_backup_timestamp_seconds: '0x60' },
  },
  CheckpointsNotCopied: {
    fault: { 'svc_checkpoints_copied_timestamp_seconds{instance="s"}': '-129600x60' },
    calm: { 'svc_checkpoints_copied_timestamp_seconds{instance="s"}': '0x60' },
    labels: { instance: 's' },
  },
  SignInsFail: {
    // one kind of sign-in alone, and the other never
    fault: { 'svc_sso_refusals_total{reason="x"}': '0+10x60' },
    calm: { 'svc_sign_in_failures_total{reason="x"}': '0+1x60' },
  },
  ServerBusy: {
    fault: { svc_nodejs_eventloop_lag_p99_seconds: '0.3x60' },
    calm: { svc_nodejs_eventloop_lag_p99_seconds: '0.1x60' },
  },
  ProxiesSilent: {
    fault: { 'svc_proxies_silent{kind="server"}': '1x60' },
    // a laptop sleeps
    calm: { 'svc_proxies_silent{kind="server"}': '0x60', 'svc_proxies_silent{kind="desktop"}': '9x60' },
  },
  ProxySpoolFull: {
    fault: { 'svc_proxy_spool_bytes{instance="p"}': '134217729x60' },
    calm: { 'svc_proxy_spool_bytes{instance="p"}': '4096x60' },
    labels: { instance: 'p' },
  },
  ProxyPoliciesEnd: {
    fault: { 'svc_proxy_bundle_good_for_seconds{instance="p"}': '86399x60' },
    calm: { 'svc_proxy_bundle_good_for_seconds{instance="p"}': '600000x60' },
    labels: { instance: 'p' },
  },
  ProxyRefusesPolicies: {
    fault: { 'svc_proxy_bundle_refused{instance="p"}': '1x60' },
    calm: { 'svc_proxy_bundle_refused{instance="p"}': '0x60' },
    labels: { instance: 'p' },
  },
  ProxyEventsAside: {
    fault: { 'svc_proxy_events_aside_total{instance="p"}': '0x50 1x10' },
    calm: { 'svc_proxy_events_aside_total{instance="p"}': '1x60' },
    labels: { instance: 'p' },
  },
};

test('each alarm has a case in which it fires, and one in which it does not', () => {
  expect(Object.keys(CASES).sort()).toEqual(alerts.map(({ alert }) => alert).sort());
});

describe.skipIf(noPromtool)('Prometheus', () => {
  const file = path.join(root, 'deploy/prometheus/alerts.yaml');
  const promtool = (...words: string[]) => {
    const { status, stdout, stderr } = spawnSync('promtool', words, { encoding: 'utf8' });
    return { status, said: stdout + stderr };
  };

  test('takes the rules', () => {
    expect(promtool('check', 'rules', '--lint-fatal', file)).toMatchObject({ status: 0 });
  });

  test('fires each alarm by its fault, and none without', () => {
    const summary = ({ annotations }: Alert, labels: Record<string, string>) =>
      annotations.summary.replace(/\{\{ \$labels\.(\w+) \}\}/g, (_all, label: string) => labels[label]!);
    const at = (alert: Alert, labels?: Record<string, string>) => ({
      eval_time: '1h',
      alertname: alert.alert,
      exp_alerts: labels && [
        {
          exp_labels: { ...alert.labels, ...labels },
          exp_annotations: { ...alert.annotations, summary: summary(alert, labels) },
        },
      ],
    });
    const given = (name: string, series: Record<string, string>, alert_rule_test: object[]) => ({
      name,
      interval: '1m',
      input_series: Object.entries(series).map(([series, values]) => ({ series, values })),
      alert_rule_test,
    });
    // those that share no metric do not see each other's faults: together they cost what one costs
    const groups: { metrics: Set<string>; of: Alert[] }[] = [];
    for (const alert of alerts) {
      const words = [alert.expr, ...Object.keys(CASES[alert.alert]!.fault)].join(' ');
      const metrics = [...words.matchAll(/\b(?:svc_\w+|up)\b/g)].map(([name]) => name);
      const free = groups.find((one) => !metrics.some((name) => one.metrics.has(name)));
      const group = free ?? { metrics: new Set(), of: [] };
      if (!free) groups.push(group);
      group.of.push(alert);
      for (const name of metrics) group.metrics.add(name);
    }
    const tests = groups.map(({ of }) => {
      const faults = Object.assign({}, ...of.map(({ alert }) => CASES[alert]!.fault)) as Record<string, string>;
      const name = of.map(({ alert }) => alert).join(', ');
      return given(
        name,
        faults,
        of.map((alert) => at(alert, CASES[alert.alert]!.labels ?? {})),
      );
    });
    const calm = Object.assign({}, ...Object.values(CASES).map((one) => one.calm)) as Record<string, string>;
    tests.push(
      given(
        'calm',
        calm,
        alerts.map((alert) => at(alert)),
      ),
    );
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-alerts-'));
    try {
      const written = path.join(dir, 'alerts.test.yaml');
      writeFileSync(written, stringify({ rule_files: [file], evaluation_interval: '1m', tests }));
      expect(promtool('test', 'rules', written)).toMatchObject({ status: 0 });
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  });
});
