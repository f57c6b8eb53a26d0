import { OPERATOR } from '../domain/audit.ts';
import { showsSomething } from '../lib/visible.ts';
import { columns, command, JSON_FLAG, TENANT_FLAG, UsageError } from './command.ts';
import { withCore } from './installation.ts';
import { assertTenant } from './tenants.ts';

const CHAINS = ['forensics', 'audit'] as const;

const acceptLoss = command({
  name: 'chain accept-loss',
  summary: 'Accept that a chain lost records, and reopen it for writing',
  more:
    'A chain is closed when records are missing that are known to have existed: a standby without the newest commits was\n' +
    'promoted, an older copy of the database was put in place, or the chain was tampered with. Find the cause first, and\n' +
    'recover the records if you can. This command writes a signed record of the gap into the chain and the audit log; it\n' +
    'recovers nothing. A running server resumes within seconds. If both chains are closed, accept the loss of the audit\n' +
    'chain first.\n' +
    'Example: svc chain accept-loss --tenant default --chain forensics --reason "failover of 3 May, ticket 4711"',
  flags: {
    ...TENANT_FLAG,
    chain: { value: 'NAME', required: true, help: CHAINS.join(' or ') },
    reason: { value: 'TEXT', required: true, help: 'what happened, for later readers of the chain' },
    ...JSON_FLAG,
  },
  async run({ flags, print }) {
    const chain = CHAINS.find((name) => name === flags.chain);
    if (!chain) throw new UsageError(`--chain must be ${CHAINS.join(' or ')}`);
    const reason = flags.reason.trim();
    if (!showsSomething(reason) || reason.length > 1000 || /\p{Cc}/u.test(reason) || !reason.isWellFormed()) {
      throw new UsageError('--reason must have 1 to 1,000 characters and no control characters');
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
