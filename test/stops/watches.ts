import { createPublicKey, type JsonWebKey } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { openCurrent } from '../../server/keys/current.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { createLog } from '../../server/lib/log.ts';
import { ControlPlane } from '../../server/proxy/control-plane.ts';
import { StopWatch, type Trust } from '../../server/proxy/stops.ts';

/** So many proxies as far as stops go: the proxy's own code, each with its polls and its file. */
export async function startWatches(options: {
  url: string;
  key: string;
  dir: string;
  count: number;
}): Promise<StopWatch[]> {
  const { url, key, dir, count } = options;
  const probe = new ControlPlane(url, () => key);
  const tenant = await probe.tenant();
  const jwks = (await probe.keys()) as (JsonWebKey & { kid: string })[];
  probe.close();
  const keys = new Map(jwks.map((jwk) => [jwk.kid, createPublicKey({ key: jwk, format: 'jwk' })]));
  const keyFor = (kid: string) => keys.get(kid);
  const trust: Trust = {
    tenant: async () => tenant,
    keyFor,
    renewKeys: async () => {},
    trusted: undefined,
    heardAt: async (text, standing) => openCurrent(text, keyFor, { ...standing, tenant }),
    mac: () => Buffer.alloc(32),
  };
  const all: StopWatch[] = [];
  for (let n = 0; n < count; n++) {
    const own = path.join(dir, String(n));
    mkdirSync(own, { recursive: true });
    const control = new ControlPlane(url, () => key);
    const parts = { control, trust, dir: own, proxyId: `watch-${n}`, clock: systemClock, log: createLog('error') };
    const watch = new StopWatch(parts);
    await watch.start(tenant);
    all.push(watch);
  }
  return all;
}
