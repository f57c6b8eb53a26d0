import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, readFileSync, realpathSync, watch } from 'node:fs';
import { request, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Connect, createServer as createVite, type ViteDevServer } from 'vite';
import { startEmbedded } from '../db/embedded.ts';
import viteConfig, { NONCE_PLACEHOLDER } from '../web/vite.config.ts';
import { isApiPath, pagePolicy } from './api/static.ts';
import { type Config, readConfig } from './config.ts';
import { contentSecurityPolicy } from './lib/security-headers.ts';
import { ConfigError } from './lib/settings.ts';
import { onStopSignals } from './lib/signals.ts';

/**
 * `npm run dev`: the program for developers who change it. Vite listens at the usual address and serves the dashboard from its
 * sources, with hot replacement. Everything else goes to the server, a process behind it that restarts when one of its sources is
 * saved; requests wait meanwhile. PostgreSQL belongs to this process and keeps running.
 *
 * Nothing imports this file, and no other command serves anything from it.
 */
const root = path.dirname(import.meta.dirname);
const SOURCES = ['server', 'machines', 'db'];
/** Editors save in several steps, and switching branches touches many files. */
const SETTLE_MS = 30;
/** Ends the server when this process is gone, no matter how: the system then closes the channel between them. */
const ORPHAN_ENDS = 'data:text/javascript,process.once("disconnect",()=>process.kill(process.pid,"SIGTERM"))';
/** How long a server may take to finish what it accepted. */
const STOP_MS = 3000;

async function main(): Promise<void> {
  const config = readConfig();
  const cache = path.join(config.dataDir, 'dev');
  mkdirSync(cache, { recursive: true });
  // lets PostgreSQL distinguish this process from a server on the same data directory, see EmbeddedPostgres.leave
  process.env.PGAPPNAME = `svc-dev-${process.pid}`;
  const embedded = config.databaseUrl
    ? undefined
    : await startEmbedded({ dataDir: config.dataDir, databases: ['svc'] });
  const server = new Server(await freePort(), {
    NODE_COMPILE_CACHE: path.join(cache, 'compiled'),
    ...process.env,
    HOST: '127.0.0.1',
    SVC_BASE_URL: config.baseUrl,
    DATABASE_URL: config.databaseUrl ?? embedded!.url('svc'),
  });
  const vite = await serveDashboard(config, cache, server);

  let stopping = false;
  const stop = async () => {
    stopping = true;
    await Promise.all([vite.close(), server.stop()]);
    await embedded?.leave();
    process.exit(0);
  };
  onStopSignals(
    () => void stop(),
    () => process.exit(1),
  );
  process.once('exit', () => server.kill());

  let settling: NodeJS.Timeout | undefined;
  for (const folder of SOURCES) {
    watch(path.join(root, folder), { recursive: true }, (_event, file) => {
      if (stopping || !/\.(ts|json|sql)$/.test(file ?? '')) return;
      clearTimeout(settling);
      settling = setTimeout(() => server.restart(), SETTLE_MS);
    });
  }
  console.log(`the dashboard and the API with every change: ${config.baseUrl}`);
}

/** The server as a restartable child process. */
class Server {
  readonly port: number;
  readonly #env: NodeJS.ProcessEnv;
  #child!: ChildProcess;
  #answers!: Promise<boolean>;
  #listens = false;
  #restarting: Promise<void> | undefined;

  constructor(port: number, env: NodeJS.ProcessEnv) {
    this.port = port;
    this.#env = { ...env, PORT: String(port) };
    this.#start();
  }

  /** Resolves when the latest server answers, or to false if it ended because its sources have an error. */
  async ready(): Promise<boolean> {
    while (this.#restarting) await this.#restarting;
    const latest = this.#answers;
    const answers = await latest;
    return latest === this.#answers && !this.#restarting ? answers : this.ready();
  }

  /** Stops the server and starts it again from the current sources. */
  restart(): void {
    const began = performance.now();
    // a save while the old one is stopping needs no further start
    this.#restarting ??= this.stop().then(() => {
      this.#restarting = undefined;
      this.#start();
      void this.#answers.then((answers) => {
        const ms = Math.round(performance.now() - began);
        console.log(answers ? `server restarted in ${ms} ms` : 'the server ended; it starts again with the next save');
      });
    });
  }

  async stop(): Promise<void> {
    const child = this.#child;
    if (ended(child)) return;
    const exited = once(child, 'exit');
    // a server that is not listening yet has accepted nothing
    child.kill(this.#listens ? 'SIGTERM' : 'SIGKILL');
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
    await exited;
    clearTimeout(late);
  }

  /** For the end of this process, which does not wait. */
  kill(): void {
    this.#child.kill('SIGKILL');
  }

  #start(): void {
    // its own process group: Ctrl-C reaches only this process, which stops the server
    const child = spawn(process.execPath, ['--import', ORPHAN_ENDS, path.join(root, 'server/main.ts')], {
      cwd: process.cwd(),
      env: this.#env,
      stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
      detached: true,
    });
    this.#child = child;
    this.#listens = false;
    this.#answers = (async () => {
      while (!ended(child)) {
        const found = await fetch(`http://127.0.0.1:${this.port}/healthz`).catch(() => undefined);
        if (found && child === this.#child) this.#listens = true;
        if (found) return true;
        await delay(10);
      }
      return false;
    })();
  }
}

function ended(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null;
}

/** Vite at the configured address: its modules, the page for every dashboard path, and the API behind it. */
async function serveDashboard(config: Config, cache: string, server: Server): Promise<ViteDevServer> {
  const forward = async (req: Connect.IncomingMessage, res: ServerResponse) => {
    if (await server.ready()) return pass(req, res, server);
    res.writeHead(502, { 'content-type': 'text/plain' }).end('The server does not start; its output says why.\n');
  };
  const vite = await createVite({
    ...viteConfig,
    configFile: false,
    appType: 'custom',
    cacheDir: path.join(cache, 'vite'),
    clearScreen: false,
    logLevel: 'warn',
    server: {
      port: config.port,
      host: config.host,
      strictPort: true,
      cors: false,
      // the sources, and nothing else in the project's folder, such as the data directory with its keys
      fs: {
        allow: [
          ...['web', ...SOURCES].map((name) => path.join(root, name)),
          realpathSync(path.join(root, 'node_modules')),
          cache,
        ],
      },
      warmup: { clientFiles: ['./main.tsx'] },
    },
    plugins: [
      ...viteConfig.plugins,
      {
        name: 'api-and-page',
        configureServer(vite) {
          vite.middlewares.use((req, res, next) => {
            const [target] = req.originalUrl!.split('?', 1) as [string];
            if (isApiPath(target) || /^\/docs(\/|$)/.test(target)) void forward(req, res);
            else next();
          });
          return () => {
            vite.middlewares.use((req, res, next) => {
              if (!/\btext\/html\b/.test(req.headers.accept ?? '')) void forward(req, res);
              else page(vite, req, res).catch(next);
            });
          };
        },
      },
    ],
  });
  await vite.listen();
  return vite;
}

/** The page as the server itself would send it, except for scripts in it: React's refresh needs one. */
async function page(vite: ViteDevServer, req: Connect.IncomingMessage, res: ServerResponse): Promise<void> {
  const nonce = randomBytes(18).toString('base64url');
  const source = readFileSync(path.join(root, 'web/index.html'), 'utf8');
  const html = await vite.transformIndexHtml('/index.html', source, req.originalUrl);
  const policy = { ...pagePolicy(nonce), 'script-src': ["'self'", `'nonce-${nonce}'`] };
  res.writeHead(200, {
    'content-type': 'text/html; charset=utf-8',
    'cache-control': 'no-cache',
    'content-security-policy': contentSecurityPolicy(policy),
    'referrer-policy': 'same-origin',
  });
  res.end(html.replaceAll(NONCE_PLACEHOLDER, nonce));
}

/** Streams a request and its response through, so that streams flow and uploads are not held in memory. */
function pass(req: Connect.IncomingMessage, res: ServerResponse, server: Server): void {
  // not pooled: pooled connections might lead to a server that has since ended
  const to = { port: server.port, host: '127.0.0.1', path: req.originalUrl, agent: false };
  const onward = request({ ...to, method: req.method, headers: { ...req.headers, connection: 'close' } });
  onward.on('response', (answer) => {
    const { connection: _, ...headers } = answer.headers;
    res.writeHead(answer.statusCode!, headers);
    answer.pipe(res);
    answer.on('error', () => res.destroy());
  });
  onward.on('error', () => {
    if (res.headersSent) res.destroy();
    else
      res.writeHead(502, { 'content-type': 'text/plain' }).end('The server was restarted; send the request again.\n');
  });
  res.on('close', () => onward.destroy());
  req.pipe(onward);
}

async function freePort(): Promise<number> {
  const probe = createTcpServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, 'close');
  return port;
}

try {
  await main();
} catch (error) {
  console.error(error instanceof ConfigError ? error.message : error);
  process.exit(1);
}
