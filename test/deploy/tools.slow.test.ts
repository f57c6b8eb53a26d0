import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  copyFileSync,
  cpSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { migrate } from '../../db/index.ts';
import { useDatabase } from '../helpers/database.ts';
import { freePort } from '../helpers/ports.ts';
import { noPostgres15, Postgres15 } from '../helpers/postgres15.ts';
import { MASTER_KEY } from '../helpers/processes.ts';
import { until } from '../helpers/until.ts';
import { SIEGE } from '../siege/rounds.ts';

/** What other programs say of the files in deploy/, where those programs are there. */
const root = path.resolve(import.meta.dirname, '../..');
const deploy = path.join(root, 'deploy');
const has = (program: string) => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;
const dir = mkdtempSync(path.join(tmpdir(), 'svc-deploy-tools-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe.skipIf(!has('kubectl'))('kustomize', () => {
  const buildAt = (folder: string) =>
    parseAllDocuments(execFileSync('kubectl', ['kustomize', folder], { encoding: 'utf8' })).map((one) => one.toJS());
  type Objects = ReturnType<typeof buildAt>;
  const built = new Map<string, Objects>();
  const build = (folder: string): Objects => {
    const objects = built.get(folder) ?? buildAt(path.join(deploy, 'kubernetes', folder));
    built.set(folder, objects);
    return objects;
  };

  test.each(['overlays/small', 'overlays/ha', 'overlays/citus', 'proxy', 'sidecar'])('%s builds', (folder) => {
    const objects = build(folder);
    expect(objects.length).toBeGreaterThan(1);
    const images = JSON.stringify(objects).match(/"image":"[^"]*agent-governance[^"]*"/g)!;
    expect(new Set(images)).toEqual(new Set(['"image":"registry.example/agent-governance:latest"']));
    const names = objects.find(({ metadata }) => metadata.name === 'names');
    // the name server is not ours: no label of ours is asked of it
    if (names) expect(names.spec.egress[0].to[0].podSelector).toEqual({ matchLabels: { 'k8s-app': 'kube-dns' } });
  });

  test('the overlay for high availability has what it promises', () => {
    const objects = build('overlays/ha');
    const named = (kind: string, name: string) =>
      objects.find((one) => one.kind === kind && one.metadata.name === name);
    expect(named('ConfigMap', 'settings').data.SVC_DURABILITY).toBe('replicated');
    expect([named('StatefulSet', 'web').spec.replicas, named('StatefulSet', 'worker').spec.replicas]).toEqual([3, 2]);
    expect(named('StatefulSet', 'web').spec.template.spec.topologySpreadConstraints).toHaveLength(2);
  });

  test.each(['small', 'ha', 'citus'])(
    '%s lets the worker alone leave the cluster, and web where its component is added',
    (overlay) => {
      const leaving = (objects: ReturnType<typeof build>) =>
        objects
          .filter(({ kind, spec }) => kind === 'NetworkPolicy' && JSON.stringify(spec).includes('ipBlock'))
          .map(({ metadata, spec }) => [
            metadata.namespace,
            spec.podSelector.matchLabels['app.kubernetes.io/component'],
          ]);
      expect(leaving(build(`overlays/${overlay}`))).toEqual([['agent-governance', 'worker']]);
      const folder = path.join(dir, `with-sign-on-${overlay}`);
      cpSync(path.join(deploy, 'kubernetes'), folder, { recursive: true });
      for (const file of globSync('overlays/*/kustomization.yaml', { cwd: folder }).map((one) =>
        path.join(folder, one),
      )) {
        writeFileSync(file, readFileSync(file, 'utf8').replace(/^# .*(components: \[.*\])$/m, '$1'));
      }
      expect(leaving(buildAt(path.join(folder, 'overlays', overlay))).sort()).toEqual([
        ['agent-governance', 'web'],
        ['agent-governance', 'worker'],
      ]);
    },
  );

  test('the overlay for Citus is that for high availability, with web and worker beside the nodes; all else reaches the coordinator alone', () => {
    const [ha, citus] = [build('overlays/ha'), build('overlays/citus')];
    const name = ({ kind, metadata }: { kind: string; metadata: { name: string } }) => `${kind} ${metadata.name}`;
    const changed = citus.filter((one) => !ha.some((before) => JSON.stringify(before) === JSON.stringify(one)));
    expect(changed.map(name)).toEqual([
      'StatefulSet web',
      'StatefulSet worker',
      'NetworkPolicy nodes',
      'NetworkPolicy stores',
    ]);
    expect(citus.map(name).filter((one) => one !== 'NetworkPolicy nodes')).toEqual(ha.map(name));

    const [web, worker, nodes, stores] = changed;
    for (const one of [web, worker]) {
      const { env, volumeMounts } = one.spec.template.spec.containers[0];
      const file = env.find((one: { name: string }) => one.name === 'DATABASE_NODE_URL_FILE').value;
      expect(file).toBe(`${volumeMounts[0].mountPath}/database-node-url-$(POD_NAME)`);
      // what a value names stands before it
      const names = env.map((one: { name: string }) => one.name);
      expect(names.indexOf('POD_NAME')).toBeLessThan(names.indexOf('DATABASE_NODE_URL_FILE'));
    }

    const databases = ({ spec }: { spec: { egress: { to: object[] }[] } }) =>
      spec.egress.filter((rule) => JSON.stringify(rule).includes('5432')).map(({ to }) => to);
    const reaching = (label: string) => [
      [
        {
          namespaceSelector: { matchLabels: { 'agent-governance/database': 'true' } },
          podSelector: { matchLabels: { [label]: 'true' } },
        },
      ],
    ];
    expect(databases(stores)).toEqual(reaching('agent-governance/coordinator'));
    expect(databases(nodes)).toEqual(reaching('agent-governance/node'));
    expect(nodes.spec.podSelector.matchExpressions[0].values).toEqual(['web', 'worker']);
  });
});

describe.skipIf(!has('systemd-analyze'))('systemd', () => {
  test.each(globSync('systemd/*.service', { cwd: deploy }))('%s is well-formed, and little is open to it', (file) => {
    const unit = path.join(deploy, file);
    const { stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', unit], { encoding: 'utf8' });
    // the program itself is installed elsewhere
    expect(
      stderr.split('\n').filter((line) => line.includes(path.basename(file)) && !/is not executable/.test(line)),
    ).toEqual([]);
    const { status, stdout } = spawnSync('systemd-analyze', ['security', '--offline=true', '--threshold=20', unit], {
      encoding: 'utf8',
    });
    expect(status, stdout.slice(-300)).toBe(0);
  });
});

describe.skipIf(!has('sh'))('compose', () => {
  test('secrets.sh writes each secret once, and what the server reads from them is sound', () => {
    const copy = path.join(dir, 'compose');
    mkdirSync(copy);
    const script = path.join(copy, 'secrets.sh');
    execFileSync('cp', [path.join(deploy, 'compose/secrets.sh'), script]);
    execFileSync('sh', [script]);
    const read = (name: string) => readFileSync(path.join(copy, 'secrets', name), 'utf8');
    expect(read('master-key')).toMatch(/^[0-9a-f]{64}$/);
    expect(read('database-url')).toBe(`postgres://svc_owner:${read('owner-password')}@postgres/svc`);
    expect(read('redis-conf')).toContain(`requirepass ${new URL(read('redis-url')).password}\n`);
    expect(new Set(['owner-password', 'postgres-password', 'master-key'].map(read)).size).toBe(3);
    expect(spawnSync('sh', [script]).status).toBe(1);
  });
});

test.skipIf(noPostgres15 || !has('psql'))(
  "compose's login of the program can do what it must, and no more",
  async () => {
    const postgres = await Postgres15.start();
    try {
      for (const sql of ['drop database svc', 'drop role svc_owner']) await postgres.query(sql, 'postgres');
      const secret = path.join(dir, 'owner-password');
      writeFileSync(secret, "it's");
      const script = readFileSync(path.join(deploy, 'compose/owner.sh'), 'utf8').replace(
        '/run/secrets/owner-password',
        secret,
      );
      const env = {
        PATH: process.env.PATH,
        POSTGRES_USER: 'postgres',
        PGHOST: '127.0.0.1',
        PGPORT: new URL(postgres.url).port,
      };
      execFileSync('sh', ['-c', script], { env, stdio: 'pipe' });
      await migrate(postgres.url);
      const [row] = await postgres.query(
        `select rolsuper or rolbypassrls or rolcreaterole or rolcreatedb as strong, pg_has_role(rolname, 'pg_read_all_stats', 'usage') as sees
       from pg_roles where rolname = 'svc_owner'`,
      );
      expect(row).toEqual({ strong: false, sees: true });
    } finally {
      await postgres.stop();
    }
  },
);

/** The steps of the Dockerfile on this machine: installs from the registry, so it is for the siege. */
describe.skipIf(!SIEGE)('what the image holds', () => {
  const box = useDatabase();
  const target = path.join(dir, 'program');
  const settings = async () => {
    const port = await freePort();
    return { PORT: String(port), HOST: '127.0.0.1', DATABASE_URL: box.url, SVC_MASTER_KEY: MASTER_KEY };
  };
  const tenant = (id: string) => ['tenant', 'create', '--id', id, '--name', id, '--admin-email', 'a@example.com'];

  /** Resolves when the server has served its pages and API, and ended as it was told. */
  async function serves(port: string, child: ChildProcess): Promise<void> {
    try {
      await until(
        () =>
          fetch(`http://127.0.0.1:${port}/healthz`).then(
            ({ ok }) => ok,
            () => false,
          ),
        'the server answers',
        { everyMs: 100 },
      );
      expect(await (await fetch(`http://127.0.0.1:${port}/`)).text()).toContain('<script');
      expect((await fetch(`http://127.0.0.1:${port}/docs`)).status).toBe(200);
    } finally {
      child.kill('SIGTERM');
      if (child.exitCode === null) await once(child, 'exit');
    }
    expect(child.exitCode).toBe(0);
  }

  beforeAll(() => {
    const source = path.join(dir, 'source');
    chmodSync(dir, 0o755);
    mkdirSync(source);
    const files = 'git ls-files -z --cached --others --exclude-standard';
    execFileSync('sh', ['-c', `${files} | tar cf - --null -T - | tar xf - -C "$0"`, source], { cwd: root });
    execFileSync(path.join(source, 'deploy/image/install.sh'), [target], { stdio: 'pipe' });
  }, 600_000);

  test('runs as another user who can write nothing but the data directory', async () => {
    const data = path.join(dir, 'data');
    mkdirSync(data);
    const asOther = process.getuid?.() === 0 ? { uid: 10001, gid: 10001 } : {};
    if (asOther.uid) chownSync(data, asOther.uid, asOther.gid);
    const bin = path.join(dir, 'bin');
    mkdirSync(bin);
    symlinkSync(process.execPath, path.join(bin, 'node'));
    const env = {
      ...(await settings()),
      PATH: `${path.join(target, 'bin')}:${bin}:/usr/bin:/bin`,
      NODE_ENV: 'production',
      SVC_DATA_DIR: data,
    };
    const run = (program: string, ...args: string[]) =>
      spawnSync(program, args, { cwd: data, env, encoding: 'utf8', ...asOther });
    expect(run('svc', 'migrate').status).toBe(0);
    expect(run('svc', ...tenant('other')).status).toBe(0);
    expect(run('svc-verify', '--help').stdout).toContain('svc-verify');
    expect(run('svc-proxy', '--help').stdout).toContain('svc-proxy');
    await serves(env.PORT, spawn('svc-server', { cwd: data, env, stdio: 'ignore', ...asOther }));
    const changed = execFileSync('find', [target, '-newer', path.join(bin), '-type', 'f'], { encoding: 'utf8' });
    expect(changed).toBe('');
  });

  test.skipIf(process.getuid?.() !== 0 || !has('debootstrap'))(
    'runs on the Debian of its base, whose root is read-only, by the steps of the Dockerfile',
    async () => {
      const dockerfile = readFileSync(path.join(deploy, 'Dockerfile'), 'utf8').replaceAll(/\\\n/g, ' ');
      const [, release] = /^ARG NODE=\S+-(\w+)-slim@/m.exec(dockerfile)!;
      const debian = path.join(dir, 'debian');
      execFileSync('debootstrap', ['--variant=minbase', release!, debian], { stdio: 'pipe' });
      copyFileSync(process.execPath, path.join(debian, 'usr/local/bin/node'));
      const steps: Record<string, string[]> = {};
      for (const line of dockerfile
        .split(/^FROM .*$/m)
        .at(-1)!
        .split('\n')) {
        const [, step, rest] = /^([A-Z]+) +(.*)$/.exec(line) ?? [];
        if (step) steps[step] = [...(steps[step] ?? []), rest!.trim()];
      }
      expect(Object.keys(steps).sort()).toEqual(['CMD', 'COPY', 'ENV', 'EXPOSE', 'RUN', 'USER', 'VOLUME', 'WORKDIR']);
      for (const copied of steps.COPY!) {
        const [, to] = /^--from=build \/opt\/agent-governance (\S+)$/.exec(copied)!;
        execFileSync('cp', ['-a', target, path.join(debian, to!)]);
      }
      for (const command of steps.RUN!) execFileSync('chroot', [debian, 'sh', '-c', command]);
      const given = await settings();
      const env = [...steps.ENV!.join(' ').split(/ +/), ...Object.entries(given).map((pair) => pair.join('='))];
      // as a container that is started read-only: of its own are the volume, /tmp and the processes
      const script = `mount --bind "$0" "$0" && mount --bind "$0${steps.VOLUME}" "$0${steps.VOLUME}" &&
        mount -t tmpfs tmpfs "$0/tmp" && mount -t proc proc "$0/proc" && mount -o remount,bind,ro "$0" &&
        exec chroot --userspec=${steps.USER} "$0" env -i -C ${steps.WORKDIR} "$@"`;
      const args = (command: string[]) => ['--mount', 'sh', '-c', script, debian, ...env, ...command];
      const run = (...command: string[]) => spawnSync('unshare', args(command), { encoding: 'utf8' });
      expect(run('id', '-u').stdout).toBe('10001\n');
      expect(run('touch', '/opt/agent-governance/bin/svc').stderr).toContain('Permission denied');
      expect(run('touch', '/var/tmp/file').stderr).toContain('Read-only file system');
      expect(run('svc', 'migrate')).toMatchObject({ status: 0, stderr: '' });
      expect(run('svc', ...tenant('contained'))).toMatchObject({ status: 0 });
      expect(run('svc-verify', '--help').stdout).toContain('svc-verify');
      expect(run('svc-proxy', '--help').stdout).toContain('svc-proxy');
      await serves(given.PORT, spawn('unshare', args(JSON.parse(steps.CMD![0]!)), { stdio: 'ignore' }));
    },
    600_000,
  );
});
