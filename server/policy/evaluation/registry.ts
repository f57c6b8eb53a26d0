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

/** The reason of a denial where the definition of a tool is not an approved one. */
export const TOOL_CHANGED = 'tool_changed';

/** What of a request the registry is asked about. */
export interface Called {
  action_type: string;
  tool_name: string;
  tool_server?: string | undefined;
  /** The definition that the caller sees: undefined where nobody says, null where it has none. */
  tool_pin?: string | null | undefined;
}

/** What policies read of an agent, a tool and its server, beside their names. People set it, and nobody else. */
export interface Attributes {
  agent_labels?: readonly string[];
  tool_labels?: readonly string[];
  trust?: number;
}

interface KnownServer extends Omit<RegisteredServer, 'tools'> {
  tools: ReadonlyMap<string, RegisteredTool>;
  names: DecidedNames<undefined>;
}

/** What a bundle says of tools and agents, as both decision points read it. */
export class Registry {
  readonly #agents: ReadonlyMap<string, readonly string[]>;
  readonly #servers: ReadonlyMap<string, KnownServer>;
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
   * What a call comes to whose definition is not an approved one; undefined where it is one, or where nothing is known of
   * the server. What a person rejected is denied whatever the mode, unless that is `off`. `reads` says whether the action
   * only reads, for the default.
   */
  drift({ action_type, tool_server, tool_name, tool_pin }: Called, reads: boolean): 'deny' | 'hold' | undefined {
    const server = this.#server(tool_server);
    if (!server || server.mode === 'off') return undefined;
    if (tool_pin === undefined && METHOD_ACTIONS.has(action_type)) return undefined;
    const tool = server.tools.get(tool_name);
    const standing = standingOf(tool, tool_pin);
    if (standing === 'approved') return undefined;
    if (standing === 'rejected') return 'deny';
    const mode = server.mode === 'default' ? (server.reviewed && !reads ? 'hold' : 'warn') : server.mode;
    if (mode === 'enforce') return 'deny';
    return mode === 'hold' ? 'hold' : undefined;
  }

  /** The server that this name could be taken for. */
  meantServer(name: string | undefined) {
    return this.#serverNames.meant(name);
  }

  /** The tool of the server that this name could be taken for. */
  meantTool(server: string | undefined, name: string) {
    return this.isOff(server ?? '') ? undefined : this.#server(server)?.names.meant(name);
  }

  /** Whether something was decided about the server, so that it matters which definition is called. */
  knows(server: string): boolean {
    return this.#servers.has(server);
  }

  /** Whether people switched the registry off for the server. */
  isOff(server: string): boolean {
    return this.#server(server)?.mode === 'off';
  }

  /** Whether definitions other than the approved ones are to be kept from clients. */
  enforces(server: string): boolean {
    return this.#server(server)?.mode === 'enforce';
  }

  /** Whether arguments are checked against the tool's schema. */
  checksArguments(server: string): boolean {
    return this.#server(server)?.check_arguments ?? false;
  }

  /** The pins that a person approved of a tool, with the definition itself first; none where nobody did. */
  approved(server: string, tool: string): readonly string[] {
    return this.#server(server)?.tools.get(tool)?.pins ?? [];
  }

  #server(id: string | undefined): KnownServer | undefined {
    return id === undefined ? undefined : this.#servers.get(id);
  }
}

function standingOf(tool: RegisteredTool | undefined, pin: string | null | undefined) {
  // of a caller who does not say what it sees, what was seen last decides
  if (pin === undefined) return tool?.seen ?? 'changed';
  if (pin === null || !tool) return 'changed';
  if (tool.pins.includes(pin)) return 'approved';
  return tool.rejected.includes(pin) ? 'rejected' : 'changed';
}

/**
 * The guardrail that holds a call whose definition nobody approved. Its text names the definition, so that a release covers
 * this one alone: what the caller sees, or what was seen last where it does not say.
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
