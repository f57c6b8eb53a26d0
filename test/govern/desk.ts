import { beforeAll } from 'vitest';
import type { GovernOptions } from '../../sdk/govern/src/index.ts';
import { deploy } from '../helpers/api.ts';
import { type Credential, type TestServer, type TestTenant, useServer } from '../helpers/server.ts';

const POLICY = `
@id("small") permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("large") @escrow("single") @ttl("1h") @reason("refunds over 50 need a person")
permit(principal in AgentRole::"support", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("read") @rate("2/h") permit(principal in AgentRole::"support", action, resource == Tool::"read");
@id("card") @mask("$.card.number") permit(principal in AgentRole::"support", action, resource == Tool::"card");
@id("wipe") @reason("accounts are never wiped") forbid(principal, action, resource == Tool::"wipe");
`;

export const SECRET = '4111111111111111';

/** What the model asks for. */
export interface Asking {
  id: string;
  tool: string;
  args: Record<string, unknown>;
}

/** What an agent of a test works with: a key, tools, and people who decide. */
export interface Desk {
  options: GovernOptions;
  agentId: string;
  /** What the tools were run with, in order. */
  ran: [tool: string, args: unknown][];
  /** The tools, as any framework may wrap them. */
  tools: Record<string, (args: Record<string, unknown>) => Promise<unknown>>;
  /** Every hold of the agent, the oldest first. */
  holds(): Promise<{ id: string; status: string }[]>;
  vote(hold: string, decision?: 'approve' | 'reject'): Promise<void>;
  stop(): Promise<string>;
  lift(stop: string): Promise<void>;
  /** What the server has recorded of the agent. */
  decisions(): Promise<string[]>;
  /** Where people decide on a hold. */
  page(hold: string): string;
}

let counter = 0;

/** A server with policies, at which each test takes a desk of its own. */
export function useDesks(): { open(more?: Partial<GovernOptions>): Promise<Desk>; server: TestServer } {
  const server = useServer({}, { shared: true });
  let tenant: TestTenant;
  let approver: Credential;
  beforeAll(async () => {
    tenant = await server.tenant();
    await deploy(server, tenant.admin, 'desk', POLICY);
    approver = await tenant.person('approver', 'admin');
  });
  const list = async <T>(line: string, field: string) =>
    ((await server.call<Record<string, T[]>>(200, line, tenant.admin)).body[field] ?? []).toReversed();
  return {
    server,
    async open(more = {}) {
      const agentId = `desk-${++counter}-${Math.random().toString(36).slice(2, 8)}`;
      const { key } = await tenant.agent(agentId, 'support');
      const ran: Desk['ran'] = [];
      const tool = (name: string, answer: unknown) => async (args: Record<string, unknown>) => {
        ran.push([name, args]);
        if (args.fail) throw new Error(`no card ${SECRET} here`);
        return args.text ? `the number is ${SECRET}` : answer;
      };
      return {
        options: { url: server.url, key: key!, ...more },
        agentId,
        ran,
        tools: {
          refund: tool('refund', { refunded: true }),
          read: tool('read', { found: 1 }),
          card: tool('card', { card: { number: SECRET, holder: 'Ada' } }),
          wipe: tool('wipe', { wiped: true }),
        },
        holds: () => list(`GET /v1/escrow?agent_id=${agentId}`, 'holds'),
        async vote(hold, decision = 'approve') {
          await server.call(200, `POST /v1/escrow/${hold}/vote`, approver, { decision, reason: 'between us' });
        },
        async stop() {
          const body = { target_kind: 'agent', target_id: agentId, reason: 'it misbehaves' };
          return (await server.call<{ id: string }>(201, 'POST /v1/stops', approver, body)).body.id;
        },
        async lift(stop) {
          await server.call(200, `POST /v1/stops/${stop}/lift`, approver, { reason: 'it was repaired' });
        },
        page: (hold) => `http://control.test/approvals/${hold}?tenant=${tenant.id}`,
        decisions: async () =>
          (await list<{ decision: string }>(`GET /v1/events?agent_id=${agentId}`, 'events')).map(
            ({ decision }) => decision,
          ),
      };
    },
  };
}
