import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { compileFunction } from 'node:vm';
import type * as CedarModule from '@cedar-policy/cedar-wasm/nodejs';

export type Cedar = typeof CedarModule;
type CedarFunction = { [K in keyof Cedar]: Cedar[K] extends (...args: never[]) => unknown ? K : never }[keyof Cedar];

/** The part of the WebAssembly JavaScript interface used here; TypeScript declares it only in the DOM library. */
interface WasmMemory {
  readonly buffer: ArrayBuffer;
}
declare const WebAssembly: { Module: new (bytes: Uint8Array) => object };

/** The engine threw, or rejected a policy set or schema. The caller must deny. */
export class EngineError extends Error {
  override readonly name = 'EngineError';
}

/** The versions of the pinned package; every instance is checked against them. */
const VERSIONS = { language: '4.5', sdk: '4.13.0' } as const;

/**
 * The published glue file instantiates its module once, on load. It is compiled here without that step, so that
 * instances are independent, can be garbage-collected, and share one compiled module (1.5 ms per instance instead of
 * 25). This depends on the pinned version: a changed file stops the program at startup.
 *
 * The module itself is compiled when an instance is first needed: it takes 40 MB, which a proxy that makes no decisions
 * saves.
 */
const loadGlue = (() => {
  const file = createRequire(import.meta.url).resolve('@cedar-policy/cedar-wasm/nodejs');
  const loading =
    /const wasmPath = [^\n]*\nconst wasmBytes = [^\n]*\nconst wasmModule = new WebAssembly\.Module\(wasmBytes\);\n/;
  const published = readFileSync(file, 'utf8');
  const glue = published.replace(loading, '');
  if (
    glue === published ||
    /require\(|__dirname/.test(glue) ||
    !/^let wasm = new WebAssembly\.Instance\(/m.test(glue)
  ) {
    throw new Error('the glue file of @cedar-policy/cedar-wasm is not that of the pinned version');
  }
  const factory = compileFunction(`${glue}\nreturn wasm.memory;`, ['exports', 'wasmModule'], { filename: file });
  let wasmModule: object | undefined;
  return (): { cedar: Cedar; memory: WasmMemory } => {
    wasmModule ??= new WebAssembly.Module(readFileSync(path.join(path.dirname(file), 'cedar_wasm_bg.wasm')));
    const cedar = {} as Cedar;
    const memory = factory(cedar, wasmModule) as WasmMemory;
    if (cedar.getCedarLangVersion() !== VERSIONS.language || cedar.getCedarSDKVersion() !== VERSIONS.sdk) {
      throw new Error('@cedar-policy/cedar-wasm is not the pinned version');
    }
    return { memory, cedar };
  };
})();

/** A fresh engine instance. Prefer `CedarHost`: an instance that has thrown must not be used again. */
export function newCedar(): Cedar {
  return loadGlue().cedar;
}

/** The version of the Cedar language that the engine reads, such as "4.5", and the engine's own, such as "cedar-wasm/4.13.0". */
export function cedarVersions(): { language: string; engine: string } {
  return { language: VERSIONS.language, engine: `cedar-wasm/${VERSIONS.sdk}` };
}

export function cedarLanguageVersion(): string {
  return cedarVersions().language;
}

export interface HostLimits {
  /** Prepared policy sets. */
  sets: number;
  /** Statements in all prepared sets; each takes about 3.5 KB of the instance's memory. */
  statements: number;
  schemas: number;
  /** The instance is replaced when its memory, which never shrinks, exceeds this. */
  memoryBytes: number;
}

const DEFAULT_LIMITS: HostLimits = { sets: 512, statements: 20_000, schemas: 512, memoryBytes: 512 * 1024 * 1024 };

interface Slot {
  id: string;
  weight: number;
}

/**
 * One engine instance that replaces itself.
 *
 * Every JavaScript exception thrown by the engine leaks part of its 1 MB stack (about 1,100 of them break the instance
 * for every tenant), and a stack overflow breaks it immediately. Therefore any throw leads to a fresh instance. Prepared
 * sets are rebuilt on their next use rather than all together, so that a throw does not cause a long pause.
 *
 * The engine can overwrite a prepared set but not remove it, so sets occupy a fixed pool of slot ids with
 * least-recently-used eviction.
 */
export class CedarHost {
  readonly #limits: HostLimits;
  #instance = loadGlue();
  #sets = new Map<object, Slot>();
  #schemas = new Map<string, string>();
  #freeSets: string[] = [];
  #freeSchemas: string[] = [];
  #weight = 0;
  #replaced = 0;

  constructor(limits: Partial<HostLimits> = {}) {
    this.#limits = { ...DEFAULT_LIMITS, ...limits };
    this.#reset();
  }

  get replaced(): number {
    return this.#replaced;
  }

  get memoryBytes(): number {
    return this.#instance.memory.buffer.byteLength;
  }

  /** Calls the engine. If it throws, replaces the instance and throws an `EngineError`. */
  call<F extends CedarFunction>(name: F, ...args: Parameters<Cedar[F]>): ReturnType<Cedar[F]> {
    const target = this.#instance.cedar[name] as (...args: Parameters<Cedar[F]>) => ReturnType<Cedar[F]>;
    try {
      return target(...args);
    } catch (cause) {
      this.#replace();
      throw new EngineError(`the engine threw in ${name}`, { cause });
    }
  }

  /**
   * The engine's id for the policy set of `key`, which is prepared from `statements` if necessary. The id is valid until
   * the next call of this method, which may reuse the slot.
   */
  prepareSet(key: object, statements: () => Record<string, string>): string {
    const present = this.#sets.get(key);
    if (present) {
      this.#sets.delete(key);
      this.#sets.set(key, present);
      return present.id;
    }
    if (this.memoryBytes > this.#limits.memoryBytes) this.#replace();
    const staticPolicies = statements();
    const weight = Object.keys(staticPolicies).length;
    while (this.#freeSets.length === 0 || (this.#sets.size > 0 && this.#weight + weight > this.#limits.statements)) {
      this.releaseSet(this.#sets.keys().next().value as object);
    }
    const id = this.#freeSets.pop() as string;
    const answer = this.call('preparsePolicySet', id, { staticPolicies });
    if (answer.type !== 'success') {
      this.#freeSets.push(id);
      throw new EngineError(`a policy set does not parse: ${answer.errors[0]?.message}`);
    }
    this.#sets.set(key, { id, weight });
    this.#weight += weight;
    return id;
  }

  /** Frees the memory of a prepared set; unknown keys are ignored. */
  releaseSet(key: object): void {
    const slot = this.#sets.get(key);
    if (!slot) return;
    this.#sets.delete(key);
    this.#weight -= slot.weight;
    this.#freeSets.push(slot.id);
    this.call('preparsePolicySet', slot.id, { staticPolicies: {} });
  }

  /** Prepares the schema if necessary and returns the engine's name for it. */
  prepareSchema(text: string): string {
    const present = this.#schemas.get(text);
    if (present !== undefined) {
      this.#schemas.delete(text);
      this.#schemas.set(text, present);
      return present;
    }
    let name = this.#freeSchemas.pop();
    if (name === undefined) {
      const [oldest, freed] = this.#schemas.entries().next().value as [string, string];
      this.#schemas.delete(oldest);
      name = freed;
    }
    const answer = this.call('preparseSchema', name, text);
    if (answer.type !== 'success') {
      this.#freeSchemas.push(name);
      throw new EngineError(`a schema does not parse: ${answer.errors[0]?.message}`);
    }
    this.#schemas.set(text, name);
    return name;
  }

  #replace(): void {
    this.#instance = loadGlue();
    this.#replaced++;
    this.#reset();
  }

  #reset(): void {
    this.#sets.clear();
    this.#schemas.clear();
    this.#weight = 0;
    this.#freeSets = Array.from({ length: this.#limits.sets }, (_, n) => `set${n}`);
    this.#freeSchemas = Array.from({ length: this.#limits.schemas }, (_, n) => `schema${n}`);
  }
}
