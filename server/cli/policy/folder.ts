import { lstatSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import { faultLines } from '../../lib/faults.ts';
import { plainText } from '../../lib/plain-text.ts';
import { CommandError } from '../command.ts';

/** One policy of a folder. */
export interface FolderPolicy {
  id: string;
  dsl_source: string;
  tests_source: string | null;
}

/** The version of a policy that a folder was last in sync with. */
const Known = z.strictObject({ version: z.int().min(1), content_hash: z.string().max(100) });
const Lock = z.strictObject({ policies: z.record(z.string(), Known) });
export type Known = z.infer<typeof Known>;

const names = z.array(z.string().max(64)).max(100);
/** `svc.yaml`: the tenant that the folder belongs to, and what tests without a server need to know. */
const Settings = z.strictObject({
  tenant: z.string().max(200).optional(),
  prune: z.boolean().default(false),
  action_types: z.strictObject({ read: names.optional(), write: names.optional() }).default({}),
  lists: z.record(z.string().max(64), z.array(z.string().max(1000)).max(50_000)).default({}),
});
export type FolderSettings = z.infer<typeof Settings>;

const SETTINGS = 'svc.yaml';
const LOCK = 'svc.lock.json';
const ID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
/** Larger than any text that the server accepts. */
const MAX_BYTES = 1024 * 1024;

/**
 * A folder with policies: `<id>.cedar`, `<id>.test.yaml`, `svc.yaml`, and `svc.lock.json` with the versions that it was last in
 * sync with.
 *
 * INVARIANT: only regular files are read and written. A change under review may contain links: their targets must not reach a
 * server or a comment, nor be overwritten.
 */
export class Folder {
  readonly dir: string;

  constructor(dir: string) {
    this.dir = dir;
  }

  settings(): FolderSettings {
    const text = this.#read(SETTINGS);
    return this.#checked(SETTINGS, Settings, text === undefined ? {} : () => parse(text, { maxAliasCount: 0 }) ?? {});
  }

  lock(): Map<string, Known> {
    const text = this.#read(LOCK);
    const { policies } = this.#checked(LOCK, Lock, text === undefined ? { policies: {} } : () => JSON.parse(text));
    return new Map(Object.entries(policies));
  }

  keep(lock: ReadonlyMap<string, Known>): void {
    const policies = Object.fromEntries([...lock].sort(([a], [b]) => (a < b ? -1 : 1)));
    this.#write(LOCK, `${JSON.stringify({ policies }, null, 2)}\n`);
  }

  /** The policies, ordered by id. A suite without its policy is a mistake and is refused. */
  policies(): FolderPolicy[] {
    const files = this.#files();
    const ids = files.filter((file) => file.endsWith('.cedar')).map((file) => file.slice(0, -'.cedar'.length));
    for (const id of ids)
      if (!ID.test(id)) throw new CommandError(`${id}.cedar: the name cannot be the id of a policy`);
    for (const file of files.filter((one) => one.endsWith('.test.yaml'))) {
      const id = file.slice(0, -'.test.yaml'.length);
      if (!ids.includes(id)) throw new CommandError(`${file} is a test suite without ${id}.cedar`);
    }
    return ids.sort().map((id) => ({
      id,
      dsl_source: plainText(this.#read(`${id}.cedar`)!),
      tests_source: plainText(this.#read(`${id}.test.yaml`) ?? '') || null,
    }));
  }

  put({ id, dsl_source, tests_source }: FolderPolicy): void {
    if (!ID.test(id)) throw new CommandError(`the server named a policy ${JSON.stringify(id)}, which is no file name`);
    mkdirSync(this.dir, { recursive: true });
    this.#write(`${id}.cedar`, dsl_source);
    if (tests_source !== null) this.#write(`${id}.test.yaml`, tests_source);
    else if (this.#read(`${id}.test.yaml`) !== undefined) rmSync(path.join(this.dir, `${id}.test.yaml`));
  }

  #files(): string[] {
    try {
      return readdirSync(this.dir);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    }
  }

  /** Undefined if there is no such file. */
  #read(name: string): string | undefined {
    const file = path.join(this.dir, name);
    const found = lstatSync(file, { throwIfNoEntry: false });
    if (!found) return undefined;
    if (!found.isFile()) throw new CommandError(`${name} is not a regular file`);
    if (found.size > MAX_BYTES) throw new CommandError(`${name} is larger than 1 MiB`);
    const bytes = readFileSync(file);
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      throw new CommandError(`${name} is not UTF-8`);
    }
  }

  /** All or nothing: writes a temporary file and renames it. */
  #write(name: string, text: string): void {
    const file = path.join(this.dir, name);
    const found = lstatSync(file, { throwIfNoEntry: false });
    if (found && !found.isFile()) throw new CommandError(`${name} is not a regular file`);
    const draft = `${file}.${process.pid}.tmp`;
    try {
      writeFileSync(draft, text, { flag: 'wx' });
      renameSync(draft, file);
    } finally {
      rmSync(draft, { force: true });
    }
  }

  #checked<T>(name: string, schema: z.ZodType<T>, value: unknown | (() => unknown)): T {
    let given: unknown;
    try {
      given = typeof value === 'function' ? value() : value;
    } catch (error) {
      throw new CommandError(`${name}: ${(error as Error).message.split('\n')[0]}`);
    }
    const parsed = schema.safeParse(given);
    if (!parsed.success) throw new CommandError(`${name}: ${faultLines(parsed.error, name).join('; ')}`);
    return parsed.data;
  }
}
