import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { freePort } from './ports.ts';

/** Why tests that need Redis are skipped; undefined if it is installed. */
export const noRedis =
  spawnSync('redis-server', ['--version']).status === 0 ? undefined : 'redis-server is not on the PATH';
if (noRedis) console.warn(`SKIPPED: tests of several processes, because ${noRedis}`);

/** The test's own real Redis, on loopback, that keeps nothing on disk. */
export class TestRedis {
  readonly port: number;
  #child: ChildProcess | undefined;

  private constructor(port: number) {
    this.port = port;
  }

  static async start(): Promise<TestRedis> {
    const redis = new TestRedis(await freePort());
    await redis.start();
    return redis;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Starts it, empty, on the same port as before. */
  async start(): Promise<void> {
    const args = ['--port', String(this.port), '--save', '', '--appendonly', 'no', '--bind', '127.0.0.1'];
    this.#child = spawn('redis-server', [...args, '--dir', '/tmp'], { stdio: 'ignore' });
    for (let i = 0; i < 200; i++) {
      if (await answers(this.port)) return;
      await delay(20);
    }
    throw new Error('redis-server did not start');
  }

  async stop(): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  }

  /** One command, as `redis-cli` would send it. */
  async send(...words: string[]): Promise<string> {
    const socket = connect(this.port, '127.0.0.1');
    socket.write(`${words.join(' ')}\r\n`);
    const [answer] = await once(socket, 'data');
    socket.destroy();
    return String(answer).trim();
  }

  /** Freezes it: connections stay open, nothing is answered. */
  pause(): void {
    this.#child?.kill('SIGSTOP');
  }

  resume(): void {
    this.#child?.kill('SIGCONT');
  }
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    const done = (result: boolean) => {
      socket.destroy();
      resolve(result);
    };
    socket.once('error', () => done(false));
    socket.once('data', (data) => done(String(data).startsWith('+PONG')));
    socket.once('connect', () => socket.write('PING\r\n'));
  });
}
