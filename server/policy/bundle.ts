import { createHash, type KeyObject, verify } from 'node:crypto';
import { gunzipSync } from 'node:zlib';
import { type BundleList, LIST_NAME } from '../domain/lists.ts';
import type { BundleContent, BundleStatement } from '../domain/policy.ts';
import { type BundleRegistry, DRIFT_MODES, EMPTY_REGISTRY } from '../domain/tools.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { areAnnotations } from './language/annotations.ts';
import { listsOf } from './language/facts.ts';
import { readHead } from './language/head.ts';
import { tokens } from './language/scan.ts';

/**
 * The bundle, version 1: `"SVCB" 0x01 | u32be length | detached compact JWS (RFC 7515 appendix F) | gzip(canonical
 * JSON)`. It is identified by the hash of the uncompressed canonical JSON, which contains no timestamps. The gzip output
 * differs between builds of zlib and is never hashed.
 */
const MAGIC = Buffer.from('SVCB\x01', 'latin1');
const TYPE = 'svc-bundle+jws';
const MAX_UNPACKED_BYTES = 64 * 1024 * 1024;
const MAX_HEADER_BYTES = 16 * 1024;

export interface BundleHeader {
  alg: 'EdDSA';
  kid: string;
  typ: typeof TYPE;
  content_hash: string;
  tenant: string;
  /** Increases with every bundle of the tenant and scope set. A consumer rejects one lower than it has seen. */
  seq: number;
  /** ISO 8601 UTC. The consumer checks it against its own clock. */
  not_after: string;
}

export type BundleFault =
  | 'format' // not a bundle, or another version
  | 'header' // the JWS or its header is malformed, or has other members than version 1
  | 'algorithm' // not EdDSA with an Ed25519 key
  | 'key' // unknown kid
  | 'signature'
  | 'tenant' // another tenant's bundle
  | 'rollback' // older than one seen before
  | 'payload' // cannot be decompressed, or exceeds 64 MiB
  | 'hash'
  | 'content'; // not the canonical form of version 1 content

/** A bundle that must not be used. `reason` is stable; the message is for people. */
export class BundleError extends Error {
  override readonly name = 'BundleError';
  readonly reason: BundleFault;

  constructor(reason: BundleFault, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** One live policy; `compilePolicy` makes the statements. */
export interface BundlePolicy {
  policy_id: string;
  version: number;
  statements: readonly Pick<BundleStatement, 'id' | 'effect' | 'annotations' | 'scopes' | 'cedar'>[];
}

/**
 * The content of a tenant's bundle from its live policies.
 *
 * A filter keeps or drops whole policies, and the tag of one statement keeps its whole policy: dropping single
 * statements could remove a forbid that guards a permit. A policy with the scope `*` passes every filter.
 */
export function bundleContent(parts: {
  tenant: string;
  scopes: readonly string[] | null;
  policies: readonly BundlePolicy[];
  schema: string;
  action_entities: Record<string, string[]>;
  cedar_lang: string;
  /** What is known of tools and agents; scopes do not filter it. */
  registry?: BundleRegistry;
  /** The reference lists; those that no statement of the bundle names are omitted. */
  lists?: readonly BundleList[];
}): BundleContent {
  const { tenant, policies, schema, action_entities, cedar_lang, registry = EMPTY_REGISTRY, lists = [] } = parts;
  const scopes = parts.scopes === null ? null : [...new Set(parts.scopes)].sort();
  const kept = policies.filter(({ statements }) => {
    const tags = new Set(statements.flatMap((statement) => statement.scopes));
    return scopes === null || tags.has('*') || scopes.some((scope) => tags.has(scope));
  });
  const statements = kept.flatMap((policy) =>
    policy.statements.map(
      ({ id, effect, annotations, scopes, cedar }): BundleStatement => ({
        id,
        policy_id: policy.policy_id,
        version: policy.version,
        effect,
        annotations,
        scopes,
        cedar,
      }),
    ),
  );
  statements.sort((a, b) => (a.id < b.id ? -1 : 1));
  const named = lists.length > 0 ? listsNamed(statements) : new Set();
  return {
    format: 'svc-bundle/1',
    cedar_lang,
    tenant,
    scopes,
    schema,
    action_entities,
    policies: statements,
    registry,
    lists: lists.filter(({ name }) => named.has(name)).sort((a, b) => (a.name < b.name ? -1 : 1)),
  };
}

/** The reference lists that statements read. */
export function listsNamed(statements: readonly { cedar: string }[]): Set<string> {
  return new Set(statements.flatMap(({ cedar }) => listsOf(readHead(tokens(cedar)).facts)));
}

/** `sha256:<hex>` of the content, used as `current_hash`, as the ETag and in decision records. */
export function contentHash(content: BundleContent): string {
  return sha256Tag(canonicalJson(content));
}

/** The header to sign for a content, and the text to gzip as the payload. Throws a RangeError if they do not fit the format. */
export function unsignedBundle(
  content: BundleContent,
  how: { seq: number; not_after: string; kid: string },
): { header: BundleHeader; hash: string; canonical: string } {
  const canonical = canonicalJson(content);
  if (Buffer.byteLength(canonical) > MAX_UNPACKED_BYTES) {
    // no one could open it: consumers that have the previous one keep it
    throw new RangeError(`the content is larger than ${MAX_UNPACKED_BYTES / 1024 / 1024} MB`);
  }
  const hash = sha256Tag(canonical);
  const { seq, not_after, kid } = how;
  const header: BundleHeader = {
    alg: 'EdDSA',
    content_hash: hash,
    kid,
    not_after,
    seq,
    tenant: content.tenant,
    typ: TYPE,
  };
  if (!isHeader(header)) throw new RangeError('seq or not_after is not valid in a bundle header');
  if (!isContent(content)) throw new RangeError('the content is not that of a version 1 bundle');
  return { header, hash, canonical };
}

/** Assembles a bundle from the payload and a compact JWS over it, which becomes detached. */
export function assembleBundle(jws: string, payload: Buffer): Buffer {
  const [head, , signature] = jws.split('.');
  const detached = Buffer.from(`${head}..${signature}`, 'latin1');
  const length = Buffer.alloc(4);
  length.writeUInt32BE(detached.length);
  return Buffer.concat([MAGIC, length, detached, payload]);
}

/**
 * Opens a bundle: checks the signature, decompresses with a limit, checks the hash, then parses. For any bad input it
 * throws a BundleError and nothing else. The caller must still check `header.not_after` against its clock.
 */
export function openBundle(
  bytes: Uint8Array,
  keyFor: (kid: string, header: BundleHeader) => KeyObject | undefined,
  expect: { tenant?: string; min_seq?: number } = {},
): { header: BundleHeader; hash: string; content: BundleContent } {
  const { head, header, signature, payload } = split(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength));

  const key = keyFor(header.kid, header);
  if (!key) throw new BundleError('key', `unknown signing key ${header.kid}`);
  if (key.asymmetricKeyType !== 'ed25519') throw new BundleError('algorithm', 'the key is not an Ed25519 key');
  if (!verify(null, signingInput(head, payload), key, signature)) {
    throw new BundleError('signature', 'the signature is not valid');
  }
  if (expect.tenant !== undefined && header.tenant !== expect.tenant) {
    throw new BundleError('tenant', `the bundle is for ${header.tenant}`);
  }
  if (expect.min_seq !== undefined && header.seq < expect.min_seq) {
    throw new BundleError('rollback', `the bundle has seq ${header.seq}, lower than the ${expect.min_seq} seen before`);
  }

  const canonical = unpack(payload);
  const hash = `sha256:${createHash('sha256').update(canonical).digest('hex')}`;
  if (hash !== header.content_hash) throw new BundleError('hash', 'the content does not match the hash in the header');
  const content = parse(canonical);
  if (content.tenant !== header.tenant) throw new BundleError('tenant', 'header and content name different tenants');
  return { header, hash, content };
}

function split(bytes: Buffer): { head: string; header: BundleHeader; signature: Buffer; payload: Buffer } {
  const start = MAGIC.length + 4;
  if (bytes.length < start || !bytes.subarray(0, MAGIC.length).equals(MAGIC)) {
    throw new BundleError('format', 'this is not a version 1 bundle');
  }
  const end = start + bytes.readUInt32BE(MAGIC.length);
  if (end > bytes.length || end - start > MAX_HEADER_BYTES)
    throw new BundleError('format', 'the header length is not valid');

  const [head = '', empty, tail = '', ...more] = bytes.toString('latin1', start, end).split('.');
  const signature = Buffer.from(tail, 'base64url');
  // The last base64url character has unused bits; only the canonical encoding is accepted (RFC 4648 §3.5).
  const canonical = (text: string) => Buffer.from(text, 'base64url').toString('base64url') === text;
  if (empty !== '' || more.length > 0 || signature.length !== 64 || !canonical(head) || !canonical(tail)) {
    throw new BundleError('header', 'the JWS is not detached and compact');
  }
  const header = json(Buffer.from(head, 'base64url'), 'header');
  if (typeof header !== 'object' || header === null) throw new BundleError('header', 'the header is not an object');
  const { alg, typ } = header as Record<string, unknown>;
  if (alg !== 'EdDSA') throw new BundleError('algorithm', 'the algorithm is not EdDSA');
  if (typ !== TYPE) throw new BundleError('format', `the type is not ${TYPE}`);
  if (!isHeader(header)) throw new BundleError('header', 'the header is not that of version 1');
  return { head, header, signature, payload: bytes.subarray(end) };
}

function signingInput(head: string, payload: Buffer): Buffer {
  return Buffer.from(`${head}.${payload.toString('base64url')}`, 'latin1');
}

function unpack(payload: Buffer): Buffer {
  try {
    return gunzipSync(payload, { maxOutputLength: MAX_UNPACKED_BYTES });
  } catch (cause) {
    throw new BundleError('payload', `the content cannot be decompressed: ${(cause as Error).message}`);
  }
}

function json(bytes: Buffer, fault: 'header' | 'content'): unknown {
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (cause) {
    throw new BundleError(fault, `the ${fault} is not JSON: ${(cause as Error).message}`);
  }
}

function parse(canonical: Buffer): BundleContent {
  const content = json(canonical, 'content');
  if (!isContent(content)) throw new BundleError('content', 'the content is not that of version 1');
  // Parsers may disagree about duplicate members or other spellings of a value, so only the canonical form is accepted.
  if (!Buffer.from(canonicalText(content)).equals(canonical)) {
    throw new BundleError('content', 'the content is not in canonical form');
  }
  return content;
}

function canonicalText(content: BundleContent): string {
  try {
    return canonicalJson(content);
  } catch (cause) {
    throw new BundleError('content', `the content has no canonical form: ${(cause as Error).message}`);
  }
}

const ISO_UTC = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z$/;
const HEADER_KEYS = ['alg', 'content_hash', 'kid', 'not_after', 'seq', 'tenant', 'typ'];
const CONTENT_KEYS = [
  'action_entities',
  'cedar_lang',
  'format',
  'lists',
  'policies',
  'registry',
  'schema',
  'scopes',
  'tenant',
];
const STATEMENT_KEYS = ['annotations', 'cedar', 'effect', 'id', 'policy_id', 'scopes', 'version'];

/** Unknown members are rejected, including `crit` (RFC 7515 §4.1.11), because this consumer could not honor them. */
function isHeader(value: object): value is BundleHeader {
  const header = value as Record<string, unknown>;
  return (
    hasKeys(header, HEADER_KEYS) &&
    ['kid', 'tenant'].every((name) => isText(header[name])) &&
    typeof header.content_hash === 'string' &&
    Number.isSafeInteger(header.seq) &&
    (header.seq as number) >= 0 &&
    typeof header.not_after === 'string' &&
    ISO_UTC.test(header.not_after) &&
    !Number.isNaN(Date.parse(header.not_after))
  );
}

function isContent(value: unknown): value is BundleContent {
  if (typeof value !== 'object' || value === null) return false;
  const content = value as Record<string, unknown>;
  const { action_entities: actions, policies } = content;
  return (
    hasKeys(content, CONTENT_KEYS) &&
    content.format === 'svc-bundle/1' &&
    ['cedar_lang', 'tenant', 'schema'].every((name) => isText(content[name])) &&
    (content.scopes === null || isTextList(content.scopes)) &&
    typeof actions === 'object' &&
    actions !== null &&
    Object.values(actions).every(isTextList) &&
    Array.isArray(policies) &&
    policies.every((one, n) => isStatement(one) && (n === 0 || policies[n - 1].id < one.id)) &&
    isRegistry(content.registry) &&
    isSorted(
      content.lists,
      'name',
      (one) =>
        isObject(one, ['name', 'values', 'version']) &&
        LIST_NAME.test(String(one.name)) &&
        Number.isSafeInteger(one.version) &&
        isTextList(one.values) &&
        one.values.every((value, n, values) => n === 0 || values[n - 1]! < value),
    )
  );
}

const MODES: readonly unknown[] = [...DRIFT_MODES, 'default'];

function isRegistry(value: unknown): boolean {
  return (
    isObject(value, ['agents', 'servers']) &&
    isSorted(value.agents, 'id', (one) => isObject(one, ['id', 'labels']) && isTextList(one.labels)) &&
    isSorted(
      value.servers,
      'id',
      (one) =>
        isObject(one, ['check_arguments', 'id', 'mode', 'reviewed', 'tools', 'trust']) &&
        MODES.includes(one.mode) &&
        typeof one.reviewed === 'boolean' &&
        typeof one.check_arguments === 'boolean' &&
        (one.trust === null || Number.isSafeInteger(one.trust)) &&
        isSorted(
          one.tools,
          'name',
          (tool) =>
            (isObject(tool, ['labels', 'name', 'pins', 'rejected', 'seen']) ||
              (isObject(tool, ['labels', 'name', 'nullable', 'pins', 'rejected', 'seen']) &&
                isTextList(tool.nullable))) &&
            [tool.labels, tool.pins, tool.rejected].every(isTextList) &&
            ['approved', 'rejected', 'changed'].includes(tool.seen as string),
        ),
    )
  );
}

/** A list of such members, each with a name, in ascending code-unit order and without duplicates. */
function isSorted(value: unknown, name: string, fits: (one: unknown) => boolean): boolean {
  return (
    Array.isArray(value) &&
    value.every((one, n) => fits(one) && isText(one[name]) && (n === 0 || value[n - 1][name] < one[name]))
  );
}

function isObject(value: unknown, keys: string[]): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && hasKeys(value as Record<string, unknown>, keys);
}

function isStatement(value: unknown): value is BundleStatement {
  if (typeof value !== 'object' || value === null) return false;
  const statement = value as Record<string, unknown>;
  return (
    hasKeys(statement, STATEMENT_KEYS) &&
    ['id', 'policy_id', 'cedar'].every((name) => isText(statement[name])) &&
    (statement.id as string).startsWith(`${statement.policy_id}#`) &&
    Number.isSafeInteger(statement.version) &&
    (statement.effect === 'permit' || statement.effect === 'forbid') &&
    isTextList(statement.scopes) &&
    areAnnotations(statement.annotations)
  );
}

function hasKeys(value: Record<string, unknown>, keys: string[]): boolean {
  return Object.keys(value).sort().join() === keys.join();
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== '';
}

function isTextList(value: unknown): value is string[] {
  return Array.isArray(value) && value.every(isText);
}
