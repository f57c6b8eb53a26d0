import { parseArgs } from 'node:util';
import { Relay } from './relay.ts';

const { values } = parseArgs({ options: { port: { type: 'string', default: '7357' } } });
const port = await new Relay().listen(Number(values.port));
console.log(`Start the servers with SVC_INSPECT=ws://127.0.0.1:${port} and open http://127.0.0.1:${port}`);
