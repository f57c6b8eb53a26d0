/**
 * The server-sent events of one response (HTML Living Standard, section 9.2), until it ends or the signal aborts. Unlike an
 * EventSource it does not reconnect, and an error response throws the server's problem.
 */
export async function* eventsOf(url: string, signal: AbortSignal): AsyncGenerator<{ event: string; data: unknown }> {
  const response = await fetch(url, { headers: { accept: 'text/event-stream' }, signal });
  if (!response.ok || !response.body) throw { data: { problem: await response.json() } };
  let rest = '';
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + text).split('\n\n');
    rest = blocks.pop()!;
    for (const block of blocks) {
      const { event, data } = Object.fromEntries(
        block.split('\n').map((line) => {
          const at = line.indexOf(': ');
          return [line.slice(0, at), line.slice(at + 2)];
        }),
      );
      if (event && data) yield { event, data: JSON.parse(data) };
    }
  }
}
