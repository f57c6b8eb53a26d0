import { OPERATOR } from '../domain/audit.ts';
import { columns, command, JSON_FLAG, TENANT_FLAG, UsageError } from './command.ts';
import { withCore } from './installation.ts';
import { assertTenant } from './tenants.ts';

const CHAINS = ['forensics', 'audit'] as const;

const acceptLoss = command({
  name: 'chain accept-loss',
  summary: 'Accept that a chain lost records, so that it is written again',
  more:
    'A chain is closed when it lacks what is known about it: after a standby was promoted that had not received the\n' +
    'newest commits, after an older copy of the database was put in place, or when somebody changed it. First find out\n' +
    'which it was, and bring the records back if you can. This writes a signed record of the gap into the chain and into\n' +
    'the audit log; it brings nothing back. A running server goes on within seconds. When both chains are closed, accept\n' +
    'the loss of the audit chain first.\n' +
    'Example: svc chain accept-loss --tenant default --chain forensics --reason "failover of 3 May, ticket 4711"',
  flags: {
    ...TENANT_FLAG,
    chain: { value: 'NAME', required: true, help: CHAINS.join(' or ') },
    reason: { value: 'TEXT', required: true, help: 'what happened, for those who read the chain later' },
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    const chain = CHAINS.find((name) => name === flags.chain);
    if (!chain) throw new UsageError(`--chain is ${CHAINS.join(' or ')}`);
    const reason = flags.reason.trim();
    if (reason === '' || reason.length > 1000 || /\p{Cc}/u.test(reason) || !reason.isWellFormed()) {
      throw new UsageError('--reason takes 1 to 1,000 characters');
    }
    const accepted = await withCore({}, async (core) => {
      await assertTenant(core, flags.tenant);
      return core.acceptLoss(flags.tenant, chain, reason, { actor: OPERATOR });
    });
    print(
      accepted,
      columns([
        ['Tenant', accepted.tenant_id],
        ['Chain', accepted.chain],
        ['Found', accepted.contradiction],
        ['Kept up to record', accepted.kept_seq],
        ['Known up to record', accepted.lost_seq],
        ['Recorded as', `${accepted.record.seq} (${accepted.record.id})`],
      ]),
    );
    return 0;
  },
});

export const chainCommands = [acceptLoss];
