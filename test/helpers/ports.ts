import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';

const given = new Set<number>();

/**
 * A loopback port that nothing listens on, for a process that is told its port. It is below the range from which the system
 * assigns ports to connections (32768 and up): one of those could be taken before the process starts listening.
 */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < 1000; tries++) {
    const port = randomInt(10_000, 32_000);
    if (given.has(port)) continue;
    const probe = createServer();
    try {
      await once(probe.listen(port, '127.0.0.1'), 'listening');
    } catch {
      continue;
    }
    given.add(port);
    await new Promise((closed) => probe.close(closed));
    return port;
  }
  throw new Error('no port is free');
}
