import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { freePort } from '../../helpers/ports.ts';
import { alternate, type BenchContext, type Figure, figure, load, pick, ratios } from '../lib.ts';
import { type Proxies, STATEMENTS, withProxies } from '../proxy.ts';

const CONNECTIONS = 16;

/**
 * Requests per second through the proxy, compared with a bare Node reverse proxy and nginx with `auth_request`, all to the same
 * upstream and from the same load generator. For each request nginx asks a Node server whether the key is known, keeps
 * connections to both, and writes its access log.
 *
 * nginx does not: look at the body (the question contains only the headers); decide by rules; flush its log to disk before it
 * forwards (the proxy does), nor chain it; hold, mask or count. The bare proxy only forwards.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  return withProxies(ctx.url, async (proxies) => {
    const nginx = await startNginx(proxies);
    if (!nginx) ctx.print?.('nginx is not installed, skipped (Debian: apt-get install nginx-light)');
    try {
      const rate = async (url: string) => {
        const { requestsPerSecond, errors, firstError } = await load({
          ...{ url, path: '/charges', tenants: [{ authorization: `Bearer ${proxies.agentKey}` }] },
          ...{ connections: CONNECTIONS, eventsPerRequest: 1, seconds: pick(ctx, 1, 4), warmSeconds: pick(ctx, 1, 2) },
          // rules read the amount; few are alike
          bodies: ['{"amount":1XXX.XXXX,"user":{"id":"u_1","tier":"gold"},"items":[{"sku":"a-1","count":2}]}'],
          expect: '"sku":"a-1"',
        });
        if (errors > 0) throw new Error(`${url}: ${errors} errors, such as ${firstError}`);
        return requestsPerSecond;
      };
      const rates = await alternate(
        pick(ctx, 1, 3, 5),
        {
          bare: () => rate(proxies.bare),
          ours: () => rate(proxies.proxy),
          nginx: () => (nginx ? rate(nginx.url) : Number.NaN),
        },
        ctx.print,
      );
      const ours = `the proxy, ${STATEMENTS} statements, recorded`;
      return [
        figure(`${CONNECTIONS} connections: a bare Node reverse proxy`, rates.bare, 'requests/s'),
        figure(`${CONNECTIONS} connections: ${ours}`, rates.ours, 'requests/s'),
        figure('the proxy / a bare Node reverse proxy', ratios(rates.ours, rates.bare), 'ratio'),
        ...(nginx
          ? [
              figure(`${CONNECTIONS} connections: nginx, auth_request`, rates.nginx, 'requests/s'),
              figure('the proxy / nginx, auth_request', ratios(rates.ours, rates.nginx), 'ratio'),
            ]
          : []),
      ];
    } finally {
      await nginx?.stop();
    }
  });
}

async function startNginx({ start, upstream, agentKey, dir }: Proxies) {
  if (spawnSync('nginx', ['-v']).status !== 0) return undefined;
  const auth = await start([new URL(import.meta.url).pathname, agentKey]);
  const home = path.join(dir, 'nginx');
  mkdirSync(path.join(home, 'temporary'), { recursive: true });
  const port = await freePort();
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  const file = path.join(home, 'nginx.conf');
  writeFileSync(
    file,
    `worker_processes auto; daemon off; pid ${home}/pid; error_log stderr error;
${process.getuid?.() === 0 ? 'user root;' : ''}
events { worker_connections 1024; }
http {
  access_log ${home}/access.log;
  ${temporary.map((name) => `${name}_temp_path ${home}/temporary/${name};`).join(' ')}
  keepalive_requests 1000000000;
  upstream app { server ${new URL(upstream).host}; keepalive 64; keepalive_requests 1000000000; }
  upstream auth { server ${new URL(auth).host}; keepalive 64; keepalive_requests 1000000000; }
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  server {
    listen 127.0.0.1:${port};
    location / { auth_request /-/auth; proxy_pass http://app; }
    location = /-/auth {
      internal;
      proxy_pass http://auth;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_set_header Connection "";
      proxy_set_header X-Original-URI $request_uri;
    }
  }
}
`,
  );
  const child = spawn('nginx', ['-p', home, '-c', file, '-e', 'stderr'], { stdio: ['ignore', 'ignore', 'inherit'] });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; ; tries++) {
    if (child.exitCode !== null) throw new Error(`nginx ended with ${child.exitCode}`);
    const answer = await fetch(url).catch(() => undefined);
    // it asks before it forwards
    if (answer?.status === 401) break;
    if (tries > 100) throw new Error(`nginx did not start: ${answer?.status}`);
    await delay(50);
  }
  return {
    url,
    async stop() {
      child.kill('SIGTERM');
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

if (import.meta.main) {
  const known = new Map([[`Bearer ${process.argv[2]}`, 'bench']]);
  const server = http.createServer((request, response) => {
    const agent = known.get(request.headers.authorization ?? '');
    if (agent) response.setHeader('x-agent', agent);
    response.writeHead(agent ? 204 : 401).end();
  });
  server.keepAliveTimeout = 60_000;
  server.listen(0, '127.0.0.1', () => {
    console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  });
  process.on('SIGTERM', () => process.exit(0));
}
