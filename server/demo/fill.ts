import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { claimDatabase } from '../../db/claim.ts';
import { migrate } from '../../db/index.ts';
import { awaitStandby } from '../../db/replication.ts';
import { buildRouter } from '../api/root.ts';
import { type Core, openCore, sessionUrlOf } from '../app.ts';
import type { Config } from '../config.ts';
import type { AgentPrincipal } from '../decisions/asking.ts';
import { OPERATOR } from '../domain/audit.ts';
import type { EventType } from '../domain/events.ts';
import type { Principal } from '../domain/principal.ts';
import { pinned } from '../domain/tool-definition.ts';
import { AppError } from '../errors.ts';
import { startJobs } from '../jobs/jobs.ts';
import { Egress, type EgressAnswer, type EgressRequest } from '../lib/egress.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import type { Context } from '../rpc/procedure.ts';
import { DEMO_PREFIX, demoTenant, removeDemo } from './tenant.ts';
import * as world from './world.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const DAYS = 7;
/** The week passes in steps of this length; agents' requests in one step come in a burst. */
const STEP = 15 * MINUTE;
const BURST_MS = 6000;
const NEVER = new AbortController().signal;

/** The destinations of the demo's two webhooks. Nothing is sent: the responses are made up here. */
const SIEM = 'https://siem.meridian.example/governance';
const TICKETS = 'https://tickets.meridian.example/hooks/4b1';

/**
 * The tenant of `npm start -- --demo`: created if there is none, with a week that never happened.
 *
 * Everything goes through the code that serves requests, on a clock that starts seven days ago, so the chains, bundles and
 * checkpoints are like real ones, and verify. Their times are made up, and so are the events. Therefore: it is always a new
 * tenant, with an id of its own that begins with `demo-` and appears in every record; the first record after the genesis of its
 * audit chain says what it is; no other tenant is touched; and no route leads here. It requires the database's owner and the
 * master key, and a database that no server process uses.
 */
export async function ensureDemo(parts: { config: Config; databaseUrl: string; log: Log }): Promise<void> {
  const { config, databaseUrl, log } = parts;
  const sessionUrl = sessionUrlOf(parts);
  if (config.durability === 'replicated') await awaitStandby(sessionUrl);
  await migrate(sessionUrl);
  const claim = await claimDatabase(sessionUrl, { alone: true, onConflict: () => process.exit(1) });
  try {
    const clock = { at: undefined as number | undefined, now: () => clock.at ?? Date.now() };
    // the installation's keys are today's
    const core = await openCore({ config, databaseUrl, log, clock, egress: new MadeUpAnswers() });
    try {
      const found = await demoTenant(core.db.owner);
      if (found?.state === 'ready') return;
      if (found) {
        const owner = await core.db.connectOwner();
        await removeDemo(owner, config.dataDir).finally(() => owner.end());
      }
      log.info('filling the demo tenant');
      await new Week(core, clock).fill();
    } finally {
      await core.stop();
    }
  } finally {
    await claim.release();
  }
}

/** The outside world of the demo: one destination accepts everything, the other is broken. */
class MadeUpAnswers extends Egress {
  constructor() {
    super({ allow: [], dnsServers: [] });
  }

  override async check(): Promise<void> {}

  override async send({ url }: EgressRequest): Promise<EgressAnswer> {
    return { status: url === SIEM ? 204 : 503, headers: {}, body: Buffer.alloc(0), truncated: false };
  }
}

type Fate = 'approve' | 'reject' | 'ignore' | 'cancel';
interface Task {
  at: number;
  run: () => Promise<unknown>;
}

class Week {
  readonly #core: Core;
  readonly #clock: { at: number | undefined };
  readonly #router: ReturnType<typeof buildRouter>;
  readonly #random = world.randomFrom(20_260_301);
  readonly #end = Date.now();
  readonly #start = this.#end - DAYS * DAY;
  #tenantId = '';
  readonly #people = new Map<world.PersonName, Principal>();
  readonly #agents = new Map<world.AgentName, AgentPrincipal>();
  #proxy!: Principal;
  #tasks: Task[] = [];
  #asked = 0;
  #asking: Promise<void>[] = [];
  /** The holds whose fate is decided: the same action again is the same hold. */
  readonly #fated = new Set<string>();

  constructor(core: Core, clock: { at: number | undefined }) {
    this.#core = core;
    this.#clock = clock;
    this.#router = buildRouter(core);
  }

  async fill(): Promise<void> {
    this.#clock.at = this.#start;
    await this.#found();
    this.#plan();
    const jobs = startJobs(this.#core.deliverer.jobs(this.#tenantId), this.#core.log);
    try {
      for (let at = this.#start + HOUR; at < this.#end; at += STEP) await this.#pass(at);
      this.#clock.at = this.#end;
      await this.#now();
      await this.#delivered();
    } finally {
      await jobs.stop();
    }
    await this.#core.db.owner.query(`update tenant set demo = 'ready' where tenant_id = $1`, [this.#tenantId]);
  }

  /** One step: its planned tasks, and the agents' requests in it, in order of time. */
  async #pass(first: number): Promise<void> {
    const last = Math.min(first + STEP, this.#end);
    const calls = poisson(world.busyness(new Date(first)), this.#random);
    const burst = first + this.#random() * (last - first - BURST_MS);
    for (let n = 0; n < calls; n++) {
      const ask = world.askSomething(this.#random, ++this.#asked % 340);
      const fate = FATES[Math.floor(this.#random() * FATES.length)]!;
      // agents do not wait for each other: their records are committed together
      this.#at(burst + this.#random() * BURST_MS, async () => void this.#asking.push(this.#ask(ask, fate)));
    }
    if (!this.#tasks.some(({ at }) => at < last)) return;
    for (;;) {
      const [next] = this.#tasks.filter(({ at }) => at < last).sort((a, b) => a.at - b.at);
      if (!next) break;
      this.#tasks.splice(this.#tasks.indexOf(next), 1);
      this.#clock.at = Math.max(this.#clock.at!, Math.round(next.at));
      await next.run();
    }
    await Promise.all(this.#asking.splice(0));
    await this.#elapse(last);
    await this.#delivered();
  }

  #at(at: number, run: Task['run']): void {
    this.#tasks.push({ at, run });
  }

  /** Advances the clock, and applies what time does to holds. */
  async #elapse(to: number): Promise<void> {
    this.#clock.at = Math.max(this.#clock.at!, Math.round(to));
    const { rows } = await this.#core.db.owner.query<{ id: string }>(
      'select id from escrow_hold where tenant_id = $1 and wake_at <= $2',
      [this.#tenantId, new Date(this.#clock.at)],
    );
    if (rows.length > 0) {
      await this.#core.holds.wake(
        this.#tenantId,
        rows.map(({ id }) => id),
      );
    }
  }

  /** Resolves when nothing announced to subscribers is still due to be sent. */
  async #delivered(): Promise<void> {
    for (;;) {
      const { rows } = await this.#core.db.owner.query(
        `select 1 from event_outbox where tenant_id = $1 and fanned_out_at is null
         union all select 1 from delivery_lane where tenant_id = $1 and (due_at <= $2 or leased_until is not null) limit 1`,
        [this.#tenantId, new Date(this.#clock.at!)],
      );
      if (rows.length === 0) return;
      // nothing else announces what is due only by this clock
      this.#core.db.notices.tellHere('outbox', this.#tenantId, '', []);
      await pause(15, NEVER);
    }
  }

  /** The API as this principal calls it, as in a request. */
  #as(principal: Principal) {
    const context: Context = {
      principal,
      requestId: `demo-${this.#tasks.length}-${this.#asked}`,
      ip: '192.0.2.10',
      method: 'POST',
      headers: {},
      stillValid: async () => true,
      count: async () => {},
      reasonsRequired: async () => false,
      gone: () => NEVER,
      answer: {},
    };
    return this.#router.createCaller(context);
  }

  #person(name: world.PersonName) {
    return this.#as(this.#people.get(name)!);
  }

  /** Creates the tenant with its people, keys and first policies. */
  async #found(): Promise<void> {
    const core = this.#core;
    const { maria, ...others } = world.PEOPLE;
    const { tenantId, adminId } = await core.tenants.create(
      { id: newDemoId(), name: world.COMPANY, adminEmail: maria.email, adminName: maria.name, demo: true },
      OPERATOR,
    );
    this.#tenantId = tenantId;
    const ids = new Map<world.PersonName, string>([['maria', adminId]]);
    for (const [name, person] of Object.entries(others)) {
      ids.set(name as world.PersonName, await core.tenants.addMember(tenantId, person, { actor: OPERATOR }));
    }
    for (const [name, userId] of ids) {
      const { email, name: full, roles } = world.PEOPLE[name];
      this.#people.set(name, {
        ...{ kind: 'session', tenantId, id: `demo ${name}`, userId, email, name: full, avatarUrl: null, roles },
        authMethod: 'magic_link',
      });
    }
    for (const [agentId, agentRole] of Object.entries(world.AGENTS)) {
      const key = await this.#person('maria').agentKeys.create({ agent_id: agentId, agent_role: agentRole });
      this.#agents.set(agentId as world.AgentName, {
        ...{ kind: 'agent_key', tenantId, id: key.id, agentId, agentRole, ownerId: adminId },
      });
    }
    const proxy = await this.#person('maria').keys.create({ label: 'edge proxies', scopes: ['proxy'] });
    this.#proxy = { kind: 'api_key', tenantId, id: proxy.id, scopes: ['proxy'], ownerId: adminId };
    await this.#person('maria').keys.create({ label: 'Policies from Git', scopes: ['pipeline'] });
    const list = { name: 'known-payees', values: world.KNOWN_PAYEES.slice(0, 3), version: 0 };
    await this.#person('lin').lists.put({ ...list, comment: 'Suppliers that we pay every month' });
    for (const [id, { source, tests }] of Object.entries(world.POLICIES)) {
      this.#clock.at! += 4 * MINUTE;
      await this.#person('tomas').policies.create({ id, dsl_source: source, tests_source: tests ?? null });
      await this.#person('aisha').policies.approve({ id, version: 1, comment: 'Reads well.' });
    }
    for (const server of Object.keys(world.TOOLS)) await this.#lists(server);
    this.#clock.at! += 10 * MINUTE;
    await this.#person('maria').settings.change({
      approval_required: true,
      approver_groups: { finance: [ids.get('aisha')!, ids.get('lin')!], security: [adminId] },
      reason: 'Nobody changes a policy alone from now on',
    });
  }

  /** A proxy reports what a tool server lists; people approve it. */
  async #lists(server: string, more: readonly object[] = []): Promise<void> {
    const listed = [...world.TOOLS[server]!, ...more];
    const tools = listed.map((one) => {
      const { pin, definition } = pinned(server, one);
      return { name: String(definition.name), pin, definition: { ...definition } };
    });
    await this.#as(this.#proxy).tools.observed({ server, complete: true, tools });
    if (more.length > 0) return;
    for (const { name, pin } of tools) await this.#person('lin').tools.approve({ server, name, pin });
  }

  /** Plans what happens in addition to the agents' calls, by the hour from the start. */
  #plan(): void {
    const after = (hours: number, run: Task['run']) => this.#at(this.#start + hours * HOUR, run);
    const webhook = (url: string, event_types: EventType[]) =>
      this.#person('maria').subscriptions.create({
        ...{ url, event_types, destination_type: 'webhook', active: true, destination_config: {} },
        secret: `whsec_${randomBytes(24).toString('base64')}`,
      });
    after(20, () =>
      webhook(SIEM, ['escrow.created', 'escrow.released', 'escrow.rejected', 'policy.approved', 'stop.created']),
    );
    after(46, () =>
      this.#person('tomas').policies.update({
        ...{ id: 'refunds', dsl_source: world.REFUNDS_60.source, tests_source: world.REFUNDS_60.tests },
      }),
    );
    after(46.2, () =>
      this.#person('tomas').policies.submit({ id: 'refunds', note: 'The desk asks for 60: most refunds are below.' }),
    );
    after(49, () =>
      this.#person('lin').policies.approve({ id: 'refunds', version: 2, comment: 'Agreed with finance.' }),
    );
    after(70, () => this.#stop('support-bot-3', 'Refunds the same order again and again', 38 * MINUTE));
    // an agent in a loop, stopped by a rate limit
    after(97, async () => {
      for (let n = 0; n < 37; n++) {
        this.#clock.at! += 900;
        await this.#ask({
          ...{ agent: 'support-bot-2', action_type: 'tool_call', tool_name: 'get_customer', tool_server: 'crm' },
          ...{ arguments: { id: `c-${2000 + n}` }, session_id: 'case-4711' },
        });
      }
    });
    // regardless of chance, one hold for each outcome
    for (const [n, fate] of (['reject', 'cancel', 'ignore', 'approve'] as const).entries()) {
      after(75 + 5 * n, () =>
        this.#ask(world.refund('support-bot-1', 180 + n, 'J. Alvarez', 800 + n, `case-46${n}0`), fate),
      );
    }
    after(159, () =>
      this.#ask({
        ...{ agent: 'support-bot-1', action_type: 'tool_call', tool_name: 'delete_account', tool_server: 'crm' },
        ...{ arguments: { user: 'u-118' }, session_id: 'case-4630' },
      }),
    );
    after(118, () => this.#stop('build-bot', 'Pushes to the wrong branch', 15 * MINUTE));
    after(121, async () => {
      const seen = { name: 'known-payees', version: 1, values: [...world.KNOWN_PAYEES, world.NEW_PAYEE] };
      await this.#person('tomas').lists.put({ ...seen, comment: 'A new supplier' });
    });
    after(140, () => webhook(TICKETS, ['escrow.created', 'escrow.released']));
    after(144, () => this.#lists('crm', [world.NEW_TOOL]));
    after(146, async () => {
      const tomas = this.#person('tomas').policies;
      await tomas.update({ id: 'customer-data', dsl_source: world.CUSTOMERS_WIDER });
      await tomas.submit({ id: 'customer-data', note: 'Batches of the night shift run into 30 a minute.' });
    });
    after(147.5, () =>
      this.#person('aisha').policies.requestChanges({
        ...{ id: 'customer-data', version: 2, comment: 'Why for everybody? The night shift is one agent.' },
      }),
    );
    after(150, () =>
      this.#person('jonas').forensics.export({
        purpose: 'Weekly review',
        from: new Date(this.#start).toISOString(),
        to: new Date(this.#clock.at!).toISOString(),
      }),
    );
    after(162, async () => {
      const tomas = this.#person('tomas').policies;
      await tomas.update({ id: 'mail', dsl_source: world.MAIL_PARTNERS });
      await tomas.submit({ id: 'mail', note: 'Nordwind gets minutes every day; nobody ever rejected one.' });
      await this.#person('lin').policies.comment({ id: 'mail', version: 2, comment: 'With attachments, too?' });
    });
    after(163, async () => {
      await this.#person('tomas').policies.create({ id: 'loyalty-points', dsl_source: world.LOYALTY });
      await this.#person('tomas').policies.create({ id: 'vouchers', dsl_source: world.VOUCHERS });
      await this.#person('maria').policies.breakGlass({
        ...{
          id: 'vouchers',
          version: 1,
          reason: 'Incident 812: a bot issues vouchers in a loop. Frozen until it is understood.',
        },
      });
    });
    for (let hour = 2; hour < DAYS * 24; hour += 6) after(hour, () => this.#beat());
    this.#planWaiting((minutes, run) => this.#at(this.#end - minutes * MINUTE, run));
  }

  /** What still waits for people when the week ends, and one hold that was released but not used yet. */
  #planWaiting(before: (minutes: number, run: Task['run']) => void): void {
    const invoice: world.Ask = {
      ...{ agent: 'payments-bot', action_type: 'tool_call', tool_name: 'send_money', session_id: 'treasury' },
      arguments: { recipient: world.NEW_PAYEE, amount: 48_200, reference: 'Invoice 4471' },
      ...{ action_summary: 'Pay invoice 4471', estimated_value: 48_200, value_currency: 'EUR', risk_score: 0.62 },
    };
    const checkout: world.Ask = {
      ...{ agent: 'build-bot', action_type: 'tool_call', tool_name: 'deploy', tool_server: 'ops' },
      arguments: { service: 'checkout', environment: 'production' },
      ...{ action_summary: 'Deploy what passed on staging', session_id: 'build-212' },
    };
    const vote = async (name: world.PersonName, summary: string) => {
      const { holds } = await this.#person(name).escrow.list({ status: 'held' });
      await this.#vote(name, holds.find(({ action_summary }) => action_summary.includes(summary))!.id, 'approve');
    };
    before(52, () => this.#ask(invoice));
    before(41, () => vote('lin', 'invoice 4471'));
    before(33, () => this.#ask(world.refund('support-bot-1', 129.9, 'S. Lindqvist', 902, 'case-4502')));
    before(20, () => this.#ask(world.refund('support-bot-2', 88.4, 'A. Haddad', 901, 'case-4501')));
    before(12, () => vote('aisha', 'A. Haddad'));
    before(7, () => this.#ask(checkout));
    before(2, () => this.#ask(world.refund('support-bot-1', 240, 'R. Tanaka', 903, 'case-4503')));
  }

  /** An agent is stopped, keeps asking, and continues after someone else has had a look. */
  async #stop(agent: world.AgentName, reason: string, ms: number): Promise<void> {
    const stop = await this.#person('lin').stops.create({ target_kind: 'agent', target_id: agent, reason });
    const at = this.#clock.at!;
    // stops use the database's time
    await this.#core.db.owner.query('update stop set created_at = $3 where tenant_id = $1 and id = $2', [
      ...[this.#tenantId, stop.id, new Date(at)],
    ]);
    for (let n = 1; n <= 4; n++) {
      this.#at(at + (n * ms) / 5, () =>
        this.#ask({
          ...{ agent, action_type: 'tool_call', tool_name: agent === 'build-bot' ? 'shell' : 'find_customer' },
          ...{ arguments: agent === 'build-bot' ? { command: 'npm test' } : { name: 'Novak' }, session_id: 'stopped' },
        }),
      );
    }
    this.#at(at + ms, () => this.#person('maria').stops.lift({ id: stop.id, reason: 'Fixed and tested' }));
  }

  async #beat(): Promise<void> {
    const { hash, seq } = await this.#core.bundles.current(this.#tenantId, null);
    for (const proxy_id of ['edge-fra-1', 'edge-iad-1']) {
      await this.#as(this.#proxy).proxies.heartbeat({
        ...{ proxy_id, version: version(), bundle_hash: hash, bundle_seq: seq, spooled_events: 0 },
        started_at: new Date(this.#start).toISOString(),
      });
    }
  }

  /** An agent asks; a held action meets its fate. */
  async #ask({ agent, ...input }: world.Ask, fate: Fate = 'ignore'): Promise<void> {
    const at = this.#clock.at!;
    const random = world.randomFrom(at - this.#start);
    const principal = this.#agents.get(agent)!;
    const from = { ip: '192.0.2.77', requestId: `demo-${this.#asked}` };
    const asked = await this.#core.decider.evaluate(principal, input, from);
    if (asked.escrow?.status !== 'held' || this.#fated.has(asked.escrow.id)) return;
    const { id, required_approvals } = asked.escrow;
    this.#fated.add(id);
    const voters = (random() < 0.5 ? (['aisha', 'lin'] as const) : (['lin', 'aisha'] as const)).slice(
      0,
      required_approvals,
    );
    // decisions planned after the end never happen: such holds still wait
    if (fate === 'reject') this.#at(at + 21 * MINUTE, () => this.#vote(voters[0]!, id, 'reject'));
    if (fate === 'cancel') {
      this.#at(at + 12 * MINUTE, () =>
        this.#person('maria').escrow.cancel({ id, reason: 'The customer called: not wanted any more' }),
      );
    }
    if (fate !== 'approve') return;
    let then = at;
    for (const voter of voters) {
      then += (2 + random() * 35) * MINUTE;
      this.#at(then, () => this.#vote(voter, id, 'approve'));
    }
    this.#at(then + 30_000 + random() * 4 * MINUTE, async () => {
      try {
        await this.#core.decider.evaluate(principal, input, from, { resume: true });
      } catch (error) {
        // the policy changed meanwhile, or a stop is in force: that happens to agents
        if (!(error instanceof AppError)) throw error;
      }
    });
  }

  async #vote(name: world.PersonName, id: string, decision: 'approve' | 'reject'): Promise<void> {
    const { status } = await this.#core.holds.get(this.#tenantId, id);
    if (status !== 'held') return;
    const said = decision === 'approve' ? APPROVED : REJECTED;
    const reason = said[Math.floor((this.#clock.at! / MINUTE) % said.length)]!;
    await this.#person(name).escrow.vote({ id, decision, reason });
  }

  /** Makes the proxies report in, and verifies the chains. */
  async #now(): Promise<void> {
    await this.#beat();
    const lin = this.#people.get('lin')!;
    for (const chain of ['forensics', 'audit'] as const) {
      const result = await this.#core.verifications.verify(this.#tenantId, chain);
      if (!result.verified) throw new Error(`the ${chain} chain of the demo does not verify: ${result.reason}`);
      await this.#core.db.transaction(this.#tenantId, (em) =>
        this.#core.audit(em, this.#tenantId, {
          actor: { type: 'user', id: lin.kind === 'session' ? lin.userId : lin.id },
          action: 'forensics.verified',
          target: { type: 'chain', id: chain },
          detail: `${result.records_checked} records`,
        }),
      );
    }
    // none of these people exists to read them
    await this.#core.db.owner.query('delete from mail_message where tenant_id = $1', [this.#tenantId]);
  }
}

/** Possible outcomes of a hold. */
const FATES: readonly Fate[] = ['approve', 'approve', 'approve', 'approve', 'approve', 'reject', 'ignore', 'cancel'];
const APPROVED = ['Matches the order.', 'Checked with the customer.', 'As agreed.', 'Looks right.', ''];
const REJECTED = ['The order was returned last week.', 'Not from this account.', 'Ask the customer first.'];

const newDemoId = () => `${DEMO_PREFIX}${randomBytes(4).toString('hex')}`;

const version = () => String(JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version);

/** How often something happens, given its average (Knuth). */
function poisson(mean: number, random: () => number): number {
  const least = Math.exp(-mean);
  let n = 0;
  for (let product = random(); product > least; product *= random()) n++;
  return n;
}
