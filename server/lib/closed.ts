/** A connection, or a response written to one. */
interface Closable {
  readonly destroyed: boolean;
  once(event: 'close', listener: () => void): unknown;
  off(event: 'close', listener: () => void): unknown;
}

/**
 * Calls back once, when the stream has closed; immediately if it is closed already, because a listener added after some waiting
 * would miss that event. Returns a function that cancels the callback.
 */
export function whenClosed(stream: Closable, done: () => void): () => void {
  if (stream.destroyed) {
    done();
    return () => undefined;
  }
  stream.once('close', done);
  return () => void stream.off('close', done);
}
