import { STOP_KIND_NAMES, STOP_KINDS, STOP_MODE_NAMES, type StopMode, WHOLE_TENANT } from '../domain/stops.ts';
import { shortReason } from '../rpc/fields.ts';
import { columns, command, duration, type Flag, JSON_FLAG, listOf, reasonOf, UsageError, whole } from './command.ts';

export const REASON_FLAG = {
  reason: { value: 'TEXT', required: true, help: 'agents, approvers and the audit log see it' },
} as const;

/** Limited as the route requires. */
export const stopReasonOf = (flags: { reason: string }): string => reasonOf(flags, shortReason);

interface MadeStop {
  id: string;
  target_kind: string;
  target_id: string;
  mode: string;
  reason: string;
  created_at: string;
  until: string | null;
}

interface Reach {
  applied: number;
  pending: readonly { proxy_id: string }[];
  unreachable: readonly { proxy_id: string }[];
  applied_ms_max: number | null;
}

export interface StopRequest {
  kind: (typeof STOP_KIND_NAMES)[number];
  target: string;
  mode: StopMode;
  reason: string;
  abort: boolean;
  until?: string;
}

/** Where stops are created: in the server's database, or over HTTP. */
export interface StopPlace<F extends Readonly<Record<string, Flag>>> {
  flags: F;
  /** Additional flags for examples, such as ` --tenant default`. */
  example: string;
  more: readonly string[];
  /** Waits this many seconds for connected proxies. */
  create(flags: Record<keyof F, string>, request: StopRequest, wait: number): Promise<MadeStop & { proxies: Reach }>;
  /** Those in force. */
  list(flags: Record<keyof F, string>): Promise<readonly MadeStop[]>;
}

/** `svc stop` and `svc stop list`. */
export function stopCommandsOf<const F extends Readonly<Record<string, Flag>>>(place: StopPlace<F>) {
  const flagsOf = (flags: object) => flags as Record<keyof F, string>;
  const stop = command({
    name: 'stop',
    summary: 'Stop an agent, a role, a tool, a tool server, a session, a proxy, or everything',
    more: [
      'Takes effect at once in every process of the server and in every proxy that is connected. For example:',
      `  svc stop agent bot-7${place.example} --reason "pays the wrong people"`,
      `  svc stop tenant${place.example} --reason "we are looking at it" --mode freeze --until 2h`,
      '',
      ...STOP_KIND_NAMES.map((kind) => `  ${kind.padEnd(12)} ${STOP_KINDS[kind]}`),
      ...place.more,
    ].join('\n'),
    args: [{ name: 'KIND [ID]', help: `${STOP_KIND_NAMES.join(', ')}; and which one, except for tenant`, many: true }],
    flags: {
      ...place.flags,
      ...REASON_FLAG,
      mode: {
        value: 'MODE',
        help: `${STOP_MODE_NAMES.join(' or ')}; default: deny. With freeze, what is permitted waits for a person`,
      },
      abort: { help: 'proxies also cut the calls that are under way for the target; only with deny' },
      until: { value: 'TIME', help: 'when it ends by itself, such as 30m or 2h; default: when it is lifted' },
      wait: { value: 'SECONDS', help: 'how long to wait for connected proxies; default: 2' },
      ...JSON_FLAG,
    },
    async run({ flags: given, args, print }) {
      const flags = given as unknown as Record<'mode' | 'until' | 'wait', string | undefined> & {
        reason: string;
        abort: boolean;
      };
      const [kindName = '', target, ...more] = args;
      const [kind] = listOf(kindName, 'KIND', STOP_KIND_NAMES);
      if (more.length > 0) throw new UsageError(`${JSON.stringify(more[0])} is an unexpected argument`);
      if ((kind === 'tenant') !== (target === undefined)) {
        throw new UsageError(kind === 'tenant' ? 'the tenant is the whole of it' : `which ${kind}?`);
      }
      const [mode] =
        flags.mode === undefined ? (['deny'] as StopMode[]) : listOf(flags.mode, '--mode', STOP_MODE_NAMES);
      if (flags.abort && mode !== 'deny') throw new UsageError('--abort is for the mode deny');
      const wait = flags.wait === undefined ? 2 : whole(flags.wait, '--wait', 0, 30);
      const { proxies, ...made } = await place.create(
        flagsOf(given),
        {
          kind: kind!,
          target: target ?? WHOLE_TENANT,
          mode: mode!,
          reason: stopReasonOf(flags),
          abort: flags.abort,
          ...(flags.until !== undefined && {
            until: new Date(Date.now() + duration(flags.until, '--until')).toISOString(),
          }),
        },
        wait,
      );
      const { applied, pending, unreachable, applied_ms_max } = proxies;
      const all = applied + pending.length + unreachable.length;
      const names = (list: readonly { proxy_id: string }[]) => list.map(({ proxy_id }) => proxy_id).join(', ');
      print({ ...made, proxies }, [
        `${made.id} is in force${made.until ? ` until ${made.until}` : ''}`,
        all === 0
          ? 'no proxy is connected: each applies it when it comes'
          : `applied by ${applied} of ${all} proxies${applied_ms_max === null ? '' : `, the slowest after ${applied_ms_max} ms`}`,
        ...(pending.length > 0 ? [`not yet by: ${names(pending)}`] : []),
        ...(unreachable.length > 0 ? [`silent: ${names(unreachable)}`] : []),
      ]);
      return 0;
    },
  });

  const stopList = command({
    name: 'stop list',
    summary: 'List the stops in force',
    flags: { ...place.flags, ...JSON_FLAG },
    async run({ flags, print }) {
      const stops = await place.list(flagsOf(flags));
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
  return [stop, stopList];
}
