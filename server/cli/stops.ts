import { OPERATOR } from '../domain/audit.ts';
import { STOP_KIND_NAMES, STOP_KINDS, STOP_MODE_NAMES, type StopMode, WHOLE_TENANT } from '../domain/stops.ts';
import { columns, command, duration, JSON_FLAG, listOf, TENANT_FLAG, UsageError, whole } from './command.ts';
import { withCore } from './installation.ts';
import { assertTenant } from './tenants.ts';

const by = { actor: OPERATOR };
const REASON_FLAG = {
  reason: { value: 'TEXT', required: true, help: 'agents, approvers and the audit log see it' },
} as const;

const stop = command({
  name: 'stop',
  summary: 'Stop an agent, a role, a tool, a tool server, a session, a proxy, or everything',
  more: [
    'Takes effect at once in every process of the server and in every proxy that is connected. For example:',
    '  svc stop agent bot-7 --tenant default --reason "pays the wrong people"',
    '  svc stop tenant --tenant default --reason "we are looking at it" --mode freeze --until 2h',
    '',
    ...STOP_KIND_NAMES.map((kind) => `  ${kind.padEnd(12)} ${STOP_KINDS[kind]}`),
  ].join('\n'),
  args: [{ name: 'KIND [ID]', help: `${STOP_KIND_NAMES.join(', ')}; and which one, except for tenant`, many: true }],
  flags: {
    ...TENANT_FLAG,
    ...REASON_FLAG,
    mode: {
      value: 'MODE',
      help: `${STOP_MODE_NAMES.join(' or ')}; default: deny. With freeze, what is permitted waits for a person`,
    },
    until: { value: 'TIME', help: 'when it ends by itself, such as 30m or 2h; default: when it is lifted' },
    wait: { value: 'SECONDS', help: 'how long to wait for connected proxies; default: 2' },
    ...JSON_FLAG,
  },
  async run({ flags, args, print }) {
    const [kindName = '', target, ...more] = args;
    const [kind] = listOf(kindName, 'KIND', STOP_KIND_NAMES);
    if (more.length > 0) throw new UsageError(`${JSON.stringify(more[0])} is an unexpected argument`);
    if ((kind === 'tenant') !== (target === undefined)) {
      throw new UsageError(kind === 'tenant' ? 'the tenant is that of --tenant' : `which ${kind}?`);
    }
    const [mode] = flags.mode === undefined ? (['deny'] as StopMode[]) : listOf(flags.mode, '--mode', STOP_MODE_NAMES);
    const wait = flags.wait === undefined ? 2 : whole(flags.wait, '--wait', 0, 30);
    const request = {
      kind: kind!,
      target: target ?? WHOLE_TENANT,
      mode: mode!,
      reason: flags.reason,
      ...(flags.until !== undefined && {
        until: new Date(Date.now() + duration(flags.until, '--until')).toISOString(),
      }),
    };
    const { made, proxies } = await withCore({}, async ({ stops, ...core }) => {
      await assertTenant({ ...core, stops }, flags.tenant);
      const made = await stops.create(flags.tenant, request, by, OPERATOR.id);
      return { made, proxies: await stops.waitForReach(flags.tenant, made, wait, new AbortController().signal) };
    });
    const { applied, pending, unreachable, applied_ms_max } = proxies;
    const names = (list: readonly { proxy_id: string }[]) => list.map(({ proxy_id }) => proxy_id).join(', ');
    print({ ...made, proxies }, [
      `${made.id} is in force${made.until ? ` until ${made.until}` : ''}`,
      `applied by ${applied} of ${applied + pending.length + unreachable.length} proxies${applied_ms_max === null ? '' : `, the slowest after ${applied_ms_max} ms`}`,
      ...(pending.length > 0 ? [`not yet by: ${names(pending)}`] : []),
      ...(unreachable.length > 0 ? [`silent: ${names(unreachable)}`] : []),
    ]);
    return 0;
  },
});

const stopList = command({
  name: 'stop list',
  summary: 'List the stops in force',
  flags: { ...TENANT_FLAG, ...JSON_FLAG },
  async run({ flags, print }) {
    const { stops } = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.stops.list(flags.tenant, { in_force: true, after: undefined, limit: 500 });
    });
    const rows = stops.map(({ id, target_kind, target_id, mode, created_at, until, reason }) => [
      id,
      mode,
      `${target_kind} ${target_id}`,
      created_at,
      until ?? '',
      reason,
    ]);
    print({ stops }, columns([['ID', 'MODE', 'TARGET', 'SINCE', 'UNTIL', 'REASON'], ...rows]));
    return 0;
  },
});

const stopLift = command({
  name: 'stop lift',
  summary: 'Lift a stop',
  more: 'Where the tenant requires approval, a stop that was made here is lifted by a person in the dashboard.',
  args: [{ name: 'ID', help: 'id of the stop' }],
  flags: { ...TENANT_FLAG, ...REASON_FLAG, ...JSON_FLAG },
  async run({ flags, args, print }) {
    const lifted = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.stops.lift(flags.tenant, args[0]!, flags.reason, by, OPERATOR.id);
    });
    print(lifted, [`${lifted.id} is lifted`]);
    return 0;
  },
});

export const stopCommands = [stop, stopList, stopLift];
