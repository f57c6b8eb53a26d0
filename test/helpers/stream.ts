import { expect } from 'vitest';
import type { Credential, TestServer } from './server.ts';

/** Reads a stream until it contains what is expected. Fails if the stream is silent for too long. */
export async function listen(server: Pick<TestServer, 'url'>, who: Credential) {
  const gone = new AbortController();
  const response = await fetch(`${server.url}/v1/stream`, {
    headers: { ...(who.key && { authorization: `Bearer ${who.key}` }), ...(who.cookie && { cookie: who.cookie }) },
    signal: AbortSignal.any([gone.signal, AbortSignal.timeout(60_000)]),
  });
  expect(response.status).toBe(200);
  expect(response.headers.get('content-type')).toBe('text/event-stream');
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  return {
    async until(part: string): Promise<void> {
      while (!text.includes(part)) {
        const { done, value } = await reader.read();
        if (done) throw new Error(`the stream ended without ${part}: ${text}`);
        text += value;
      }
    },
    async end(): Promise<void> {
      for (;;) if ((await reader.read()).done) return;
    },
    seen: () => text,
    leave: () => gone.abort(),
  };
}
