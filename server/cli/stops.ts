import { OPERATOR } from '../domain/audit.ts';
import { command, JSON_FLAG, TENANT_FLAG } from './command.ts';
import { withCore } from './installation.ts';
import { REASON_FLAG, stopCommandsOf, stopReasonOf } from './stop-commands.ts';
import { assertTenant } from './tenants.ts';

const by = { actor: OPERATOR };

const stops = stopCommandsOf({
  flags: TENANT_FLAG,
  example: ' --tenant default',
  more: [],
  create: ({ tenant }, request, wait) =>
    withCore({}, async (core) => {
      await assertTenant(core, tenant);
      const made = await core.stops.create(tenant, request, by, OPERATOR.id);
      const proxies = await core.stops.waitForReach(tenant, made, wait, new AbortController().signal);
      return { ...made, proxies };
    }),
  list: ({ tenant }) =>
    withCore({}, async (core) => {
      await assertTenant(core, tenant);
      const { stops } = await core.stops.list(tenant, { in_force: true, after: undefined, limit: 500 });
      return stops;
    }),
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
      return core.stops.lift(flags.tenant, args[0]!, stopReasonOf(flags), by, OPERATOR.id);
    });
    print(lifted, [`${lifted.id} is lifted`]);
    return 0;
  },
});

export const stopCommands = [...stops, stopLift];
