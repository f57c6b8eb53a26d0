import { once } from 'node:events';
import type { Socket } from 'node:net';
import type pg from 'pg';

/** The connection that `pg` passes to a custom statement. */
interface Wire {
  readonly stream: Socket;
  query(sql: string): void;
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
  sendCopyFail(reason: string): void;
}

/**
 * Runs a COPY FROM STDIN statement with these bytes, with backpressure. Resolves to the number of rows. If the source
 * fails, it rejects with the source's error, and the statement has failed too.
 */
export function copyIn(client: pg.Client, sql: string, source: AsyncIterable<Buffer>): Promise<number> {
  return new Promise((resolve, reject) => {
    const stopped = new AbortController();
    let rows = 0;
    let failed: { error: unknown } | undefined;
    const send = async (wire: Wire) => {
      try {
        for await (const chunk of source) {
          if (stopped.signal.aborted) return;
          wire.sendCopyFromChunk(chunk);
          if (wire.stream.writableNeedDrain) await once(wire.stream, 'drain', { signal: stopped.signal });
        }
        wire.endCopyFrom();
      } catch (error) {
        // the server refused the data; its error is the one to report
        if (stopped.signal.aborted) return;
        failed = { error };
        wire.sendCopyFail('the source failed');
      }
    };
    const ignore = () => undefined;
    client.query({
      submit: (wire: unknown) => (wire as Wire).query(sql),
      handleCopyInResponse: (wire: unknown) => void send(wire as Wire),
      handleCommandComplete: ({ text }: { text: string }) => {
        rows = Number(/^COPY (\d+)$/.exec(text)?.[1] ?? 0);
      },
      handleError: (error: Error) => {
        stopped.abort();
        reject(failed ? failed.error : error);
      },
      handleReadyForQuery: () => resolve(rows),
      handleRowDescription: ignore,
      handleDataRow: ignore,
      handleEmptyQuery: ignore,
      handlePortalSuspended: ignore,
    } as pg.Submittable);
  });
}
