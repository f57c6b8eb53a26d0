import { UsageError } from './command.ts';
import { policyCommands } from './policies.ts';
import { connect, REMOTE_FLAGS } from './policy/remote.ts';
import { type Program, run } from './run.ts';
import { stopCommandsOf } from './stop-commands.ts';

/** The program of the package svc-cli: only the commands that talk to a server over HTTP. */

const KEY = 'SVC_TOKEN must be an API key with the scope "stop".';

async function remote({ url }: { url: string | undefined }) {
  if (!process.env.SVC_TOKEN) throw new UsageError(KEY);
  return connect({ url, tenant: undefined, audience: undefined }, {}, []);
}

const stopCommands = stopCommandsOf({
  flags: { url: REMOTE_FLAGS.url },
  example: '',
  more: ['', `${KEY} A person lifts the stop, in the dashboard.`],
  create: async (flags, { kind, target, ...request }, wait) => {
    const of = { target_kind: kind, ...(kind !== 'tenant' && { target_id: target }) };
    return (await remote(flags)).call('POST /v1/stops', { ...request, ...of, wait });
  },
  list: async (flags) => {
    const { stops } = await (await remote(flags)).call<{ stops: [] }>('GET /v1/stops?in_force=true&limit=200');
    return stops;
  },
});

/** Runs a command line. Resolves with the exit code. */
export function overHttp(words: readonly string[], version: string, messageOf: Program['messageOf']): Promise<number> {
  return run(words, {
    commands: [...stopCommands, ...policyCommands],
    version: () => version,
    about: 'It works over HTTP alone: SVC_URL is the address of the control plane, SVC_TOKEN a key.',
    messageOf,
  });
}
