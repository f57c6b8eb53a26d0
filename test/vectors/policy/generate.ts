import { createPrivateKey, type KeyObject } from 'node:crypto';
import type { BundleContent } from '../../../server/domain/policy.ts';
import { keyThumbprint, publicKeyOf, sha256Tag } from '../../../server/lib/crypto.ts';
import { bundleContent } from '../../../server/policy/bundle.ts';
import { actionHash, type HashedAction } from '../../../server/policy/evaluation/action-hash.ts';
import { PolicyEngine, settle } from '../../../server/policy/evaluation/evaluate.ts';
import { ruleReference } from '../../../server/policy/evaluation/hold-terms.ts';
import { type Compilation, compilePolicy } from '../../../server/policy/language/compile.ts';
import { CedarHost, cedarLanguageVersion } from '../../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../../server/policy/language/schema.ts';
import { packBundle } from '../../../server/policy/pack-bundle.ts';
import { ACTIONS, DEMO, REQUESTS, TEXTS } from './cases.ts';
import { CONDITION_REQUESTS, conditionVectors } from './conditions.ts';

/** The key of the golden bundle: its seed is the bytes 0 to 31. PKCS #8 of RFC 8410 §7, then the seed. */
export function vectorKey(): { privateKey: KeyObject; publicKey: KeyObject; kid: string } {
  const seed = Buffer.from(Array.from({ length: 32 }, (_, n) => n));
  const der = Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), seed]);
  const privateKey = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' });
  const publicKey = publicKeyOf(privateKey);
  return { privateKey, publicKey, kid: keyThumbprint(publicKey) };
}

export function demoContent(): BundleContent {
  const { errors, statements } = compilePolicy(new CedarHost(), 'pol_demo', DEMO, schemaFor());
  if (errors.length > 0) throw new Error(`the policies of the vectors do not compile: ${JSON.stringify(errors)}`);
  return bundleContent({
    tenant: 'ten_vectors',
    scopes: null,
    policies: [{ policy_id: 'pol_demo', version: 3, statements }],
    schema: schemaFor(),
    action_entities: actionEntities(),
    cedar_lang: cedarLanguageVersion(),
  });
}

/** The vectors of the policy language, the decisions, the action hash and the bundle, by path from this folder. */
export async function generate(): Promise<Record<string, string | Uint8Array>> {
  const content = demoContent();
  return {
    'demo.cedar': DEMO,
    'schema.cedarschema': schemaFor(),
    'texts.json': json({ v: 1, texts: texts() }),
    'requests.json': json({ v: 1, policies: ['demo.cedar'], requests: requests(content) }),
    'action-hash.json': json({ v: 1, actions: actions() }),
    'conditions.json': json({ v: 1, requests: CONDITION_REQUESTS, conditions: conditionVectors() }),
    ...(await bundle(content)),
  };
}

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}

function requests(content: BundleContent): unknown[] {
  const engine = new PolicyEngine(content);
  const decided = REQUESTS.map(({ name, request, exceeded = {}, covered: ids = [], expect }) => {
    const covered = content.policies.filter(({ id }) => ids.includes(id)).map(ruleReference);
    const verdict = settle(engine.match(request), { exceeded: new Map(Object.entries(exceeded)), covered });
    const { decision, rule_id, deny_reason } = verdict;
    if (decision !== expect.decision || rule_id !== expect.rule || deny_reason !== expect.deny_reason) {
      throw new Error(`"${name}" is decided as ${JSON.stringify(verdict)}`);
    }
    return { name, request, exceeded, covered, verdict };
  });
  engine.dispose();
  return decided;
}

function texts(): unknown[] {
  const host = new CedarHost();
  return TEXTS.map(({ name, source, errors, warnings = [] }) => {
    const found: Compilation = compilePolicy(host, 'pol_text', source, schemaFor());
    for (const [kind, expected] of [
      ['errors', errors],
      ['warnings', warnings],
    ] as const) {
      const fits = expected.every(([line, column, part], n) => {
        const one = found[kind][n];
        return one?.line === line && one.column === column && one.message.includes(part);
      });
      if (!fits || found[kind].length !== expected.length) {
        throw new Error(`"${name}" has the ${kind} ${JSON.stringify(found[kind])}`);
      }
    }
    const places = (all: Compilation['errors']) => all.map(({ fix: _fix, ...one }) => one);
    return { name, source, errors: places(found.errors), warnings: places(found.warnings) };
  });
}

function actions(): unknown[] {
  return ACTIONS.map(({ name, action, canonical }) => {
    const hash = actionHash(action as unknown as HashedAction);
    if (hash !== sha256Tag(canonical)) throw new Error(`"${name}" is not hashed over ${canonical}`);
    return { name, action, canonical, hash };
  });
}

/** Stored, not compressed: the output of gzip differs between builds of zlib, and these bytes must not. */
async function bundle(content: BundleContent): Promise<Record<string, string | Uint8Array>> {
  const { privateKey, publicKey, kid } = vectorKey();
  const how = { seq: 42, not_after: '2030-01-01T00:00:00.000Z', kid, privateKey, level: 0 };
  const { bytes, hash, canonical } = await packBundle(content, how);
  return {
    '../bundle/golden.svcb': bytes,
    '../bundle/golden.canonical.json': canonical,
    '../bundle/golden.json': json({
      v: 1,
      hash,
      bundle_sha256: sha256Tag(bytes),
      tenant: content.tenant,
      seq: how.seq,
      not_after: how.not_after,
      kid,
      public_key: publicKey.export({ type: 'spki', format: 'pem' }),
      statements: content.policies.map(({ id }) => id),
    }),
  };
}
