import { createHmac, createPublicKey, hkdfSync, type KeyObject } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { BundleContent } from '../domain/policy.ts';
import { CurrentError, openCurrent, type Standing, signerOfCurrent } from '../keys/current.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { equalSecret, keyThumbprint } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import { ConfigError } from '../lib/settings.ts';
import { BundleError, type BundleHeader, openBundle } from '../policy/bundle.ts';
import { PolicyEngine } from '../policy/evaluation/evaluate.ts';
import { parseMask } from '../policy/evaluation/masks.ts';
import { readsSession } from '../policy/evaluation/protocol.ts';
import { type ControlPlane, ControlPlaneError, type ProxyConfiguration } from './control-plane.ts';
import { writeAtomically } from './files.ts';

/** Why there is nothing to decide by, so that everything is denied. */
export type Standstill =
  | 'no_bundle' // none was ever fetched
  | 'bundle_expired' // the last good one is past its end, and the setting says to deny
  | 'key_refused'; // the control plane does not accept the proxy's key

/** The policies in force. */
export interface Governing {
  engine: PolicyEngine;
  hash: string;
  seq: number;
  /** Milliseconds since the epoch. */
  notAfter: number;
  /** Some statement reads context.session, so that its facts must be counted. */
  readsSession: boolean;
}

export interface KnownAgent {
  keyId: string;
  agentId: string;
  agentRole: string;
  owner: string | null;
  expiresAt: number;
}

/**
 * Opens a bundle the way a proxy must before it decides by it: signed by a known key, for this tenant, for exactly the scopes
 * that were requested (a bundle of fewer scopes is authentic too, and lacks forbids), not older than any seen before, and
 * containing nothing that this program does not understand. Throws a BundleError.
 */
export function openGoverning(
  bytes: Uint8Array,
  expect: {
    keyFor: (kid: string) => KeyObject | undefined;
    tenant: string;
    scopes: readonly string[] | null;
    /** The newest one seen, across all restarts. */
    newest: { seq: number; hash: string } | undefined;
  },
): { header: BundleHeader; hash: string; content: BundleContent; engine: PolicyEngine } {
  const { newest } = expect;
  const opened = openBundle(bytes, expect.keyFor, { tenant: expect.tenant, min_seq: newest?.seq ?? 0 });
  if (newest && opened.header.seq === newest.seq && opened.hash !== newest.hash) {
    throw new BundleError('rollback', `another bundle of seq ${newest.seq} was seen`);
  }
  if (canonicalJson(opened.content.scopes) !== canonicalJson(expect.scopes)) {
    throw new BundleError('content', 'the bundle is for other scopes');
  }
  try {
    for (const { annotations } of opened.content.policies) annotations.mask?.forEach(parseMask);
    return { ...opened, engine: new PolicyEngine(opened.content) };
  } catch (error) {
    if (error instanceof RangeError) throw new BundleError('content', error.message);
    throw error;
  }
}

/** What is kept next to the bundle. */
interface State {
  v: 1;
  tenant: string;
  scopes: readonly string[] | null;
  newest: { seq: number; hash: string };
  keys: unknown[];
  configuration: ProxyConfiguration;
}

/** The shortest time between two look-ups that unknown keys can trigger. */
const LOOK_AGAIN_MS = 1000;
/** The maximum number of agent keys in one report. */
const MOST_USED = 1000;
const MOST_WAIT_SECONDS = 60;
/** An upper bound, whatever is requested: a timer that is too long would not wait at all. */
const MOST_POLL_SECONDS = 86_400;

/**
 * What the control plane provides: the policies in force, and who the agents are. Asks for the bundle by long poll and for the
 * rest at every poll interval; keeps the last good responses on disk and checks them again when it starts.
 *
 * INVARIANT: nothing is decided by a bundle that `openGoverning` has not accepted, or by one older than any that was ever used.
 * On disk the bundle is protected by its signature; agents' keys and the state next to it by a MAC under a key derived from the
 * proxy's, because anyone who can write there could otherwise make themselves an agent.
 */
export class Governance {
  readonly #control: ControlPlane;
  readonly #key: () => string;
  readonly #dir: string;
  readonly #scopes: readonly string[] | null;
  readonly #stale: 'deny' | 'keep';
  readonly #pinned: ReadonlyMap<string, KeyObject> | undefined;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #stop = new AbortController();
  #tenant: string | undefined;
  #askedWith: string | undefined;
  #asking: Promise<string> | undefined;
  #newest: { seq: number; hash: string } | undefined;
  #governing: Governing | undefined;
  #jwks: unknown[] = [];
  /** What is in force but could not be written yet: the bundle, and the rest of the state. */
  #unwritten: Buffer | undefined;
  #unsaved = false;
  #keys: ReadonlyMap<string, KeyObject> = new Map();
  #configuration: ProxyConfiguration | undefined;
  #agents: ReadonlyMap<string, KnownAgent> = new Map();
  #refused = false;
  #refusedBundle: string | undefined;
  #pollSeconds = 15;
  #lookedAt = Number.NEGATIVE_INFINITY;
  /** Agent keys that were accepted but not reported yet. */
  readonly #used = new Set<string>();
  #looking: Promise<void> | undefined;
  #loops: Promise<void>[] = [];
  #currentAt = 0;
  readonly #listeners = new Set<() => void>();
  /** Called for every poll with what was requested, and with `ok` or why it failed. */
  onPoll: (what: 'bundle' | 'configuration', result: 'ok' | 'unreachable' | 'refused' | 'rejected') => void = () => {};

  constructor(parts: {
    control: ControlPlane;
    key: () => string;
    dir: string;
    scopes: readonly string[] | null;
    stale: 'deny' | 'keep';
    /** The only keys that may sign, as PEM; undefined: those that the control plane publishes. */
    pubkeys?: string | undefined;
    clock: Clock;
    log: Log;
  }) {
    this.#control = parts.control;
    this.#key = parts.key;
    this.#dir = parts.dir;
    this.#scopes = parts.scopes;
    this.#stale = parts.stale;
    this.#pinned = parts.pubkeys === undefined ? undefined : pinnedKeys(parts.pubkeys);
    this.#clock = parts.clock;
    this.#log = parts.log;
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 });
  }

  /**
   * Loads what is on disk, before it returns; polls the control plane once, and then keeps polling until `stop`. Resolves when the
   * first responses have arrived or failed; `ready` says which.
   */
  async start(): Promise<void> {
    this.#restore();
    const configured = this.#pollConfiguration().catch((error) => this.#failed('configuration', error));
    const bundled = this.#pollBundle(0).catch((error) => this.#failed('bundle', error));
    this.#loops = [bundled.then(() => this.#bundleLoop()), configured.then(() => this.#configurationLoop())];
    await Promise.all([configured, bundled]);
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#loops);
    this.#governing?.engine.dispose();
  }

  /** The policies in force now, or why there are none. */
  get standing(): Governing | Standstill {
    if (this.#refused) return 'key_refused';
    const governing = this.#governing;
    if (!governing) return 'no_bundle';
    if (this.#stale === 'deny' && this.#clock.now() >= governing.notAfter) return 'bundle_expired';
    return governing;
  }

  /** Whether policies and agents are known, so that requests can be decided. */
  get ready(): boolean {
    return typeof this.standing !== 'string' && this.#configuration !== undefined;
  }

  /** Why the newest bundle that was fetched is not in force; undefined when it is. The last good one stays in force. */
  get refusedBundle(): string | undefined {
    return this.#refusedBundle;
  }

  get bundle(): Governing | undefined {
    return this.#governing;
  }

  get tokenIssuers(): readonly unknown[] {
    return this.#configuration?.token_issuers ?? [];
  }

  get pollSeconds(): number {
    return this.#pollSeconds;
  }

  /** When the bundle in force was last known to be the current one; 0 if it was not since the start. */
  get currentAt(): number {
    return this.#currentAt;
  }

  /**
   * The agent of the key with this SHA-256 (`sha256:<hex>`), if it is valid now. For an unknown key the proxy asks the control
   * plane first, so that a new key works at once. Undefined if no agent has the key; `unknown` if the agents' keys were never
   * fetched.
   */
  async agent(keyHash: string): Promise<KnownAgent | 'unknown' | undefined> {
    if (!this.#agents.has(keyHash)) await this.#lookAgain();
    const agent = this.#agents.get(keyHash);
    if (!this.#configuration) return 'unknown';
    if (!agent || agent.expiresAt <= this.#clock.now()) return undefined;
    if (this.#used.size < MOST_USED) this.#used.add(agent.keyId);
    return agent;
  }

  /** The ids of the agent keys that were accepted since the last call. */
  takeUsed(): string[] {
    const used = [...this.#used];
    this.#used.clear();
    return used;
  }

  /** They could not be reported, so the next report includes them. */
  putBack(used: readonly string[]): void {
    for (const id of used) if (this.#used.size < MOST_USED) this.#used.add(id);
  }

  /** All requests with unknown keys share the next look-up, so that made-up keys cannot make the proxy ask more often. */
  #lookAgain(): Promise<void> {
    this.#looking ??= (async () => {
      await pause(Math.max(0, this.#lookedAt + LOOK_AGAIN_MS - performance.now()), this.#stop.signal);
      this.#looking = undefined;
      this.#lookedAt = performance.now();
      await this.#pollConfiguration().catch((error) => this.#failed('configuration', error));
    })();
    return this.#looking;
  }

  /** The key with this id, if it may sign. */
  keyFor(kid: string): KeyObject | undefined {
    return (this.#pinned ?? this.#keys).get(kid);
  }

  /** Fetches the control plane's keys again; does nothing if keys are pinned. */
  async renewKeys(): Promise<void> {
    if (!this.#pinned) this.#trust(await this.#control.keys());
  }

  /** The ids of the only keys that may sign; undefined: those that the control plane publishes. */
  get trusted(): Iterable<string> | undefined {
    return this.#pinned?.keys();
  }

  /**
   * When this was current, by the control plane's clock, according to what it signed. Rejects with a ControlPlaneError without its
   * signature: an answer that anyone between could give is no contact.
   */
  async heardAt(text: string | undefined, standing: Omit<Standing, 'tenant'>): Promise<number> {
    const tenant = await this.#tenantOfKey();
    const kid = text === undefined ? undefined : signerOfCurrent(text);
    if (kid !== undefined && !this.keyFor(kid)) await this.renewKeys();
    try {
      return openCurrent(text, (kid) => this.keyFor(kid), { ...standing, tenant });
    } catch (error) {
      if (!(error instanceof CurrentError)) throw error;
      throw new ControlPlaneError(0, '', `whether the ${standing.what} is current is not known: ${error.message}`);
    }
  }

  /** Authenticates what is kept beside the state, with a key derived from the proxy's. */
  mac(what: object): Buffer {
    const key = Buffer.from(hkdfSync('sha256', this.#key(), '', 'svc proxy state v1', 32));
    return createHmac('sha256', key).update(canonicalJson(what)).digest();
  }

  /** The tenant of the proxy's key. */
  tenant(): Promise<string> {
    return this.#tenantOfKey();
  }

  /** The tenant, if it is known without asking. */
  get knownTenant(): string | undefined {
    return this.#tenant;
  }

  /** Calls back after each change of the policies in force, until the function that it returns is called. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async #bundleLoop(): Promise<void> {
    let failures = 0;
    while (!this.#stop.signal.aborted) {
      const began = performance.now();
      let pauseMs = this.#pollSeconds * 1000;
      try {
        const waited = await this.#pollBundle(Math.min(this.#pollSeconds, MOST_WAIT_SECONDS));
        failures = 0;
        // the control plane has already waited; if it answered at once, there is a change, and another may follow
        if (waited) pauseMs = Math.max(0, 100 - (performance.now() - began));
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        this.#failed('bundle', error);
        pauseMs = backoff(failures++, this.#pollSeconds);
      }
      await pause(pauseMs, this.#stop.signal);
    }
  }

  async #configurationLoop(): Promise<void> {
    let failures = 0;
    while (!this.#stop.signal.aborted) {
      const pauseMs = failures > 0 ? backoff(failures - 1, this.#pollSeconds) : this.#pollSeconds * 1000;
      await pause(pauseMs, this.#stop.signal);
      if (this.#stop.signal.aborted) return;
      try {
        await this.#pollConfiguration();
        failures = 0;
      } catch (error) {
        this.#failed('configuration', error);
        failures++;
      }
    }
  }

  /** Fetches the bundle and puts it in force. True if the control plane supports waiting for a change. */
  async #pollBundle(waitSeconds: number): Promise<boolean> {
    const tenant = await this.#tenantOfKey();
    let answer = await this.#control.bundle({
      hash: this.#governing?.hash,
      scopes: this.#scopes,
      trusted: this.trusted,
      waitSeconds,
      signal: this.#stop.signal,
    });
    const { waited } = answer;
    // the same policies, signed again with a later end
    if (!answer.bytes && answer.seq > (this.#governing?.seq ?? 0)) {
      answer = await this.#control.bundle({
        hash: undefined,
        scopes: this.#scopes,
        trusted: this.trusted,
        waitSeconds: 0,
        signal: this.#stop.signal,
      });
    }
    if (answer.bytes) await this.#take(answer.bytes, tenant);
    this.#write();
    const { seq = 0, hash = '' } = this.#governing ?? {};
    const at = await this.heardAt(answer.current, { what: 'bundle', seq, hash });
    this.#answered('bundle', answer.pollSeconds);
    this.#currentAt = Math.max(this.#currentAt, Math.min(at, this.#clock.now()));
    return waited;
  }

  async #pollConfiguration(): Promise<void> {
    await this.#tenantOfKey();
    const configuration = await this.#control.configuration(this.#stop.signal);
    this.#unsaved ||= canonicalJson(configuration) !== canonicalJson(this.#configuration ?? null);
    this.#configure(configuration);
    this.#answered('configuration', configuration.poll_seconds);
    this.#write();
  }

  #answered(what: 'bundle' | 'configuration', pollSeconds: number | undefined): void {
    if (pollSeconds !== undefined) this.#pollSeconds = Math.min(pollSeconds, MOST_POLL_SECONDS);
    if (this.#refused) this.#log.info('the control plane accepts the key again');
    this.#refused = false;
    if (what === 'bundle') this.#refusedBundle = undefined;
    this.onPoll(what, 'ok');
  }

  #failed(what: 'bundle' | 'configuration', error: unknown): void {
    if (this.#stop.signal.aborted) return;
    if (error instanceof BundleError) {
      this.#refusedBundle = error.reason;
      this.onPoll(what, 'rejected');
      this.#log.error({ reason: error.reason, detail: error.message }, 'a bundle was refused; the last good one stays');
      return;
    }
    if (!(error instanceof ControlPlaneError)) {
      this.onPoll(what, 'rejected');
      this.#log.error({ err: error }, `the ${what} could not be taken up`);
      return;
    }
    this.onPoll(what, error.refusesKey ? 'refused' : 'unreachable');
    if (error.refusesKey && !this.#refused) {
      // A revoked key means that this proxy is no longer trusted, and that nothing it permits could be recorded. A control plane
      // that is merely unreachable is another matter: the last good bundle then holds until its end.
      this.#refused = true;
      this.#log.error({ code: error.code }, 'the control plane refuses the key: everything is denied');
    } else {
      this.#log.warn({ what, detail: error.message }, 'a poll of the control plane failed');
    }
  }

  /** Asked once per key, for all who want to know. */
  #tenantOfKey(): Promise<string> {
    this.#asking ??= this.#askTenant().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  async #askTenant(): Promise<string> {
    const key = this.#key();
    if (this.#tenant === undefined || this.#askedWith !== key) {
      const tenant = await this.#control.tenant();
      if (this.#tenant !== undefined && this.#tenant !== tenant) {
        this.#refused = true;
        throw new Error(`${this.#dir} is of tenant ${this.#tenant}, the key of ${tenant}: use another directory`);
      }
      this.#tenant = tenant;
      this.#askedWith = key;
    }
    return this.#tenant;
  }

  async #take(bytes: Buffer, tenant: string): Promise<void> {
    // the key that signed it may not have been published yet when the keys were fetched
    if (!this.#pinned && !this.#keys.has(String(headerOf(bytes).kid))) this.#trust(await this.#control.keys());
    const opened = this.#open(bytes, tenant);
    this.#enforce(opened);
    this.#unwritten = bytes;
    const { seq, not_after } = opened.header;
    this.#log.info(
      { hash: opened.hash, seq, not_after, statements: opened.content.policies.length },
      'policies in force',
    );
  }

  /** Saves what is in force. If that fails, the next poll tries again: a restart must not bring back what was before. */
  #write(): void {
    try {
      if (this.#unwritten) {
        writeAtomically(path.join(this.#dir, 'bundle.svcb'), this.#unwritten);
        this.#unwritten = undefined;
        this.#unsaved = true;
      }
      if (this.#unsaved) this.#persist();
      this.#unsaved = false;
    } catch (err) {
      this.#log.error({ err }, 'what is in force could not be written; it is tried again');
    }
  }

  #open(bytes: Uint8Array, tenant: string) {
    const opened = openGoverning(bytes, {
      keyFor: (kid) => this.keyFor(kid),
      tenant,
      scopes: this.#scopes,
      newest: this.#newest,
    });
    return opened;
  }

  #enforce({ header, hash, content, engine }: ReturnType<typeof openGoverning>): void {
    const before = this.#governing;
    this.#newest = { seq: header.seq, hash };
    this.#governing = {
      engine,
      hash,
      seq: header.seq,
      notAfter: Date.parse(header.not_after),
      readsSession: readsSession(content.policies),
    };
    before?.engine.dispose();
    for (const listener of this.#listeners) listener();
  }

  #trust(jwks: unknown[]): void {
    this.#jwks = jwks;
    const keys = new Map<string, KeyObject>();
    for (const jwk of jwks) {
      const { kty, crv, x } = jwk as Record<string, unknown>;
      if (kty !== 'OKP' || crv !== 'Ed25519' || typeof x !== 'string') continue;
      const key = createPublicKey({ key: { kty, crv, x }, format: 'jwk' });
      keys.set(keyThumbprint(key), key);
    }
    this.#keys = keys;
  }

  #configure(configuration: ProxyConfiguration): void {
    this.#configuration = configuration;
    this.#agents = new Map(
      configuration.agent_keys.map((key) => [
        key.key_hash,
        {
          keyId: key.id,
          agentId: key.agent_id,
          agentRole: key.agent_role,
          owner: key.owner_id,
          expiresAt: key.expires_at === undefined ? Number.POSITIVE_INFINITY : Date.parse(key.expires_at),
        },
      ]),
    );
  }

  #restore(): void {
    const kept = this.#readState();
    if (!kept) {
      this.#restoreMark();
      return;
    }
    const { state, authentic } = kept;
    if (canonicalJson(state.scopes) !== canonicalJson(this.#scopes)) return;
    // Authentic or not: the newest bundle must not be forgotten, or a changed file would let an old one in. Anyone who can
    // change files here can stop the proxy anyway.
    this.#tenant = state.tenant;
    this.#newest = state.newest.seq > 0 ? state.newest : undefined;
    if (!authentic) {
      this.#log.warn('the state on disk is not this key’s; the control plane is asked for everything');
      return;
    }
    this.#trust(state.keys);
    this.#configure(state.configuration);
    this.#pollSeconds = Math.min(state.configuration.poll_seconds, MOST_POLL_SECONDS);
    try {
      this.#enforce(this.#open(readFileSync(path.join(this.#dir, 'bundle.svcb')), state.tenant));
      this.#log.info({ hash: this.#governing?.hash, seq: this.#governing?.seq }, 'the last good bundle is in force');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      const reason = error instanceof BundleError ? error.reason : 'unreadable';
      this.#log.error({ reason, detail: (error as Error).message }, 'the bundle on disk was refused');
    }
  }

  /** Without a state, the bundle on disk still shows what was seen: damaging the state must not let an older bundle in. */
  #restoreMark(): void {
    const file = path.join(this.#dir, 'bundle.svcb');
    const { seq, content_hash, tenant } = existsSync(file) ? headerOf(readFileSync(file)) : {};
    if (typeof tenant !== 'string' || typeof content_hash !== 'string' || !Number.isSafeInteger(seq)) return;
    this.#tenant = tenant;
    this.#newest = { seq: seq as number, hash: content_hash };
  }

  #readState(): { state: State; authentic: boolean } | undefined {
    try {
      const { state, mac } = JSON.parse(readFileSync(path.join(this.#dir, 'state.json'), 'utf8'));
      if (state?.v !== 1 || typeof state.tenant !== 'string' || !Number.isSafeInteger(state.newest?.seq))
        return undefined;
      return { state, authentic: equalSecret(this.mac(state), Buffer.from(String(mac), 'hex')) };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') this.#log.warn({ err: error }, 'no state was read');
      return undefined;
    }
  }

  /** Several proxies may share the directory: a newer state than our own is left as it is. */
  #persist(): void {
    if (this.#tenant === undefined || !this.#configuration) return;
    const newest = this.#newest ?? { seq: 0, hash: '' };
    const present = this.#readState()?.state;
    if (present?.tenant === this.#tenant && present.newest.seq > newest.seq) return;
    const state: State = {
      v: 1,
      tenant: this.#tenant,
      scopes: this.#scopes,
      newest,
      keys: this.#jwks,
      configuration: this.#configuration,
    };
    writeAtomically(
      path.join(this.#dir, 'state.json'),
      JSON.stringify({ state, mac: this.mac(state).toString('hex') }),
    );
  }
}

function pinnedKeys(pem: string): Map<string, KeyObject> {
  const keys = (pem.match(/-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----/g) ?? []).map((one) =>
    createPublicKey(one),
  );
  if (keys.length === 0 || keys.some((key) => key.asymmetricKeyType !== 'ed25519')) {
    throw new ConfigError('SVC_PROXY_PUBKEY_FILE: must hold Ed25519 public keys as PEM');
  }
  return new Map(keys.map((key) => [keyThumbprint(key), key]));
}

/** The header of a bundle, unchecked; empty if the bytes are not a bundle. */
function headerOf(bytes: Buffer): Partial<Record<keyof BundleHeader, unknown>> {
  try {
    const head = bytes.toString('latin1', 9, 9 + 2048).split('.')[0] as string;
    return Object(JSON.parse(Buffer.from(head, 'base64url').toString()));
  } catch {
    return {};
  }
}

function backoff(failures: number, pollSeconds: number): number {
  return Math.min(500 * 2 ** failures, pollSeconds * 1000) * (0.8 + Math.random() * 0.4);
}
