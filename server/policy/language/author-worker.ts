import { parentPort } from 'node:worker_threads';
import type { AuthorJob, AuthorResult } from './author.ts';
import { compilePolicy, formatPolicy } from './compile.ts';
import { CedarHost } from './host.ts';

/** The thread of `AuthorLanguage`: what an author's text does to the engine, it does to this one. */
const port = parentPort;
if (!port) throw new Error('this file is the entry of a worker thread');
const host = new CedarHost();

port.on('message', (job: AuthorJob) => {
  const result: AuthorResult =
    job.kind === 'compile' ? compilePolicy(host, job.policyId, job.text, job.schema) : formatPolicy(host, job.text);
  port.postMessage(result);
});
port.postMessage('ready');
