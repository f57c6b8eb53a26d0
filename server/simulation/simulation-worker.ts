import os from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import pg from 'pg';
import { COLUMN_TYPES } from '../../db/client.ts';
import type { Rests } from '../chain/copy.ts';
import type { BundleContent } from '../domain/policy.ts';
import type { Surroundings } from '../policy/authoring/author.ts';
import { bundleContent, contentHash } from '../policy/bundle.ts';
import { cedarLanguageVersion } from '../policy/language/host.ts';
import { storedStatements } from '../policy/language/statements.ts';
import type { Outcome } from '../policy/simulation/outcome.ts';
import { Simulator } from '../policy/simulation/simulator.ts';
import { beginReading, type Range, readDecisions } from './past-decisions.ts';

/** What one thread is to find out. */
export interface SimulationJob extends Range, Surroundings {
  databaseUrl: string;
  policyId: string;
  /** The draft, in place of the live version of its policy. */
  text: string;
  /** Its first number is not 0 while this process writes decisions: those go first. */
  busy: Int32Array;
}

export type SimulationMessage =
  | { decisions: number; seq: number }
  | { outcome: Outcome; decisions: number; peakBytes: number };

/** Of the thread, not of the process: on Linux each thread has its own. */
const NICE = 10;
/** How long it works before it checks whether others need the processor, in milliseconds. */
const SLICE_MS = 2;

const port = parentPort;
if (!port) throw new Error('this file is the entry of a worker thread');
const job = workerData as SimulationJob;
try {
  os.setPriority(NICE);
} catch {
  // where it may not be changed, the rests alone make room
}
let worked = 0;
/** While decisions are written, it rests for three times as long as it works; see Pace in chain/verification.ts. */
const rests: Rests = {
  after(ms) {
    worked += ms;
    if (worked < SLICE_MS) return undefined;
    const rest = Atomics.load(job.busy, 0) === 0 ? undefined : 3 * worked;
    worked = 0;
    return rest;
  },
};
port.postMessage(await simulate());

async function simulate(): Promise<SimulationMessage> {
  const { liveTexts, policyId, text } = job;
  const others = liveTexts.filter((one) => one.policyId !== policyId);
  const before = contentOf(liveTexts);
  const simulator = new Simulator(before, contentOf([...others, { policyId, version: 0, text }]), contentHash(before));
  // as requests do: row-level security is the second wall here too
  const client = new pg.Client({
    connectionString: job.databaseUrl,
    types: COLUMN_TYPES,
    options: '-c role=svc_app',
    application_name: 'svc simulation',
  });
  await client.connect();
  try {
    await client.query(beginReading(job.tenantId));
    let decisions = 0;
    await readDecisions(client, job, {
      tests: simulator.tests,
      onPast: (past) => simulator.add(past),
      onLeftOut: (decision, count) => simulator.leaveOut(decision, count),
      onProgress: (count, seq) => {
        decisions += count;
        port!.postMessage({ decisions, seq } satisfies SimulationMessage);
      },
      rests,
    });
    const { heapTotal, external } = process.memoryUsage();
    return { outcome: simulator.outcome(), decisions, peakBytes: heapTotal + external };
  } finally {
    await client.end();
  }
}

function contentOf(texts: Surroundings['liveTexts']): BundleContent {
  return bundleContent({
    tenant: job.tenantId,
    scopes: null,
    policies: texts.map(({ policyId, version, text }) => ({
      policy_id: policyId,
      version,
      statements: storedStatements(policyId, text),
    })),
    schema: job.schema,
    action_entities: job.actionEntities,
    cedar_lang: cedarLanguageVersion(),
    registry: job.registry,
    lists: job.lists,
  });
}
