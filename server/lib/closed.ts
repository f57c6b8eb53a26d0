/** A connection, or what is written to one. */
interface Closable {
  readonly destroyed: boolean;
  once(event: 'close', listener: () => void): unknown;
  off(event: 'close', listener: () => void): unknown;
}

/**
 * Calls back once, when it has closed; before this returns where it has closed already, since whoever listens after something
 * was waited for would not hear of that any more. Returns what takes the callback back.
 */
export function whenClosed(stream: Closable, done: () => void): () => void {
  if (stream.destroyed) {
    done();
    return () => undefined;
  }
  stream.once('close', done);
  return () => void stream.off('close', done);
}
