import { execFileSync } from 'node:child_process';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { getCommand, postCommand } from '../../web/lib/curl.ts';

/** The words that a shell makes of a command, with `curl` replaced by a program that prints them. */
function words(command: string): string[] {
  const script = `curl() { printf '%s\\0' "$@"; }\nKEY=secret\n${command}`;
  return execFileSync('sh', ['-c', script], { encoding: 'utf8' }).split('\0').slice(0, -1);
}

/** The address is sent as it is: curl neither expands brackets in it nor takes `..` out of it. */
const OPTIONS = ['-sS', '--globoff', '--path-as-is'];

const text = fc.string({ unit: 'binary', maxLength: 40 }).filter((text) => text.isWellFormed() && !text.includes('\0'));

test('a command to send a request again is that request, whatever an agent wrote into its body', () => {
  const hostile = [`'; rm -rf ~; '`, '$(id)', '`id`', '\\', '"', '\n', '-o/etc/passwd', '@/etc/passwd'];
  fc.assert(
    fc.property(fc.oneof(text, fc.constantFrom(...hostile)), (body) => {
      const given = words(postCommand('https://example.com/hook', { 'webhook-id': 'evt_1' }, body));
      expect(given).toEqual([...OPTIONS, 'https://example.com/hook', '-H', 'webhook-id: evt_1', '--data-raw', body]);
    }),
    { numRuns: 60, examples: hostile.map((body) => [body]) },
  );
});

test('a command to read something names it and nothing else', () => {
  fc.assert(
    fc.property(text, (id) => {
      const given = words(getCommand('https://example.com', ['events', id]));
      expect(given.slice(0, -1)).toEqual([...OPTIONS, '-H', 'Authorization: Bearer secret']);
      expect(given.at(-1)).toBe(`https://example.com/v1/events/${encodeURIComponent(id)}`);
    }),
    { numRuns: 60 },
  );
});
