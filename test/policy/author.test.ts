import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { AuthorBusy, AuthorLanguage } from '../../server/policy/authoring/author.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';

const ALL = 'permit(principal, action, resource);';
const languages: AuthorLanguage[] = [];

function language(options?: ConstructorParameters<typeof AuthorLanguage>[0]): AuthorLanguage {
  const one = new AuthorLanguage(options);
  languages.push(one);
  return one;
}

/** A thread that does with the texts "hang", "wait", "stall", "crash" and "exit" what they say, and answers the others. */
function rogue(): { entry: URL; remove(): void } {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-author-'));
  const file = path.join(dir, 'rogue.mjs');
  writeFileSync(
    file,
    `import { parentPort } from 'node:worker_threads';
     parentPort.on('message', ({ text }) => {
       if (text === 'hang') for (;;);
       if (text === 'wait') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 900);
       if (text === 'stall') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
       if (text === 'crash') throw new Error('crash');
       if (text === 'exit') process.exit(7);
       parentPort.postMessage({ errors: [], warnings: [], statements: [], scopes: [text], roles: [], any_role: false });
     });
     parentPort.postMessage('ready');`,
  );
  return { entry: pathToFileURL(file), remove: () => rmSync(dir, { recursive: true }) };
}

afterEach(async () => {
  await Promise.all(languages.splice(0).map((one) => one.close()));
});

describe('the language for authors', () => {
  it('compiles and formats in its thread, in call order', async () => {
    const author = language();
    const [good, bad, formatted] = await Promise.all([
      author.compile('ten', 'pol', ALL, schemaFor()),
      author.compile('ten', 'pol', `@escroww("x") ${ALL}`, schemaFor()),
      author.format('ten', 'permit( principal,action ,resource) ;'),
    ]);
    expect(good.statements.map(({ id }) => id)).toEqual(['pol#0']);
    expect(bad.errors).toEqual([expect.objectContaining({ line: 1, column: 1 })]);
    expect(formatted.formatted).toContain('permit (principal, action, resource);');
  });

  it('refuses hostile texts without losing its thread', async () => {
    const author = language();
    for (const text of [`${'('.repeat(60_000)}`, '\uD83D', 'x'.repeat(3_000_000), '']) {
      expect((await author.compile('ten', 'pol', text, schemaFor())).errors).toHaveLength(1);
    }
    expect((await author.compile('ten', 'pol', ALL, schemaFor())).errors).toEqual([]);
  });

  it('answers a text that hangs or kills the thread with a diagnostic, and continues with the next', async () => {
    const { entry, remove } = rogue();
    const author = language({ entry, limitMs: 300 });
    const answers = await Promise.all(
      ['a', 'hang', 'b', 'crash', 'c', 'exit', 'd'].map((text) => author.compile('ten', 'pol', text, '')),
    );
    remove();
    expect(answers.map(({ scopes, errors }) => scopes[0] ?? errors[0]?.message)).toEqual([
      'a',
      'the policy took longer than 0.3 s to check',
      'b',
      'the policy engine failed on this text',
      'c',
      'the policy engine failed on this text',
      'd',
    ]);
  });

  it('lets tenants take turns, and limits the queued texts per tenant and in total', async () => {
    const { entry, remove } = rogue();
    const author = language({ entry });
    const order: string[] = [];
    const ask = (tenant: string, text: string) =>
      author.compile(tenant, 'pol', text, '').then(
        () => order.push(text),
        (error) => {
          expect(error).toBeInstanceOf(AuthorBusy);
          return 'busy' as const;
        },
      );
    await ask('a', 'first');
    // the next is worked on at once, and waits for nothing
    const greedy = Array.from({ length: 25 }, (_, n) => ask('a', `a${n}`));
    const others = [ask('b', 'b0'), ask('b', 'b1'), ask('c', 'c0')];
    const answers = await Promise.all([...greedy, ...others]);
    expect(answers.filter((answer) => answer === 'busy')).toHaveLength(4);
    expect(order.filter((text) => text.startsWith('a'))).toEqual(greedy.slice(0, 21).map((_, n) => `a${n}`));
    // one of them at a time, so that a second thread is there for the others
    for (const [text, before] of [
      ['b0', 'a2'],
      ['c0', 'a3'],
      ['b1', 'a4'],
    ] as const) {
      expect(order.indexOf(text)).toBeLessThan(order.indexOf(before));
    }
    const crowd = await Promise.all(Array.from({ length: 250 }, (_, n) => ask(`t${n}`, `t${n}`)));
    // one for each thread, and what may wait
    expect(crowd.filter((answer) => answer === 'busy').length).toBeGreaterThanOrEqual(48);
    remove();
  });

  it('answers a text of one tenant while another hangs, and a check while tests run', async () => {
    const { entry, remove } = rogue();
    const author = language({ entry, limitMs: 60_000 });
    const job = { ...{ policyId: 'pol', schema: '', liveTexts: [], actionEntities: {}, lists: [] }, tests: '' };
    const hanging = [
      author.compile('a', 'pol', 'hang', ''),
      author.test('b', { ...job, text: 'hang', registry: { agents: [], servers: [] } }),
    ];
    const ended = Promise.allSettled(hanging);
    for (const tenant of ['b', 'c']) {
      expect((await author.compile(tenant, 'pol', 'x', '')).scopes).toEqual(['x']);
    }
    await author.close();
    expect((await ended).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    remove();
  });

  it('reports a text that never got a processor as busy, not as faulty', async () => {
    const { entry, remove } = rogue();
    const author = language({ entry });
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    try {
      // its thread has started, which takes as long as it takes
      await author.compile('ten', 'pol', 'first', '');
      let ended = false;
      const answer = author.compile('ten', 'pol', 'stall', '').finally(() => (ended = true));
      const refused = expect(answer).rejects.toBeInstanceOf(AuthorBusy);
      while (!ended) {
        await vi.advanceTimersByTimeAsync(1_000);
        await new Promise(setImmediate);
      }
      await refused;
      expect((await author.compile('ten', 'pol', 'next', '')).scopes).toEqual(['next']);
    } finally {
      vi.useRealTimers();
    }
    remove();
  });

  it('does not time out a text that is waiting for a processor', async () => {
    const { entry, remove } = rogue();
    const answer = await language({ entry, limitMs: 200 }).compile('ten', 'pol', 'wait', '');
    remove();
    expect(answer).toMatchObject({ errors: [], scopes: ['wait'] });
  });

  it('rejects rather than hangs if its thread cannot start', async () => {
    const author = language({ entry: new URL('./no-such-file.mjs', import.meta.url) });
    await expect(author.compile('ten', 'pol', ALL, schemaFor())).rejects.toThrow();
    await expect(author.format('ten', ALL)).rejects.toThrow();
  });

  it('rejects waiting texts when it is closed, and all later ones', async () => {
    const author = language();
    const waiting = author.compile('ten', 'pol', ALL, schemaFor());
    const rejected = expect(waiting).rejects.toThrow(/closed/);
    await author.close();
    await rejected;
    await expect(author.format('ten', ALL)).rejects.toThrow(/closed/);
  });
});
