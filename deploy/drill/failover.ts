import { parseArgs } from 'node:util';
import { eventually, Pair } from './pair.ts';
import { Load, Server } from './server.ts';

const HELP = `Usage: npm run drill -- [--asynchronous] [--rounds N] [--seconds N] [--writers N] [--rest MS] [--json]

Starts a PostgreSQL with a standby and the server on both, writes decisions, kills the primary with
SIGKILL, promotes the standby, and counts what was acknowledged, lost and stored twice. Everything runs on
loopback in a directory of its own, which is removed at the end. Nothing of an installation is touched.

  --asynchronous   the standby is behind when the primary dies: records are lost, the server must notice and
                   refuse to go on, and the loss is accepted as an operator does it
  --rounds N       how often (default 1); after each round the killed server is rebuilt as the standby
  --seconds N      how long decisions are written before each kill (default 2)
  --writers N      how many clients write at the same time (default 8)
  --rest MS        how long each of them rests after an acknowledgement (default 0)
  --json           print the result as JSON

Exits with 0 when nothing acknowledged is missing without notice, and nothing is there twice.`;

const { values: flags } = parseArgs({
  options: {
    asynchronous: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '2' },
    writers: { type: 'string', default: '8' },
    rest: { type: 'string', default: '0' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

const RECOVERY_MS = 300_000;
/** With --asynchronous: how far the standby lags behind commits, in seconds. */
const BEHIND_S = 0.5;

interface Round {
  acknowledged: number;
  /** Responses that asked for a retry, and requests without a response. */
  tried_again: number;
  /** Acknowledged, but not in the chain afterwards. */
  lost: number;
  /** Records that the server itself reports as lost; the operator accepted them. 0 if it found none. */
  lost_as_reported: number;
  doubled: number;
  /** The longest time without an acknowledgement, in milliseconds. */
  longest_gap_ms: number;
  verified: boolean;
  sound: boolean;
}

async function drill(): Promise<number> {
  const [rounds, seconds, writers] = [flags.rounds, flags.seconds, flags.writers].map(Number) as [
    number,
    number,
    number,
  ];
  if (![rounds, seconds, writers].every((n) => n > 0 && n <= 1000)) throw new Error('numbers must be from 1 to 1000');
  const rest = Number(flags.rest);
  if (!(rest >= 0 && rest <= 1000)) throw new Error('--rest must be from 0 to 1000');
  const say = (text: string) => flags.json || console.log(text);
  const synchronous = !flags.asynchronous;
  say(`starting a primary with ${synchronous ? 'a synchronous' : 'an asynchronous'} standby`);
  const pair = await Pair.start({ synchronous });
  const server = new Server(pair.url, { SVC_DURABILITY: synchronous ? 'replicated' : 'local' });
  const done: Round[] = [];
  try {
    await server.start();
    for (let round = 1; round <= rounds; round++) {
      if (round > 1 && !synchronous) await pair.rebuild();
      await server.ready();
      const result = await failOver(pair, server, { synchronous, seconds, writers, rest });
      done.push(result);
      say(
        `round ${round}: ${result.acknowledged} acknowledged, ${result.lost} lost (${result.lost_as_reported} reported), ` +
          `${result.doubled} doubled, longest gap ${result.longest_gap_ms} ms, chain ${result.verified ? 'whole' : 'BROKEN'}`,
      );
      if (!result.sound) break;
    }
  } catch (error) {
    if (!flags.json) console.error(server.output.slice(-4000));
    throw error;
  } finally {
    await server.stop();
    await pair.stop();
  }
  const sum = (of: (round: Round) => number) => done.reduce((all, round) => all + of(round), 0);
  const ok = done.every(({ sound }) => sound);
  const total = {
    acknowledged: sum((round) => round.acknowledged),
    lost: sum((round) => round.lost),
    doubled: sum((round) => round.doubled),
    longest_gap_ms: Math.max(...done.map((round) => round.longest_gap_ms)),
  };
  if (flags.json)
    console.log(
      JSON.stringify({ ok, standby: synchronous ? 'synchronous' : 'asynchronous', total, rounds: done }, null, 2),
    );
  else console.log(ok ? 'ok' : 'FAILED');
  return ok ? 0 : 1;
}

async function failOver(
  pair: Pair,
  server: Server,
  options: { synchronous: boolean; seconds: number; writers: number; rest: number },
): Promise<Round> {
  const load = new Load(server, options.writers, undefined, options.rest);
  await load.during(options.seconds);
  if (!options.synchronous) {
    await pair.holdBack();
    await load.during(BEHIND_S);
  }
  await pair.kill();
  await pair.promote();
  let reported = 0;
  if (options.synchronous) await pair.rebuild();
  else reported = await acceptLosses(pair, server, load);
  const after = load.count;
  await eventually('decisions are acknowledged again', async () => load.count > after + options.writers, RECOVERY_MS);
  await load.stop();

  const { lost, doubled } = await load.compare((text, values) => pair.query(text, values));
  const { whole, said } = await server.verify();
  if (!whole) console.error(said);
  return {
    acknowledged: load.acknowledged.size,
    tried_again: load.triedAgain,
    lost,
    lost_as_reported: reported,
    doubled,
    longest_gap_ms: load.longestGap,
    verified: whole,
    sound: whole && doubled === 0 && (options.synchronous ? lost === 0 : lost <= reported),
  };
}

/** Does what an operator does when the server reports a loss. Resolves with the number of lost records. */
async function acceptLosses(pair: Pair, server: Server, load: Load): Promise<number> {
  const before = load.count;
  const closed = () => pair.query<{ chain: string }>('select chain from chain_alarm order by chain');
  // either the chain is closed, or it continues because the standby had everything
  await eventually('the server has looked at its chains', async () => {
    return (await closed()).length > 0 || load.count > before + 100;
  });
  const chains = (await closed()).map(({ chain }) => chain);
  return server.acceptLosses(chains, 'failover drill');
}

if (flags.help) console.log(HELP);
else process.exitCode = await drill();
