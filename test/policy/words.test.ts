import { expect, test } from 'vitest';
import type { Fix } from '../../server/domain/policy.ts';
import { compilePolicy } from '../../server/policy/language/compile.ts';
import { CedarHost } from '../../server/policy/language/host.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';

const host = new CedarHost();
const schema = schemaFor({ write: ['ship'] });
const compile = (text: string) => compilePolicy(host, 'p', text, schema, ['known']);

function apply(text: string, { line, column, length, text: insert }: Fix): string {
  const lines = text.split('\n');
  const row = lines[line - 1]!;
  lines[line - 1] = row.slice(0, column - 1) + insert + row.slice(column - 1 + length);
  return lines.join('\n');
}

const ANY = 'permit(principal, action, resource)';

test.each([
  ['permit(principal, action resource);', 'a comma is missing before `resource`'],
  [ANY, 'the text ends in the middle of a statement: each ends with `;`'],
  [`${ANY} when { context.method == "GET" };`, '`context.method` may be absent'],
  [
    `${ANY}\nwhen { context.num.getTag("amount").greaterThan(decimal("5.0")) };`,
    '"amount" may be absent, or of another type: ask first, with `context.num.hasTag("amount") && …`',
  ],
  [`${ANY} when { context.session.str.getTag("a") == "" };`, 'no @fact'],
  [`${ANY} when { context has amount && context.amount.lessThan(50) };`, 'and this is a whole number'],
  ['permit(principal in AgentRole::support, action, resource);', 'names stand in quotes'],
  ['permit(principal == "bot", action, resource);', 'write `Agent::"bot"`'],
  ['permit(principal in "clerk", action, resource);', 'write `AgentRole::"clerk"`'],
  ['permit(principal, action == Action::"shp", resource);', 'did you mean `Action::"ship"`?'],
  ['deny(principal, action, resource);', 'begins with `permit` or `forbid`'],
  ['@escrw("single") permit(principal, action, resource);', 'did you mean @escrow?'],
  [`${ANY} when { context has method && context.method = "GET" };`, 'write `==`'],
  [`${ANY} when { context has method && context.method == 'GET' };`, 'double quotes'],
  [`${ANY} when { context has method and context.method == "GET" };`, 'Cedar writes `&&` for `and`'],
  [`${ANY} if { true };`, 'conditions begin with `when` or `unless`'],
  [`${ANY} when { context.facts.hasTag("iban in knwon") };`, 'did you mean "known"?'],
  ['permit(principal, action, resource == Tool::"x"\nwhen { true };', 'a `)` is missing before `when`'],
  ['permit(principal, action, resource;', 'a `)` is missing before `;`'],
  [`${ANY} when { (context has method && context.method == "GET" };`, 'a `)` is missing before `}`'],
  [`${ANY} when { context has method;`, 'a `}` is missing before `;`'],
  [`${ANY}\n${ANY};`, 'a `;` is missing before `permit`'],
  [`${ANY}) when { true };`, 'there is nothing that this `)` closes'],
  [`${ANY} when { true }; }`, 'there is nothing that this `}` closes'],
  [`${ANY} when { context.now.toTime) >= duration("8h") };`, 'there is nothing that this `)` closes'],
  [`${ANY} when { true) };`, 'there is nothing that this `)` closes'],
  [`${ANY} when { context has method && ["GET", "HEAD").contains(context.method) };`, 'nothing that this `)` closes'],
  // a character of two units before it
  [`// 😀\n${ANY} when { "😀" != "" && context has method and true };`, 'Cedar writes `&&`'],
])('%s', (text, words) => {
  const { errors } = compile(text);
  expect(errors.map(({ message }) => message).join('\n')).toContain(words);
  const fix = errors.find(({ message }) => message.includes(words))!.fix;
  if (words === 'no @fact') return expect(fix).toBeUndefined();
  expect(fix!.title).toMatch(/^(?:Insert|Replace with) \S|^Remove it$/);
  expect(compile(apply(text, fix!)).errors).toEqual([]);
});

test.each([
  [`${ANY} when context has method;`, 'braces are missing: write `when { … }`'],
  [`${ANY} when { context has method context has amount };`, 'something is missing before `context`, such as `&&`'],
  [`${ANY} when { context has method && ["GET", "HEAD".contains(context.method) };`, 'a `]` is missing before `}`'],
  [`${ANY} when { context has method && };`, 'a value is missing before `}`'],
])('says what is missing where it cannot know what was meant: %s', (text, words) => {
  const { errors } = compile(text);
  expect(errors).toMatchObject([{ message: words }]);
  expect(errors[0]!.fix).toBeUndefined();
});

test('offers no mending that would be another rule', () => {
  // the engine suggests the nearest attribute there is, however far it is
  const [found] = compile(`${ANY} when { context.arguments.amount == 5 };`).errors;
  expect(found!.message).toMatch(/^arguments are read by their type/);
  expect(found!.fix).toBeUndefined();
  for (const { fix } of compile(`${ANY} when { context.zzz == 5 };`).errors) expect(fix).toBeUndefined();
});

const whenContext = (attribute: string, clause: string) => `${ANY} when { context has ${attribute} && (${clause}) };`;

test.each<[attribute: string, clause: string, meant: string | undefined]>([
  ['host', 'context.host == "Evil.Example"', 'evil.example'],
  ['host', 'context.host == "b\u00fccher.example"', 'xn--bcher-kva.example'],
  ['host', 'context.host == "evil.example."', 'evil.example'],
  ['host', '"evil.example:443" == context.host', 'evil.example'],
  ['host', 'context.host != "https://evil.example"', 'evil.example'],
  ['host', '["good.example", "2001:DB8::1"].contains(context.host)', '[2001:db8::1]'],
  ['host', 'context.host like "*.Evil.Example"', '*.evil.example'],
  ['host', 'context.host like "*.example:*"', undefined],
  ['method', 'context["method"] == "post"', 'POST'],
  ['method', '["post", "GET"].contains(context.method)', 'POST'],
  ['method', 'context.method like "p*"', 'P*'],
  ['currency', 'context.currency == "eur"', 'EUR'],
  ['currency', 'context.currency == "EURO"', undefined],
  ['path', 'context.path == "/a/../b"', '/b'],
  ['path', 'context.path == "/admin?x=1"', '/admin'],
  ['path', 'context.path like "/%61dmin/*"', undefined],
  ['path', 'context.path == "/%61dmin"', '/admin'],
  ['path', 'context.path == "admin"', undefined],
  ['path', 'context.path like "admin*"', undefined],
])('a literal that no %s is like is an error: %s', (attribute, clause, meant) => {
  const text = whenContext(attribute, clause);
  const [error, ...others] = compile(text).errors;
  expect(others).toEqual([]);
  expect(error!.message).toMatch(/, and never "/);
  if (meant === undefined) return expect(error!.fix).toBeUndefined();
  expect(error!.message).toContain(`did you mean "${meant}"?`);
  const mended = apply(text, error!.fix!);
  expect(mended).toContain(`"${meant}"`);
  expect(compile(mended).errors).toEqual([]);
});

test.each([
  ['host', 'context.host == "evil.example" && ["[2001:db8::1]", "10.0.0.1", ""].contains(context.host)'],
  ['host', 'context.host like "*.evil.example" || context.host like "*" || context.host like "10.*"'],
  ['method', 'context.method == "M-SEARCH" || context.method like "P*T"'],
  ['currency', 'context.currency == "EUR"'],
  ['path', 'context.path == "/srv/\u00dcbersicht 1.pdf" || context.path like "/%C3%BC/*" || context.path == "/"'],
  ['path', 'context.path like "*.pdf" || context.path == "memo:insights" || context.path like "memo:*"'],
])('a literal that a %s can be is none: %s', (attribute, clause) => {
  expect(compile(whenContext(attribute, clause)).errors).toEqual([]);
});

test('the same text is always refused in the same words', () => {
  const schema = schemaFor();
  for (const text of [
    'permit(principal == User::"alice", action, resource);',
    'permit(principal in Group::"x", action, resource == Resource::"y");',
    'permit(principal == Foo::"alice", action, resource);',
    `${ANY} when { principal.department == "x" && context.hots == "y" };`,
  ]) {
    const said = Array.from({ length: 6 }, () => JSON.stringify(compilePolicy(new CedarHost(), 'p', text, schema)));
    expect(new Set(said).size, text).toBe(1);
  }
  expect(compile('permit(principal == User::"alice", action, resource);').errors[0]!.message).toContain('`Agent`');
});
