import { describe, expect, test } from 'vitest';
import { command, duration, helpOf, listOf, readCall, suggestion, UsageError } from '../../server/cli/command.ts';
import { COMMANDS } from '../../server/cli/main.ts';
import { svc, svcHere } from './svc.ts';

// no database is there: what these calls do must not need one
const env = { SVC_DATA_DIR: '/nonexistent/svc' };

describe('help', () => {
  test.each(COMMANDS.map((cmd) => [cmd.name, cmd] as const))('of %s names every flag and argument', (_, cmd) => {
    const help = helpOf(cmd);
    expect(help).toContain(cmd.summary);
    for (const [name, flag] of Object.entries(cmd.flags)) {
      expect(help).toContain(`--${name}${flag.value ? ` ${flag.value}` : ''}`);
      expect(help).toContain(flag.help);
    }
    for (const arg of cmd.args ?? []) expect(help).toContain(arg.help);
  });

  test('of the program names every command, and every command answers --help', async () => {
    const { stdout } = await svc(0, env, '--help');
    for (const { name, summary } of COMMANDS) {
      expect(stdout).toContain(name);
      expect(stdout).toContain(summary);
    }
    const helps = [
      await svcHere(0, env, 'tenant', 'create', '--help'),
      await svcHere(0, env, 'help', 'tenant', 'create'),
      await svcHere(0, env, 'tenant', 'create', '--name', 'x', '--help'),
    ];
    for (const help of helps) expect(help.stdout).toContain('--admin-email EMAIL');
    expect((await svcHere(0, env, 'tenant', '--help')).stdout).not.toContain('doctor  ');
  });
});

describe('a call that is wrong', () => {
  test('exits with 2, says what is wrong on standard error and prints nothing else', async () => {
    const cases: [string[], RegExp][] = [
      [[], /a command is required/],
      [['tenant'], /a command is required[\s\S]*tenant create/],
      [['tenant', 'craete'], /did you mean tenant create\?/],
      [['docter'], /did you mean doctor\?/],
      [['tenant', 'create', '--nmae', 'x'], /--nmae is not a flag of this command; did you mean --name\?/],
      [['tenant', 'create'], /missing: --name NAME, --admin-email EMAIL/],
      [['tenant', 'create', '--name', 'x', '--admin-email', 'nobody'], /"nobody" is not an email address/],
      [
        ['tenant', 'create', '--name', 'x', '--admin-email', 'a@b.example', '--id', 'demo-x'],
        /must not begin with "demo-"/,
      ],
      [
        ['stop', 'agent', 'bot-7', '--tenant', 'default', '--reason', 'r', '--mode', 'freeze', '--abort'],
        /--abort is for the mode deny/,
      ],
      [['replay', 'calls.jsonl', '--policies', '.', '--url', 'http://x'], /--url and --api-key must be used together/],
    ];
    for (const [words, fault] of cases) {
      const { stdout, stderr } = await svcHere(2, env, ...words);
      expect(stderr).toMatch(fault);
      expect(stdout).toBe('');
    }
    expect((await svc(2, env, 'tenant', 'craete')).stderr).toContain('did you mean tenant create?');
  });

  const cmd = command({
    name: 'test',
    summary: '',
    args: [{ name: 'FILE', help: '' }],
    flags: { name: { value: 'N', required: true, help: '' }, json: { help: '' } },
    run: async () => 0,
  });
  test.each<[string[], RegExp]>([
    [['f'], /missing: --name N/],
    [['--name', 'a'], /missing: FILE/],
    [['--name', 'a', 'f', 'g'], /"g" is an unexpected argument/],
    [['--name', 'a', '--name', 'b', 'f'], /--name was given twice/],
    [['--name'], /argument missing/],
    [['--name', 'a', 'f', '--json=yes'], /does not take an argument/],
    [['--name', 'a', 'f', '-x'], /-x is not a flag/],
    [['--name', 'a', 'f', '--constructor'], /--constructor is not a flag/],
  ])('%j', (words, fault) => {
    expect(() => readCall(cmd, words)).toThrow(fault);
    expect(() => readCall(cmd, words)).toThrow(UsageError);
  });

  test('flags may stand anywhere, and what follows -- is an argument', () => {
    expect(readCall(cmd, ['f', '--name=a', '--json'])).toMatchObject({ args: ['f'], flags: { name: 'a', json: true } });
    expect(readCall(cmd, ['--name', 'a', '--', '--json'])).toMatchObject({ args: ['--json'], flags: { json: false } });
  });
});

describe('values', () => {
  test('durations', () => {
    expect(duration('90d', '--expires')).toBe(90 * 86_400_000);
    expect(duration('45s', '--expires')).toBe(45_000);
    for (const wrong of ['', '0d', '90', '-1d', '1.5h', '1w', '1d2h']) {
      expect(() => duration(wrong, '--expires')).toThrow(UsageError);
    }
  });

  test('lists contain only allowed values, each once', () => {
    expect(listOf('a, b,a', '--x', ['a', 'b'])).toEqual(['a', 'b']);
    for (const wrong of ['', 'a,', 'A', 'a b']) expect(() => listOf(wrong, '--x', ['a', 'b'])).toThrow(UsageError);
  });

  test('only a similar value is suggested', () => {
    expect(suggestion('approval_requird', ['approval_required', 'poll_seconds'])).toContain('approval_required');
    expect(suggestion('banana', ['approval_required', 'poll_seconds'])).toBe('');
  });
});
