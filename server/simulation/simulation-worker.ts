import { once } from 'node:events';
import { parentPort, workerData } from 'node:worker_threads';
import { COLUMN_TYPES } from '../../db/client.ts';
import { PrimaryClient } from '../../db/primary.ts';
import type { BundleContent } from '../domain/policy.ts';
import { lowerPriority, restsOf } from '../lib/pace.ts';
import type { Surroundings } from '../policy/authoring/author.ts';
import { bundleContent, contentHash } from '../policy/bundle.ts';
import { cedarLanguageVersion } from '../policy/language/host.ts';
import { storedStatements } from '../policy/language/statements.ts';
import type { Part } from '../policy/simulation/parts.ts';
import { Simulator } from '../policy/simulation/simulator.ts';
import { beginReading, type Range, readDecisions } from './past-decisions.ts';

/** The task of one thread. The thread first reports whether it counts, then receives its share in a message. */
export interface SimulationJob extends Omit<Range, 'share'>, Surroundings {
  sessionUrl: string;
  policyId: string;
  /** The draft that replaces the live version of its policy. */
  text: string;
  /** Set while this process writes decisions, which have priority: see shareBusy. */
  busy: Int32Array;
}

export type SimulationMessage =
  | { decisions: number; records: number }
  /** If decisions are counted in chronological order, this thread needs all of them. */
  | { counts: boolean }
  | { part: Part; peakBytes: number };

const port = parentPort;
if (!port) throw new Error('this file is the entry of a worker thread');
const job = workerData as SimulationJob;
lowerPriority();
port.postMessage(await simulate());

async function simulate(): Promise<SimulationMessage> {
  const { liveTexts, policyId, text } = job;
  const others = liveTexts.filter((one) => one.policyId !== policyId);
  const before = contentOf(liveTexts);
  const simulator = new Simulator(before, contentOf([...others, { policyId, version: 0, text }]), contentHash(before));
  port!.postMessage({ counts: simulator.counts } satisfies SimulationMessage);
  const [share] = (await once(port!, 'message')) as [Range['share']];
  // as requests do: row-level security is the second line of defense here too
  const client = new PrimaryClient({
    connectionString: job.sessionUrl,
    types: COLUMN_TYPES,
    application_name: 'svc simulation',
  });
  await client.connect();
  try {
    await client.query(beginReading(job.tenantId));
    await readDecisions(
      client,
      { ...job, share },
      {
        tests: simulator.tests,
        onPast: (past) => simulator.add(past),
        onLeftOut: (decision, count) => simulator.leaveOut(decision, count),
        onProgress: (decisions, records) => port!.postMessage({ decisions, records } satisfies SimulationMessage),
        rests: restsOf(job.busy, share.of),
      },
    );
    const { heapTotal, external } = process.memoryUsage();
    return { part: simulator.part(), peakBytes: heapTotal + external };
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
