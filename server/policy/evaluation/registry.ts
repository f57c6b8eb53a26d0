import { type BundleStatement, METHOD_ACTIONS } from '../../domain/policy.ts';
import {
  type BundleRegistry,
  DEFINITION_RULE,
  REGISTRY_POLICY,
  type RegisteredServer,
  type RegisteredTool,
} from '../../domain/tools.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { DecidedNames } from './names.ts';

/** The deny reason if a tool's definition is not an approved one. */
export const TOOL_CHANGED = 'tool_changed';

/** The parts of a request that the registry looks at. */
export interface Called {
  action_type: string;
  tool_name: string;
  tool_server?: string | undefined;
  /** The definition that the caller sees: undefined if unknown, null if the tool has none. */
  tool_pin?: string | null | undefined;
}

/** What policies read about an agent, a tool and its server, besides their names. Only people set it. */
export interface Attributes {
  agent_labels?: readonly string[];
  tool_labels?: readonly string[];
  trust?: number;
}

interface KnownServer extends Omit<RegisteredServer, 'tools'> {
  tools: ReadonlyMap<string, RegisteredTool>;
  names: DecidedNames<undefined>;
}

/** A bundle's information about tools and agents, as both decision points read it. */
export class Registry {
  readonly #agents: ReadonlyMap<string, readonly string[]>;
  readonly #servers: ReadonlyMap<string, KnownServer>;
  /** By tool, the servers that list it and enforce: they judge a call that names no server. */
  readonly #enforcing: ReadonlyMap<string, readonly KnownServer[]>;
  readonly #serverNames = new DecidedNames<undefined>();

  constructor({ agents, servers }: BundleRegistry) {
    this.#agents = new Map(agents.map(({ id, labels }) => [id, labels]));
    this.#servers = new Map(
      servers.map((server) => {
        const names = new DecidedNames<undefined>();
        for (const { name } of server.tools) names.add(name, undefined);
        this.#serverNames.add(server.id, undefined);
        return [server.id, { ...server, names, tools: new Map(server.tools.map((tool) => [tool.name, tool])) }];
      }),
    );
    const enforcing = [...this.#servers.values()].filter(({ mode }) => mode === 'enforce');
    const listed = enforcing.flatMap((server) => [...server.tools.keys()].map((tool) => ({ tool, server })));
    this.#enforcing = new Map(
      [...Map.groupBy(listed, ({ tool }) => tool)].map(([tool, all]) => [tool, all.map(({ server }) => server)]),
    );
  }

  attributes({ agent_id, tool_server, tool_name }: { agent_id: string } & Omit<Called, 'action_type'>): Attributes {
    const agent = this.#agents.get(agent_id);
    const server = this.#server(tool_server);
    const tool = server?.tools.get(tool_name);
    return {
      ...(agent && agent.length > 0 && { agent_labels: agent }),
      ...(tool && tool.labels.length > 0 && { tool_labels: tool.labels }),
      ...(server && server.trust !== null && { trust: server.trust }),
    };
  }

  /**
   * What happens to a call whose definition is not an approved one; undefined if it is approved, or if nothing is known
   * about the server. What a person rejected is denied whatever the mode, unless that is `off`. A call that names no server
   * may reach any that lists the tool: each one that enforces must have approved it. `reads` tells whether the action is
   * read-only, for the default.
   */
  drift(called: Called, reads: boolean): 'deny' | 'hold' | undefined {
    if (called.tool_pin === undefined && METHOD_ACTIONS.has(called.action_type)) return undefined;
    const found = this.#judges(called).map((server) => this.#driftAt(server, called, reads));
    return found.includes('deny') ? 'deny' : found.find((one) => one !== undefined);
  }

  #driftAt(server: KnownServer, { tool_name, tool_pin }: Called, reads: boolean): 'deny' | 'hold' | undefined {
    if (server.mode === 'off') return undefined;
    const tool = server.tools.get(tool_name);
    const standing = standingOf(tool, tool_pin);
    if (standing === 'approved') return undefined;
    if (standing === 'rejected') return 'deny';
    const mode = server.mode === 'default' ? (server.reviewed && !reads ? 'hold' : 'warn') : server.mode;
    if (mode === 'enforce') return 'deny';
    return mode === 'hold' ? 'hold' : undefined;
  }

  /** The server that this name could be mistaken for. */
  meantServer(name: string | undefined) {
    return this.#serverNames.meant(name);
  }

  /** The tool of the server that this name could be mistaken for. */
  meantTool(server: string | undefined, name: string) {
    return this.isOff(server ?? '') ? undefined : this.#server(server)?.names.meant(name);
  }

  /** Whether anything was decided about the server, so that it matters which definition is called. */
  knows(server: string): boolean {
    return this.#servers.has(server);
  }

  /** Whether it matters for this call which definition is called. */
  looksAt(called: Omit<Called, 'action_type'>): boolean {
    return this.#judges(called).length > 0;
  }

  #judges({ tool_server, tool_name }: Omit<Called, 'action_type'>): readonly KnownServer[] {
    const server = this.#server(tool_server);
    return server ? [server] : tool_server === undefined ? (this.#enforcing.get(tool_name) ?? []) : [];
  }

  /**
   * The arguments whose null means that they were left out, by the approved definition of the tool; none where the call is for
   * another definition.
   */
  nullable({ tool_server, tool_name, tool_pin }: Omit<Called, 'action_type'>): readonly string[] {
    const tool = this.#server(tool_server)?.tools.get(tool_name);
    return (standingOf(tool, tool_pin) === 'approved' && tool?.nullable) || [];
  }

  /** Whether the registry is switched off for the server. */
  isOff(server: string): boolean {
    return this.#server(server)?.mode === 'off';
  }

  /** Whether unapproved definitions are to be hidden from clients. */
  enforces(server: string): boolean {
    return this.#server(server)?.mode === 'enforce';
  }

  /** Whether arguments are checked against the tool's schema. */
  checksArguments(server: string): boolean {
    return this.#server(server)?.check_arguments ?? false;
  }

  /** The pins that count as approved for a tool, that of the approved definition first; none if none was approved. */
  approved(server: string, tool: string): readonly string[] {
    return this.#server(server)?.tools.get(tool)?.pins ?? [];
  }

  #server(id: string | undefined): KnownServer | undefined {
    return id === undefined ? undefined : this.#servers.get(id);
  }
}

function standingOf(tool: RegisteredTool | undefined, pin: string | null | undefined) {
  // if the caller does not state what it sees, the definition seen last decides
  if (pin === undefined) return tool?.seen ?? 'changed';
  if (pin === null || !tool) return 'changed';
  if (tool.pins.includes(pin)) return 'approved';
  return tool.rejected.includes(pin) ? 'rejected' : 'changed';
}

/**
 * The guardrail that holds a call whose definition is not approved. Its text names the definition, so that a release
 * covers only that one: what the caller sees, or what was seen last if it does not say.
 */
export function definitionRule({ tool_server, tool_name, tool_pin }: Omit<Called, 'action_type'>): BundleStatement {
  const what = canonicalJson([tool_server ?? null, tool_name, tool_pin ?? null].map(wellFormed));
  return {
    id: DEFINITION_RULE,
    policy_id: REGISTRY_POLICY,
    version: 0,
    effect: 'forbid',
    annotations: { escrow: 'single', reason: 'nobody has approved the definition of this tool' },
    scopes: [],
    cedar: `// the tool registry, for ${what}\n@escrow("single") forbid(principal, action, resource);`,
  };
}

const wellFormed = (text: string | null) => text?.toWellFormed() ?? null;
