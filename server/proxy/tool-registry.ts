import { setTimeout as delay } from 'node:timers/promises';
import { pinned } from '../domain/tool-definition.ts';
import { TOOL_LIMITS, type ToolDefinition } from '../domain/tools.ts';
import type { Log } from '../lib/log.ts';
import { oneLine } from '../lib/visible.ts';
import { DecidedNames } from '../policy/evaluation/names.ts';
import type { Registry } from '../policy/evaluation/registry.ts';
import { type ControlPlane, ControlPlaneError } from './control-plane.ts';
import { SchemaCheck } from './schema-check.ts';

/** Reports are gathered for this long, and repeated no sooner than this after a failure. */
const GATHER_MS = 200;
const AGAIN_MS = 30_000;
/** An entire list is reported again after this long, so that the control plane knows that it is current. */
const CURRENT_MS = 3_600_000;
/** When an unlisted tool is called, the server is asked for its list again, but no sooner than after this. */
const ASK_MS = 5_000;
/** Definitions in one report, in characters of JSON: half of what the control plane accepts. */
const REPORT_CHARACTERS = 500_000;
/** Characters of what an agent is told about arguments that do not fit. */
const MOST_FAULT = 300;
/** Definitions that are cached by their pin. */
const MOST_DEFINITIONS = 4_000;

interface Seen {
  /** Null if it has none: another tool of this name is listed too, or it is too large, or its JSON has no exact form. */
  pin: string | null;
  definition?: ToolDefinition;
}

/**
 * What the tool servers behind this proxy report about their tools, alongside what the bundle says was approved. New definitions
 * are reported in the background: no call waits for a report, and none is decided by the response.
 */
export class ToolRegistry {
  readonly #control: ControlPlane;
  readonly #known: () => Registry | undefined;
  readonly #log: Log;
  readonly #servers = new Map<string, Server>();
  readonly #definitions = new Map<string, Promise<ToolDefinition | undefined>>();
  readonly #schemas = new SchemaCheck();
  readonly #stop = new AbortController();

  readonly #timer: NodeJS.Timeout | undefined;

  /**
   * `known`: what the bundle in force says; undefined if there is none. Every `listMs`, unless that is 0, every server that could
   * be asked for its list so far is asked again.
   */
  constructor(parts: { control: ControlPlane; known: () => Registry | undefined; log: Log; listMs: number }) {
    this.#control = parts.control;
    this.#known = parts.known;
    this.#log = parts.log;
    if (parts.listMs > 0) this.#timer = setInterval(() => void this.#askAll(), parts.listMs).unref();
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    clearInterval(this.#timer);
    await this.#schemas.close();
    await Promise.allSettled([...this.#servers.values()].map(({ reporting }) => reporting));
  }

  /**
   * Takes in a list of tools, or the page of one that `cursor` requests and `next` follows. A tool that cannot be pinned counts
   * as listed without a definition. Only consecutive pages from the first one make a complete list: a client that requests only
   * the last page must not make the other tools count as removed.
   */
  observe(name: string, tools: readonly unknown[], { cursor, next }: { cursor?: unknown; next?: unknown }): void {
    const server = this.#server(name);
    const follows = cursor === undefined || cursor === server.expects;
    if (cursor === undefined) server.listing = new Map();
    const listing = follows ? server.listing : new Map<string, Seen>();
    for (const tool of tools) {
      const called = (tool as { name?: unknown } | null)?.name;
      if (typeof called !== 'string') continue;
      if (server.tools.size >= TOOL_LIMITS.tools && !server.tools.has(called)) continue;
      const seen = seenOf(name, tool);
      const before = listing.get(called);
      // if two tools have the same name, it is unclear which one is called
      const one = before && before.pin !== seen.pin ? { pin: null } : seen;
      listing.set(called, one);
      server.tools.set(called, one);
      server.listedAt.set(called, Date.now());
    }
    if (follows) server.expects = next;
    if (follows && next === undefined) {
      for (const called of server.tools.keys()) if (!listing.has(called)) server.tools.delete(called);
      const old = Date.now() - CURRENT_MS;
      for (const [called, at] of server.listedAt) {
        const excess = server.listedAt.size > 2 * TOOL_LIMITS.tools && !listing.has(called);
        if (at < old || excess) server.listedAt.delete(called);
      }
      server.whole = true;
    }
    server.listed = true;
    this.#report(name, server);
  }

  /**
   * The pin of the definition that clients see now: null if the server does not list the tool, undefined if too little is known
   * of the server to tell. `list` asks the server for all of its tools, if none were seen yet and it matters.
   */
  async pin(name: string, tool: string, list?: () => Promise<unknown[]>): Promise<string | null | undefined> {
    const server = this.#server(name);
    server.list ??= list;
    if (!server.whole && !server.tools.has(tool) && this.#known()?.knows(name)) {
      if (!list) return null;
      await this.#ask(name, list);
      if (!server.listed) return null;
    }
    if (!server.listed) return undefined;
    return server.tools.get(tool)?.pin ?? null;
  }

  /** The list as clients may see it: if the server enforces, each tool as it was approved, and no others. */
  async shown(name: string, tools: readonly unknown[]): Promise<unknown[]> {
    const known = this.#known();
    if (!known?.enforces(name)) return [...tools];
    const shown = await Promise.all(
      tools.map(async (tool) => {
        const called = String((tool as { name?: unknown } | null)?.name);
        const pins = known.approved(name, called);
        const now = this.#server(name).tools.get(called);
        if (now?.pin && pins.includes(now.pin)) return tool;
        return pins[0] === undefined ? undefined : this.#definition(name, pins[0]);
      }),
    );
    return shown.filter((tool) => tool !== undefined);
  }

  /**
   * Why a call is denied whatever the policies say: either the server's complete list is known, and this name differs from that
   * of a listed tool only in case, width or invisible characters (a server may be less exact than we are); or the server's
   * arguments are checked, and these do not fit the schema, which is the approved one if there is one. Nothing fits a schema that
   * cannot be read in time.
   */
  async refusal(
    name: string,
    tool: string,
    args: unknown,
    list?: () => Promise<unknown[]>,
  ): Promise<`arguments_invalid: ${string}` | `tool_name_in_doubt: ${string}` | undefined> {
    const known = this.#known();
    if (known?.isOff(name) !== true) {
      const doubtful = await this.#doubtful(name, tool, list);
      if (doubtful) return doubtful;
    }
    if (!known?.checksArguments(name)) return undefined;
    const now = this.#server(name).tools.get(tool);
    const pins = known.approved(name, tool);
    const approved = now?.pin && pins.includes(now.pin) ? now.definition : undefined;
    const definition = approved ?? (pins[0] && (await this.#definition(name, pins[0]))) ?? now?.definition;
    if (!definition) return 'arguments_invalid: the definition of the tool is not known';
    const fault = await this.#schemas.fault({ server: name, tool }, definition.inputSchema, args);
    // the names in it are those of the agent and of the server
    return fault === null ? undefined : `arguments_invalid: ${oneLine(fault, MOST_FAULT)}`;
  }

  async #doubtful(name: string, tool: string, list: (() => Promise<unknown[]>) | undefined) {
    const server = this.#server(name);
    const isListed = () => !server.whole || server.listedAt.has(tool);
    if (isListed()) return undefined;
    // the list may have changed without notice, or differ for another agent
    if (list && Date.now() - server.askedAt > ASK_MS) {
      server.askedAt = Date.now();
      await this.#ask(name, list);
      if (isListed()) return undefined;
    }
    const names = new DecidedNames<undefined>();
    for (const listed of server.listedAt.keys()) names.add(listed, undefined);
    const meant = names.meant(tool);
    return meant ? (`tool_name_in_doubt: ${meant.name}` as const) : undefined;
  }

  /** Asks one server after another: none is asked again before all were. */
  async #askAll(): Promise<void> {
    for (const [name, { list }] of this.#servers) if (list && !this.#stop.signal.aborted) await this.#ask(name, list);
  }

  /** Takes in what the server lists now, one request at a time. */
  async #ask(name: string, list: () => Promise<unknown[]>): Promise<void> {
    const server = this.#server(name);
    server.asking ??= list()
      .then((tools) => this.observe(name, tools, {}))
      .catch((error) => this.#log.warn({ detail: String((error as Error).message), server: name }, 'no list of tools'))
      .finally(() => {
        server.asking = undefined;
      });
    await server.asking;
  }

  #server(name: string): Server {
    let server = this.#servers.get(name);
    if (!server) {
      server = new Server();
      this.#servers.set(name, server);
    }
    return server;
  }

  /** The definition with this pin from the control plane; undefined if it does not match the pin or cannot be fetched. */
  #definition(server: string, pin: string): Promise<ToolDefinition | undefined> {
    let known = this.#definitions.get(pin);
    if (!known) {
      known = this.#control
        .toolDefinition(pin)
        .then((definition) => {
          const found = pinned(server, definition);
          if (found.pin !== pin) throw new RangeError('the control plane gave another definition than was asked for');
          return found.definition;
        })
        .catch((error) => {
          this.#definitions.delete(pin);
          this.#log.warn(
            { detail: (error as Error).message, server },
            'the approved definition of a tool is not there',
          );
          return undefined;
        });
      if (this.#definitions.size >= MOST_DEFINITIONS) {
        this.#definitions.delete(this.#definitions.keys().next().value as string);
      }
      this.#definitions.set(pin, known);
    }
    return known;
  }

  /** Reports what is new, one report at a time. */
  #report(name: string, server: Server): void {
    if (server.reporting || this.#stop.signal.aborted || !server.hasNews()) return;
    const send = async () => {
      await delay(GATHER_MS, undefined, { signal: this.#stop.signal, ref: false });
      while (server.hasNews()) {
        try {
          await this.#send(name, server);
        } catch (error) {
          if (!(error instanceof ControlPlaneError)) throw error;
          this.#log.warn({ detail: error.message, server: name }, 'the tools of a server could not be reported');
          await delay(AGAIN_MS, undefined, { signal: this.#stop.signal, ref: false });
        }
      }
    };
    server.reporting = send()
      .catch((error) => {
        if (!this.#stop.signal.aborted) this.#log.error({ err: error }, 'tools are not reported');
      })
      .finally(() => {
        server.reporting = undefined;
      });
  }

  async #send(name: string, server: Server): Promise<void> {
    const tools = [...server.tools].flatMap(([tool, { pin, definition }]) =>
      pin === null ? [] : [{ name: tool, pin, definition: definition! }],
    );
    const whole = server.whole && tools.length === server.tools.size;
    const bare = tools.map(({ name, pin }) => ({ name, pin }));
    const at = Date.now();
    const wanted = new Set(await this.#control.observedTools({ server: name, complete: whole, tools: bare }));
    let part: typeof tools = [];
    let characters = 0;
    const flush = async () => {
      if (part.length > 0) await this.#control.observedTools({ server: name, complete: false, tools: part });
      [part, characters] = [[], 0];
    };
    for (const tool of tools.filter(({ pin }) => wanted.has(pin))) {
      const { length } = JSON.stringify(tool.definition);
      if (characters + length > REPORT_CHARACTERS) await flush();
      part.push(tool);
      characters += length;
    }
    await flush();
    server.reported = { tools: new Map(tools.map(({ name, pin }) => [name, pin])), whole, at };
  }
}

/** What was seen of one tool server. */
class Server {
  /** The newest definition of each tool. */
  readonly tools = new Map<string, Seen>();
  /** The list that is being read, page by page, and the cursor of its next page. */
  listing = new Map<string, Seen>();
  expects: unknown;
  listed = false;
  /** Whether the last list was read to its end. */
  whole = false;
  /** When each tool was last in a list. A server may list other tools to other agents; all of them count as listed. */
  readonly listedAt = new Map<string, number>();
  /** Asks it for all of its tools, if possible. */
  list: (() => Promise<unknown[]>) | undefined;
  asking: Promise<void> | undefined;
  askedAt = 0;
  reporting: Promise<void> | undefined;
  reported = { tools: new Map<string, string>(), whole: false, at: 0 };

  hasNews(): boolean {
    const { tools, whole, at } = this.reported;
    const pins = [...this.tools].filter(([, { pin }]) => pin !== null);
    if (pins.some(([name, { pin }]) => tools.get(name) !== pin)) return true;
    const same = pins.length === tools.size;
    return this.whole && (!same || (!whole && pins.length === this.tools.size) || Date.now() - at > CURRENT_MS);
  }
}

function seenOf(server: string, tool: unknown): Seen {
  try {
    return pinned(server, tool);
  } catch (error) {
    if (error instanceof RangeError) return { pin: null };
    throw error;
  }
}
