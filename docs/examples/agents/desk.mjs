import { existsSync, readFileSync, writeFileSync } from 'node:fs';

/** What the examples share: who they are, two refunds that their model asks for, and a file for what waits. */

const { SVC_URL: url, SVC_AGENT_KEY: key } = process.env;
if (!url || !key) throw new Error('set SVC_URL and SVC_AGENT_KEY');
export const options = { url, key };

/** `start` begins a conversation, `resume` goes on with the stored one, in another process. */
export const resumes = process.argv[2] === 'resume';

/** What the model asks for, in one turn. The ids are new each time, as those of a real model are. */
export const callsOf = (order) =>
  [20, 900].map((amount) => ({
    id: `call_${crypto.randomUUID()}`,
    name: 'refund',
    args: { amount, order },
  }));

/** The tool. It knows nothing of policies. */
export function refund({ amount }) {
  console.log(`  refunded ${amount}`);
  return { refunded: amount };
}

/** What waits is kept in a file here, and in your database in real life. */
export function store(name, text) {
  writeFileSync(`${name}.state.json`, text);
}

export function stored(name) {
  if (!existsSync(`${name}.state.json`)) throw new Error('nothing waits: run it with start first');
  return readFileSync(`${name}.state.json`, 'utf8');
}

/** What the model was told, and what waits. */
export const say = (text) => console.log(`  ${text}`);
