import { existsSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { BlockList } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { statusRoutes } from '../../server/api/status.ts';
import { readConfig, serverSettingsHelp } from '../../server/config.ts';
import { newSecret } from '../../server/domain/secret.ts';
import { proxySettingsHelp, readConfig as readProxyConfig } from '../../server/proxy/config.ts';

const root = path.resolve(import.meta.dirname, '../..');
const deploy = path.join(root, 'deploy');
const text = (file: string) => readFileSync(path.join(deploy, file), 'utf8');
// biome-ignore lint/suspicious/noExplicitAny: documents of many kinds
type Document = any;
const documents = (file: string): Document[] =>
  parseAllDocuments(text(file), { merge: true }).map((document) => {
    expect(document.errors, file).toEqual([]);
    return document.toJS();
  });

const server = serverSettingsHelp().map(({ name }) => name);
const proxy = proxySettingsHelp().map(({ name }) => name);
const routes = statusRoutes.map((route) => route.path);
/** What the image can be asked to run, and what it reads its settings with. */
const PROGRAMS: Record<string, readonly string[]> = {
  ...{ 'svc-server': server, svc: server, 'svc-backup': server, 'svc-proxy': proxy },
};

const dir = mkdtempSync(path.join(tmpdir(), 'svc-deploy-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
const SECRETS: Record<string, string> = {
  'database-url': 'postgres://svc_owner:p@db/svc',
  'redis-url': 'redis://:p@redis:6379',
  'master-key': '07'.repeat(32),
  'proxy-key': newSecret('key', 'acme'),
};
for (const [name, value] of Object.entries(SECRETS)) writeFileSync(path.join(dir, name), value);
/** The settings with files of this machine in the places of those that the deployment mounts. */
function here(env: Record<string, string>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(env).map(([name, value]) => {
      if (name === 'SVC_PROXY_ROUTES') return [name, path.join(deploy, 'kubernetes/proxy/routes.json')];
      if (!name.endsWith('_FILE')) return [name, value];
      expect(Object.keys(SECRETS), `${name}=${value}`).toContain(path.basename(value));
      return [name, path.join(dir, path.basename(value))];
    }),
  );
}
/** What the program makes of the settings: throws what it would refuse to start with. */
function started(program: string, env: Record<string, string>): { port: number; host: string } {
  const known = PROGRAMS[path.basename(program)];
  expect(known, program).toBeDefined();
  expect(Object.keys(env).filter((name) => !known!.includes(name))).toEqual([]);
  return program.endsWith('svc-proxy') ? readProxyConfig(here(env), { routes: true }) : readConfig(here(env));
}

test('the server of the image and the benchmarks start Node as npm does', () => {
  const { scripts } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  const script = text('image/bin/svc-server');
  const flags = /node (--.*?) server\/main\.ts/.exec(scripts.worker!)![1]!;
  expect(script).toContain(`exec node ${flags} `);
  const arenas = /MALLOC_ARENA_MAX=(\d+)/.exec(scripts.worker!)![1]!;
  expect(script).toContain(`MALLOC_ARENA_MAX:-${arenas}`);
  for (const name of ['start', 'web'])
    expect(scripts[name]).toContain(`MALLOC_ARENA_MAX=${arenas} node ${flags} server/main.ts`);
  expect(scripts.bench).toContain(`MALLOC_ARENA_MAX=${arenas} node ${flags} test/bench/run.ts`);
});

describe('Kubernetes', () => {
  const files = globSync('kubernetes/**/*.yaml', { cwd: deploy }).sort();
  const kustomizations = files.filter((file) => file.endsWith('kustomization.yaml'));
  const objects = files
    .filter((file) => !kustomizations.includes(file) && !path.basename(file).startsWith('spread-'))
    .flatMap((file) => documents(file).map((object) => ({ file, object })))
    .map(({ file, object }) => ({
      file,
      object: object.kind === 'CronJob' ? { ...object, spec: object.spec.jobTemplate.spec } : object,
    }));
  const isJob = ({ kind }: Document) => ['Job', 'CronJob'].includes(kind);
  const kind = (name: string) => objects.filter(({ object }) => object.kind === name);
  const workloads = objects.filter(({ object }) => object.spec?.template?.spec?.containers);
  const settings = documents('kubernetes/base/settings.yaml')[0].data as Record<string, string>;
  const containers = workloads.flatMap(({ file, object }) => {
    const pod = object.spec.template.spec;
    return [...(pod.initContainers ?? []), ...pod.containers].map((container: Document) => ({
      ...{ file, object, pod, container },
    }));
  });
  const ours = containers.filter(({ container }) => container.image === 'agent-governance');

  test('there is something to check', () => {
    expect(workloads.length).toBeGreaterThan(5);
    expect(ours.length).toBeGreaterThan(4);
  });

  test.each(kustomizations)('%s: everything that it names is there', (file) => {
    const [one] = documents(file);
    const named = [
      ...(one.resources ?? []),
      ...(one.components ?? []),
      ...(one.patches ?? []).flatMap((patch: Document) => patch.path ?? []),
      ...(one.configMapGenerator ?? []).flatMap((made: Document) => made.files ?? []),
    ];
    for (const name of named) {
      expect(existsSync(path.join(deploy, path.dirname(file), name)), `${file}: ${name}`).toBe(true);
    }
    // selectors name what they mean: a label that is added to all of them would also be asked of pods that are not ours
    expect(JSON.stringify(one)).not.toContain('includeSelectors');
    for (const { target, path: patch } of one.patches ?? []) {
      const of = target ?? { kind: documents(path.join(path.dirname(file), patch))[0].kind };
      const name = target?.name ?? documents(path.join(path.dirname(file), patch))[0].metadata.name;
      expect(kind(of.kind).map(({ object }) => object.metadata.name)).toContain(name);
    }
    for (const { name } of one.replicas ?? []) {
      expect(kind('StatefulSet').map(({ object }) => object.metadata.name)).toContain(name);
    }
  });

  test.each(ours.map(({ file, container, object }) => [container.name, file, container, object]))(
    '%s of %s starts with its settings, and listens where it is asked',
    (_name, _file, container, object) => {
      const env = Object.fromEntries((container.env ?? []).map((one: Document) => [one.name, one.value]));
      for (const from of container.envFrom ?? []) {
        expect(from.configMapRef.name).toBe('settings');
        Object.assign(env, settings);
      }
      const { port, host } = started(container.command[0], env);
      const probes = [container.startupProbe, container.livenessProbe, container.readinessProbe].filter(Boolean);
      if (isJob(object)) return;
      expect(probes.length).toBeGreaterThan(1);
      for (const probe of probes) {
        if (probe.exec) expect(probe.exec.command.at(-1)).toContain(`http://${host}:${port}/readyz`);
        else {
          expect(routes).toContain(probe.httpGet.path);
          expect(container.ports.find((one: Document) => one.name === probe.httpGet.port).containerPort).toBe(port);
          expect(host).toBe('0.0.0.0');
        }
      }
      // a database that is away is no reason to restart, also not at the start
      if (container.startupProbe.exec) {
        const { periodSeconds, failureThreshold } = container.startupProbe;
        expect(periodSeconds * failureThreshold).toBeGreaterThan(7 * 24 * 3600);
      } else expect(container.startupProbe.httpGet.path).toBe('/healthz');
      if (container.livenessProbe) expect(container.livenessProbe.httpGet.path).toBe('/healthz');
    },
  );

  test.each(containers.map(({ file, pod, container }) => [container.name, file, pod, container]))(
    '%s of %s is hardened',
    (_name, _file, pod, container) => {
      expect(pod).toMatchObject({
        automountServiceAccountToken: false,
        enableServiceLinks: false,
        securityContext: { runAsNonRoot: true, seccompProfile: { type: 'RuntimeDefault' } },
      });
      expect(pod.securityContext.runAsUser ?? container.securityContext.runAsUser).toBeGreaterThan(9999);
      expect(container.securityContext).toMatchObject({
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ['ALL'] },
      });
      expect(container.resources.requests).toMatchObject({ cpu: expect.anything(), memory: expect.anything() });
      expect(container.resources.limits.memory).toBeDefined();
      for (const [key] of Object.entries(pod)) expect(key).not.toMatch(/^host(Network|PID|IPC)$/);
      // secrets are files, never settings
      expect(JSON.stringify(container.env ?? [])).not.toMatch(/secretKeyRef|:\/\/[^"]*@/);
      for (const volume of pod.volumes) if (volume.secret) expect(volume.secret.defaultMode).toBe(0o440);
      for (const mount of container.volumeMounts ?? []) {
        const volume = pod.volumes.find((one: Document) => one.name === mount.name);
        if (volume?.secret || volume?.configMap) expect(mount.readOnly, mount.name).toBe(true);
      }
    },
  );

  test('nothing can be written but in mounted places, which are there', () => {
    for (const { object } of workloads) {
      const pod = object.spec.template.spec;
      const volumes = [
        ...pod.volumes.map((one: Document) => one.name),
        ...(object.spec.volumeClaimTemplates ?? []).map((one: Document) => one.metadata.name),
      ];
      for (const container of [...(pod.initContainers ?? []), ...pod.containers]) {
        const mounts = container.volumeMounts ?? [];
        expect(mounts.filter((mount: Document) => !volumes.includes(mount.name))).toEqual([]);
        const env = Object.fromEntries((container.env ?? []).map((one: Document) => [one.name, one.value]));
        const data = env.SVC_DATA_DIR ?? env.SVC_PROXY_DIR;
        if (data) expect(mounts.some((mount: Document) => mount.mountPath === data && !mount.readOnly)).toBe(true);
      }
    }
  });

  test('every selector fits pods of its own folder', () => {
    const labels = (folder: string) =>
      workloads
        .filter(({ file }) => path.dirname(file) === folder)
        .map(({ object }) => object.spec.template.metadata.labels['app.kubernetes.io/component']);
    const check = (file: string, selector: Document) => {
      const of = /overlays|components/.test(file) ? 'kubernetes/base' : path.dirname(file);
      const wanted = selector.matchLabels?.['app.kubernetes.io/component'] ?? selector['app.kubernetes.io/component'];
      const among = selector.matchExpressions?.[0].values ?? (wanted ? [wanted] : []);
      const there = [...labels(of), ...labels(path.dirname(file))];
      for (const one of among) expect(there, `${file}: ${JSON.stringify(selector)}`).toContain(one);
      return among.length;
    };
    for (const { file, object } of workloads) {
      if (isJob(object)) continue;
      expect(check(file, object.spec.selector)).toBe(1);
      expect(object.spec.template.metadata.labels).toMatchObject(object.spec.selector.matchLabels);
    }
    for (const { file, object } of [...kind('Service'), ...kind('PodDisruptionBudget')]) {
      expect(check(file, object.spec.selector)).toBe(1);
    }
    for (const { file, object } of kind('NetworkPolicy')) check(file, object.spec.podSelector);
    for (const { file, object } of kind('Service')) {
      const component = object.spec.selector['app.kubernetes.io/component'];
      const { object: workload } = workloads.find(
        (one) => one.file === file && one.object.spec.selector.matchLabels['app.kubernetes.io/component'] === component,
      )!;
      const ports = workload.spec.template.spec.containers[0].ports.map((one: Document) => one.name);
      for (const port of object.spec.ports) expect(ports).toContain(port.targetPort);
    }
  });

  test('what runs more than once survives a drain of its machine', () => {
    const budgets = kind('PodDisruptionBudget').map(({ object }) => object.metadata.name);
    expect(budgets.sort()).toEqual(['proxy', 'web', 'worker']);
    const [ha] = documents('kubernetes/overlays/ha/kustomization.yaml');
    for (const { name, count } of ha.replicas) expect([name, count > 1]).toEqual([name, true]);
    for (const name of ['web', 'worker']) {
      const [spread] = documents(`kubernetes/overlays/ha/spread-${name}.yaml`);
      expect(spread.metadata.name).toBe(name);
    }
    // and the database is one that a failover of loses nothing
    expect(JSON.stringify(ha.patches)).toContain('SVC_DURABILITY');
    const cluster = documents('kubernetes/postgres.yaml').find((one) => one.kind === 'Cluster');
    expect(cluster.spec.postgresql.synchronous).toMatchObject({ number: 1, dataDurability: 'required' });
  });

  test('nothing talks to anything but what is listed, and the worker alone leaves the cluster', () => {
    const policies = (folder: string) =>
      kind('NetworkPolicy')
        .filter(({ file }) => file.startsWith(`kubernetes/${folder}/`))
        .map(({ object }) => object);
    for (const folder of ['base', 'proxy']) {
      expect(policies(folder).find((one) => one.metadata.name === 'deny').spec).toEqual({
        podSelector: {},
        policyTypes: ['Ingress', 'Egress'],
      });
      // a rule without `to`, `from` or `ports` would be one for everything
      for (const { metadata, spec } of policies(folder)) {
        for (const rule of spec.egress ?? []) expect(rule.to?.length, metadata.name).toBeGreaterThan(0);
        for (const rule of spec.ingress ?? []) {
          expect(rule.from?.length, metadata.name).toBeGreaterThan(0);
          expect(rule.ports?.length, metadata.name).toBeGreaterThan(0);
        }
      }
    }
    const leaving = kind('NetworkPolicy')
      .map(({ object }) => object)
      .filter((one) => JSON.stringify(one).includes('ipBlock'));
    expect(leaving.map((one) => one.metadata.name).sort()).toEqual(['outside', 'sign-on']);
    const [worker, web] = ['outside', 'sign-on'].map((name) => leaving.find((one) => one.metadata.name === name));
    expect(worker.spec.podSelector).toEqual({ matchLabels: { 'app.kubernetes.io/component': 'worker' } });
    // web leaves by TLS alone, and only where the operator adds the component
    expect(web.spec.podSelector).toEqual({ matchLabels: { 'app.kubernetes.io/component': 'web' } });
    expect(web.spec.egress[0].ports).toEqual([{ protocol: 'TCP', port: 443 }]);
    expect(web.spec.egress[0].to).toEqual(worker.spec.egress[0].to);
    for (const file of kustomizations) expect(documents(file)[0].components, file).toBeUndefined();
    const [v4, v6] = worker.spec.egress[0].to.map((one: Document) => one.ipBlock);
    expect(v4.except).toEqual(
      expect.arrayContaining(['10.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.168.0.0/16']),
    );
    expect(v6.except).toEqual(expect.arrayContaining(['fc00::/7', 'fe80::/10']));
  });
});

describe('images', () => {
  const dockerfile = text('Dockerfile');

  test('every image of others is pinned by its digest, and the same everywhere', () => {
    const used = [
      ...globSync('{kubernetes,compose}/**/*.yaml', { cwd: deploy }).flatMap((file) => [
        ...text(file).matchAll(/^\s*image: (\S+)$/gm),
      ]),
      ...dockerfile.matchAll(/^ARG NODE=(\S+)$/gm),
    ].map(([, image]) => image!);
    const others = used.filter((image) => !/^(registry\.example\/)?agent(-governance)?(:latest)?$/.test(image));
    expect(others.length).toBeGreaterThan(3);
    for (const image of others) expect(image).toMatch(/^docker\.io\/library\/[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}$/);
    const byName = Map.groupBy(others, (image) => image.split(':')[0]!);
    for (const images of byName.values()) expect(new Set(images).size).toBe(1);
  });

  test('the image runs as nobody in particular, and what it runs is there', () => {
    expect(dockerfile.match(/^FROM .*$/gm)).toEqual(dockerfile.match(/^FROM \$\{NODE\}.*$/gm));
    expect(dockerfile.match(/^USER .*$/gm)).toEqual(['USER 10001:10001']);
    expect(dockerfile).not.toMatch(/^ADD |curl|apt-get/m);
    for (const name of ['svc-server', 'svc', 'svc-proxy', 'svc-verify']) {
      const [, target] = /"\)"\)\/\.\.\/(\S+)" "\$@"$/m.exec(text(`image/bin/${name}`)) ?? [];
      expect(existsSync(path.join(root, target!)), name).toBe(true);
    }
    const env = Object.fromEntries(
      [...dockerfile.matchAll(/\b([A-Z_]+)=(\S+)/g)].map(([, name, value]) => [name!, value!]),
    );
    for (const name of Object.keys(env)) {
      if (!['NODE', 'NODE_ENV', 'PATH'].includes(name)) expect([...server, ...proxy]).toContain(name);
    }
  });
});

describe('compose', () => {
  const [compose] = documents('compose/compose.yaml');
  const services = Object.entries(compose.services as Record<string, Document>);
  const list = (env: Document): Record<string, string> =>
    Object.fromEntries(
      Object.entries(env ?? {}).map(([name, value]) => [name, String(value).replace(/^\$\{\w+:-(.*)\}$/, '$1')]),
    );

  test.each(['migrate', 'web', 'worker', 'backup'])('%s starts with its settings', (name) => {
    const { environment, command, secrets } = compose.services[name];
    const { host } = started(command?.[0] ?? 'svc-server', { ...list(environment), HOST: '0.0.0.0' });
    expect(host).toBe('0.0.0.0');
    for (const value of Object.values(list(environment))) {
      if (value.startsWith('/run/secrets/')) expect(secrets).toContain(path.basename(value));
    }
  });

  test('each service is hardened, and only web and the metrics of the worker are published, on this machine alone', () => {
    for (const [name, service] of services) {
      expect(service.security_opt, name).toContain('no-new-privileges:true');
      if (name !== 'postgres') {
        expect(service, name).toMatchObject({ read_only: true, user: '10001:10001', cap_drop: ['ALL'] });
      }
      expect(service.privileged, name).toBeUndefined();
    }
    expect(services.filter(([, service]) => service.ports).map(([name]) => name)).toEqual(['web', 'worker']);
    expect(compose.services.web.ports).toEqual(['127.0.0.1:8080:8080']);
    expect(compose.services.worker.ports).toEqual(['127.0.0.1:8090:8080']);
    expect(compose.networks.inside.internal).toBe(true);
  });

  test('every secret, volume and network is declared, and every secret is written by secrets.sh', () => {
    const script = text('compose/secrets.sh');
    for (const [, service] of services) {
      for (const secret of service.secrets ?? []) expect(Object.keys(compose.secrets)).toContain(secret);
      for (const network of service.networks) expect(Object.keys(compose.networks)).toContain(network);
      for (const volume of service.volumes ?? []) {
        const [from] = volume.split(':');
        if (from.startsWith('.')) expect(existsSync(path.join(deploy, 'compose', from)), volume).toBe(true);
        else expect(Object.keys(compose.volumes)).toContain(from);
      }
      for (const other of Object.keys(service.depends_on ?? {})) expect(Object.keys(compose.services)).toContain(other);
    }
    for (const [name, { file }] of Object.entries(compose.secrets as Record<string, { file: string }>)) {
      expect(file).toBe(`./secrets/${name}`);
      expect(script).toContain(`> secrets/${name}`);
    }
    expect(readFileSync(path.join(root, '.gitignore'), 'utf8')).toContain('deploy/compose/secrets/');
    expect(text('Dockerfile.dockerignore').split('\n')).toContain('**/secrets');
  });
});

describe('patroni', () => {
  const [patroni] = documents('patroni/patroni.yml');
  const { superuser, replication, rewind } = patroni.postgresql.authentication;
  const lines = (patroni.postgresql.pg_hba as string[]).map((line) => line.split(' '));

  /** Whether PostgreSQL lets this login in from there, by TLS and a password: it uses the first line that fits. */
  function admits(user: string, database: string, from: string): boolean {
    const line = lines.find(([type, databases, users, network]) => {
      if (type === 'local') return false;
      const [address, bits] = network!.split('/');
      const addresses = new BlockList();
      addresses.addSubnet(address!, Number(bits));
      // of databases, `all` does not mean replication
      const named = databases === database || (databases === 'all' && database !== 'replication');
      return named && users!.split(',').includes(user) && addresses.check(from);
    });
    return line?.[0] === 'hostssl' && line.at(-1) === 'scram-sha-256';
  }

  test('it reaches its own PostgreSQL, and the members reach each other', () => {
    // which is why it uses localhost
    expect(patroni.postgresql.listen).toBe('0.0.0.0:5432');
    for (const from of ['127.0.0.1', '10.0.0.12']) {
      expect(admits(superuser.username, 'postgres', from), from).toBe(true);
      expect(admits(rewind.username, 'postgres', from), from).toBe(true);
      expect(admits(replication.username, 'replication', from), from).toBe(true);
    }
    expect(admits('svc_owner', 'svc', '10.0.7.1')).toBe(true);
  });

  test('nobody else reaches PostgreSQL', () => {
    for (const from of ['10.0.1.1', '192.168.0.1']) {
      expect(admits(superuser.username, 'postgres', from), from).toBe(false);
      expect(admits(replication.username, 'replication', from), from).toBe(false);
    }
    expect(admits('svc_owner', 'postgres', '10.0.0.12')).toBe(false);
    for (const [type, , users, network] of lines) {
      expect(users).not.toMatch(/all/);
      if (type === 'local') expect([users, network]).toEqual([superuser.username, 'peer']);
      else expect(type).toBe('hostssl');
    }
  });

  test('etcd, which can run programs as postgres, is reached by TLS and with a login', () => {
    const { hosts, ...access } = patroni.etcd3;
    expect(hosts).toHaveLength(3);
    expect(access).toEqual({
      protocol: 'https',
      cacert: expect.stringMatching(/^\//),
      cert: expect.stringMatching(/^\//),
      key: expect.stringMatching(/^\//),
      username: 'patroni',
      password: 'CHANGE-ME',
    });
  });
});

describe('systemd', () => {
  const units = globSync('systemd/*.service', { cwd: deploy }).sort();

  test.each(units)('%s starts with its settings, and is hardened', (file) => {
    const lines = text(file)
      .split('\n')
      .filter((line) => /^\w+=/.test(line));
    const values = (name: string) =>
      lines.filter((line) => line.startsWith(`${name}=`)).map((line) => line.slice(name.length + 1));
    const env = Object.fromEntries(
      values('Environment').flatMap((line) => line.split(' ').map((one) => one.split('=') as [string, string])),
    );
    const [program] = values('ExecStart')[0]!.split(' ');
    expect(program).toMatch(/^\/opt\/agent-governance\/bin\/[\w-]+$/);
    expect(existsSync(path.join(deploy, 'image/bin', path.basename(program!)))).toBe(true);
    started(program!, env);
    const credentials = values('LoadCredential').map((line) => line.split(':')[0]);
    for (const [name, value] of Object.entries(env)) {
      if (name.endsWith('_FILE')) expect(credentials).toContain(value.replace('%d/', ''));
    }
    for (const [name, value] of Object.entries({
      DynamicUser: 'yes',
      NoNewPrivileges: 'yes',
      ProtectSystem: 'strict',
      ProtectHome: 'yes',
      PrivateTmp: 'yes',
      PrivateDevices: 'yes',
      ProtectKernelTunables: 'yes',
      RestrictNamespaces: 'yes',
      CapabilityBoundingSet: '',
      SystemCallFilter: '@system-service',
    })) {
      expect(values(name), name).toEqual([value]);
    }
    // os.networkInterfaces, without which the egress guard lets nothing out
    expect(values('RestrictAddressFamilies')[0]!.split(' ')).toContain('AF_NETLINK');
    // each keeps its own files
    expect(values('StateDirectory')).toEqual([path.basename(file, '.service')]);
  });

  test('there is one for each process of the Procfile that stays', () => {
    const procfile = readFileSync(path.join(root, 'Procfile'), 'utf8');
    const processes = [...procfile.matchAll(/^(\w+):/gm)].map(([, name]) => name!).filter((name) => name !== 'release');
    const timed = globSync('systemd/*.timer', { cwd: deploy }).map((file) => file.replace('.timer', '.service'));
    const stay = units.filter((file) => !timed.includes(file));
    expect(stay.map((file) => path.basename(file, '.service').replace('agent-governance-', '')).sort()).toEqual(
      processes.sort(),
    );
    for (const file of timed) expect(text(file)).toMatch(/^Type=oneshot$/m);
  });
});
