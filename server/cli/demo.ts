import { claimDatabase } from '../../db/claim.ts';
import { removeDemo } from '../demo/tenant.ts';
import { CommandError, command, JSON_FLAG } from './command.ts';
import { assertCurrent, readState, withClient, withInstallation } from './installation.ts';

const remove = command({
  name: 'demo remove',
  summary: 'Delete the tenant that "npm start -- --demo" made, with everything in it',
  more: 'Stop every server process first. No other tenant can be deleted.',
  flags: JSON_FLAG,
  async run({ print }) {
    const tenant_id = await withInstallation({}, async ({ config, sessionUrl }) => {
      assertCurrent(await withClient(sessionUrl, {}, readState));
      const claim = await claimDatabase(sessionUrl, { alone: true, onConflict: () => process.exit(1) });
      try {
        return await withClient(sessionUrl, {}, (client) => removeDemo(client, config.dataDir));
      } finally {
        await claim.release();
      }
    });
    if (tenant_id === undefined) throw new CommandError('there is no demo tenant');
    print({ tenant_id }, [`Deleted ${tenant_id}.`]);
    return 0;
  },
});

export const demoCommands = [remove];
