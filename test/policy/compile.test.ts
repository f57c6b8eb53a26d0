import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { compilePolicy, formatPolicy } from '../../server/policy/language/compile.ts';
import { CedarHost } from '../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';
import { runs } from '../siege/rounds.ts';
import { compile, host } from './support.ts';

const ALL = 'permit(principal, action, resource);';

describe('compiling a policy', () => {
  it('keeps the source order beyond ten statements, where the engine sorts policy10 before policy2', () => {
    const source = Array.from(
      { length: 23 },
      (_, n) => `// ${n}\npermit(principal == Agent::"a${n}", action, resource);`,
    );
    const { statements } = compile(source.join('\n'));
    expect(statements.map(({ id }) => id)).toEqual(source.map((_, n) => `pol#${n}`));
    expect(statements.map(({ cedar }) => /a(\d+)/.exec(cedar)?.[1])).toEqual(source.map((_, n) => `${n}`));
    expect(statements.map(({ line }) => line)).toEqual(source.map((_, n) => 2 * n + 2));
  });

  it('names rules by @id or by position, and the two never meet', () => {
    const { statements } = compile(`${ALL}\n@id("named") ${ALL}\n${ALL}`, 'pol_1');
    expect(statements.map(({ id }) => id)).toEqual(['pol_1#0', 'pol_1#named', 'pol_1#2']);
    expect(compile(`${ALL} @id("0") ${ALL}`).errors).toHaveLength(1);
  });

  it('keeps integers beyond 2^53, which the JSON form would round', () => {
    const source = 'permit(principal, action, resource) when { context.session.call_count == 9007199254740993 };';
    expect(compile(source).statements[0]?.cedar).toBe(source);
  });

  it('keeps the text of a statement as written, including its comments', () => {
    const source = '// before\n@id("a") // annotated\npermit(principal, action, // any\n resource); // after\n';
    expect(compile(source).statements[0]).toMatchObject({
      cedar: '@id("a") // annotated\npermit(principal, action, // any\n resource);',
      line: 2,
      column: 1,
    });
  });

  it('accepts a byte order mark and CRLF', () => {
    const { errors, statements } = compile(`\uFEFF@id("a")\r\n${ALL}\r\n@escroww("x") ${ALL}`);
    expect(statements).toEqual([]);
    expect(errors).toEqual([expect.objectContaining({ line: 3, column: 1 })]);
  });

  it('finds errors behind emoji by UTF-16 column, though the engine counts bytes', () => {
    const { errors } = compile('permit(principal, action, resource) when { "😀ü€" == context.nope };');
    expect(errors).toEqual([expect.objectContaining({ line: 1, column: 54 })]);
  });

  it('reports annotation and type errors together, sorted and without duplicates', () => {
    const source = `${ALL}\n@ttl("1h") permit(principal, action, resource) when { context.bogus };\n@nope("") @mask("x") ${ALL}`;
    const { errors } = compile(source);
    expect(errors.map(({ line, column }) => [line, column])).toEqual([
      [2, 1],
      [2, 55],
      [3, 1],
      [3, 11],
    ]);
  });

  it('gives the same result for the same text every time', () => {
    const source = 'permit(principal, action, resource) when { context.a && context.b && context.amount > 1 };';
    const first = compile(source);
    for (let n = 0; n < 20; n++) expect(compile(source)).toEqual(first);
    expect(first.errors.length).toBeGreaterThan(0);
    expect(JSON.stringify(first.errors)).not.toMatch(/Action::|policy0/);
  });

  it('reports at most a hundred faults, and how many more there are', () => {
    const { errors } = compile(`@nope("") ${ALL}\n`.repeat(150));
    expect(errors).toHaveLength(101);
    expect(errors.at(-1)?.message).toBe('and 50 more');
  });

  it.each([
    ['in a text', 'permit(principal, action, resource) when { context.session.id == "\u202Ex" };', 1, 67, '202e'],
    ['in a comment', '// a\n// \u2066b\npermit(principal, action, resource);', 2, 4, '2066'],
    ['in an id', 'forbid(principal, action, resource == Tool::"pa\u200By");', 1, 48, '200b'],
    ['that ends a line for some', '// a\u2028permit(principal, action, resource);', 1, 5, '2028'],
  ])('refuses a character that a reviewer does not see %s', (_, text, line, column, hex) => {
    const { errors } = compile(text);
    expect(errors).toEqual([{ line, column, message: expect.stringContaining(`\\u{${hex}}`) }]);
  });

  it('accepts an escaped one, and shows it escaped in its summary', () => {
    const { errors, statements } = compile(
      '@reason("\\u{202e}x") forbid(principal, action, resource == Tool::"pa\\u{200b}y");',
    );
    expect(errors).toEqual([]);
    expect(statements[0]!.summary.text).toBe(
      'Denies any agent: any action with the tool "pa⟦U+200B⟧y". Reason: ⟦U+202E⟧x',
    );
  });

  it('gives a warning without a location the position of its statement', () => {
    const { warnings } = compile(`${ALL}\n\n  permit(principal in AgentRole::"\u0430dmin", action, resource);`);
    expect(warnings).toEqual([{ line: 3, column: 3, message: 'identifier `\u0430dmin` contains mixed scripts' }]);
  });

  it('collects scopes and roles', () => {
    const found = compile(`
      @scope("b,a") permit(principal in AgentRole::"r1", action, resource);
      @scope("c") permit(principal == Agent::"x", action, resource) when { principal in AgentRole::"r2" };
      permit(principal is Agent in AgentRole::"r\\u{33}", action, resource);`);
    expect(found).toMatchObject({ scopes: ['a', 'b', 'c'], roles: ['r1', 'r2', 'r3'], any_role: false });
    expect(compile('permit(principal is Agent, action, resource);').any_role).toBe(true);
    expect(compile(ALL)).toMatchObject({ roles: [], any_role: true });
  });

  it('describes in words what a statement does', () => {
    const { statements } = compile(`
      @escrow("multi_party") @quorum("finance:1,security:1") @ttl("90m") @execute_within("15m") @reason("big")
      permit(principal in AgentRole::"payer", action in [Action::"payment", Action::"read"], resource in ToolServer::"bank")
      when { context has amount // all of it
        && context.amount.greaterThan(decimal("10.0")) } unless { context has path };
      @reason("never") forbid(principal == Agent::"x", action == Action::"payment", resource == Tool::"wire");
      @rate("5/h") @mask("$.iban") forbid(principal, action, resource) when { context has host };`);
    expect(statements.map(({ summary }) => summary.text)).toEqual([
      'Permits agents in the role "payer": payment or any read action with the tools of the server "bank", ' +
        'when the stated value is more than 10, unless the path is known. ' +
        'Then: held for 2 approvals (1 of finance, 1 of security) by different people; ' +
        'the hold expires after 90 minutes; once released it must be used within 15 minutes. Reason: big',
      'Denies the agent "x": payment with the tool "wire". Reason: never',
      'Where another rule permits it, restricts any agent: any action with any tool, when the host is known. ' +
        'Then: at most 5 per hour for each agent; $.iban masked.',
    ]);
    expect(statements.map(({ summary }) => summary.kind)).toEqual(['permit', 'forbid', 'guardrail']);
  });

  it.each([
    ['@escrow("single")', 'held for 1 approval'],
    ['@escrow("multi_party") @approvals("3")', 'held for 3 approvals by different people'],
    ['@escrow("conditional") @condition("kyc")', 'held until kyc is reported as met'],
    [
      '@escrow("conditional") @condition("kyc,legal") @approvals("1")',
      'held until kyc, legal are reported as met, and for 1 approval',
    ],
    ['@escrow("time_delayed") @delay("15m")', 'held for 15 minutes, then released unless it is rejected'],
    [
      '@escrow("time_delayed") @delay("1h") @approvals("2")',
      'held for 1 hour, then released unless it is rejected, or released earlier by 2 approvals',
    ],
  ])('says what %s holds an action for', (annotations, words) => {
    const { statements } = compile(`${annotations} permit(principal, action, resource);`);
    expect(statements[0]!.summary.obligations).toEqual([words, 'the hold expires after 1 day']);
  });

  it('returns an error if the engine throws, and keeps working', () => {
    const repaired = new CedarHost();
    const broken = {
      call: () => repaired.call('checkParsePolicySet', { staticPolicies: '\uD800' }),
    } as unknown as CedarHost;
    expect(compilePolicy(broken, 'p', ALL, schemaFor()).errors).toEqual([
      { line: 1, column: 1, message: 'the policy engine failed on this text' },
    ]);
    expect(compilePolicy(repaired, 'p', ALL, schemaFor()).errors).toEqual([]);
  });

  it('does not throw, loop or exhaust the engine, whatever the text', () => {
    const before = host.replaced;
    const word = fc.constantFrom(
      ...'permit forbid ( ) { } [ ] , ; @ "a" "\\" // \n principal action resource context == in is has like when unless'.split(
        ' ',
      ),
      ...'if then else true 1 && || ! . :: ? Action::"payment" AgentRole::"r" @escrow("single") @ttl("1h") 😀 \u0085 \r é'.split(
        ' ',
      ),
      ALL,
      'permit(principal, action, resource) when { context.session.call_count > 1 };',
    );
    fc.assert(
      fc.property(fc.array(word, { maxLength: 40 }), (words) => {
        const { errors, statements } = compile(words.join(' '));
        expect(errors.length > 0).toBe(statements.length === 0);
        for (const { line, column } of errors) expect(line > 0 && column > 0).toBe(true);
      }),
      { numRuns: runs(5_000, 300) },
    );
    expect(host.replaced).toBe(before);
  });
});

describe('formatting a policy', () => {
  it('keeps comments and annotations, and is idempotent', () => {
    const once = formatPolicy(host, '\uFEFF// why\n@id("a")  permit( principal,action,\nresource) ;// end').formatted;
    expect(once).toContain('// why');
    expect(once).toContain('// end');
    expect(formatPolicy(host, once as string).formatted).toBe(once);
  });

  it('of a text that does not parse reports the position', () => {
    expect(formatPolicy(host, 'permit(principal,action,resource)').errors).toEqual([
      expect.objectContaining({ line: 1, column: 34 }),
    ]);
    expect(formatPolicy(host, '(((')).toMatchObject({ errors: [{ line: 1 }] });
  });
});

describe('the schema', () => {
  it("has a tenant's own action types, whatever their order", () => {
    const own = { read: ['crm_lookup'], write: ['robot.move', 'deploy'] };
    const schema = schemaFor(own);
    expect(schema).toBe(schemaFor({ write: ['deploy', 'robot.move'], read: ['crm_lookup', 'file_read'] }));
    const source = 'permit(principal, action == Action::"robot.move", resource);';
    expect(compilePolicy(host, 'p', source, schema).errors).toEqual([]);
    expect(compile(source).errors).toHaveLength(1);
    expect(actionEntities(own)).toMatchObject({
      read: [],
      write: [],
      deploy: ['write'],
      crm_lookup: ['read'],
      payment: ['write'],
    });
  });

  it.each([['a"b'], ['read'], ['write'], [''], ['a b'], ['__proto__']])('refuses the action type %j', (action) => {
    expect(() => schemaFor({ write: [action] })).toThrow(RangeError);
  });

  it('refuses an action type in both groups', () => {
    expect(() => schemaFor({ read: ['payment'] })).toThrow(RangeError);
    expect(() => actionEntities({ read: ['x'], write: ['x'] })).toThrow(RangeError);
  });
});
