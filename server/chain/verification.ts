import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { shareBusy } from '../lib/pace.ts';
import { patient } from '../lib/patience.ts';
import { hashModule } from './hash-lanes.ts';
import type { KnownHead } from './heads.ts';
import type { NoteKey } from './note.ts';
import type { ChainName } from './record.ts';
import type { VerificationJob, VerificationMessage } from './verification-worker.ts';
import type { ChainPosition } from './verify.ts';

export interface VerifyOptions {
  /** The public keys that may have signed checkpoints, including retired ones. */
  keys: readonly NoteKey[];
  /** Where the checkpoint files are. Every checkpoint there is compared with the chain as well. */
  directory?: string | undefined;
  /** What is known to have been acknowledged. */
  acknowledged?: ((tenantId: string, chain: ChainName) => Promise<readonly KnownHead[]>) | undefined;
  /** Stops the work immediately; the promise then rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: { checked: number; total: number }) => void) | undefined;
  /** Records read per statement. */
  chunk?: number;
  /** A chain with this many records or more is shared between two threads. */
  sharedFrom?: number;
  /** Heap limit of each thread: much more than a verification needs, however long the chain. */
  heapMb?: number;
  /** Whether this process is writing events, which takes precedence. */
  busy?: (() => boolean) | undefined;
}

export interface VerifyResult {
  verified: boolean;
  linear: boolean;
  records_checked: number;
  head: ChainPosition;
  last_checkpoint: { seq: number; hash: string; created_at: string } | null;
  /** The losses that an operator has accepted: what is known about the records in between is no longer expected to hold. */
  accepted_losses: { seq: number; kept_seq: number; lost_seq: number; accepted_at: string; reason: string }[];
  /** The id of the record at which tampering starts, if that record is still there; after a cut tail, that of the last record. */
  first_mismatch_id?: string;
  first_mismatch_seq?: number;
  reason?: string;
}

const HEAP_MB = 64;
const LOCK_MS = 1000;
/** A small one is collected often. What is read is stored outside the heap, and is freed with it. */
const YOUNG_HEAP_MB = 2;
const CHUNK = 50_000;
/** Shorter chains do not justify a second thread. */
const SHARED_FROM = 50_000;
const MOST_THREADS = 2;

/**
 * Recomputes a tenant's whole chain as it was when the call began, and compares it with the stored head, with every signed
 * checkpoint in the database and in the file, with what was acknowledged, with the columns stored next to the texts, and with the
 * inputs that are kept. It works in its own thread, with a connection that can only read the tenant's data, and yields to ingest:
 * see lib/pace.ts.
 *
 * Resolves with what it found, even for a broken chain. Rejects when the database fails, when the signal aborts, and when the
 * thread ends in any way without a verdict. INVARIANT: a verdict counts only if it comes from the end of the chain.
 */
export async function verifyChain(
  sessionUrl: string,
  tenantId: string,
  chain: ChainName,
  options: VerifyOptions,
): Promise<VerifyResult> {
  const {
    keys,
    directory,
    signal,
    onProgress,
    chunk = CHUNK,
    sharedFrom = SHARED_FROM,
    acknowledged,
    busy = () => false,
    heapMb = HEAP_MB,
  } = options;
  signal?.throwIfAborted();
  // INVARIANT: read what is known before the head, so that it cannot name a record newer than the end
  const known = (await acknowledged?.(tenantId, chain)) ?? [];
  signal?.throwIfAborted();
  const shared = shareBusy(busy);
  const worker = new Worker(new URL('./verification-worker.ts', import.meta.url), {
    workerData: {
      sessionUrl,
      tenantId,
      chain,
      keys,
      directory,
      known,
      chunk,
      sharing: { threads: Math.min(MOST_THREADS, availableParallelism()), records: sharedFrom },
      hashes: hashModule(),
      lockMs: patient(LOCK_MS),
      busy: shared.flag,
    } satisfies VerificationJob,
    // without the parent's flags, such as a test runner's loader
    execArgv: [],
    resourceLimits: { maxOldGenerationSizeMb: heapMb, maxYoungGenerationSizeMb: YOUNG_HEAP_MB },
  });
  const done = Promise.withResolvers<VerifyResult>();
  const abort = () => done.reject(signal?.reason);
  signal?.addEventListener('abort', abort, { once: true });
  worker.on('message', (message: VerificationMessage) => {
    if ('result' in message) done.resolve(message.result);
    else onProgress?.(message);
  });
  worker.on('error', done.reject);
  worker.on('messageerror', done.reject);
  worker.on('exit', (code) => done.reject(new Error(`the thread of a verification ended with ${code}`)));
  try {
    return await done.promise;
  } finally {
    signal?.removeEventListener('abort', abort);
    shared.stop();
    await worker.terminate();
  }
}
